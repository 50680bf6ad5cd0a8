"""The rounds of a retriever that learns from a ranker: the ranker scores the candidates once, then as in training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pel_ray import console
from pel_ray.artifacts import MANIFEST, Request, Work, building, read_manifest
from pel_ray.encoder import load_parts
from pel_ray.golds import GoldMentions
from pel_ray.runtime import Ask, Workers
from pel_ray.search import PoolFilter
from pel_ray.steps.distil_plan import DistilPlan
from pel_ray.steps.encode_kb import EncodeSettings
from pel_ray.steps.rank_scoring import kb_tokens, score_candidates
from pel_ray.steps.rank_search import find_candidates, training_examples
from pel_ray.steps.rounds import Rounds
from pel_ray.storage import Location
from pel_ray.taught import KIND, Taught, scored_entities
from pel_ray.training_job import RetrieverJob
from pel_ray.training_source import TrainingSource


def teach(plan: DistilPlan, state: Location, carrier: Workers, ask: Ask) -> Location:
    """The folder with the ranker's scores of the training mentions' candidates, made unless it is there."""
    out = state / "teacher"
    if not (out / MANIFEST).is_file():
        _score(plan, state, out, carrier, ask)
    counts = read_manifest(out, KIND).counts
    console.say(
        f"{counts['rows']:,} training mentions with {counts['candidates']} candidates each: the ranker puts the gold "
        f"first for {counts['gold first: ranker']:.3f} of them, the retriever for {counts['gold first: retriever']:.3f}"
    )
    return out


def _score(plan: DistilPlan, state: Location, out: Location, carrier: Workers, ask: Ask) -> None:
    asked, data = plan.asked, plan.data
    candidates = find_candidates(asked, asked.split, state, carrier)
    examples = training_examples(asked, candidates)
    beside = [plan.ranker.folder.parent, plan.retrieval.vectors.folder.parent]
    tokens = kb_tokens(data.kb, plan.ranker, state / "teacher-tokens", beside, carrier, ask)
    # A part of its run, known by its name: what it was made from is a part of the run's own request.
    request = Request(kind=KIND, inputs={"mentions": data.mentions.as_input}, settings={})
    with building(out, request, resumable=True) as work:
        scores_MK, seconds = score_candidates(
            work,
            carrier,
            ask,
            mentions=data.mentions,
            rows_Q=examples.rows_M,
            candidates_QK=scored_entities(examples),
            model=plan.ranker.settings,
            tokens=tokens,
        )
        taught = Taught.of(examples, scores_MK)
        taught.write(work)
        is_used_Q = np.isin(candidates.rows_Q, examples.rows_M)
        work.counts |= {
            "rows": len(examples.rows_M),
            "candidates": candidates.entities_QK.shape[1],
            "gold first: ranker": round(taught.share_of_golds_first, 4),
            "gold first: retriever": round(float(candidates.is_gold()[is_used_Q, 0].mean()), 4),
            "gold not among the candidates": candidates.num_missing,
            "seconds": {"scoring": seconds},
        }


class DistilRounds(Rounds):
    """Train an epoch on what the ranker has scored, validate; the candidates stay the same."""

    _plan: DistilPlan

    def __init__(
        self, plan: DistilPlan, mentions: GoldMentions, work: Work, carrier: Workers, ask: Ask, teacher: Location
    ) -> None:
        super().__init__(plan, mentions, work, carrier, ask)
        self._teacher = teacher

    def _prepare(self, namesakes: list[np.ndarray], pools: PoolFilter | None) -> TrainingSource:
        return replace(super()._prepare(namesakes, pools), taught=self._teacher)

    def _job(self, epoch: int) -> RetrieverJob:
        return replace(super()._job(epoch), teaching=self._plan.asked.teaching)

    def _encode_settings(self, epoch: int, only: str | None = None) -> EncodeSettings:
        """The vectors that found the candidates serve again where they are what a run makes."""
        settings, found = super()._encode_settings(epoch, only), self._plan.retrieval.vectors
        made = found.manifest.request
        is_same = (made.settings["views"], made.settings["store"]) == (settings.views, settings.store)
        if epoch == 0 and is_same and made.inputs["model"].digest == load_parts(settings.model).digest("entity"):
            return settings.model_copy(update={"reuse": found.folder.uri})
        return settings

    def _finish(self) -> None:
        super()._finish()
        counts = read_manifest(self._teacher, KIND).counts
        self._work.counts |= {
            "candidates": counts["candidates"],
            f"gold not among the candidates: {self._plan.asked.candidates.missing_gold}": counts[
                "gold not among the candidates"
            ],
            "gold first before training": {name: counts[f"gold first: {name}"] for name in ("ranker", "retriever")},
        }
        # Nothing was mined.
        del self._work.counts["hard negatives missing, filled with random ones"]
