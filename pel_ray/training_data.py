"""What a training step sees: mentions, their golds and their negatives, as functions of seed, epoch and mention row.

Shapes: M mentions in all, B of a micro-batch, K negatives of each, U distinct entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pel_ray.chunks import Pieces
from pel_ray.negatives import Pools, Sampled, num_hard_of, sample_negatives
from pel_ray.objective import TrainingBatch
from pel_ray.ragged import Ragged
from pel_ray.spec import Settings
from pel_ray.taught import Taught
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
    """Where negatives come from: all of the KB, or the mention's world; auto: its world where the KB has worlds."""
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
class Drawn:
    """Candidates of a micro-batch."""

    rows_BC: np.ndarray
    """The positive of each mention, then negatives; -1 where it has no more."""
    num_missing: int = 0
    """Hard negatives that there should be and are not."""
    teacher_BC: np.ndarray | None = None
    """A ranker's scores of them; -inf where it gives nothing."""


@dataclass(frozen=True)
class TrainingData:
    """All training mentions with their texts, golds, and what was mined for them or taught about them."""

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
    taught: Taught | None = None

    def __len__(self) -> int:
        return len(self.rows_M)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The mentions of an epoch, shuffled."""
        return np.random.default_rng((seed, epoch)).permutation(len(self))

    def batch(
        self, numbers_B: np.ndarray, seed: int, epoch: int, settings: NegativeSettings
    ) -> tuple[TrainingBatch, int]:
        """A micro-batch, and how many of its hard negatives are missing."""
        draw = self._sampled if self.taught is None else self._taught
        drawn = draw(numbers_B, seed, epoch, settings)
        is_pair_BC = drawn.rows_BC >= 0
        rows_U, columns_T = np.unique(drawn.rows_BC[is_pair_BC], return_inverse=True)
        columns_BC = np.full(drawn.rows_BC.shape, -1, np.int64)
        columns_BC[is_pair_BC] = columns_T
        texts = Ragged(self.texts.flat, self.texts.offsets).take(numbers_B)
        batch = TrainingBatch(
            mentions=Pieces(texts.values, texts.offsets),
            entities=self.entities.take(rows_U),
            columns_BC=columns_BC,
            allowed_BU=self._allowed(numbers_B, rows_U) if settings.in_batch else None,
            teacher_BC=drawn.teacher_BC,
        )
        return batch, drawn.num_missing

    def _sampled(self, numbers_B: np.ndarray, seed: int, epoch: int, settings: NegativeSettings) -> Drawn:
        """One gold of each mention, those with several in turns from epoch to epoch; random and mined negatives."""
        hard = None if self.hard is None else self.hard.take(numbers_B)
        excluded = self.excluded.take(numbers_B)
        sampled = self._negatives(numbers_B, seed, epoch, excluded, settings.num_negatives, hard, settings.num_hard)
        positives_B = self.golds.turn(numbers_B, self.rows_M[numbers_B] + epoch)
        rows_BC = np.concatenate([positives_B[:, None], sampled.rows_MK], axis=1)
        return Drawn(rows_BC, int((settings.num_hard - sampled.num_hard_M).sum()))

    def _taught(self, numbers_B: np.ndarray, seed: int, epoch: int, settings: NegativeSettings) -> Drawn:
        """The candidates that a ranker has scored, and random ones up to the number of negatives."""
        assert self.taught is not None
        found_BK = self.taught.examples.candidates(numbers_B, epoch)
        excluded = self.excluded.take(numbers_B).joined(Ragged.of(list(found_BK)))
        num_random = settings.num_negatives - (found_BK.shape[1] - 1)
        random_BR = self._negatives(numbers_B, seed, epoch, excluded, num_random).rows_MK
        teacher_BC = np.pad(self.taught.scores(numbers_B, epoch), ((0, 0), (0, num_random)), constant_values=-np.inf)
        return Drawn(np.concatenate([found_BK, random_BR], axis=1), teacher_BC=teacher_BC)

    def _negatives(
        self,
        numbers_B: np.ndarray,
        seed: int,
        epoch: int,
        excluded: Ragged,
        num_negatives: int,
        hard: Ragged | None = None,
        num_hard: int = 0,
    ) -> Sampled:
        return sample_negatives(
            seed=seed,
            epoch=epoch,
            mention_rows_M=self.rows_M[numbers_B],
            pool_M=self.pool_M[numbers_B],
            pools=self.pools,
            golds=excluded,
            num_negatives=num_negatives,
            hard=hard,
            num_hard=num_hard,
        )

    def _allowed(self, numbers_B: np.ndarray, rows_U: np.ndarray) -> np.ndarray:
        """Which entities may be negatives of a mention: those of its pool that are neither gold nor namesake."""
        allowed_BU = np.ones((len(numbers_B), len(rows_U)), bool)
        bad = self.excluded.take(numbers_B)
        places = np.minimum(np.searchsorted(rows_U, bad.values), len(rows_U) - 1)
        is_here = rows_U[places] == bad.values
        allowed_BU[bad.owners[is_here], places[is_here]] = False
        if self.pools.pool_N is not None:
            allowed_BU &= self.pool_M[numbers_B][:, None] == self.pools.pool_N[rows_U]
        return allowed_BU
