"""The retriever as something to train: two towers, and mentions with golds and negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pel_ray.encoder import ModelSettings, load_model, save_whole
from pel_ray.objective import STATISTICS, TAUGHT_STATISTICS, Objective, ObjectiveSettings, TrainingBatch
from pel_ray.teaching import TeachingSettings
from pel_ray.training_data import NegativeSettings, TrainingData
from pel_ray.training_learner import Learner, TrainJob, prepare
from pel_ray.training_source import TrainingSource


@dataclass(frozen=True)
class RetrieverData:
    """Training mentions with the negatives that seed and settings draw for them."""

    mentions: TrainingData
    seed: int
    negatives: NegativeSettings

    @property
    def rows_M(self) -> np.ndarray:
        return self.mentions.rows_M

    def __len__(self) -> int:
        return len(self.mentions)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        return self.mentions.order(seed, epoch)

    def batch(self, numbers_B: np.ndarray, epoch: int) -> tuple[TrainingBatch, int]:
        return self.mentions.batch(numbers_B, self.seed, epoch, self.negatives)


@dataclass(frozen=True, kw_only=True)
class RetrieverJob(TrainJob):
    """Which retriever is trained, and on what."""

    when_not_finite = "Try a lower --lr, a longer --warmup, a smaller --alpha or --precision fp32"

    source: TrainingSource
    model: ModelSettings
    objective: ObjectiveSettings
    negatives: NegativeSettings
    teaching: TeachingSettings | None = None
    """How it follows a ranker, whose scores the source has."""

    def learner(self, device: torch.device) -> Learner:
        model = load_model(self.model)
        for tower in (model.mention_tower, model.entity_tower):
            prepare(tower.transformer, self.optimiser)
        if self.negatives.refresh == "frozen":
            model.entity_tower.requires_grad_(False)
        for tower in (model.mention_tower, model.entity_tower):
            tower.to(device).train()
        return Learner(
            module=Objective(model, self.objective, teaching=self.teaching),
            data=RetrieverData(self.source.load(), self.seed, self.negatives),
            save=lambda folder: save_whole(model, folder),
            statistics=STATISTICS if self.teaching is None else TAUGHT_STATISTICS,
            missing="missing_hard",
        )

    @property
    def sizes(self) -> str:
        return (
            f"micro_batch {self.optimiser.micro_batch}, {self.negatives.num_negatives} negatives and chunk_tokens "
            f"{self.objective.chunk_tokens}"
        )
