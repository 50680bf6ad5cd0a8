"""What is to be trained: the settings of a run, checked before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, model_validator

from pel_ray.artifacts import Input, Request, finished
from pel_ray.encoder import ModelSettings, Precision, is_saved_model, load_parts
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.golds import GoldMentions, gold_mentions
from pel_ray.names import namesakes_of
from pel_ray.objective import ObjectiveSettings
from pel_ray.optimiser import OptimiserSettings
from pel_ray.runtime import Resources
from pel_ray.search import PoolFilter
from pel_ray.spec import Settings
from pel_ray.steps.importing import Path
from pel_ray.storage import locate
from pel_ray.tables import DataSet, TableFolder
from pel_ray.training_data import NegativeSettings


class ValidationSettings(Settings):
    """How training is watched."""

    validation_split: str = "validation"
    """Whose mentions choose the best epoch."""
    validation_mentions: int | None = Field(default=None, ge=1)
    """At most so many of them, always the same."""
    validate_every: int = Field(default=1, ge=1)
    """Epochs from one validation to the next; the last epoch always has one."""


class LoopSettings(Settings):
    """How any training runs, whatever it trains; as the first of two bases it comes last in specs and --help."""

    precision: Precision = "auto"
    """Floating-point type of the computation; auto: bf16 or fp16 where the hardware has it, else fp32."""
    checkpoint_steps: int = Field(default=500, ge=1)
    """Steps from one checkpoint to the next; each epoch ends with one too."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept."""
    log_steps: int = Field(default=10, ge=1)
    """Steps that a line of metrics.jsonl is the mean of."""
    seed: int = Field(default=13, ge=0)
    """Decides the order of mentions, the negatives and the dropout."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace a run of other data or settings."""


FREE = frozenset(
    "data out vectors retriever index ranker model chunk_tokens overwrite resources "
    "checkpoint_steps keep_checkpoints log_steps".split()
)
"""Settings that do not say what is made: where it goes, how often it is noted, and inputs, which count by content."""


def what_counts(settings: Settings, model: Settings) -> dict[str, Any]:
    """Of a training's settings, with what the model it starts with was told."""
    # The chunk changes no result but the dropout, and lowering it is what helps when memory runs out.
    free: dict[str, Any] = dict.fromkeys(FREE, True) | {"objective": {"chunk_tokens"}}
    made_of = model.model_dump(mode="json", exclude={"encoder"})
    return settings.model_dump(mode="json", exclude=free) | {"model": made_of}


class RetrieverSettings(Settings):
    """What a retriever learns, and from what."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    out: Path
    """Folder for the run; its model/ is what you want."""
    model: ModelSettings = ModelSettings()
    """Where it starts."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """What it makes smaller."""
    negatives: NegativeSettings = NegativeSettings()
    """What it is trained against."""
    optimiser: OptimiserSettings = OptimiserSettings()
    """How it learns."""
    validation: ValidationSettings = ValidationSettings()
    """How it is watched."""
    vectors: Path | None = None
    """Vectors of the KB by the pel-ray model folder it starts with: the first round then need not encode it."""
    split: str = "train"
    """Whose mentions it learns from."""
    max_mentions: int | None = Field(default=None, ge=1)
    """At most so many of them, always the same."""
    max_outside: float = Field(default=0.5, ge=0, le=1)
    """Share of mentions whose golds the KB may lack; they are left out, and more of them refused."""


class TrainSettings(LoopSettings, RetrieverSettings):
    """How a retriever is trained; the defaults are the paper's."""

    @model_validator(mode="before")
    @classmethod
    def _dot_for_ce(cls, given: Any) -> Any:
        """The paper scores with the dot product when it trains with CE; who says otherwise gets that."""
        if isinstance(given, dict) and _at(given, "objective", "loss", "kind") == "ce":
            model = given.get("model", {})
            is_saved = isinstance(model, dict) and is_saved_model(model.get("encoder", ""))
            if isinstance(model, dict) and "similarity" not in model and not is_saved:
                return given | {"model": model | {"similarity": "dot"}}
        return given


def _at(given: Any, *path: str) -> Any:
    for name in path:
        given = given.get(name) if isinstance(given, dict) else getattr(given, name, None)
    return given


def check_splits(mentions: TableFolder, *wanted: str) -> None:
    splits = mentions.manifest.counts["splits"]
    for split in wanted:
        if split not in splits:
            raise ArtifactError(
                f"{mentions.folder} has no split {split!r}, only {', '.join(splits)}. "
                "Name others with --split and --validation-split"
            )


class TrainPlan:
    """What is to be trained, checked before anything starts."""

    fewer = "--num-negatives"
    """What asks for fewer negatives."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        self.data = DataSet.open(locate(settings.data))
        self.out = locate(settings.out)
        self.parts = load_parts(settings.model)
        check_splits(self.data.mentions, settings.split, settings.validation.validation_split)
        self.request = self._request()
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)

    def _request(self) -> Request:
        return Request(
            kind="run",
            inputs={
                "kb": self.data.kb.as_input,
                "mentions": self.data.mentions.as_input,
                "mention model": Input(path=self.parts.folder.address, digest=self.parts.digest("mention")),
                "entity model": Input(path=self.parts.folder.address, digest=self.parts.digest("entity")),
            },
            settings=what_counts(self.settings, self.parts.settings),
        )

    def mentions(self) -> GoldMentions:
        """Those of the split that have a gold in the KB."""
        found = gold_mentions(self.data.mentions, self.data.kb, self.settings.split)
        num_golden = len(found) - found.num_nil
        if num_golden and found.num_outside / num_golden > self.settings.max_outside:
            raise ArtifactError(
                f"{self.data.mentions.folder}: the KB lacks the golds of {found.num_outside:,} of {num_golden:,} "
                f"training mentions ({found.num_outside / num_golden:.0%}). Is it the right KB? Else raise "
                "--max-outside"
            )
        some = found.golden().sampled(self.settings.max_mentions)
        if not len(some):
            raise ArtifactError(f"{self.data.mentions.folder} has no training mention with a gold in the KB")
        return some

    def namesakes(self, mentions: GoldMentions) -> list[np.ndarray]:
        """For each mention the entities that share a name with a gold, which are no negatives of it."""
        if self.settings.negatives.keep_namesakes:
            return [np.zeros(0, np.int64)] * len(mentions)
        return namesakes_of(self.data.kb, mentions.golds)

    def check_enough(self, mentions: GoldMentions, namesakes: list[np.ndarray], pools: PoolFilter | None) -> None:
        """Refuses now what would stop in the middle of an epoch: a mention with too few entities to draw from."""
        wanted, num_entities = self.settings.negatives.num_negatives, self.data.kb.num_rows
        sizes = None if pools is None else np.bincount(pools.of_entity)
        for number, golds in enumerate(mentions.golds):
            excluded = np.union1d(golds, namesakes[number])
            if pools is not None and sizes is not None:
                pool = pools.of_query[number]
                num_left = sizes[pool] - (pools.of_entity[excluded] == pool).sum()
            else:
                num_left = num_entities - len(excluded)
            if num_left < wanted:
                raise SettingsError(
                    f"mention {mentions.ids[number]} has only {num_left:,} entities to draw negatives from, "
                    f"expected {wanted:,}. Lower {self.fewer}, or use --pool all"
                )
