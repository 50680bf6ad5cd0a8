"""Building an index from vector shards: who gets which slot, training, filling, and the search that its recall needs.

Shapes: N vectors of the folder, O slots of an older index, Q queries, K entities.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.index import Entities, IndexShard, search_shards
from pel_ray.index_files import SLOTS_SCHEMA, set_parameters
from pel_ray.index_kinds import BLOCK_ROWS, load_faiss, parts_of, reason, sample_rows, search_parameters
from pel_ray.reuse import hash_ids
from pel_ray.search import Hits, merged
from pel_ray.vectors import VectorFolder

RECALL_AT = (1, 16, 64)
NUM_HALVINGS = 3
NUM_SINGLE = 200
"""Queries that are asked one at a time, to tell the rate."""
Loader = Callable[[], Iterator[Any]]
"""Gives the FAISS indexes of all shards, of which only one need be in memory at a time."""


@dataclass(frozen=True)
class SlotPlan:
    """Which slot every vector of the folder gets, and what has to be done for it."""

    rows: pa.Table
    """Whose vectors they are, as in the folder."""
    slots_N: np.ndarray
    shard_N: np.ndarray
    is_new_N: np.ndarray
    removed: np.ndarray
    """Slots of the older index whose vectors are gone."""

    @classmethod
    def fresh(cls, rows: pa.Table, num_shards: int) -> SlotPlan:
        places_N = np.arange(rows.num_rows)
        shard_N = places_N * num_shards // max(rows.num_rows, 1)
        return cls(rows, places_N, shard_N, np.ones(rows.num_rows, bool), np.zeros(0, np.int64))

    @classmethod
    def after(cls, old: pa.Table, rows: pa.Table, num_shards: int) -> SlotPlan:
        """An entity with the same text keeps its slot; new ones fill the shards up to the same size."""
        old_slots_O, old_shard_O = old["slot"].to_numpy(), old["shard"].to_numpy()
        _, in_old, in_new = np.intersect1d(_keys(old), _keys(rows), assume_unique=True, return_indices=True)
        slots_N, shard_N = np.full(rows.num_rows, -1), np.full(rows.num_rows, -1)
        slots_N[in_new], shard_N[in_new] = old_slots_O[in_old], old_shard_O[in_old]
        is_new_N = slots_N < 0
        num_new = int(is_new_N.sum())
        slots_N[is_new_N] = int(old_slots_O.max(initial=-1)) + 1 + np.arange(num_new)
        room = math.ceil(rows.num_rows / num_shards) - np.bincount(shard_N[in_new], minlength=num_shards)
        shard_N[is_new_N] = np.searchsorted(np.cumsum(room.clip(0)), np.arange(num_new), side="right")
        return cls(rows, slots_N, shard_N, is_new_N, np.delete(old_slots_O, in_old))

    def shard_sizes(self, num_shards: int) -> list[int]:
        return np.bincount(self.shard_N, minlength=num_shards).tolist()

    def table(self) -> pa.Table:
        columns = [
            pa.array(self.slots_N),
            pa.array(self.shard_N),
            *(self.rows[name] for name in self.rows.schema.names),
        ]
        return pa.table(
            [column.cast(field.type) for column, field in zip(columns, SLOTS_SCHEMA, strict=True)], schema=SLOTS_SCHEMA
        )


def _keys(rows: pa.Table) -> np.ndarray:
    """One number for each vector, the same in two folders for the same entity and text."""
    ids, texts = hash_ids(rows["entity_id"]), rows["text_hash"].to_numpy()
    # Rotated, so that the key of (a, b) is not that of (b, a).
    keys = ids ^ ((texts << np.uint64(17)) | (texts >> np.uint64(47)))
    order = np.argsort(keys, kind="stable")
    is_first = np.concatenate([[True], keys[order][1:] != keys[order][:-1]])[: len(keys)]
    starts = np.maximum.accumulate(np.where(is_first, np.arange(len(keys)), 0))
    repeat = np.empty(len(keys), np.uint64)
    repeat[order] = np.arange(len(keys)) - starts
    # An entity may have one text twice, as two synonyms that are cut to the same pieces.
    return keys + repeat * np.uint64(0x9E3779B97F4A7C15)


def read_rows(vectors: VectorFolder) -> pa.Table:
    """Whose vectors the folder holds, in order."""
    tables = []
    for stem in vectors.stems:
        rows, num_vectors = vectors.rows(stem), len(vectors.vectors(stem))
        if rows.num_rows != num_vectors:
            raise ArtifactError(
                f"{vectors.folder / f'vectors-{stem}.npy'} holds {num_vectors:,} vectors, its table of rows "
                f"{rows.num_rows:,}. Make {vectors.folder} again with --overwrite"
            )
        tables.append(rows)
    return pa.concat_tables(tables)


def take(vectors: VectorFolder, places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (places, vectors in fp32) for ascending places in the folder; one block at a time is in memory."""
    first = 0
    for stem in vectors.stems:
        shard = vectors.vectors(stem)
        begin, end = np.searchsorted(places, (first, first + len(shard)))
        for start in range(begin, end, BLOCK_ROWS):
            here = places[start : min(start + BLOCK_ROWS, end)]
            block = shard[here - first].astype(np.float32)
            if not np.isfinite(block).all():
                file = vectors.folder / f"vectors-{stem}.npy"
                raise ArtifactError(f"{file} holds vectors that are not finite numbers. Encode the KB again")
            yield here, block
        first += len(shard)


def sampled(vectors: VectorFolder, places: np.ndarray, num_rows: int, seed: int) -> np.ndarray:
    """Vectors at some of the places, the same for the same seed."""
    chosen = np.random.default_rng(seed).choice(len(places), min(num_rows, len(places)), replace=False, shuffle=False)
    found = np.empty((len(chosen), vectors.dimension), np.float32)
    begin = 0
    for here, block in take(vectors, places[np.sort(chosen)]):
        found[begin : begin + len(here)] = block
        begin += len(here)
    return found


def fill(index: Any, vectors: VectorFolder, plan: SlotPlan, shard: int, seed: int, seen: Callable[[int], None]) -> None:
    """Trains an empty index and adds the new vectors of a shard; `seen` hears how many are added."""
    places = np.flatnonzero((plan.shard_N == shard) & plan.is_new_N)
    if not index.is_trained:
        _train(index, sampled(vectors, places, sample_rows(index), seed))
    if index.ntotal == 0:
        _reserve(index, len(places))
    for here, block in take(vectors, places):
        index.add_with_ids(block, plan.slots_N[here])
        seen(len(here))


def _train(index: Any, sample: np.ndarray) -> None:
    try:
        index.train(sample)
    except RuntimeError as error:
        raise SettingsError(
            f"FAISS cannot train this kind on {len(sample):,} vectors ({reason(error)}). "
            "Choose a --kind with fewer lists, or flat, which needs no training"
        ) from error


def _reserve(index: Any, num_vectors: int) -> None:
    """Makes room at once: growing by doubling would hold the vectors twice while they are copied."""
    for part in parts_of(index):
        if isinstance(part, load_faiss().IndexFlatCodes):
            part.codes.resize(num_vectors * part.code_size)
            part.codes.resize(0)


def can_remove(index: Any) -> bool:
    """Whether FAISS can take vectors out of such an index."""
    try:
        index.remove_ids(np.zeros(0, np.int64))
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True)
class Trial:
    """What a search finds with one setting of its parameters."""

    parameters: str
    recall: Mapping[int, float]
    """By k: the share of the k best entities that are among the k found."""

    @property
    def last(self) -> float:
        return self.recall[max(self.recall)]


def tune(load: Loader, entities: Entities, queries_QD: np.ndarray, truth: Hits, min_recall: float) -> Trial:
    """The least that a search must spend for the recall of the largest k; all there is, where that is not enough.

    What it may spend is doubled, where it helps most, until the recall holds; then the last step is made smaller.
    """
    ranges = search_parameters(next(load()))
    values = {name: least for name, (least, _) in ranges.items()}
    trial, before, raised = _try(load, entities, queries_QD, truth, values), values, ""
    while trial.last < min_recall:
        steps = {
            name: values | {name: min(2 * values[name], most)}
            for name, (_, most) in ranges.items()
            if values[name] < most
        }
        if not steps:
            return trial
        trials = {name: _try(load, entities, queries_QD, truth, step) for name, step in steps.items()}
        raised = max(trials, key=lambda name: trials[name].last)
        trial, before, values = trials[raised], values, steps[raised]
    too_few, enough = before.get(raised, 0), values.get(raised, 0)
    for _ in range(NUM_HALVINGS if raised else 0):
        middle = (too_few + enough) // 2
        if middle in (too_few, enough):
            break
        tried = _try(load, entities, queries_QD, truth, values | {raised: middle})
        if tried.last >= min_recall:
            trial, enough = tried, middle
        else:
            too_few = middle
    return trial


def _try(load: Loader, entities: Entities, queries_QD: np.ndarray, truth: Hits, values: Mapping[str, int]) -> Trial:
    parameters = ",".join(f"{name}={value}" for name, value in values.items())
    num_kept = truth.rows_QK.shape[1]
    parts = []
    for index in load():
        set_parameters(index, parameters)
        parts.append(search_shards([IndexShard(index)], entities, queries_QD, num_kept))
    found = merged(parts, num_kept)
    ks = [k for k in RECALL_AT if k <= num_kept]
    return Trial(parameters, {k: recall(truth.rows_QK[:, :k], found.rows_QK[:, :k]) for k in ks})


def recall(truth_QK: np.ndarray, found_QK: np.ndarray) -> float:
    """The share of the true entities that were found, over all queries."""
    hits = [np.isin(truth, found).mean() for truth, found in zip(truth_QK, found_QK, strict=True)]
    return float(np.mean(hits))


def rates(load: Loader, entities: Entities, queries_QD: np.ndarray, parameters: str, k: int) -> tuple[float, float]:
    """Queries per second: all in one batch, and one at a time; shard after shard, as one machine would."""
    batch = single = 1e-9
    some = queries_QD[:NUM_SINGLE]
    for index in load():
        set_parameters(index, parameters)
        shard = [IndexShard(index)]
        search_shards(shard, entities, some[:1], k)
        began = time.perf_counter()
        search_shards(shard, entities, queries_QD, k)
        batch += time.perf_counter() - began
        began = time.perf_counter()
        for query_D in some:
            search_shards(shard, entities, query_D[None], k)
        single += time.perf_counter() - began
    return len(queries_QD) / batch, len(some) / single
