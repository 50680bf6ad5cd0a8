"""How encoding and searching spread over workers here, what handing out a shard costs, and what a cluster makes of it.

Measured on this machine: 1, 2 and 4 workers of one thread each (four of them share two cores), and the coordination of
shards without work. Simulated from that: a KB of 2.36M entities on 1, 8, 64 and 512 GPU workers. The simulation
assumes what it prints, and nothing of it was run on GPUs.

    python benchmarks/scale.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _figures import Figures
from _simulation import MOST_WORKERS, SHARD_ROWS, Costs, first_bottleneck, savings, simulated
from encode import encode, import_kb, write_kb
from search import generate, make_queries

from pel_ray.artifacts import Request, building
from pel_ray.encoder import ModelSettings, Parts, load_parts
from pel_ray.runtime import Ask, workers
from pel_ray.runtime_session import ray_session
from pel_ray.shard_search import SearchJob, ShardSearcher
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.steps.sharded import finish_shards
from pel_ray.storage import locate
from pel_ray.vectors import Shard, plan_shards

NUM_GENERATED = 48 * 8192


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
    """Seconds from one shard to the next of one worker of a cluster: a task, its marks and receipt, the answer."""
    with ray_session(2), contextlib.redirect_stderr(io.StringIO()):
        job = IdleJob(folder=locate(home / "idle"), tag="0" * 8, threads=None)
        job.folder.make_folder()
        times: list[float] = []
        with workers(Ask(2, 1, 0, is_local=False)) as carrier:
            finish_shards(carrier, Idle, job, plan_shards(num_shards, 1), lambda *_: times.append(time.perf_counter()))
    # Workers start seconds apart; the second half has both.
    half = len(times) // 2
    return 2 * (times[-1] - times[half]) / (len(times) - 1 - half)


def rates_of_encoding(home: Path, parts: Parts, num_rows: int) -> dict[int, float]:
    """Entities a second by the clock, from when all workers are surely at work to the last shard but one."""
    rates = {}
    for num_workers in (1, 2, 4):
        with ray_session(4):
            out = home / f"vectors-{num_workers}"
            encode(home / "kb", out, parts, 64, workers=num_workers, cpus=1)
            finished = sorted(path.stat().st_mtime for path in out.glob("vectors-*.npy"))
            first, last = len(finished) // 3, len(finished) - 2
            rates[num_workers] = 64 * (last - first) / (finished[last] - finished[first])
            print(f"encode, {num_workers} workers: {rates[num_workers]:.0f} entities/s, "
                  f"{rates[num_workers] / num_workers:.0f} each", flush=True)  # fmt: skip
    return rates


def rates_of_searching(home: Path, num_queries: int) -> dict[int, float]:
    """Generated vectors a second over all queries, by the clock from when all workers answer to the last answer."""
    vectors = generate(home / "generated", NUM_GENERATED)
    queries = home / "queries.npy"
    np.save(queries, make_queries(vectors, num_queries))
    rates = {}
    for num_workers in (1, 2, 4):
        with ray_session(4), contextlib.redirect_stderr(io.StringIO()):
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
            per_group = NUM_GENERATED / len(groups)
            rates[num_workers] = per_group * (len(times) - 1 - third) / (times[-1] - times[third])
        print(f"search, {num_workers} workers: {rates[num_workers]:,.0f} vectors/s for {num_queries:,} queries, "
              f"{rates[num_workers] / num_workers:,.0f} each", flush=True)  # fmt: skip
    return rates


def show_simulation(costs: Costs) -> None:
    print("simulated, not run; it assumes:", flush=True)
    for assumption in costs.assumptions():
        print(f"  {assumption}", flush=True)
    for num_workers in (1, 8, 64, 512):
        seconds, busy = simulated(num_workers, costs)
        most = ", ".join(f"{name} {saved:.1f} s" for name, saved in list(savings(num_workers, costs).items())[:3])
        print(f"simulated, {num_workers} GPUs: {seconds:.1f} s, GPUs {busy:.0%} busy; half the cost would save: {most}",
              flush=True)  # fmt: skip
    found = first_bottleneck(costs)
    if found is None:
        print(f"simulated: the GPUs themselves are the bottleneck up to {MOST_WORKERS} of them", flush=True)
    else:
        print(f"simulated: the first other bottleneck, with {found[0]} GPUs, is {found[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer entities")
    quick, figures = parser.parse_args().quick, Figures()
    parts = load_parts(ModelSettings(layers=1 if quick else 3))
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        kb = import_kb(home / "all", 1536 if quick else 3072)
        write_kb(home / "kb", [row for table in kb.tables() for row in table.to_pylist()])
        each = coordination(home, 100 if quick else 300)
        print(f"a shard without work: {1000 * each:.1f} ms of a worker and the driver", flush=True)
        encoding = rates_of_encoding(home, parts, kb.num_rows)
        if not quick:
            rates_of_searching(home, 1024)
    share = each / (each + SHARD_ROWS / encoding[1])
    figures.at_most("scale_coordination_share_of_a_cluster_shard", share, 0.05)
    show_simulation(Costs(driver_seconds=each))
    figures.finish()


if __name__ == "__main__":
    main()
