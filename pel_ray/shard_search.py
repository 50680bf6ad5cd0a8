"""The work of a search over many shards: mentions become queries, and groups of vector shards give their hits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pel_ray.arrays import read_array, write_array
from pel_ray.encoder import Encoding, ModelSettings, Precision, load_parts, load_tower
from pel_ray.memory import peak_bytes
from pel_ray.search import Device, Hits, PoolFilter, exact_top_k, merged
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.text import MENTION_COLUMNS
from pel_ray.threads import set_threads
from pel_ray.vectors import Shard, VectorFolder


@dataclass(frozen=True, kw_only=True)
class MentionJob(ShardJob):
    """Which mentions become queries; a shard is a range of `rows`."""

    phase = "mentions-"
    unit = "mentions"
    remedy = "Try fewer workers on a node, or look at these mentions"

    mentions: TableFolder
    rows: np.ndarray
    model: ModelSettings
    precision: Precision

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (f"queries-{shard.stem}-{self.tag}.npy",)


class MentionEncoder(ShardWorker):
    """Loads the mention tower once, then turns ranges of mentions into query vectors."""

    job: MentionJob

    def start(self) -> None:
        job = self.job
        if job.threads:
            set_threads(job.threads)
        parts = load_parts(job.model)
        self._texts = parts.texts
        self._encoding = Encoding(load_tower(parts, "mention"), parts.settings, parts.markers.pad, job.precision)

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        wanted = self.job.rows[shard.start : shard.stop]
        table = self.job.mentions.rows(int(wanted[0]), int(wanted[-1]) + 1, MENTION_COLUMNS)
        pieces = self._texts.mentions(table.take(wanted - wanted[0]).to_pylist())
        vectors = self._encoding.run_lists(pieces)
        write_array(self.job.folder / self.job.result_names(shard)[0], vectors)
        return {"mentions": len(pieces), "pieces": sum(map(len, pieces)), "seconds": time.monotonic() - began}


@dataclass(frozen=True, kw_only=True)
class SearchJob(ShardJob):
    """What is searched for; a shard is a range of the folder's vector shards."""

    phase = "hits-"
    unit = "vector files"
    remedy = "Try fewer workers on a node"

    vectors: VectorFolder
    queries: Sequence[Location]
    k: int
    pools: PoolFilter | None
    device: Device

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (f"scores-{shard.stem}-{self.tag}.npy", f"rows-{shard.stem}-{self.tag}.npy")


class ShardSearcher(ShardWorker):
    """Searches groups of vector shards for all queries."""

    job: SearchJob

    def start(self) -> None:
        job = self.job
        if job.threads:
            set_threads(job.threads)
        self._queries = np.concatenate([read_array(file) for file in job.queries])

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        job = self.job
        stems = job.vectors.stems[shard.start : shard.stop]
        hits = exact_top_k(job.vectors, self._queries, job.k, stems=stems, pools=job.pools, device=job.device)
        scores_name, rows_name = job.result_names(shard)
        write_array(job.folder / scores_name, hits.scores_QK)
        write_array(job.folder / rows_name, hits.rows_QK)
        num_vectors = sum(len(job.vectors.vectors(stem)) for stem in stems)
        return {"vectors": num_vectors, "seconds": time.monotonic() - began, "peak_memory_bytes": peak_bytes()}


def merged_hits(job: SearchJob, groups: Sequence[Shard], queries_at_once: int) -> Iterator[tuple[int, Hits]]:
    """The hits over all groups, some queries at a time, each time with the number of the first query."""
    files = [[read_array(job.folder / name) for name in job.result_names(group)] for group in groups]
    for start in range(0, len(files[0][0]), queries_at_once):
        parts = [Hits(*(np.asarray(array[start : start + queries_at_once]) for array in pair)) for pair in files]
        yield start, merged(parts, job.k)
