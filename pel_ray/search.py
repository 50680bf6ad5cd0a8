"""Exact search over vector shards, streamed from disk block by block, with the same result however it is cut up.

A block is multiplied in fp32, whose last bits depend on the block's shape. So scanning only proposes: it keeps some
candidates more than asked for, their scores are computed again pair by pair in float64, and a query whose last
candidate came too close to its k-th hit is scanned again for more. Ties go to the smaller entity row.

Shapes: Q queries, D dimensions, N vectors of a block, M candidates kept while scanning, K entities asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch

from pel_ray.errors import ResourceError, SettingsError
from pel_ray.vectors import VectorFolder

BLOCK_ROWS = 32_768
QUERIES_AT_ONCE = 1024
PAIRS_AT_ONCE = 32_768
SLACK = 32
"""Candidates kept beyond those asked for."""
Device = Literal["auto", "cpu", "gpu"]
Scan = Callable[[np.ndarray, torch.Tensor, int], tuple[np.ndarray, np.ndarray]]
"""Takes queries (Q, D), a block (N, D) and m; returns the m best scores and places of each query, best first."""


@dataclass(frozen=True)
class Hits:
    """The best entities of each query, best first; where there are fewer than asked for, row -1 and score -inf."""

    scores_QK: np.ndarray
    rows_QK: np.ndarray

    @classmethod
    def none(cls, num_queries: int, k: int) -> Hits:
        return cls(np.full((num_queries, k), -np.inf, np.float32), np.full((num_queries, k), -1, np.int64))


@dataclass(frozen=True)
class PoolFilter:
    """Lets a query see only the entities of its own pool, such as its world."""

    of_entity: np.ndarray
    """The number of the pool of every entity row."""
    of_query: np.ndarray

    def only(self, queries: np.ndarray) -> PoolFilter:
        return PoolFilter(self.of_entity, self.of_query[queries])


def exact_top_k(
    vectors: VectorFolder,
    queries_QD: np.ndarray,
    k: int,
    *,
    stems: Sequence[str] | None = None,
    pools: PoolFilter | None = None,
    device: Device = "auto",
) -> Hits:
    """The k best entities of each query; the best of an entity's vectors counts."""
    return ExactSearch(vectors, stems, device=device).top_k(queries_QD, k, pools)


class ExactSearch:
    """Vectors opened once for many searches; as fp32 they stay in memory if that takes no more than `keep_bytes`."""

    def __init__(
        self,
        vectors: VectorFolder,
        stems: Sequence[str] | None = None,
        *,
        device: Device = "auto",
        keep_bytes: int = 0,
    ) -> None:
        self._vectors = vectors
        self._searched = _Searched(vectors, vectors.stems if stems is None else stems, keep_bytes)
        self._scan = choose_scan(device)

    def top_k(self, queries_QD: np.ndarray, k: int, pools: PoolFilter | None = None) -> Hits:
        if k < 1:
            raise SettingsError(f"k is {k}, expected at least 1")
        queries_QD = np.ascontiguousarray(queries_QD, np.float32)
        if queries_QD.shape[1] != self._vectors.dimension:
            raise SettingsError(
                f"queries have {queries_QD.shape[1]} dimensions, {self._vectors.folder} {self._vectors.dimension}. "
                "Encode both with the same model"
            )
        hits = Hits.none(len(queries_QD), k)
        # Two rounds of `open` are rare: texts that many entities share, and views that crowd out other entities.
        open_Q = np.arange(len(queries_QD))
        num_kept = k + SLACK
        while len(open_Q):
            some_QD, some_pools = queries_QD[open_Q], pools and pools.only(open_Q)
            scores_QM, places_QM = _scanned(self._searched, some_QD, num_kept, some_pools, self._scan)
            found, is_sure_Q = _settled(self._searched, some_QD, scores_QM, places_QM, k)
            hits.scores_QK[open_Q], hits.rows_QK[open_Q] = found.scores_QK, found.rows_QK
            open_Q = open_Q[~is_sure_Q]
            num_kept *= 4
        return hits


def merged(parts: Sequence[Hits], k: int) -> Hits:
    """The hits over all groups of shards from the hits in each; the order of the parts does not matter."""
    scores_QH = np.concatenate([part.scores_QK for part in parts], axis=1)
    rows_QH = np.concatenate([part.rows_QK for part in parts], axis=1)
    return _best(scores_QH, rows_QH, k)


def scores_of(vectors: VectorFolder, queries_QD: np.ndarray, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """For each query the best score of the entities at its rows; -inf where none of them has a vector."""
    searched = _Searched(vectors, vectors.stems)
    owners = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    wanted = np.fromiter((row for some in rows for row in some), np.int64, len(owners))
    # The vectors of an entity lie together, and entities in the order of their rows.
    first = np.searchsorted(searched.entity_rows, wanted, side="left")
    num_views = np.searchsorted(searched.entity_rows, wanted, side="right") - first
    places = (
        np.repeat(first, num_views)
        + np.arange(num_views.sum())
        - np.repeat(np.cumsum(num_views) - num_views, num_views)
    )
    scores_Q = np.full(len(rows), -np.inf, np.float32)
    owners = np.repeat(owners, num_views)
    np.maximum.at(scores_Q, owners, _pair_scores(searched, queries_QD, owners, places))
    return scores_Q


class _Searched:
    """The vectors that a search runs over; a place is a vector's number among them."""

    def __init__(self, folder: VectorFolder, stems: Sequence[str], keep_bytes: int = 0) -> None:
        self.vectors = [folder.vectors(stem) for stem in stems]
        tables = [folder.rows(stem)["entity_row"].to_numpy() for stem in stems]
        self.entity_rows = np.concatenate([*tables, np.zeros(0, np.int64)])
        self.starts = np.cumsum([0, *map(len, self.vectors)])
        self.is_cosine = folder.similarity == "cosine"
        num_bytes = int(self.starts[-1]) * (self.vectors[0].shape[1] if self.vectors else 0) * 4
        self._kept: list[tuple[int, torch.Tensor]] | None = [] if 0 < num_bytes <= keep_bytes else None

    @cached_property
    def largest_norm(self) -> float:
        if self.is_cosine:
            return 1.0
        norms = [float(block.norm(dim=1).max()) for _, block in self.blocks()]
        return max(norms, default=0.0)

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The place of the first vector, and the vectors in fp32; unless they are kept, the next takes their memory."""
        if self._kept is None:
            yield from self._read_blocks()
            return
        if not self._kept:
            self._kept += [(first, block_ND.clone()) for first, block_ND in self._read_blocks()]
        yield from self._kept

    def _read_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        num_rows = int(self.starts[-1])
        buffer = torch.empty((min(BLOCK_ROWS, num_rows), self.vectors[0].shape[1] if self.vectors else 0))
        for first in range(0, num_rows, BLOCK_ROWS):
            stop = min(first + BLOCK_ROWS, num_rows)
            for start, shard in zip(self.starts[:-1].tolist(), self.vectors, strict=True):
                begin, end = max(first, start), min(stop, start + len(shard))
                if begin < end:
                    buffer[begin - first : end - first] = torch.from_numpy(shard[begin - start : end - start])
            yield first, buffer[: stop - first]

    def take(self, places: np.ndarray) -> torch.Tensor:
        """The vectors at places, in float64."""
        taken = np.empty((len(places), self.vectors[0].shape[1]), self.vectors[0].dtype)
        of_shard = np.searchsorted(self.starts, places, side="right") - 1
        for number in np.unique(of_shard):
            here = of_shard == number
            taken[here] = self.vectors[number][places[here] - self.starts[number]]
        return torch.from_numpy(taken).double()


def _scanned(
    searched: _Searched, queries_QD: np.ndarray, num_kept: int, pools: PoolFilter | None, scan: Scan
) -> tuple[np.ndarray, np.ndarray]:
    """The places that come out best in fp32, in any order, -1 where there are fewer."""
    num_kept = min(num_kept, max(len(searched.entity_rows), 1))
    scores_QM = np.full((len(queries_QD), num_kept), -np.inf, np.float32)
    places_QM = np.full((len(queries_QD), num_kept), -1, np.int64)
    for first, block_ND in searched.blocks():
        for queries, members in _pairings(searched, first, block_ND, len(queries_QD), pools):
            some_ND = block_ND if members is None else block_ND[members]
            for begin in range(0, len(queries), QUERIES_AT_ONCE):
                part = queries[begin : begin + QUERIES_AT_ONCE]
                found, places = scan(queries_QD[part], some_ND, min(num_kept, len(some_ND)))
                places = np.where(places < 0, -1, first + (places if members is None else members[places]))
                _keep_best(scores_QM, places_QM, part, found, places)
    return scores_QM, places_QM


def _pairings(
    searched: _Searched, first: int, block_ND: torch.Tensor, num_queries: int, pools: PoolFilter | None
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Which queries meet which vectors of a block; None stands for all of them."""
    if pools is None:
        yield np.arange(num_queries), None
        return
    of_vector = pools.of_entity[searched.entity_rows[first : first + len(block_ND)]]
    for pool in np.unique(of_vector):
        queries = np.flatnonzero(pools.of_query == pool)
        if len(queries):
            yield queries, np.flatnonzero(of_vector == pool)


def _keep_best(
    scores_QM: np.ndarray, places_QM: np.ndarray, queries: np.ndarray, found: np.ndarray, places: np.ndarray
) -> None:
    """Takes what a block has found into the best so far; after a few blocks, most queries find nothing better."""
    better = found[:, 0] >= scores_QM[queries].min(1)
    queries, num_kept = queries[better], scores_QM.shape[1]
    scores = np.concatenate([scores_QM[queries], found[better]], axis=1)
    both = np.concatenate([places_QM[queries], places[better]], axis=1)
    best = np.argpartition(-scores, num_kept - 1, axis=1)[:, :num_kept]
    scores_QM[queries] = np.take_along_axis(scores, best, 1)
    places_QM[queries] = np.take_along_axis(both, best, 1)


def _settled(
    searched: _Searched, queries_QD: np.ndarray, scores_QM: np.ndarray, places_QM: np.ndarray, k: int
) -> tuple[Hits, np.ndarray]:
    """The k best by their scores in float64, and for which queries no other vector can be among them."""
    exact_QM = _exact_scores(searched, queries_QD, places_QM)
    rows_QM = np.where(places_QM < 0, -1, searched.entity_rows[places_QM] if len(searched.entity_rows) else -1)
    hits = _best(exact_QM, rows_QM, k)
    # What fp32 can be off by, for any order of its additions.
    error_Q = np.linalg.norm(queries_QD, axis=1) * searched.largest_norm * queries_QD.shape[1] * 2.0**-23
    has_all_Q = (places_QM < 0).any(1) | (places_QM.shape[1] >= len(searched.entity_rows))
    return hits, has_all_Q | (scores_QM.min(1) + error_Q < hits.scores_QK[:, -1])


def _exact_scores(searched: _Searched, queries_QD: np.ndarray, places_QM: np.ndarray) -> np.ndarray:
    exact = np.full(places_QM.size, -np.inf, np.float32)
    wanted = np.flatnonzero(places_QM.ravel() >= 0)
    exact[wanted] = _pair_scores(searched, queries_QD, wanted // places_QM.shape[1], places_QM.ravel()[wanted])
    return exact.reshape(places_QM.shape)


def _pair_scores(searched: _Searched, queries_QD: np.ndarray, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Scores of pairs in float64, rounded: they depend on the two vectors alone."""
    scores = np.empty(len(places), np.float32)
    left = torch.from_numpy(np.ascontiguousarray(queries_QD))
    for begin in range(0, len(places), PAIRS_AT_ONCE):
        part = slice(begin, begin + PAIRS_AT_ONCE)
        pairs = left[torch.from_numpy(queries[part])].double() * searched.take(places[part])
        scores[part] = pairs.sum(1).float().numpy()
    return scores


def _best(scores_QH: np.ndarray, rows_QH: np.ndarray, k: int) -> Hits:
    """Sorted by score and then by row, each entity once."""
    order = np.lexsort((rows_QH, -scores_QH), axis=1)
    scores, rows = np.take_along_axis(scores_QH, order, 1), np.take_along_axis(rows_QH, order, 1)
    by_row = np.argsort(rows, axis=1, kind="stable")
    sorted_rows = np.take_along_axis(rows, by_row, 1)
    repeats = np.zeros(rows.shape, bool)
    np.put_along_axis(repeats, by_row[:, 1:], sorted_rows[:, 1:] == sorted_rows[:, :-1], 1)
    repeats |= rows < 0
    if repeats.any():
        scores, rows = np.where(repeats, -np.inf, scores), np.where(repeats, -1, rows)
        order = np.argsort(repeats, axis=1, kind="stable")
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    hits = Hits.none(len(scores), k)
    hits.scores_QK[:, : scores.shape[1]], hits.rows_QK[:, : rows.shape[1]] = scores[:, :k], rows[:, :k]
    return hits


def choose_scan(device: Device) -> Scan:
    """The quickest way that this machine has: FAISS or torch on the GPU, FAISS or torch on the CPU."""
    if device == "gpu" and not torch.cuda.is_available():
        raise ResourceError("a GPU is asked for (device gpu), but torch sees none here. Use device auto or cpu")
    faiss = _faiss_or_none()
    if device != "cpu" and torch.cuda.is_available():
        has_faiss_gpu = faiss is not None and getattr(faiss, "get_num_gpus", lambda: 0)() > 0
        return _faiss_gpu_scan(faiss) if has_faiss_gpu else torch_scan("cuda")
    return torch_scan("cpu") if faiss is None else _quicker_scan(torch.get_num_threads())


@cache
def _quicker_scan(num_threads: int) -> Scan:
    """FAISS or torch, tried once in a process: which has the better matrix multiply differs from CPU to CPU."""
    import faiss

    chance = np.random.default_rng(0)
    queries_QD, block_ND = (
        chance.random((256, 256), np.float32),
        torch.from_numpy(chance.random((8192, 256), np.float32)),
    )
    seconds: dict[Scan, float] = {}
    for scan in (_faiss_scan(faiss), torch_scan("cpu")):
        for _ in range(2):
            began = time.perf_counter()
            scan(queries_QD, block_ND, 96)
            seconds[scan] = time.perf_counter() - began
    return min(seconds, key=lambda scan: seconds[scan])


def _faiss_or_none() -> Any:
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _faiss_scan(faiss: Any) -> Scan:
    def scan(queries_QD: np.ndarray, block_ND: torch.Tensor, m: int) -> tuple[np.ndarray, np.ndarray]:
        return faiss.knn(queries_QD, block_ND.numpy(), m, metric=faiss.METRIC_INNER_PRODUCT)

    return scan


def _faiss_gpu_scan(faiss: Any) -> Scan:
    resources = faiss.StandardGpuResources()
    on_torch = torch_scan("cuda")

    def scan(queries_QD: np.ndarray, block_ND: torch.Tensor, m: int) -> tuple[np.ndarray, np.ndarray]:
        if m > 2048:  # More than its kernels can select.
            return on_torch(queries_QD, block_ND, m)
        return faiss.knn_gpu(resources, queries_QD, block_ND.numpy(), m, metric=faiss.METRIC_INNER_PRODUCT)

    return scan


def torch_scan(device: str) -> Scan:
    def scan(queries_QD: np.ndarray, block_ND: torch.Tensor, m: int) -> tuple[np.ndarray, np.ndarray]:
        scores_QN = torch.from_numpy(queries_QD).to(device) @ block_ND.to(device).T
        scores, places = scores_QN.topk(m, dim=1)
        return scores.cpu().numpy(), places.cpu().numpy()

    return scan
