"""Encoding a KB on many GPU workers, simulated: how long it takes, and what would shorten it most.

A worker asks for a shard, the driver hands shards out one by one, the worker encodes it and writes it to storage that
serves one shard after the other. The KB, the GPU and the storage are those of cluster/sizing.py.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "cluster"))

from sizing import ENTITIES, SHARD_ROWS, STORAGE_BYTES, VECTOR_BYTES, encode_rate  # noqa: E402

MOST_WORKERS = 512
GPUS = "the GPUs"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of what a run is made up; any of these can be the bottleneck."""

    driver_seconds: float
    """To hand out a shard and to take its receipt."""
    row_seconds: float = 1 / encode_rate()
    """Of a GPU for an entity."""
    start_seconds: float = 15.0
    """Of all workers at once: importing torch and loading a tower takes 10 to 12 s here; the rest is scheduling."""
    storage_bytes: float = STORAGE_BYTES
    """A second."""
    shard_rows: int = SHARD_ROWS
    spread: float = 0.1
    """Standard deviation of a shard's time, as a share of it."""

    def assumptions(self) -> Iterator[str]:
        yield f"{ENTITIES:,} entities in shards of {self.shard_rows:,}"
        yield f"{1 / self.row_seconds:,.0f} entities/s a GPU: cluster/sizing.py, computed, never measured"
        yield f"all workers start at once and take {self.start_seconds:.0f} s: 10 to 12 s here, the rest a guess"
        yield (
            f"{1000 * self.driver_seconds:.1f} ms to hand out a shard: measured here, all of it taken as the driver's, "
            "one shard after the other"
        )
        yield (
            f"{self.storage_bytes / 1e9:.1f} GB/s of storage for all workers together, to which they write "
            f"{VECTOR_BYTES:,} bytes an entity: assumed"
        )
        yield f"times of shards spread by {self.spread:.0%}, and nothing fails: assumed"

    def halved(self) -> dict[str, Costs]:
        """The same with one of its parts at half the cost."""
        return {
            GPUS: replace(self, row_seconds=self.row_seconds / 2),
            "the start of workers": replace(self, start_seconds=self.start_seconds / 2),
            "handing out shards": replace(self, driver_seconds=self.driver_seconds / 2),
            "the storage": replace(self, storage_bytes=self.storage_bytes * 2),
            "the size of shards": replace(self, shard_rows=self.shard_rows // 2),
        }


def simulated(num_workers: int, costs: Costs) -> tuple[float, float]:
    """Seconds to encode the KB, and the share of them that the GPUs were at work."""
    num_shards = -(-ENTITIES // costs.shard_rows)
    spread = np.random.default_rng(13).normal(1, costs.spread, num_shards).clip(0.5)
    work = [float(seconds) for seconds in spread * costs.shard_rows * costs.row_seconds]
    write_seconds = costs.shard_rows * VECTOR_BYTES / costs.storage_bytes
    # When somebody is done with what: in the order of time, for driver and storage serve who comes first.
    events = [(costs.start_seconds, worker, True) for worker in range(num_workers)]
    heapq.heapify(events)
    driver = storage = 0.0
    waiting = list(reversed(work))
    while events:
        now, worker, is_idle = heapq.heappop(events)
        if not is_idle:
            storage = max(storage, now) + write_seconds
            heapq.heappush(events, (storage, worker, True))
        elif waiting:
            driver = max(driver, now) + costs.driver_seconds
            heapq.heappush(events, (driver + waiting.pop(), worker, False))
    return storage, sum(work) / (storage * num_workers)


def savings(num_workers: int, costs: Costs) -> dict[str, float]:
    """The seconds that each part would save if it cost half, the most first: the first is the bottleneck."""
    end = simulated(num_workers, costs)[0]
    saved = {name: end - simulated(num_workers, half)[0] for name, half in costs.halved().items()}
    return dict(sorted(saved.items(), key=lambda item: -item[1]))


def first_bottleneck(costs: Costs) -> tuple[int, str] | None:
    """With how many workers, doubled from one, something else than the GPUs is the bottleneck, and what."""
    num_workers = 1
    while num_workers <= MOST_WORKERS:
        name = next(iter(savings(num_workers, costs)))
        if name != GPUS:
            return num_workers, name
        num_workers *= 2
    return None
