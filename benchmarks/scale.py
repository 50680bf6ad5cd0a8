"""How encoding and searching spread over workers here, what handing out a shard costs, and what a cluster makes of it.

Measured on this machine: 1, 2 and 4 workers of one thread each (four of them share two cores), and the coordination of
shards without work. Simulated from that: a KB of 2.36M entities on 1, 8, 64 and 512 GPU workers. The simulation
assumes what it prints, and nothing of it was run on GPUs.

    python benchmarks/scale.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import io
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _figures import Figures
from encode import encode, import_kb, ray_with, write_kb

from pel_ray.artifacts import Request, building
from pel_ray.encoder import ModelSettings, Parts, load_parts
from pel_ray.runtime import Ask, workers
from pel_ray.shard_search import SearchJob, ShardSearcher
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.steps.sharded import finish_shards
from pel_ray.storage import locate
from pel_ray.vectors import Shard, VectorFolder, plan_shards

ENTITIES, SHARD_ROWS = 2_360_000, 4096
GPU_RATE = 1500.0
"""Entities a second of one GPU with BERT-base and short texts: an assumption."""
START_SECONDS = 15.0
"""Of a worker: importing torch and loading a tower takes 10 to 12 s here; the rest is scheduling."""
SPREAD = 0.1
"""Standard deviation of a shard's time, as a share of it."""


@dataclass(frozen=True, kw_only=True)
class IdleJob(ShardJob):
    """Shards that need no work: what is left is their coordination."""

    phase = "idle-"

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return ()


class Idle(ShardWorker):
    def do(self, shard: Shard) -> dict[str, Any]:
        return {}


def coordination(home: Path, num_shards: int) -> float:
    """Seconds from one shard to the next of a single worker: a task, its marks and receipt on disk, the answer."""
    with ray_with(2), contextlib.redirect_stderr(io.StringIO()):
        job = IdleJob(folder=locate(home / "idle"), tag="0" * 8, threads=None)
        job.folder.make_folder()
        times: list[float] = []
        with workers(Ask(2, 1, 0, is_local=True)) as carrier:
            finish_shards(carrier, Idle, job, plan_shards(num_shards, 1), lambda *_: times.append(time.perf_counter()))
    # Workers start seconds apart; the second half has both.
    half = len(times) // 2
    return 2 * (times[-1] - times[half]) / (len(times) - 1 - half)


def rates_of_encoding(home: Path, parts: Parts, num_rows: int) -> dict[int, float]:
    """Entities a second by the clock, from when all workers are surely at work to the last shard but one."""
    rates = {}
    for num_workers in (1, 2, 4):
        with ray_with(4):
            out = home / f"vectors-{num_workers}"
            encode(home / "kb", out, parts, 64, workers=num_workers, cpus=1)
            finished = sorted(path.stat().st_mtime for path in out.glob("vectors-*.npy"))
            first, last = len(finished) // 3, len(finished) - 2
            rates[num_workers] = 64 * (last - first) / (finished[last] - finished[first])
            print(f"encode, {num_workers} workers: {rates[num_workers]:.0f} entities/s, "
                  f"{rates[num_workers] / num_workers:.0f} each", flush=True)  # fmt: skip
    return rates


def rates_of_searching(home: Path, num_queries: int) -> dict[int, float]:
    """Vectors a second over all queries, by the clock from the first answer to the last."""
    vectors = VectorFolder.open(locate(home / "vectors-1"))
    queries = home / "queries.npy"
    np.save(queries, np.random.default_rng(0).standard_normal((num_queries, vectors.dimension)).astype(np.float32))
    rates = {}
    for num_workers in (1, 2, 4):
        with ray_with(4), contextlib.redirect_stderr(io.StringIO()):
            out = locate(home / f"hits-{num_workers}")
            request = Request(kind="hits", inputs={}, settings={})
            times: list[float] = []
            with building(out, request) as work, workers(Ask(num_workers, 1, 0, is_local=True)) as carrier:
                job = SearchJob(folder=out, tag=work.tag, threads=1, vectors=vectors, queries=[locate(queries)], k=64,
                                pools=None, device="cpu")  # fmt: skip
                groups = plan_shards(len(vectors.stems), 1)
                finish_shards(
                    carrier, ShardSearcher, job, groups, lambda *_, seen=times: seen.append(time.perf_counter())
                )
            third = len(times) // 3
            rates[num_workers] = 64 * (len(times) - 1 - third) / (times[-1] - times[third])
        print(
            f"search, {num_workers} workers: {rates[num_workers]:.0f} vectors/s for {num_queries:,} queries", flush=True
        )
    return rates


def simulated(num_workers: int, seconds_each: float, shard_rows: int = SHARD_ROWS) -> tuple[float, float]:
    """Seconds to encode the KB, and how much of them all workers were busy; the driver hands shards out one by one."""
    num_shards = -(-ENTITIES // shard_rows)
    spread = np.random.default_rng(13).normal(1, SPREAD, num_shards).clip(0.5)
    work = spread * shard_rows / GPU_RATE
    free = [START_SECONDS] * num_workers
    heapq.heapify(free)
    driver = 0.0
    for seconds in work:
        driver = max(driver, heapq.heappop(free)) + seconds_each
        heapq.heappush(free, driver + seconds)
    end = max(free)
    return end, float(work.sum()) / (end * num_workers)


def bottleneck(num_workers: int, seconds_each: float) -> str:
    """What would shorten the run most: no start-up, a driver that costs nothing, or finer shards."""
    end = simulated(num_workers, seconds_each)[0]
    gains = {
        "the GPUs": 0.05 * end,
        "starting workers": min(START_SECONDS, end),
        "the driver": end - simulated(num_workers, 0.0)[0],
        "the size of shards": end - simulated(num_workers, seconds_each, SHARD_ROWS // 8)[0],
    }
    return max(gains, key=lambda name: gains[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer entities")
    quick, figures = parser.parse_args().quick, Figures()
    parts = load_parts(ModelSettings(layers=1 if quick else 3))
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        kb = import_kb(home / "all", 1536 if quick else 4096)
        write_kb(home / "kb", [row for table in kb.tables() for row in table.to_pylist()])
        each = coordination(home, 100 if quick else 300)
        print(f"a shard without work: {1000 * each:.1f} ms of a worker and the driver", flush=True)
        encoding = rates_of_encoding(home, parts, kb.num_rows)
        if not quick:
            rates_of_searching(home, 4096)
    share = each / (each + SHARD_ROWS / encoding[1])
    figures.at_most("scale_coordination_share_of_a_shard_here", share, 0.05)
    print(f"simulated: {ENTITIES:,} entities in shards of {SHARD_ROWS:,}, {GPU_RATE:,.0f} entities/s a GPU (assumed), "
          f"{START_SECONDS:.0f} s to start a worker (assumed), {1000 * each:.1f} ms a shard (measured here), times of "
          f"shards spread by {SPREAD:.0%} (assumed)", flush=True)  # fmt: skip
    for num_workers in (1, 8, 64, 512):
        end, busy = simulated(num_workers, each)
        print(f"simulated, {num_workers} GPUs: {end:.0f} s, {busy:.0%} busy; most would be gained by "
              f"{bottleneck(num_workers, each)}", flush=True)  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
