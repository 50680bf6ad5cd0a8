"""What a training step sees: mentions, their golds and their negatives, as functions of seed, epoch and mention row.

Shapes: M mentions in all, B of a micro-batch, K negatives of each, U distinct entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pel_ray.chunks import Pieces
from pel_ray.negatives import Pools, num_hard_of, sample_negatives
from pel_ray.objective import TrainingBatch
from pel_ray.ragged import Ragged
from pel_ray.spec import Settings
from pel_ray.token_table import TokenTable


class NegativeSettings(Settings):
    """Which wrong entities a mention is trained against."""

    kind: Literal["random", "mixed"] = "random"
    """random: drawn from the KB; mixed: a share of them hard, mined with the current model."""
    num_negatives: int = Field(default=64, ge=1)
    """Negatives of each mention."""
    hard_fraction: float = Field(default=0.5, ge=0, le=1)
    """With mixed: the share of hard ones."""
    in_batch: bool = False
    """Use the entities of the other mentions of a micro-batch as negatives too, without golds and namesakes."""
    keep_namesakes: bool = False
    """Allow entities that share a name with a gold as its negatives."""
    pool: Literal["auto", "all", "world"] = "auto"
    """Where they come from: all of the KB, or the mention's world; auto: its world where the KB has worlds."""
    refresh: Literal["full", "pool", "frozen"] = "full"
    """With mixed, what is encoded for mining: the whole KB, the last candidates, or nothing (a frozen entity tower)."""
    mine_every: Annotated[int, Field(ge=1)] = 1
    """With mixed: epochs from one mining to the next."""
    full_every: Annotated[int, Field(ge=1)] = 4
    """With refresh pool: minings from one full refresh to the next."""

    @property
    def num_hard(self) -> int:
        return num_hard_of(self.num_negatives, self.hard_fraction) if self.kind == "mixed" else 0


@dataclass(frozen=True)
class TrainingData:
    """All training mentions with their texts, golds, and what was mined for them."""

    rows_M: np.ndarray
    """Rows of mentions/."""
    texts: Pieces
    golds: Ragged
    excluded: Ragged
    """Rows that are no negatives of a mention: its golds and their namesakes."""
    pool_M: np.ndarray
    pools: Pools
    entities: TokenTable
    hard: Ragged | None

    def __len__(self) -> int:
        return len(self.rows_M)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The mentions of an epoch, shuffled."""
        return np.random.default_rng((seed, epoch)).permutation(len(self))

    def batch(
        self, numbers_B: np.ndarray, seed: int, epoch: int, settings: NegativeSettings
    ) -> tuple[TrainingBatch, int]:
        """A micro-batch, and how many of its hard negatives are missing."""
        sampled = sample_negatives(
            seed=seed,
            epoch=epoch,
            mention_rows_M=self.rows_M[numbers_B],
            pool_M=self.pool_M[numbers_B],
            pools=self.pools,
            golds=self.excluded.take(numbers_B),
            num_negatives=settings.num_negatives,
            hard=None if self.hard is None else self.hard.take(numbers_B),
            num_hard=settings.num_hard,
        )
        candidates_BC = np.concatenate([self._positives(numbers_B, epoch)[:, None], sampled.rows_MK], axis=1)
        rows_U, columns = np.unique(candidates_BC, return_inverse=True)
        texts = Ragged(self.texts.flat, self.texts.offsets).take(numbers_B)
        batch = TrainingBatch(
            mentions=Pieces(texts.values, texts.offsets),
            entities=self.entities.take(rows_U),
            columns_BC=columns.reshape(candidates_BC.shape),
            allowed_BU=self._allowed(numbers_B, rows_U) if settings.in_batch else None,
        )
        return batch, int((settings.num_hard - sampled.num_hard_M).sum())

    def _positives(self, numbers_B: np.ndarray, epoch: int) -> np.ndarray:
        """One gold of each mention; those with several take turns from epoch to epoch."""
        turns_B = (self.rows_M[numbers_B] + epoch) % self.golds.lengths[numbers_B]
        return self.golds.values[self.golds.offsets[numbers_B] + turns_B]

    def _allowed(self, numbers_B: np.ndarray, rows_U: np.ndarray) -> np.ndarray:
        allowed_BU = np.ones((len(numbers_B), len(rows_U)), bool)
        bad = self.excluded.take(numbers_B)
        places = np.minimum(np.searchsorted(rows_U, bad.values), len(rows_U) - 1)
        is_here = rows_U[places] == bad.values
        allowed_BU[bad.owners[is_here], places[is_here]] = False
        return allowed_BU
