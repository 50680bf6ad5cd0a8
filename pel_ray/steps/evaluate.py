"""evaluate: how well a retriever finds the golds of a split, beside baselines, and how well its scores tell NIL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from pel_ray.arrays import read_array
from pel_ray.artifacts import Input, Request, Work, building, finished, read_manifest
from pel_ray.baselines import dictionary_hits, tfidf_hits
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.golds import GoldMentions, gold_mentions, rows_at
from pel_ray.index import Index
from pel_ray.metrics import RECALL_AT, GoldPolicy
from pel_ray.nil import NilThreshold, read_threshold, store_threshold
from pel_ray.provenance import check_same_kb, mention_model
from pel_ray.runtime import Ask, Resources, Workers
from pel_ray.search import Device, Hits, PoolFilter
from pel_ray.spec import Settings
from pel_ray.steps.evaluation_folder import Found, write_evaluation
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.searching import Pool, Search, pool_filter
from pel_ray.steps.sharded import at_work
from pel_ray.storage import Location, locate
from pel_ray.tables import DataSet
from pel_ray.vectors import VectorFolder

MAX_TFIDF_ENTITIES = 200_000
"""Above this, TF-IDF takes longer than the retriever; asked for by name, it runs all the same."""
BASELINES = {"dictionary": dictionary_hits, "tf-idf": tfidf_hits}


class EvaluateSettings(Settings):
    """What is measured, and how golds are counted."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    vectors: Path
    """The KB's vectors, as encode-kb makes them; or a training run, which has those of its model."""
    out: Path
    """Folder (or URI) for the evaluation."""
    index: Path | None = None
    """Search through this index; by default exactly."""
    encoder: str | None = None
    """The model that encodes the mentions; by default the one that made the vectors."""
    split: str = "test"
    """The split whose mentions are linked."""
    train_split: str = "train"
    """Whose golds count as seen."""
    pool: Pool = "auto"
    """Entities a mention competes with: all, or those of its world; auto: its world where the KB has worlds."""
    golds: GoldPolicy = "any"
    """Of a mention with several golds: any one is enough, or all must be found."""
    baselines: Annotated[list[Literal["auto", "none", "dictionary", "tf-idf"]], Field(min_length=1)] = ["auto"]
    """What to compare with: dictionary, tf-idf; auto: both, without tf-idf for a KB of more than 200,000."""
    tune_nil: bool = False
    """Choose the NIL threshold on this split (the one with the highest F1) and store it in the model."""
    nil: bool | None = None
    """Judge NIL by the threshold in the model, or stop if it has none; by default it is used where there is one."""
    resamples: int = Field(default=1000, ge=10)
    """Resamples of documents that the 95% intervals come from."""
    device: Device = "auto"
    """Where the search runs."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace a finished evaluation of other inputs or settings."""


def evaluate(settings: EvaluateSettings, within: Workers | None = None) -> Outcome:
    """Evaluates what is not evaluated yet and finishes the folder."""
    return carry_out(EvaluatePlan(settings), _systems, within)


def carry_out(plan: EvaluatePlan, find: Find, within: Workers | None) -> Outcome:
    """An evaluation of what `find` finds, unless it is done."""
    settings, out = plan.settings, locate(plan.settings.out)
    done = finished(out, plan.request, overwrite=settings.overwrite)
    if done is None:
        mentions = plan.mentions()
        pools = plan.pools(mentions)
        with at_work(settings.resources, within) as (carrier, ask), building(out, plan.request, resumable=True) as work:
            site = Site(work, carrier, ask, Search(work, carrier, ask, settings.device))
            write_evaluation(plan, mentions, pools, find(plan, mentions, pools, site), work)
            work.counts["seconds"] = site.search.seconds
    manifest = read_manifest(out)
    if settings.tune_nil:
        store_threshold(plan.judge, NilThreshold(**manifest.counts["chosen threshold"]))
    return Outcome(out, manifest, is_new=done is None)


def read_evaluation(outcome: Outcome) -> dict[str, Any]:
    """What an evaluation found: evaluation-….json of its folder."""
    (name,) = (name for name in outcome.manifest.files if name.startswith("evaluation-"))
    content: dict[str, Any] = json.loads((outcome.folder / name).read_bytes())
    return content


class EvaluatePlan:
    """What is to be measured, checked before anything starts."""

    command = "evaluate"

    def __init__(self, settings: EvaluateSettings) -> None:
        self.settings = settings
        self.data = DataSet.open(locate(settings.data))
        self.vectors = VectorFolder.open(locate(settings.vectors))
        check_same_kb(self.vectors, self.data.kb)
        if self.vectors.manifest.counts.get("entities", self.data.kb.num_rows) < self.data.kb.num_rows:
            raise ArtifactError(
                f"{self.vectors.folder} holds only {self.vectors.manifest.counts['entities']:,} of "
                f"{self.data.kb.num_rows:,} entities. Encode the whole KB to evaluate"
            )
        self.parts = mention_model(self.vectors, settings.encoder, None)
        self.index = self._index() if settings.index else None
        self.judge = self._judge()
        self.threshold = None if settings.tune_nil or settings.nil is False else read_threshold(self.judge)
        if settings.nil and self.threshold is None:
            self._check_keeps_thresholds()
            raise ArtifactError(
                f"{self.judge} has no NIL threshold. Choose one first: pel-ray {self.command} {settings.data} "
                f"--vectors {settings.vectors} --split validation --tune-nil --out ..."
            )
        self.baselines = self._baselines()
        self.request = self._request()

    def _judge(self) -> Location:
        """The folder of the model whose scores tell NIL."""
        if self.settings.tune_nil:
            self._check_keeps_thresholds()
        return self.parts.folder

    def _check_keeps_thresholds(self) -> None:
        if not self.parts.is_saved:
            raise SettingsError(
                f"{self.parts.folder} was not saved by pel-ray and keeps no NIL threshold. Train a model, or encode "
                "the KB with one (`train --epochs 0` saves an untrained one)"
            )

    def _index(self) -> Index:
        index = Index.open(locate(self.settings.index or ""))
        made_from = index.manifest.request.inputs["vectors"]
        if made_from.digest != self.vectors.as_input.digest:
            raise ArtifactError(
                f"{index.folder} was built from other vectors ({made_from.path}) than {self.vectors.folder}. "
                "Build it again with pel-ray index, or bring it up to date with --update"
            )
        return index

    def _baselines(self) -> list[str]:
        asked = self.settings.baselines
        if "none" in asked:
            return []
        if "auto" not in asked:
            return [name for name in BASELINES if name in asked]
        is_small = self.data.kb.num_rows <= MAX_TFIDF_ENTITIES
        return ["dictionary", "tf-idf"] if is_small else ["dictionary"]

    def _request(self) -> Request:
        inputs = {
            "kb": self.data.kb.as_input,
            "mentions": self.data.mentions.as_input,
            "vectors": self.vectors.as_input,
            "model": Input(path=self.parts.folder.address, digest=self.parts.digest("mention")),
        }
        if self.index:
            inputs["index"] = Input(path=str(self.index.folder), digest=self.index.manifest.request.fingerprint)
        names = {"split", "train_split", "pool", "golds", "tune_nil", "resamples"}
        return Request(
            kind="evaluation",
            inputs=inputs,
            settings=self.settings.model_dump(mode="json", include=names)
            | {"baselines": self.baselines, "threshold": self.threshold.threshold if self.threshold else None},
        )

    def mentions(self) -> GoldMentions:
        """All of the split, NIL ones too."""
        found = gold_mentions(self.data.mentions, self.data.kb, self.settings.split)
        if not len(found):
            splits = ", ".join(self.data.mentions.manifest.counts["splits"])
            raise ArtifactError(
                f"{self.data.mentions.folder} has no mention of split {self.settings.split!r}. Its splits are {splits}"
            )
        if self.settings.tune_nil and found.num_nil in (0, len(found)):
            raise ArtifactError(
                f"{self.data.mentions.folder}: {found.num_nil:,} of {len(found):,} mentions of split "
                f"{self.settings.split!r} are NIL. A threshold needs both; `pel-ray okb` makes a data set with NILs"
            )
        return found

    def pools(self, mentions: GoldMentions) -> PoolFilter | None:
        pools = pool_filter(self.settings.pool, self.data.kb, mentions)
        if pools is not None and self.index is not None:
            raise SettingsError("an index is searched as a whole, not by world. Use --pool all, or leave --index out")
        return pools

    @property
    def num_hits(self) -> int:
        return min(max(RECALL_AT), self.data.kb.num_rows)


@dataclass(frozen=True)
class Site:
    """Where an evaluation is made."""

    work: Work
    carrier: Workers
    ask: Ask
    search: Search


Find = Callable[[Any, GoldMentions, PoolFilter | None, Site], Found]
"""What the systems of a plan find for its mentions within their pools."""


def _systems(plan: EvaluatePlan, mentions: GoldMentions, pools: PoolFilter | None, site: Site) -> Found:
    return Found({"retriever": retrieved(plan, mentions, pools, site.search)} | baseline_hits(plan, mentions, pools))


def baseline_hits(plan: EvaluatePlan, mentions: GoldMentions, pools: PoolFilter | None) -> dict[str, Hits]:
    if not plan.baselines:
        return {}
    texts = rows_at(plan.data.mentions, mentions.rows, ["mention"])
    names = [texts[row]["mention"] for row in mentions.rows]
    return {name: BASELINES[name](plan.data.kb, names, plan.num_hits, pools) for name in plan.baselines}


def retrieved(plan: EvaluatePlan, mentions: GoldMentions, pools: PoolFilter | None, search: Search) -> Hits:
    """What the retriever finds for the mentions."""
    queries = search.encode(plan.data.mentions, np.array(mentions.rows), plan.parts)
    if plan.index is not None:
        plan.index.check_model(plan.parts.digest("entity"), plan.parts.settings.similarity)
        return plan.index.search(np.concatenate([read_array(file) for file in queries]), plan.num_hits)
    found = [hits for _, _, hits in search.run(plan.vectors, queries, plan.num_hits, pools)]
    return Hits(np.concatenate([part.scores_QK for part in found]), np.concatenate([part.rows_QK for part in found]))
