"""The ranker as something to train: a cross-encoder, and mentions beside their candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pel_ray.encoder import save_whole
from pel_ray.objective import STATISTICS
from pel_ray.rank_data import RankSource
from pel_ray.rank_objective import RankObjective, RankObjectiveSettings
from pel_ray.ranker import RankerSettings, load_ranker
from pel_ray.training_learner import Learner, TrainJob, prepare


@dataclass(frozen=True, kw_only=True)
class RankJob(TrainJob):
    """Which ranker is trained, and on what."""

    source: RankSource
    model: RankerSettings
    objective: RankObjectiveSettings

    def learner(self, device: torch.device) -> Learner:
        ranker = load_ranker(self.model)
        prepare(ranker.module.transformer, self.optimiser)
        ranker.module.to(device).train()
        return Learner(
            module=RankObjective(ranker, self.objective),
            data=self.source.load(),
            save=lambda folder: save_whole(ranker, folder),
            statistics=STATISTICS,
            missing="missing_gold",
        )

    @property
    def sizes(self) -> str:
        return f"micro_batch {self.optimiser.micro_batch} and chunk_tokens {self.objective.chunk_tokens}"
