"""Which retriever learns from which ranker: the settings of a run, checked before anything starts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pel_ray.artifacts import MANIFEST, Input, Request, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.objective import ObjectiveSettings
from pel_ray.optimiser import OptimiserSettings
from pel_ray.ranker import RankerParts, open_ranker
from pel_ray.steps.evaluate import EvaluatePlan
from pel_ray.steps.importing import Path
from pel_ray.steps.rank_search import CandidateTrainSettings
from pel_ray.steps.train_plan import LoopSettings, TrainPlan, TrainSettings, what_counts
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.teaching import TeachingSettings
from pel_ray.training_data import NegativeSettings


class DistilOptimiserSettings(OptimiserSettings):
    """How the weights follow the gradient."""

    epochs: int = Field(default=1, ge=1)
    """Times that every mention is seen."""
    micro_batch: int = Field(default=16, ge=1)
    """Mentions that are computed together; the same for any number of workers."""


class DistilSettings(CandidateTrainSettings):
    """How a retriever learns from a ranker."""

    vectors: Path
    """The retriever that learns, and that finds the candidates: its training run, or vectors of the KB by it."""
    ranker: Path
    """The ranker that teaches, as rank train has made it: its run, or the model/ in it."""
    teaching: TeachingSettings = TeachingSettings()
    """What it learns."""
    chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Word pieces whose activations are held at once; auto: by the memory of the GPU, 8192 on a CPU."""
    optimiser: DistilOptimiserSettings = DistilOptimiserSettings()
    """How it learns."""


class DistilPlan(TrainPlan):
    """A training of the retriever, with a ranker beside it."""

    fewer = "--num-candidates or --random-negatives"

    def __init__(self, asked: DistilSettings) -> None:
        self.asked = asked
        # The retriever and its data are those that an evaluation would check.
        self.retrieval = EvaluatePlan(asked.search(asked.split, asked.out))
        self.ranker = _teacher(asked.ranker, self.retrieval.data.kb)
        super().__init__(self._training())

    def _training(self) -> TrainSettings:
        asked = self.asked
        num_found = min(asked.candidates.num_candidates, self.retrieval.num_hits)
        same = ("data", "out", "optimiser", "validation", "split", *LoopSettings.model_fields)
        return TrainSettings(
            model=self.retrieval.parts.settings,
            objective=ObjectiveSettings(chunk_tokens=asked.chunk_tokens),
            # Namesakes of the gold are candidates like others: what they are worth, the ranker says.
            negatives=NegativeSettings(
                num_negatives=num_found - 1 + asked.teaching.random_negatives, keep_namesakes=True, pool=asked.pool
            ),
            max_outside=1.0,
            **{name: getattr(asked, name) for name in same},
        )

    def _request(self) -> Request:
        inputs = dict(self.retrieval.request.inputs)
        del inputs["model"]
        return Request(
            kind="run",
            inputs={**inputs, **super()._request().inputs, "ranker": _as_input(self.ranker)},
            settings=what_counts(self.asked, self.parts.settings),
        )


def _as_input(ranker: RankerParts) -> Input:
    return Input(path=ranker.folder.address, digest=ranker.digest)


def _teacher(folder: str, kb: TableFolder) -> RankerParts:
    """The ranker; one whose run was made for another KB is refused."""
    parts = open_ranker(folder)
    run = locate(folder)
    if (run / MANIFEST).is_file():
        trained_on = read_manifest(run, "ranker").request.inputs["kb"]
        if trained_on.digest != kb.manifest.request.fingerprint:
            raise ArtifactError(
                f"{run} was trained on another KB ({trained_on.path}), or on an older state of {kb.folder}. Train a "
                f"ranker on this one, or let it teach all the same by naming {run / 'model'}"
            )
    return parts
