"""mine: the entities that the current model confuses with the golds become hard negatives to train on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from pel_ray.artifacts import Input, Request, Work, building, finished, read_manifest
from pel_ray.chance import position
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.golds import GoldMentions, gold_mentions, rows_at
from pel_ray.miner import Audit, Miner
from pel_ray.mining import SCHEMA, Filter, FilterSettings, Summary
from pel_ray.names import namesakes_of
from pel_ray.provenance import check_same_kb, mention_model
from pel_ray.runtime import Resources, Workers
from pel_ray.search import Device, scores_of
from pel_ray.spec import Settings
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.searching import Pool, Search, pool_filter, pool_sizes
from pel_ray.steps.sharded import at_work
from pel_ray.storage import locate
from pel_ray.tables import DataSet
from pel_ray.text import MENTION_COLUMNS
from pel_ray.vectors import VectorFolder

MAX_REMOVED = 256
"""Hits asked for beyond those kept, for golds and namesakes; a mention with more of them may come out short."""
NUM_EXAMPLES = 10


class MineSettings(Settings):
    """How hard negatives are found."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    vectors: Path
    """The KB's vectors, as encode-kb makes them."""
    out: Path
    """Folder (or URI) for the negatives."""
    encoder: str | None = None
    """The model that encodes the mentions; by default the one that made the vectors."""
    mention_length: int | None = Field(default=None, ge=8)
    """Word pieces of a mention with its context; by default what the model says."""
    split: str = "train"
    """Whose mentions get negatives."""
    max_mentions: int | None = Field(default=None, ge=1)
    """At most so many of them, always the same."""
    num_negatives: int = Field(default=64, ge=1)
    """Hard negatives to keep for each mention."""
    pool: Pool = "auto"
    """Entities a mention competes with: all, or those of its world; auto: its world where the KB has worlds."""
    filter: FilterSettings = FilterSettings()
    """Which hits count."""
    audit: Path | None = None
    """Vectors of the whole KB, to compare with where `vectors` holds only a pool of it, or older ones."""
    device: Device = "auto"
    """Where the search runs."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace finished negatives of other inputs or settings."""


def mine(settings: MineSettings, within: Workers | None = None) -> Outcome:
    """Mines what is not mined yet and finishes the folder."""
    plan = MinePlan(settings)
    out = locate(settings.out)
    done = finished(out, plan.request, overwrite=settings.overwrite)
    if done is not None:
        return Outcome(out, done, is_new=False)
    mentions = plan.mentions()
    with at_work(settings.resources, within) as (carrier, ask), building(out, plan.request, resumable=True) as work:
        search = Search(work, carrier, ask, settings.device)
        _mine(plan, mentions, search, work)
        work.counts["seconds"] = search.seconds
    return Outcome(out, read_manifest(out), is_new=True)


class MinePlan:
    """What is to be done, checked before anything starts."""

    def __init__(self, settings: MineSettings) -> None:
        self.settings = settings
        self.data = DataSet.open(locate(settings.data))
        self.vectors = VectorFolder.open(locate(settings.vectors))
        check_same_kb(self.vectors, self.data.kb)
        self.parts = mention_model(self.vectors, settings.encoder, settings.mention_length)
        self.audit = VectorFolder.open(locate(settings.audit)) if settings.audit else None
        if self.audit:
            check_same_kb(self.audit, self.data.kb)
        if settings.num_negatives >= self.data.kb.num_rows:
            raise SettingsError(
                f"num_negatives is {settings.num_negatives:,}, but the KB has only {self.data.kb.num_rows:,} entities"
            )
        inputs = {
            "kb": self.data.kb.as_input,
            "mentions": self.data.mentions.as_input,
            "vectors": self.vectors.as_input,
            "model": Input(path=self.parts.folder.address, digest=self.parts.digest("mention")),
        }
        if self.audit:
            inputs["audit"] = self.audit.as_input
        counts = "split max_mentions num_negatives pool filter".split()
        self.request = Request(
            kind="negatives",
            inputs=inputs,
            settings=settings.model_dump(mode="json", include=set(counts))
            | {"mention_length": self.parts.settings.text.mention_length},
        )

    def mentions(self) -> GoldMentions:
        """Those of the split that have a gold in the KB."""
        found = gold_mentions(self.data.mentions, self.data.kb, self.settings.split)
        some = found.golden().sampled(self.settings.max_mentions)
        if not len(some):
            splits = ", ".join(self.data.mentions.manifest.counts["splits"])
            raise ArtifactError(
                f"{self.data.mentions.folder} has no mention of split {self.settings.split!r} with a gold in the KB "
                f"({found.num_nil:,} NIL, {found.num_outside:,} with golds outside it). Its splits are {splits}"
            )
        return some


def _mine(plan: MinePlan, mentions: GoldMentions, search: Search, work: Work) -> None:
    settings = plan.settings
    namesakes = _namesakes(plan, mentions)
    num_removed = max(len(golds) + len(names) for golds, names in zip(mentions.golds, namesakes, strict=True))
    num_hits = settings.num_negatives + settings.filter.skip_ranks + min(num_removed, MAX_REMOVED)
    num_hits = min(num_hits, plan.data.kb.num_rows)
    pools = pool_filter(settings.pool, plan.data.kb, mentions)
    miner = Miner(mentions, namesakes, Filter(settings.filter, settings.num_negatives), Summary())
    rows = np.array(mentions.rows, np.int64)
    queries = search.encode(plan.data.mentions, rows, plan.parts)
    audit = Audit(plan.audit, miner, num_hits, pools) if plan.audit else None
    examples: list[dict[str, Any]] = []
    wanted = _example_numbers(mentions)
    with work.writing("negatives-00000", ".parquet") as stream, pq.ParquetWriter(stream, SCHEMA) as writer:
        for first, queries_QD, hits in search.run(plan.vectors, queries, num_hits, pools):
            here = slice(first, first + len(queries_QD))
            gold_scores_Q = scores_of(plan.vectors, queries_QD, mentions.golds[here])
            table = miner.table(first, hits, gold_scores_Q)
            writer.write_table(table)
            examples += [table.slice(number - first, 1).to_pylist()[0] for number in wanted if _within(number, here)]
            if audit:
                audit.add(first, queries_QD, table)
    report: dict[str, Any] = {"examples": list(_readable(plan, examples))}
    if audit:
        report["audit"] = audit.to_json(plan.vectors)
    with work.writing("report", ".json") as stream:
        stream.write(json.dumps(report, indent=2, ensure_ascii=False).encode())
    work.counts |= {
        "rows": len(mentions),
        "mentions left out: NIL": mentions.num_nil,
        "mentions left out: gold not in the KB": mentions.num_outside,
        "pool": pool_sizes(pools, int(plan.vectors.manifest.counts["entities"])),
        "hits looked at": num_hits,
        "mentions with fewer negatives than asked for": miner.filter.num_short,
        "dropped": {
            reason: {"hits": count, "of mentions": miner.filter.mentions_touched[reason]}
            for reason, count in miner.filter.dropped.items()
        },
        "gold beside its negatives": miner.summary.to_json(num_hits),
    }


def _namesakes(plan: MinePlan, mentions: GoldMentions) -> list[np.ndarray]:
    """For each mention the rows that share a name with one of its golds."""
    if plan.settings.filter.keep_namesakes:
        return [np.zeros(0, np.int64)] * len(mentions)
    return namesakes_of(plan.data.kb, mentions.golds)


def _within(number: int, here: slice) -> bool:
    return bool(here.start <= number < here.stop)


def _example_numbers(mentions: GoldMentions) -> list[int]:
    return sorted(sorted(range(len(mentions)), key=lambda number: position(13, mentions.ids[number]))[:NUM_EXAMPLES])


def _readable(plan: MinePlan, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Examples that a person can judge: the mention in its text, the gold, and the three hardest negatives."""
    wanted = {row for example in rows for row in (*example["gold_rows"][:1], *example["entity_rows"][:3])}
    titles = {row: entity["title"] for row, entity in rows_at(plan.data.kb, wanted, ["title"]).items()}
    for example in rows:
        number = example["mention_row"]
        (text,) = plan.data.mentions.rows(number, number + 1, MENTION_COLUMNS).to_pylist()
        yield {
            "mention": f"{text['context_left'][-60:]}[[{text['mention']}]]{text['context_right'][:60]}",
            "gold": titles[example["gold_rows"][0]],
            "gold score": _rounded(example["gold_score"]),
            "gold rank": example["gold_rank"],
            "negatives": [
                {"title": titles[row], "score": _rounded(score)}
                for row, score in zip(example["entity_rows"][:3], example["scores"][:3], strict=True)
            ],
        }


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 4)
