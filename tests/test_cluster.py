"""Steps on a cluster whose nodes are killed under them: the job finishes, and what it leaves equals a local run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.killing import wait_for
from tests.models import WORDS, write_encoder
from tests.ray_nodes import Cluster, Node, descendants, environment_without_ray, ray_nodes
from tests.samples import write_jsonl

pytestmark = pytest.mark.cluster
NUM_ENTITIES, NUM_MENTIONS = 1600, 240
OURS = (b"_Host", b"PooledWork", b"TrainWorker")
TWO = ("--workers", "2", "--cpus", "1")
ONE = ("--workers", "1", "--cpus", "1")


def entity(number: int) -> dict[str, Any]:
    words = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 5))
    return {"id": f"E{number}", "title": f"{WORDS[number % 13]} {number}", "description": words}


def mention(number: int) -> dict[str, Any]:
    gold = number * 7 % NUM_ENTITIES
    split = ("train", "train", "validation", "test")[number % 4]
    name = f"{WORDS[gold % 13]} {gold}"
    return {
        "mention_id": f"m{number}",
        "context_left": "has the ",
        "mention": name,
        "label": [f"E{gold}"],
        "split": split,
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_nodes(num_workers=2, num_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all nodes see: an encoder `tiny`, a data set `set`, and in `local` what commands here have made of it."""
    home = tmp_path_factory.mktemp("cluster")
    write_encoder(home / "tiny")
    write_jsonl(home / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(home / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    here(home, "import", "jsonl", "--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set")
    for step in (encode, mine, train, evaluate):
        here(home, *step(home, home / "local"), *ONE)
    return home


def here(home: Path, *words: object) -> None:
    command = [sys.executable, "-m", "pel_ray", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment_without_ray(), cwd=home)


def encode(home: Path, out: Path) -> list[object]:
    return ["encode-kb", home / "set", "--out", out / "vectors", "--encoder", home / "tiny", "--shard-rows", 8]


def mine(home: Path, out: Path) -> list[object]:
    return ["mine", home / "set", "--vectors", out / "vectors", "--out", out / "negatives", "--num-negatives", 8]


def train(home: Path, out: Path) -> list[object]:
    flags = ["--negatives", "mixed", "--num-negatives", 6, "--epochs", 2, "--batch-size", 8, "--micro-batch", 4]
    flags += ["--lr", 1e-3, "--checkpoint-steps", 2, "--log-steps", 1, "--encoder", home / "tiny"]
    return ["train", home / "set", "--out", out / "run", *flags]


def evaluate(home: Path, out: Path) -> list[object]:
    return ["evaluate", home / "set", "--vectors", out / "run", "--out", out / "test", "--resamples", 50]


def submitted(cluster: Cluster, home: Path, words: list[object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pel_ray", *map(str, [*words, *TWO, "--address", cluster.address])]
    empty = home / "empty"
    empty.mkdir(exist_ok=True)
    return subprocess.Popen(
        command, env=cluster.environment, cwd=empty, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finished(job: subprocess.Popen[str]) -> None:
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said[-3000:]


def kill_a_node_at_work(cluster: Cluster) -> None:
    """The raylet of a node that does our work, by pid; a new node takes its place."""
    found: list[Node] = []

    def has_one() -> bool:
        found[:] = [node for node in cluster.nodes[1:] if any(map(does_our_work, descendants(node.process.pid)))]
        return bool(found)

    wait_for(has_one, 120)
    node = found[0]
    raylet = node.raylet_pid()
    node.ask_to_end()
    os.kill(raylet, signal.SIGKILL)
    node.end()
    cluster.nodes.remove(node)
    wait_for(lambda: cluster.num_alive() == len(cluster.nodes), 120)
    cluster.start_worker(1)


def does_our_work(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return title.startswith(b"ray::") and any(name in title for name in OURS)


def has(folder: Path, pattern: str, count: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob(pattern))) >= count


def num_lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def vectors(folder: Path) -> list[np.ndarray]:
    return [np.load(file) for file in sorted((folder / "vectors").glob("vectors-*.npy"))]


def tables(folder: Path, pattern: str) -> list[Any]:
    return [pq.read_table(file).to_pylist() for file in sorted(folder.glob(pattern))]


def test_every_step_survives_a_killed_node(cluster: Cluster, home: Path) -> None:
    out, local = home / "shared", home / "local"
    job = submitted(cluster, home, encode(home, out))
    wait_for(has(out / "vectors", "receipt-*", 2), 120)
    kill_a_node_at_work(cluster)
    finished(job)
    for found, expected in zip(vectors(out), vectors(local), strict=True):
        np.testing.assert_array_equal(found, expected)

    job = submitted(cluster, home, mine(home, out))
    kill_a_node_at_work(cluster)
    finished(job)
    assert tables(out, "negatives/negatives-*.parquet") == tables(local, "negatives/negatives-*.parquet")

    job = submitted(cluster, home, train(home, out))
    wait_for(lambda: num_lines(out / "run" / "metrics.jsonl") >= 4, 200)
    kill_a_node_at_work(cluster)
    finished(job)
    for side in ("mention", "entity"):
        name = f"run/model/{side}_encoder/model.safetensors"
        expected = load_file(local / name)
        for weight, value in load_file(out / name).items():
            np.testing.assert_allclose(value, expected[weight], atol=1e-4)

    job = submitted(cluster, home, evaluate(home, out))
    kill_a_node_at_work(cluster)
    finished(job)
    ranks = [[row["gold_rank"] for row in table] for table in tables(out, "test/hits-*.parquet")]
    assert ranks == [[row["gold_rank"] for row in table] for table in tables(local, "test/hits-*.parquet")]


def test_a_job_goes_on_under_a_new_head_after_the_old_one_was_killed(home: Path) -> None:
    out = home / "headless"
    with ray_nodes(num_workers=2, num_cpus=1) as first:
        job = submitted(first, home, encode(home, out))
        wait_for(has(out / "vectors", "receipt-*", 2), 120)
        os.kill(first.nodes[0].raylet_pid(), signal.SIGKILL)
        first.nodes[0].process.kill()
        job.communicate(timeout=200)
        assert job.returncode != 0
    assert not (out / "vectors" / "manifest.json").exists()
    receipts = [path.stem.removeprefix("receipt-") for path in (out / "vectors").glob("receipt-*")]
    done = {path: path.stat().st_mtime_ns for name in receipts for path in [out / "vectors" / f"vectors-{name}.npy"]}
    assert len(done) >= 2
    with ray_nodes(num_workers=2, num_cpus=1) as second:
        finished(submitted(second, home, encode(home, out)))
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for found, expected in zip(vectors(out), vectors(home / "local"), strict=True):
        np.testing.assert_array_equal(found, expected)
