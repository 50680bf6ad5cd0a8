"""Which ranker is to be trained: the settings of a run, checked before anything starts."""

from __future__ import annotations

from pydantic import Field

from pel_ray.artifacts import Input, Request, finished
from pel_ray.optimiser import OptimiserSettings
from pel_ray.rank_objective import RankObjectiveSettings
from pel_ray.ranker import RankerSettings, load_ranker_parts
from pel_ray.steps.evaluate import EvaluatePlan
from pel_ray.steps.rank_search import CandidateTrainSettings
from pel_ray.steps.train_plan import check_splits, what_counts
from pel_ray.storage import locate


class RankOptimiserSettings(OptimiserSettings):
    """How the weights follow the gradient."""

    lr: float = Field(default=2e-5, gt=0)
    """Learning rate after the warm-up."""
    epochs: int = Field(default=5, ge=1)
    """Times that every mention is seen."""
    batch_size: int = Field(default=4, ge=1)
    """Mentions of one step of the optimiser, over all workers."""
    micro_batch: int = Field(default=4, ge=1)
    """Mentions that are computed together; the same for any number of workers."""
    warmup: float = Field(default=0.2, ge=0, le=1)
    """Share of the steps in which the learning rate rises; then it falls to 0."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """By default what the encoder says."""


class RankTrainSettings(CandidateTrainSettings):
    """How a ranker is trained; the defaults are the paper's."""

    model: RankerSettings = RankerSettings()
    """Where it starts."""
    objective: RankObjectiveSettings = RankObjectiveSettings()
    """What it makes smaller."""
    optimiser: RankOptimiserSettings = RankOptimiserSettings()
    """How it learns."""
    blend: bool = False
    """Add the retriever's score to the ranker's, with the weight that validates best; default: the ranker's alone."""


class RankPlan:
    """What is to be trained, checked before anything starts."""

    def __init__(self, settings: RankTrainSettings) -> None:
        self.settings = settings
        self.out = locate(settings.out)
        # The retriever and its data are those that an evaluation would check.
        self.retrieval = EvaluatePlan(settings.search(settings.split, settings.out))
        self.data = self.retrieval.data
        check_splits(self.data.mentions, settings.split, settings.validation.validation_split)
        self.parts = load_ranker_parts(settings.model)
        self.request = self._request()
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)

    def _request(self) -> Request:
        inputs = dict(self.retrieval.request.inputs)
        inputs["retriever"] = inputs.pop("model")
        inputs["encoder"] = Input(path=self.parts.folder.address, digest=self.parts.digest)
        return Request(kind="ranker", inputs=inputs, settings=what_counts(self.settings, self.parts.settings))
