"""Steps on a cluster whose nodes are killed under them: the job finishes, and what it leaves equals a local run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from pel_ray.steps.quickstart import hpo_file
from pel_ray.steps.searching import MENTIONS_PER_SHARD
from tests.killing import SECONDS, wait_for
from tests.models import write_encoder
from tests.processes import started
from tests.ray_nodes import Cluster, environment_without_ray, ray_nodes

pytestmark = pytest.mark.cluster
LENGTHS = ("--entity-length", 32, "--mention-length", 32)
TWO = ("--workers", "2", "--cpus", "1")
ONE = ("--workers", "1", "--cpus", "1")
IN_ONE_SESSION = """
import json, sys
from pel_ray.cli import cli
from pel_ray.runtime_session import ray_session
with ray_session():
    for words in json.loads(sys.argv[1]):
        cli.main(words, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_nodes(num_workers=2, num_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all nodes see: an encoder `tiny`, a data set `set` of HPO, and in `local` what commands here made of it."""
    home = tmp_path_factory.mktemp("cluster")
    write_encoder(home / "tiny")
    data = ["import", "obo", hpo_file(), "--mentions", "synonyms", "--test", 0.5, "--out", "set"]
    here(home, data, *([*step(home, home / "local"), *ONE] for step in (encode, mine, train)))
    return home


def here(home: Path, *commands: list[object]) -> None:
    """One after the other under one Ray of their own, as `pel-ray run` does its steps."""
    words = json.dumps([list(map(str, command)) for command in commands])
    command = [sys.executable, "-c", IN_ONE_SESSION, words]
    plain = environment_without_ray() | {"RAY_worker_niceness": "0"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=plain, cwd=home)


def encode(home: Path, out: Path) -> list[object]:
    flags = ["--out", out / "vectors", "--encoder", home / "tiny", "--shard-rows", 256, *LENGTHS]
    return ["encode-kb", home / "set", *flags]


def mine(home: Path, out: Path) -> list[object]:
    return ["mine", home / "set", "--vectors", out / "vectors", "--out", out / "negatives", "--num-negatives", 8]


def train(home: Path, out: Path) -> list[object]:
    flags = ["--negatives", "mixed", "--num-negatives", 6, "--epochs", 1, "--batch-size", 8, "--micro-batch", 4]
    flags += ["--max-mentions", 128, "--validation-mentions", 64, "--encoder", home / "tiny", *LENGTHS]
    flags += ["--lr", 1e-3, "--checkpoint-steps", 2, "--log-steps", 1]
    return ["train", home / "set", "--out", out / "run", *flags]


def evaluate(home: Path, run: Path, out: Path) -> list[object]:
    return ["evaluate", home / "set", "--vectors", run, "--out", out, "--resamples", 50, "--baselines", "none"]


@contextmanager
def submitted(cluster: Cluster, home: Path, words: list[object]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pel_ray", *words, *TWO, "--address", cluster.address]
    empty, log = home / "empty", home / "job.log"
    empty.mkdir(exist_ok=True)
    with open(log, "wb") as out, started(command, env=cluster.environment, cwd=empty, stdout=out, stderr=out) as job:
        yield job


def finished(job: subprocess.Popen[str], home: Path) -> None:
    assert job.wait(SECONDS) == 0, (home / "job.log").read_text()[-3000:]


def survives(cluster: Cluster, home: Path, words: list[object], out: Path, is_time: Callable[[], bool]) -> None:
    """Submits a step, kills a node under it when it is time, and expects it to end well all the same."""
    with submitted(cluster, home, words) as job:
        wait_for(lambda: is_time() or job.poll() is not None)
        node = cluster.node_at_work()
        node.kill_raylet()
        assert job.poll() is None and not (out / "manifest.json").exists(), "the step was over before the kill"
        cluster.end_worker(node)
        cluster.start_worker(1)
        finished(job, home)
    assert (out / "manifest.json").exists()


def has(folder: Path, pattern: str, count: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob(pattern))) >= count


def num_lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def vectors(folder: Path) -> list[np.ndarray]:
    return [np.load(file) for file in sorted((folder / "vectors").glob("vectors-*.npy"))]


def tables(folder: Path, pattern: str) -> list[Any]:
    return [pq.read_table(file).to_pylist() for file in sorted(folder.glob(pattern))]


def figures(folder: Path) -> dict[str, Any]:
    """All of an evaluation but the names of its folders, which are said from where the command runs."""
    (file,) = folder.glob("evaluation-*.json")
    return {name: value for name, value in json.loads(file.read_bytes()).items() if name not in ("data", "vectors")}


def test_every_step_survives_a_killed_node(cluster: Cluster, home: Path) -> None:
    out, local = home / "shared", home / "local"
    survives(cluster, home, encode(home, out), out / "vectors", has(out / "vectors", "receipt-*", 2))
    for found, expected in zip(vectors(out), vectors(local), strict=True):
        np.testing.assert_array_equal(found, expected)

    negatives = out / "negatives"
    survives(cluster, home, mine(home, out), negatives, has(negatives, "receipt-mentions-*", 1))
    mined = tables(negatives, "negatives-*.parquet")
    assert mined == tables(local / "negatives", "negatives-*.parquet")
    assert sum(map(len, mined)) > 2 * MENTIONS_PER_SHARD

    run = out / "run"
    survives(cluster, home, train(home, out), run, lambda: num_lines(run / "metrics.jsonl") >= 4)
    for side in ("mention", "entity"):
        name = f"model/{side}_encoder/model.safetensors"
        expected = load_file(local / "run" / name)
        for weight, value in load_file(run / name).items():
            np.testing.assert_allclose(value, expected[weight], atol=1e-4)

    # Of the same weights: those of two workers differ in the last digits from those of one, and with them a rank.
    tested = out / "test"
    survives(cluster, home, evaluate(home, run, tested), tested, has(tested, "receipt-mentions-*", 1))
    here(home, [*evaluate(home, run, local / "test"), *ONE])
    hits = tables(tested, "hits-*.parquet")
    assert hits == tables(local / "test", "hits-*.parquet") and figures(tested) == figures(local / "test")
    assert sum(map(len, hits)) > 2 * MENTIONS_PER_SHARD


def test_a_job_goes_on_under_a_new_head_after_the_old_one_was_killed(home: Path) -> None:
    out = home / "headless"
    with ray_nodes(num_workers=1, num_cpus=2) as first, submitted(first, home, encode(home, out)) as job:
        wait_for(has(out / "vectors", "receipt-*", 2))
        os.kill(first.nodes[0].raylet_pid(), signal.SIGKILL)
        first.nodes[0].process.kill()
        assert job.wait(SECONDS) != 0
    assert not (out / "vectors" / "manifest.json").exists()
    receipts = [path.stem.removeprefix("receipt-") for path in (out / "vectors").glob("receipt-*")]
    done = {path: path.stat().st_mtime_ns for name in receipts for path in [out / "vectors" / f"vectors-{name}.npy"]}
    assert len(done) >= 2
    with ray_nodes(num_workers=1, num_cpus=2) as second, submitted(second, home, encode(home, out)) as job:
        finished(job, home)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for found, expected in zip(vectors(out), vectors(home / "local"), strict=True):
        np.testing.assert_array_equal(found, expected)
