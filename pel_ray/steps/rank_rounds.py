"""The rounds of a ranker's training: find candidates once, train an epoch, validate, until the best model is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pel_ray.blend import BLEND_FILE, Blend, store_blend
from pel_ray.encoder import save_whole
from pel_ray.rank_data import RankSource
from pel_ray.rank_job import RankJob
from pel_ray.ranker import RANKER_FILE, RankerSettings, load_ranker
from pel_ray.steps.epoch import TrainingLoop
from pel_ray.steps.rank_plan import RankPlan, RankTrainSettings
from pel_ray.steps.rank_scoring import kb_tokens
from pel_ray.steps.rank_search import find_candidates, training_examples
from pel_ray.steps.rank_validate import rank_validate


class RankRounds(TrainingLoop):
    """What is a ranker's own: its candidates, its accuracy over them, and the retriever's score beside its own."""

    _plan: RankPlan
    _settings: RankTrainSettings

    def run(self) -> None:
        splits = self._settings.split, self._settings.validation.validation_split
        self._trained, self._watched = (
            find_candidates(self._settings, split, self._state, self._carrier) for split in splits
        )
        self._source = self._prepare()
        self._rounds(len(self._source.examples().rows_M))

    def _prepare(self) -> RankSource:
        """The untrained ranker as a folder, the KB's word pieces, and the arrays that workers map."""
        plan, model = self._plan, self._model(0)
        if not (model / RANKER_FILE).is_file():
            save_whole(load_ranker(self._settings.model), model)
        # The retriever may have left the same word pieces beside its vectors.
        beside = [self._work.folder, plan.retrieval.vectors.folder.parent]
        tokens = kb_tokens(plan.data.kb, plan.parts, self._work.folder / "tokens", beside, self._carrier, self._ask)
        source = RankSource(folder=self._state, tag=self._work.tag, token_files=tokens)
        if not source.is_ready:
            source.prepare(plan.data.mentions, training_examples(self._settings, self._trained), plan.parts.texts)
        return source

    def _job(self, epoch: int) -> RankJob:
        model = RankerSettings(encoder=self._model(0).uri)
        return RankJob(source=self._source, model=model, objective=self._settings.objective, **self._basics())

    def _validation(self, epoch: int) -> tuple[dict[str, float], str]:
        found = rank_validate(
            self._watched.with_gold(self._settings.validation.validation_mentions),
            self._plan.data.mentions,
            RankerSettings(encoder=self._model(epoch).uri),
            self._source.token_files,
            self._state / f"validation-{epoch:03d}",
            self._carrier,
            blend=self._settings.blend,
        )
        self._num_watched = int(found.pop("rows"))
        return found, f"{self._num_watched:,} mentions"

    def _keep(self, best: int) -> None:
        super()._keep(best)
        if self._settings.blend:
            store_blend(self._work.folder / "model", self._blend(self._found[best]))
            self._work.count(f"model/{BLEND_FILE}")

    def _blend(self, found: Mapping[str, float]) -> Blend:
        retriever = self._plan.request.inputs["retriever"]
        return Blend(
            weight=found["weight"],
            blended=found["blended"],
            accuracy=found["accuracy"],
            mentions=self._num_watched,
            split=self._settings.validation.validation_split,
            retriever=retriever.path,
            retriever_digest=retriever.digest,
            similarity=self._plan.retrieval.parts.settings.similarity,
        )

    def _data_counts(self) -> dict[str, Any]:
        trained = self._trained
        num_nil, num_golden = int(trained.is_nil_Q.sum()), int((trained.golds.lengths > 0).sum())
        return {
            "mentions left out: NIL": num_nil,
            "mentions left out: gold not in the KB": len(trained) - num_golden - num_nil,
            f"gold not among the candidates: {self._settings.candidates.missing_gold}": trained.num_missing,
            "candidates": trained.entities_QK.shape[1],
        }
