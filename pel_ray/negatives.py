"""Random and mixed-p negatives, as a function of seed, epoch and mention row alone.

Every mention has a stream of random numbers of its own, so that neither the batch it is in, nor its place there,
nor the number of workers can change its negatives.

Shapes: M mentions, K negatives per mention, N entities, P pools, X values of many mentions, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa

from pel_ray.errors import SettingsError
from pel_ray.ragged import Ragged, slots

MAX_NEGATIVES = 1 << 16
_OWNER_BITS, _POSITION_BITS = 10, 22
"""Owner, entity row (32 bits) and position in one 64-bit number, which sorts several times faster than three."""
_VALUES_PER_BLOCK = 1 << 16
"""Small enough for the cache."""
_STEP = 0x9E3779B97F4A7C15
_RANDOM, _HARD = 1, 2
"""Streams of a mention."""


@dataclass(frozen=True)
class Pools:
    """Which entities a mention may get: all of the KB, or those of its world."""

    starts_P: np.ndarray
    sizes_P: np.ndarray
    order_N: np.ndarray | None = None
    """Entity rows grouped by pool; None where the one pool is the KB, which needs no array of its size."""
    pool_N: np.ndarray | None = None
    """The pool of each entity; None as above."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The pool of each world."""

    @classmethod
    def whole(cls, num_entities: int) -> Pools:
        return cls(np.zeros(1, np.int64), np.array([num_entities], np.int64))

    @classmethod
    def by_world(cls, worlds_N: Sequence[str] | pa.ChunkedArray) -> Pools:
        """One pool per world, from the KB's column `world`."""
        column = worlds_N if isinstance(worlds_N, pa.ChunkedArray) else pa.chunked_array([worlds_N], pa.string())
        encoded = column.combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        return cls.of_numbers(encoded.indices.to_numpy(), {name: number for number, name in enumerate(names)})

    @classmethod
    def of_numbers(cls, pool_N: np.ndarray, numbers: Mapping[str, int] | None = None) -> Pools:
        """From the pool of each entity."""
        sizes_P = np.bincount(pool_N)
        order_N = np.argsort(pool_N, kind="stable")
        return cls(np.cumsum(sizes_P) - sizes_P, sizes_P, order_N, pool_N, numbers or {})

    def of_worlds(self, worlds_M: Sequence[str]) -> np.ndarray:
        """The pool of each mention, given its world; the whole KB is the pool of any world."""
        if self.order_N is None:
            return np.zeros(len(worlds_M), np.int64)
        unknown = sorted(set(worlds_M) - self.numbers.keys())
        if unknown:
            raise SettingsError(
                f"there are mentions of world {unknown[0]!r} but the KB has no entity of it, only of "
                f"{len(self.numbers)} other worlds. Import that world into the KB, or leave its mentions out"
            )
        return np.array([self.numbers[world] for world in worlds_M], np.int64)

    def rows(self, pool_X: np.ndarray, positions_X: np.ndarray) -> np.ndarray:
        """The entities at these positions of these pools."""
        return positions_X if self.order_N is None else self.order_N[self.starts_P[pool_X] + positions_X]

    def hold(self, pool_X: np.ndarray, rows_X: np.ndarray) -> np.ndarray:
        """Whether the entities are in these pools; -1 is in none."""
        is_held_X = (rows_X >= 0) & (rows_X < self.sizes_P.sum())
        if self.pool_N is not None:
            is_held_X[is_held_X] = self.pool_N[rows_X[is_held_X]] == pool_X[is_held_X]
        return is_held_X


@dataclass(frozen=True)
class Sampled:
    """The negatives of each mention, hard ones first."""

    rows_MK: np.ndarray
    num_hard_M: np.ndarray
    """How many of them are hard: fewer than asked for where too few were mined."""


def num_hard_of(num_negatives: int, hard_fraction: float) -> int:
    """How many of the negatives are hard; half a negative is one."""
    # As it was written: 0.145 of 100 is 14.5, which the product of the floats just misses.
    return int((Decimal(str(hard_fraction)) * num_negatives).to_integral_value(ROUND_HALF_UP))


def sample_negatives(
    *,
    seed: int,
    epoch: int,
    mention_rows_M: np.ndarray,
    pool_M: np.ndarray,
    pools: Pools,
    golds: Ragged,
    num_negatives: int,
    hard: Ragged | None = None,
    num_hard: int = 0,
) -> Sampled:
    """Draws the negatives of each mention from its pool: no gold, none twice, and any other as likely as the next.

    `golds` are the rows a mention never gets, with its namesakes if the caller wants. `hard` are its mined
    negatives, best first: `num_hard` of them are drawn and keep that order. Golds, repeated rows and rows outside
    the pool (such as -1) do not count as mined; where too few are left, random ones take their place.
    """
    num_mentions = len(mention_rows_M)
    hard = slots(np.zeros(num_mentions)) if hard is None else hard
    if not 0 <= num_hard <= num_negatives <= MAX_NEGATIVES:
        raise SettingsError(
            f"cannot draw {num_negatives} negatives with {num_hard} hard ones among them: choose up to "
            f"{MAX_NEGATIVES:,} negatives, and hard ones from 0 to all of them"
        )
    if not len(pool_M) == len(golds) == len(hard) == num_mentions:
        raise ValueError(f"{num_mentions} mentions, {len(pool_M)} pools, {len(golds)} golds, {len(hard)} lists of hard")
    sampled = Sampled(np.empty((num_mentions, num_negatives), np.int64), np.empty(num_mentions, np.int64))
    num_per_block = min(1 << _OWNER_BITS, max(_VALUES_PER_BLOCK // max(num_negatives, 1), 1))
    for start in range(0, num_mentions, num_per_block):
        some = np.arange(start, min(start + num_per_block, num_mentions))
        block = _Block(seed, epoch, mention_rows_M[some], pool_M[some], pools)
        part = Sampled(sampled.rows_MK[start : some[-1] + 1], sampled.num_hard_M[start : some[-1] + 1])
        block.sample(golds.take(some), hard.take(some), num_hard, part)
    return sampled


@dataclass(frozen=True)
class _Block:
    """A few mentions that are sampled together."""

    seed: int
    epoch: int
    rows_M: np.ndarray
    pool_M: np.ndarray
    pools: Pools

    def sample(self, golds: Ragged, hard: Ragged, num_hard: int, sampled: Sampled) -> None:
        """Fills in the negatives."""
        num_negatives = sampled.rows_MK.shape[1]
        excluded = self.distinct(golds, slots(np.zeros(len(golds))))
        self.refuse_too_few(excluded.lengths, num_negatives)
        chosen = self.hard(hard, excluded, num_hard)
        sampled.num_hard_M[:] = chosen.lengths
        sampled.rows_MK[chosen.owners, chosen.positions] = chosen.values
        for mentions, drawn in self.random(excluded.joined(chosen), num_negatives - chosen.lengths):
            owners = mentions[drawn.owners]
            sampled.rows_MK[owners, chosen.lengths[owners] + drawn.positions] = drawn.values

    def distinct(self, listed: Ragged, excluded: Ragged) -> Ragged:
        """What is in the mention's pool, once each, and not excluded."""
        inside = listed.where(self.pools.hold(self.pool_M[listed.owners], listed.values))
        return inside.where(_is_new(inside, excluded))

    def refuse_too_few(self, num_excluded_M: np.ndarray, num_negatives: int) -> None:
        sizes_M = self.pools.sizes_P[self.pool_M]
        worst = int(np.argmin(sizes_M - num_excluded_M))
        size, num_excluded = int(sizes_M[worst]), int(num_excluded_M[worst])
        if size - num_excluded < num_negatives:
            raise SettingsError(
                f"{num_negatives} negatives were asked for, but there are {size - num_excluded} for the mention in row "
                f"{self.rows_M[worst]}: its pool of {size} entities less {num_excluded} golds or namesakes. "
                f"Ask for {size - num_excluded} or fewer, or use a larger KB"
            )

    def hard(self, mined: Ragged, excluded: Ragged, num_hard: int) -> Ragged:
        candidates = self.distinct(mined, excluded)
        num_M = np.minimum(candidates.lengths, num_hard)
        chosen = _chosen(_keys(_HARD, self.seed, self.epoch, self.rows_M), candidates, num_M)
        return Ragged.cut(candidates.values[np.sort(chosen)], num_M)

    def random(self, excluded: Ragged, num_M: np.ndarray) -> Iterator[tuple[np.ndarray, Ragged]]:
        """Mentions of the block and their random rows, until all have theirs; the last ones given count."""
        keys_M = _keys(_RANDOM, self.seed, self.epoch, self.rows_M)
        sizes_M = self.pools.sizes_P[self.pool_M]
        # Where fewer than three of four draws would be good, shuffling the whole pool is no more work than drawing.
        is_small_M = sizes_M < 4 * (num_M + excluded.lengths)
        small, todo = np.flatnonzero(is_small_M), np.flatnonzero(~is_small_M)
        whole = self._rows_at(small, slots(sizes_M[small]).positions, sizes_M[small])
        left = whole.where(_is_new(whole, excluded.take(small)))
        yield small, Ragged.cut(left.values[_chosen(keys_M[small], left, num_M[small])], num_M[small])
        times = 1
        while len(todo):
            draws = slots(times * num_M[todo])
            words = _words(keys_M[todo][draws.owners], draws.positions)
            drawn = self._rows_at(todo, _below(sizes_M[todo][draws.owners], words), draws.lengths)
            new = drawn.where(_is_new(drawn, excluded.take(todo)))
            yield todo, new.where(new.positions < num_M[todo][new.owners])
            todo, times = todo[new.lengths < num_M[todo]], 2 * times

    def _rows_at(self, mentions: np.ndarray, positions_X: np.ndarray, lengths_M: np.ndarray) -> Ragged:
        """Entities at positions of the mentions' pools."""
        return Ragged.cut(self.pools.rows(np.repeat(self.pool_M[mentions], lengths_M), positions_X), lengths_M)


def _keys(stream: int, seed: int, epoch: int, rows_M: np.ndarray) -> np.ndarray:
    """Where each mention's stream of random numbers starts."""
    keys = np.zeros(1, np.uint64)
    for part in (stream, seed, epoch):
        keys = _mixed(keys + _STEP + np.array([part % 2**64], np.uint64))
    return _mixed(keys + _STEP + rows_M.astype(np.uint64))


def _words(keys_X: np.ndarray, numbers_X: np.ndarray) -> np.ndarray:
    """The random number of each stream that has this number in it: splitmix64."""
    return _mixed(keys_X + numbers_X.astype(np.uint64) * _STEP)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def _below(sizes_X: np.ndarray, words_X: np.ndarray) -> np.ndarray:
    """Random numbers from 0 up to each size: the upper 64 of the 128 bits of word times size, for 32-bit sizes."""
    sizes_X = sizes_X.astype(np.uint64)
    upper = (words_X >> 32) * sizes_X + ((words_X & 0xFFFFFFFF) * sizes_X >> 32)
    return (upper >> 32).astype(np.int64)


def _packed(owners_X: np.ndarray, values_X: np.ndarray, positions_X: np.ndarray | int) -> np.ndarray:
    return ((owners_X << 32 | values_X) << _POSITION_BITS | positions_X).view(np.uint64)


def _unpacked(packed_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Owners and positions."""
    owners_X = packed_X >> (32 + _POSITION_BITS)
    return owners_X.astype(np.int64), (packed_X % (1 << _POSITION_BITS)).astype(np.int64)


def _is_new(listed: Ragged, excluded: Ragged) -> np.ndarray:
    """Whether each value is the first such of its list, and not excluded."""
    # Position 0 puts what is excluded before all that is listed.
    before = _packed(excluded.owners, excluded.values, 0)
    packed = np.sort(np.concatenate([before, _packed(listed.owners, listed.values, listed.positions + 1)]))
    values = packed >> _POSITION_BITS
    owners, positions = _unpacked(packed[np.diff(values, prepend=~values[:1]) != 0])
    is_listed = positions > 0
    is_new = np.zeros(len(listed.values), bool)
    is_new[listed.offsets[owners[is_listed]] + positions[is_listed] - 1] = True
    return is_new


def _chosen(keys_M: np.ndarray, candidates: Ragged, num_M: np.ndarray) -> np.ndarray:
    """Places in `candidates.values` of so many of each mention's, any as likely as the next and in random order."""
    words = _words(keys_M[candidates.owners], candidates.positions)
    packed = np.sort(_packed(candidates.owners, (words >> 32).astype(np.int64), candidates.positions))
    # Sorting leaves each mention's candidates where its list is.
    owners, positions = _unpacked(packed[candidates.positions < num_M[candidates.owners]])
    return candidates.offsets[owners] + positions
