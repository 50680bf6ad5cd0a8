"""What can be trained: a learner, and the job that every worker makes its own from."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pel_ray.encoder import Precision
from pel_ray.metrics_file import MetricsFile
from pel_ray.optimiser import OptimiserSettings
from pel_ray.shard_work import ShardJob
from pel_ray.storage import Location
from pel_ray.vectors import Shard


class LearnerData(Protocol):
    """What is learnt from, by the numbers of its mentions."""

    @property
    def rows_M(self) -> np.ndarray:
        """Rows of mentions/, to name them by."""

    def __len__(self) -> int: ...

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The mentions of an epoch, shuffled."""

    def batch(self, numbers_B: np.ndarray, epoch: int) -> tuple[Any, int]:
        """A micro-batch, and how much of what it should have is missing."""


@dataclass(frozen=True)
class Learner:
    """What is trained: a module, what it learns from, and how it is saved."""

    module: nn.Module
    """forward(batch, seed) gives the loss, a mean over the mentions of the batch, and statistics."""
    data: LearnerData
    save: Callable[[Location], None]
    """Leaves the model in a folder, whole or not at all."""
    statistics: Sequence[str]
    """Those that are means over mentions; `texts` and `pieces` add up."""
    missing: str
    """The name of what `data.batch` counts as missing."""


@dataclass(frozen=True, kw_only=True)
class TrainJob(ShardJob):
    """How something is trained; a shard is an epoch."""

    phase = "train-"
    unit = "epochs"
    after_an_error = ""
    remedy = "Lower --chunk-tokens first, then --micro-batch"
    when_not_finite = "Try a lower --lr, a longer --warmup or --precision fp32"

    optimiser: OptimiserSettings
    precision: Precision
    checkpoint_steps: int
    keep_checkpoints: int
    log_steps: int
    seed: int
    metrics: MetricsFile

    def learner(self, device: torch.device) -> Learner:
        """What is trained, on its device and ready for the first step."""
        raise NotImplementedError

    @property
    def sizes(self) -> str:
        """What takes memory, for the user whose memory is full."""
        raise NotImplementedError

    def model_folder(self, epoch: int) -> Location:
        """The model after so many epochs."""
        return self.folder / f"model-{epoch:03d}-{self.tag}"

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (self.model_folder(shard.number + 1).name,)

    def checkpoint(self, step: int) -> Location:
        return self.folder / f"checkpoint-{step:08d}-{self.tag}.safetensors"

    def checkpoints(self) -> list[Location]:
        """From the oldest to the newest."""
        names = fnmatch.filter(self.folder.names(), f"checkpoint-*-{self.tag}.safetensors")
        return [self.folder / name for name in names]


def prepare(transformer: nn.Module, settings: OptimiserSettings) -> None:
    """Dropout and frozen embeddings as asked."""
    if settings.dropout is not None:
        for module in transformer.modules():
            if isinstance(module, nn.Dropout):
                module.p = settings.dropout
    if settings.freeze_embeddings:
        transformer.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]
