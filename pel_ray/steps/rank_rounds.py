"""The rounds of a ranker's training: find candidates once, train an epoch, validate, until the best model is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pel_ray import console
from pel_ray.artifacts import Work
from pel_ray.blend import BLEND_FILE, Blend, store_blend
from pel_ray.encoder import save_whole
from pel_ray.metrics_file import NO_SHARE, MetricsFile
from pel_ray.plots import write_events
from pel_ray.rank_candidates import Candidates
from pel_ray.rank_data import RankSource
from pel_ray.rank_job import RankJob
from pel_ray.ranker import RANKER_FILE, RankerSettings, load_ranker
from pel_ray.runtime import Ask, Workers
from pel_ray.steps.epoch import draw_curves, job_basics, keep_model, note_validation, num_steps, say_epoch, train_epoch
from pel_ray.steps.rank_plan import RankPlan
from pel_ray.steps.rank_scoring import kb_tokens
from pel_ray.steps.rank_search import find_candidates, training_examples
from pel_ray.steps.rank_validate import rank_validate
from pel_ray.storage import Location


class RankRounds:
    """Candidates, epochs and validations; every part is a folder or file of its own that a rerun finds finished."""

    def __init__(self, plan: RankPlan, work: Work, carrier: Workers, ask: Ask) -> None:
        self._plan, self._work, self._carrier, self._ask = plan, work, carrier, ask
        self._settings = plan.settings
        self._state = work.folder / f"state-{work.tag}"
        self._state.make_folder()
        self._metrics = MetricsFile.of_run(work.folder)
        self._found: dict[int, dict[str, float]] = {}
        self._num_watched = 0
        self._receipts: list[dict[str, Any]] = []

    def run(self) -> None:
        optimiser, every = self._settings.optimiser, self._settings.validation.validate_every
        splits = self._settings.split, self._settings.validation.validation_split
        trained, watched = (find_candidates(self._settings, split, self._state, self._carrier) for split in splits)
        source = self._prepare(trained)
        job = self._job(source)
        num_mentions = len(source.examples().rows_M)
        self._validate(0, watched, source, num_mentions)
        for epoch in range(optimiser.epochs):
            began = time.monotonic()
            receipt = train_epoch(job, epoch, num_mentions, self._carrier, self._ask)
            self._receipts.append(receipt)
            if epoch + 1 == optimiser.epochs or (epoch + 1) % every == 0:
                self._validate(epoch + 1, watched, source, num_mentions)
            say_epoch(self._metrics, epoch, optimiser.epochs, receipt, time.monotonic() - began)
            write_events(self._work.folder, epoch)
        self._finish(trained, source)

    def _prepare(self, candidates: Candidates) -> RankSource:
        """The untrained ranker as a folder, the KB's word pieces, and the arrays that workers map."""
        plan, model = self._plan, self._model(0)
        if not (model / RANKER_FILE).is_file():
            save_whole(load_ranker(self._settings.model), model)
        # The retriever may have left the same word pieces beside its vectors.
        beside = [self._work.folder, plan.retrieval.vectors.folder.parent]
        tokens = kb_tokens(plan.data.kb, plan.parts, self._work.folder / "tokens", beside, self._carrier, self._ask)
        source = RankSource(folder=self._state, tag=self._work.tag, token_files=tokens)
        if not source.is_ready:
            source.prepare(plan.data.mentions, training_examples(self._settings, candidates), plan.parts.texts)
        return source

    def _job(self, source: RankSource) -> RankJob:
        settings = self._settings
        return RankJob(
            source=source,
            model=RankerSettings(encoder=self._model(0).uri),
            objective=settings.objective,
            **job_basics(settings, self._state, self._work.tag, self._ask, self._metrics),
        )

    def _model(self, epoch: int) -> Location:
        return self._state / f"model-{epoch:03d}-{self._work.tag}"

    def _validate(self, epoch: int, watched: Candidates, source: RankSource, num_mentions: int) -> None:
        found = rank_validate(
            watched.with_gold(self._settings.validation.validation_mentions),
            self._plan.data.mentions,
            RankerSettings(encoder=self._model(epoch).uri),
            source.token_files,
            self._state / f"validation-{epoch:03d}",
            self._carrier,
            blend=self._settings.blend,
        )
        self._num_watched = int(found.pop("rows"))
        self._found[epoch] = found
        note_validation(self._metrics, epoch, epoch * num_steps(num_mentions, self._settings.optimiser), found)
        when = f"after epoch {epoch}" if epoch else "before training"
        shown = ", ".join(f"{name} {value:{'.3g' if name == NO_SHARE else '.3f'}}" for name, value in found.items())
        console.say(f"validation {when}: {shown} ({self._num_watched:,} mentions)")

    @property
    def _best(self) -> int:
        """The epoch that validates best, of equal ones the first."""
        metric = "blended" if self._settings.blend else "accuracy"
        return max(self._found, key=lambda epoch: (self._found[epoch][metric], -epoch))

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

    def _finish(self, trained: Candidates, source: RankSource) -> None:
        best, examples = self._best, source.examples()
        keep_model(self._work, self._model(best))
        if self._settings.blend:
            store_blend(self._work.folder / "model", self._blend(self._found[best]))
            self._work.count(f"model/{BLEND_FILE}")
        draw_curves(self._work)
        num_golden = int((trained.golds.lengths > 0).sum())
        self._work.counts |= {
            "rows": len(examples.rows_M),
            "mentions left out: NIL": int(trained.is_nil_Q.sum()),
            "mentions left out: gold not in the KB": len(trained) - num_golden - int(trained.is_nil_Q.sum()),
            f"gold not among the candidates: {self._settings.candidates.missing_gold}": trained.num_missing,
            "candidates": trained.entities_QK.shape[1],
            "best epoch": best,
            "validation before training": self._found[0],
            "validation of the best epoch": self._found[best],
            "steps": sum(receipt["steps"] for receipt in self._receipts),
            "training seconds": round(sum(receipt["seconds"] for receipt in self._receipts), 1),
            "worker peak memory bytes": max(receipt["peak_memory_bytes"] for receipt in self._receipts),
            "workers": str(self._ask),
        }
