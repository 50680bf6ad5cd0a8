"""Searching a KB's vectors for the mentions of a data set: the part that mining and evaluation share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.arrays import read_array
from pel_ray.artifacts import Work
from pel_ray.encoder import Parts
from pel_ray.errors import SettingsError
from pel_ray.golds import GoldMentions
from pel_ray.progress import RateProgress
from pel_ray.runtime import Ask, Workers
from pel_ray.search import Device, Hits, PoolFilter
from pel_ray.shard_search import MentionEncoder, MentionJob, SearchJob, ShardSearcher, merged_hits
from pel_ray.steps.sharded import finish_shards
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.vectors import Shard, VectorFolder, plan_shards

MENTIONS_PER_SHARD = 2048
ENTITIES_PER_GROUP = 131_072
QUERIES_AT_ONCE = 4096
Pool = Literal["auto", "all", "world"]


def pool_filter(pool: Pool, kb: TableFolder, mentions: GoldMentions) -> PoolFilter | None:
    """Nothing where every mention may mean every entity; auto: the world, where both KB and mentions have worlds."""
    numbers: dict[str, int] = {}
    for table in kb.tables(["world"]):
        for world in pc.unique(table["world"]).to_pylist():
            numbers.setdefault(world, len(numbers))
    missing = sorted(set(mentions.worlds) - numbers.keys())
    if pool == "world" and (missing or set(numbers) == {""}):
        raise SettingsError(
            f"pool is world, but the KB has no world {missing[0] if missing else 'at all'!r}. Use pool all"
        )
    if pool == "all" or missing or set(numbers) == {""}:
        return None
    values = pa.array(list(numbers), pa.string())
    of_entity = [pc.index_in(table["world"], values).to_numpy() for table in kb.tables(["world"])]
    return PoolFilter(
        np.concatenate(of_entity).astype(np.int32), np.array([numbers[world] for world in mentions.worlds], np.int32)
    )


class Search:
    """Encodes mentions and searches for them, leaving its files in a folder in the making."""

    def __init__(self, work: Work, carrier: Workers, ask: Ask, device: Device) -> None:
        self._work, self._carrier, self._ask, self._device = work, carrier, ask, device
        self.seconds: dict[str, float] = {}

    def encode(self, mentions: TableFolder, rows: np.ndarray, parts: Parts) -> list[Location]:
        """Files of query vectors, in the order of `rows`."""
        job = MentionJob(
            folder=self._work.folder,
            tag=self._work.tag,
            threads=self._ask.cpus,
            mentions=mentions,
            rows=rows,
            model=parts.settings,
            precision="auto",
        )
        shards = plan_shards(len(rows), MENTIONS_PER_SHARD)
        with RateProgress("encoding mentions", len(rows)) as progress:

            def seen(shard: Shard, receipt: dict[str, Any]) -> None:
                progress.add(receipt["mentions"])

            receipts = finish_shards(self._carrier, MentionEncoder, job, shards, seen)
        self.seconds["encoding mentions"] = round(sum(receipt["seconds"] for receipt in receipts), 2)
        return [self._work.folder / job.result_names(shard)[0] for shard in shards]

    def run(
        self, vectors: VectorFolder, queries: list[Location], k: int, pools: PoolFilter | None
    ) -> Iterator[tuple[int, np.ndarray, Hits]]:
        """Number of the first query, queries and their hits, some at a time and in order."""
        job = SearchJob(
            folder=self._work.folder,
            tag=self._work.tag,
            threads=self._ask.cpus,
            vectors=vectors,
            queries=queries,
            k=k,
            pools=pools,
            device=self._device,
        )
        per_shard = max(int(vectors.manifest.request.settings["shard_rows"]), 1)
        groups = plan_shards(len(vectors.stems), max(ENTITIES_PER_GROUP // per_shard, 1))
        with RateProgress("searching vectors", int(vectors.manifest.counts["rows"])) as progress:

            def seen(group: Shard, receipt: dict[str, Any]) -> None:
                progress.add(receipt["vectors"])

            receipts = finish_shards(self._carrier, ShardSearcher, job, groups, seen)
        self.seconds["searching"] = round(sum(receipt["seconds"] for receipt in receipts), 2)
        all_queries = np.concatenate([read_array(file) for file in queries])
        for start, hits in merged_hits(job, groups, QUERIES_AT_ONCE):
            yield start, all_queries[start : start + QUERIES_AT_ONCE], hits


def pool_sizes(pools: PoolFilter | None, num_entities: int) -> str:
    """How many entities a mention competes with, for the reader of a table."""
    if pools is None:
        return f"{num_entities:,} entities"
    sizes = np.bincount(pools.of_entity)
    return f"{len(sizes):,} worlds of {sizes.min():,} to {sizes.max():,} entities"
