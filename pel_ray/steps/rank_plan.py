"""Which ranker is to be trained: the settings of a run, checked before anything starts."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pel_ray.artifacts import Input, Request, finished
from pel_ray.encoder import Precision
from pel_ray.errors import SettingsError
from pel_ray.optimiser import OptimiserSettings
from pel_ray.rank_candidates import CandidateSettings
from pel_ray.rank_objective import RankObjectiveSettings
from pel_ray.ranker import RankerSettings, load_ranker_parts
from pel_ray.runtime import Resources
from pel_ray.spec import Settings
from pel_ray.steps.evaluate import EvaluatePlan, EvaluateSettings
from pel_ray.steps.importing import Path
from pel_ray.steps.searching import Pool
from pel_ray.steps.train_plan import ValidationSettings, check_splits
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


class RankTrainSettings(Settings):
    """How a ranker is trained; the defaults are the paper's."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    vectors: Path
    """The retriever whose candidates are ranked: its training run, or vectors of the KB by it."""
    out: Path
    """Folder for the run; its model/ is what you want."""
    model: RankerSettings = RankerSettings()
    """Where it starts."""
    objective: RankObjectiveSettings = RankObjectiveSettings()
    """What it makes smaller."""
    candidates: CandidateSettings = CandidateSettings()
    """What it is trained against."""
    optimiser: RankOptimiserSettings = RankOptimiserSettings()
    """How it learns."""
    validation: ValidationSettings = ValidationSettings()
    """How it is watched."""
    retriever: str | None = None
    """Where the retriever's model is, if it has moved since the vectors were made."""
    index: Path | None = None
    """Search for candidates through this index; by default exactly."""
    pool: Pool = "auto"
    """Where candidates come from: all of the KB, or the mention's world; auto: its world where the KB has worlds."""
    split: str = "train"
    """Whose mentions it learns from."""
    precision: Precision = "auto"
    """Of the computation; auto: bf16 or fp16 where the hardware has it, else fp32."""
    checkpoint_steps: int = Field(default=500, ge=1)
    """Steps from one checkpoint to the next; each epoch ends with one too."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept."""
    log_steps: int = Field(default=10, ge=1)
    """Steps that a line of metrics.jsonl is the mean of."""
    seed: int = Field(default=13, ge=0)
    """Decides the order of mentions and the dropout."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace a run of other data or settings."""


class RankPlan:
    """What is to be trained, checked before anything starts."""

    def __init__(self, settings: RankTrainSettings) -> None:
        self.settings = settings
        self.out = locate(settings.out)
        if not self.out.is_local:
            raise SettingsError(f"{settings.out}: a run appends to its files. Expected a local or mounted folder")
        # The retriever and its data are those that an evaluation would check.
        self.retrieval = EvaluatePlan(self.search_settings(settings.split, settings.out))
        self.data = self.retrieval.data
        check_splits(self.data.mentions, settings.split, settings.validation.validation_split)
        self.parts = load_ranker_parts(settings.model)
        self.request = self._request()
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)

    def search_settings(self, split: str, out: str) -> EvaluateSettings:
        """How the candidates of a split are found: as an evaluation of the retriever."""
        settings = self.settings
        return EvaluateSettings(
            data=settings.data,
            vectors=settings.vectors,
            out=out,
            index=settings.index,
            encoder=settings.retriever,
            split=split,
            pool=settings.pool,
            baselines=["none"],
            nil=False,
            resamples=10,
            resources=settings.resources,
        )

    def _request(self) -> Request:
        names = "data out vectors retriever index overwrite resources checkpoint_steps keep_checkpoints log_steps model"
        # The chunk changes no result but the dropout, and lowering it is what helps when memory runs out.
        free: dict[str, Any] = dict.fromkeys(names.split(), True) | {"objective": {"chunk_tokens"}}
        inputs = dict(self.retrieval.request.inputs)
        inputs["retriever"] = inputs.pop("model")
        inputs["encoder"] = Input(path=str(self.parts.folder), digest=self.parts.digest)
        return Request(
            kind="ranker",
            inputs=inputs,
            settings=self.settings.model_dump(mode="json", exclude=free)
            | {"model": self.parts.settings.model_dump(mode="json", exclude={"encoder"})},
        )
