"""Lists of different lengths as two arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Entity rows by mention: mention i has `values[offsets[i]:offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int] | np.ndarray]) -> Ragged:
        values = np.fromiter(itertools.chain.from_iterable(lists), np.int64)
        return cls.cut(values, np.fromiter(map(len, lists), np.int64, len(lists)))

    @classmethod
    def cut(cls, values: np.ndarray, lengths_M: np.ndarray) -> Ragged:
        return cls(values, np.concatenate([[0], np.cumsum(lengths_M, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @cached_property
    def owners(self) -> np.ndarray:
        """The mention that each value belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> np.ndarray:
        """The place of each value in the list of its mention."""
        return np.arange(self.offsets[-1]) - self.offsets[self.owners]

    def take(self, mentions: np.ndarray) -> Ragged:
        """The lists of these mentions."""
        places = slots(self.lengths[mentions])
        return Ragged(self.values[self.offsets[mentions][places.owners] + places.positions], places.offsets)

    def turn(self, mentions: np.ndarray, turns_B: np.ndarray) -> np.ndarray:
        """One value of each of these mentions: those of a list take turns."""
        return self.values[self.offsets[mentions] + turns_B % self.lengths[mentions]]

    def where(self, is_kept_X: np.ndarray) -> Ragged:
        """What is left of each list."""
        return Ragged.cut(self.values[is_kept_X], np.bincount(self.owners[is_kept_X], minlength=len(self)))

    def joined(self, other: Ragged) -> Ragged:
        """Each mention's values here, then its values there."""
        order = np.argsort(np.concatenate([self.owners, other.owners]), kind="stable")
        return Ragged(np.concatenate([self.values, other.values])[order], self.offsets + other.offsets)


def slots(lengths_M: np.ndarray) -> Ragged:
    """Lists of these lengths whose values are still to come."""
    return Ragged.cut(np.empty(0, np.int64), lengths_M)
