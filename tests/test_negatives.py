"""Random and mixed-p negatives. Shapes as in pel_ray/negatives.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.errors import SettingsError
from pel_ray.negatives import Pools, Sampled, num_hard_of, sample_negatives
from pel_ray.ragged import Ragged

Lists = Sequence[Sequence[int]]


def sample(
    golds: Lists, *, num_entities: int = 1000, num_negatives: int = 8, hard: Lists | None = None, **settings: Any
) -> Sampled:
    """Negatives from the whole KB for mentions 0, 1, ..., unless `settings` say otherwise."""
    defaults: dict[str, Any] = {
        "seed": 13,
        "epoch": 0,
        "mention_rows_M": np.arange(len(golds)),
        "pool_M": np.zeros(len(golds), np.int64),
        "pools": Pools.whole(num_entities),
    }
    return sample_negatives(
        golds=Ragged.of(golds),
        num_negatives=num_negatives,
        hard=None if hard is None else Ragged.of(hard),
        **(defaults | settings),
    )


def splitmix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def drawn_one_by_one(seed: int, epoch: int, mention_row: int, size: int, golds: Sequence[int], num: int) -> list[int]:
    """The first `num` rows of the mention's stream that are new and no gold."""
    step, key = 0x9E3779B97F4A7C15, 0
    for part in (1, seed, epoch, mention_row):
        key = splitmix((key + step + part) % 2**64)
    found: list[int] = []
    number = 0
    while len(found) < num:
        row = splitmix((key + number * step) % 2**64) * size >> 64
        number += 1
        if row not in golds and row not in found:
            found.append(row)
    return found


@pytest.mark.parametrize("size", [40, 41, 50, 1000, 2_360_000, 2**32 - 1])
@pytest.mark.parametrize("seed", [0, 13, -1, 2**70])
def test_negatives_of_a_large_pool_equal_those_drawn_one_by_one(size: int, seed: int) -> None:
    golds = [[row % size, 3] for row in range(20)]
    sampled = sample(golds, num_entities=size, seed=seed, epoch=2)
    assert sampled.rows_MK.tolist() == [
        drawn_one_by_one(seed, 2, row, size, mention_golds, 8) for row, mention_golds in enumerate(golds)
    ]


@st.composite
def tasks(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `sample_negatives`, of pools from barely enough to ample."""
    num_negatives = draw(st.integers(0, 6))
    num_mentions, num_worlds = draw(st.integers(0, 8)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(num_negatives + 3, 60), min_size=num_worlds, max_size=num_worlds))
    worlds = draw(st.permutations([str(world) for world, size in enumerate(sizes) for _ in range(size)]))
    row = st.integers(-1, sum(sizes))
    rows = st.integers(0, 2**40) | st.integers(0, 20)
    mentions: dict[str, Any] = {"min_size": num_mentions, "max_size": num_mentions}
    pools = Pools.by_world(worlds) if draw(st.booleans()) else Pools.whole(len(worlds))
    return {
        "pools": pools,
        "pool_M": pools.of_worlds(draw(st.lists(st.sampled_from(sorted(set(worlds))), **mentions))),
        "mention_rows_M": np.array(draw(st.lists(rows, unique=True, **mentions)), np.int64),
        "golds": Ragged.of(draw(st.lists(st.lists(row, max_size=3), **mentions))),
        "hard": Ragged.of(draw(st.lists(st.lists(row, max_size=12), **mentions))),
        "num_negatives": num_negatives,
        "num_hard": draw(st.integers(0, num_negatives)),
        "seed": draw(st.integers(0, 3)),
        "epoch": draw(st.integers(0, 3)),
    }


def lists_of(ragged: Ragged) -> list[list[int]]:
    return [part.tolist() for part in np.split(ragged.values, ragged.offsets[1:-1])][: len(ragged)]


def pool_rows(pools: Pools, pool: int) -> set[int]:
    positions = np.arange(pools.sizes_P[pool])
    return set(pools.rows(np.full(len(positions), pool), positions).tolist())


@given(tasks())
def test_no_gold_nothing_twice_nothing_from_outside_the_pool(task: dict[str, Any]) -> None:
    sampled = sample_negatives(**task)
    assert sampled.rows_MK.shape == (len(task["pool_M"]), task["num_negatives"])
    for rows, pool, golds in zip(sampled.rows_MK.tolist(), task["pool_M"], lists_of(task["golds"]), strict=True):
        assert len(set(rows)) == len(rows)
        assert set(rows) <= pool_rows(task["pools"], pool) - set(golds)


@given(tasks())
def test_hard_ones_come_first_in_mined_order_and_what_is_short_is_counted(task: dict[str, Any]) -> None:
    sampled = sample_negatives(**task)
    for rows, num_hard, pool, golds, mined in zip(
        sampled.rows_MK.tolist(),
        sampled.num_hard_M,
        task["pool_M"],
        lists_of(task["golds"]),
        lists_of(task["hard"]),
        strict=True,
    ):
        usable = [row for row in dict.fromkeys(mined) if row in pool_rows(task["pools"], pool) and row not in golds]
        assert num_hard == min(task["num_hard"], len(usable))
        places = [usable.index(row) for row in rows[:num_hard]]
        assert places == sorted(places)


@given(tasks(), st.data())
def test_the_batch_its_order_and_its_split_change_nothing(task: dict[str, Any], data: st.DataObject) -> None:
    num_mentions = len(task["pool_M"])
    order = np.array(data.draw(st.permutations(range(num_mentions))), np.int64)
    cut = data.draw(st.integers(0, num_mentions))
    together = sample_negatives(**task)
    for part in (order[:cut], order[cut:]):
        chosen = {name: task[name][part] for name in ("pool_M", "mention_rows_M")}
        chosen |= {name: Ragged.of([lists_of(task[name])[mention] for mention in part]) for name in ("golds", "hard")}
        alone = sample_negatives(**(task | chosen))
        assert alone.rows_MK.tolist() == together.rows_MK[part].tolist()
        assert alone.num_hard_M.tolist() == together.num_hard_M[part].tolist()


def test_mentions_of_a_large_batch_get_what_they_get_alone() -> None:
    golds = [[row % 90] for row in range(5000)]
    together = sample(golds, num_entities=100, num_negatives=16).rows_MK
    for row in (0, 1023, 1024, 4999):
        alone = sample(golds[row : row + 1], num_entities=100, num_negatives=16, mention_rows_M=np.array([row]))
        assert alone.rows_MK[0].tolist() == together[row].tolist()


@pytest.mark.parametrize("num_entities", [12, 1000])
def test_seeds_epochs_and_mentions_give_other_negatives(num_entities: int) -> None:
    runs = [
        sample([[]] * 50, num_entities=num_entities, seed=seed, epoch=epoch).rows_MK
        for seed, epoch in ((1, 1), (1, 2), (2, 1), (2, 2))
    ]
    assert len({tuple(rows) for run in runs for rows in run.tolist()}) == 4 * 50


def test_hard_ones_differ_by_epoch() -> None:
    mined = [list(range(20))] * 50
    first, second = (sample([[]] * 50, hard=mined, num_hard=4, epoch=epoch).rows_MK[:, :4] for epoch in (0, 1))
    assert (first != second).any(axis=1).all()


def chi_square(counts: Sequence[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in counts)


# At four negatives rows are drawn until they are new; at twelve the pool is shuffled.
@pytest.mark.parametrize("num_negatives", [4, 12])
def test_every_entity_that_is_no_gold_is_equally_likely_in_every_place(num_negatives: int) -> None:
    sampled = sample([[5, 29, 5]] * 20_000, num_entities=32, num_negatives=num_negatives)
    for column in sampled.rows_MK.T:
        counts = Counter(column.tolist())
        assert set(counts) == set(range(32)) - {5, 29}
        # 29 degrees of freedom: one column in 10^6 is above 75.
        assert chi_square(list(counts.values()), 20_000 / 30) < 75


def test_every_mined_negative_is_equally_likely_and_so_is_every_other_entity() -> None:
    sampled = sample(
        [[0]] * 20_000, num_entities=32, hard=[[9, 0, 3, 7, 5, 3, 8]] * 20_000, num_negatives=4, num_hard=2
    )
    hard = Counter(sampled.rows_MK[:, :2].ravel().tolist())
    assert set(hard) == {9, 3, 7, 5, 8} and chi_square(list(hard.values()), 40_000 / 5) < 35
    random = Counter(sampled.rows_MK[:, 2:].ravel().tolist())
    mined = [random[row] for row in hard]
    others = [count for row, count in random.items() if row not in hard]
    # Two of the five are taken as hard ones, so a mined one is left over three times out of five.
    assert chi_square(others, 40_000 / 29) < 75 and chi_square(mined, 0.6 * 40_000 / 29) < 35


@pytest.mark.parametrize("shift", [{"epoch": 1}, {"seed": 14}, {"mention_rows_M": np.arange(1, 20_001)}])
def test_what_a_mention_gets_says_nothing_of_the_next_epoch_seed_or_mention(shift: dict[str, Any]) -> None:
    here, there = (
        sample([[]] * 20_000, num_entities=10, num_negatives=2, **more).rows_MK[:, 0] for more in ({}, shift)
    )
    counts = np.bincount(10 * here + there, minlength=100)
    assert chi_square(counts.tolist(), 200) < 180


def test_a_mention_gets_entities_of_its_world_only() -> None:
    worlds = ["castles", "ships", "castles", "ships", "castles", "empty"]
    pools = Pools.by_world(pa.chunked_array([worlds[:2], worlds[2:]]))
    pool_M = pools.of_worlds(["ships", "castles", "ships"])
    sampled = sample([[1], [0], []], pools=pools, pool_M=pool_M, num_negatives=1, hard=[[0, 1]] * 3, num_hard=1)
    assert sampled.rows_MK[0].tolist() == [3] and sampled.rows_MK[1, 0] in {2, 4}
    assert sampled.rows_MK[2].tolist() == [1] and sampled.num_hard_M.tolist() == [0, 0, 1]


def test_a_world_without_entities_is_refused() -> None:
    with pytest.raises(SettingsError, match="'ships'"):
        Pools.by_world(["castles"]).of_worlds(["castles", "ships"])


def test_a_pool_may_be_used_up_but_not_overdrawn() -> None:
    # The second gold lies outside the pool and the third is the first again: only one entity is lost.
    golds = [[], [4, 9, 4]]
    assert sorted(sample(golds, num_entities=9, num_negatives=8).rows_MK[1].tolist()) == [0, 1, 2, 3, 5, 6, 7, 8]
    with pytest.raises(SettingsError, match="9 negatives were asked for, but there are 8 .* row 1: .*Ask for 8"):
        sample(golds, num_entities=9, num_negatives=9)


def test_hard_ones_do_not_make_a_pool_too_small() -> None:
    sampled = sample([[0]], num_entities=9, hard=[[3, 1]], num_hard=2)
    assert sampled.rows_MK[0, :2].tolist() == [3, 1] and sorted(sampled.rows_MK[0]) == list(range(1, 9))


def test_more_hard_ones_than_negatives_are_refused() -> None:
    with pytest.raises(SettingsError, match="8 negatives with 9 hard"):
        sample([[]], num_hard=9)


def test_lists_that_are_not_those_of_the_mentions_are_refused() -> None:
    with pytest.raises(ValueError, match="2 mentions"):
        sample([[1]], mention_rows_M=np.arange(2), pool_M=np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("num_negatives", "fraction", "expected"),
    [(64, 0.5, 32), (5, 0.5, 3), (5, 0.1, 1), (100, 0.145, 15), (64, 0.0, 0), (64, 1.0, 64), (10, 0.04, 0)],
)
def test_half_a_hard_negative_is_one(num_negatives: int, fraction: float, expected: int) -> None:
    assert num_hard_of(num_negatives, fraction) == expected
