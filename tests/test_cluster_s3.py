"""Every folder in a bucket, and workers on several nodes: what comes out is what one worker leaves here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.storage import Location, locate
from pel_ray.vectors import VectorFolder
from tests.buckets import s3_client, s3_server
from tests.killing import SECONDS
from tests.models import write_encoder
from tests.ranking_set import NUM_ENTITIES, NUM_MENTIONS, entity, mention
from tests.ray_nodes import Cluster, environment_without_ray, ray_nodes
from tests.samples import write_jsonl

pytestmark = pytest.mark.cluster
BUCKET = "team"
THERE = f"s3://{BUCKET}/work"
ONE_CORE = {"cpus": 1}
"""Of a worker: one worker here, and one on each node of a cluster."""
MODEL = {"encoder": "{out}/tiny", "pooling": "mention"}
TRAINING = {
    "model": MODEL,
    "negatives": {"kind": "mixed", "num_negatives": 6},
    "optimiser": {"epochs": 1, "batch_size": 4, "micro_batch": 2, "lr": 1e-3},
}
EVALUATED = {"baselines": ["none"], "resamples": 50}
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("import jsonl", {"kb": ["{out}/kb.jsonl"], "mentions": ["{out}/mentions.jsonl"], "out": "{out}/set"}),
    ("encode-kb", {"kb": "{out}/set", "out": "{out}/vectors", "model": MODEL, "shard_rows": 16}),
    ("mine", {"data": "{out}/set", "vectors": "{out}/vectors", "out": "{out}/negatives", "num_negatives": 8}),
    ("train", {"data": "{out}/set", "out": "{out}/run", **TRAINING}),
    ("evaluate", {"data": "{out}/set", "vectors": "{out}/run", "out": "{out}/test", **EVALUATED}),
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Its nodes, and what runs here, know the bucket's server and its keys from their environment."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        s3_client(address).create_bucket(Bucket=BUCKET)
        with ray_nodes(num_workers=2, num_cpus=1) as cluster:
            yield cluster


def write_sources(home: Path) -> None:
    """An encoder, a KB and mentions in a folder here, and the same in the bucket."""
    write_encoder(home / "tiny")
    write_jsonl(home / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(home / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    for path in home.rglob("*"):
        if path.is_file():
            (locate(THERE) / str(path.relative_to(home))).copy_from(locate(path))


def run(out: str, folder: Path, environment: dict[str, str], *flags: str) -> str:
    """What the same pipeline says in a process of its own, with all its folders in `out`."""
    steps = [
        {"name": name, "run": name, "with": told if name.startswith("import") else told | {"resources": ONE_CORE}}
        for name, told in STEPS
    ]
    folder.mkdir()
    (folder / "steps.yaml").write_text(
        "# Command   pel-ray run steps.yaml\n" + json.dumps({"out": out, "steps": steps})
    )
    command = [sys.executable, "-m", "pel_ray", "run", "steps.yaml", *flags]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(home: Location, side: str) -> dict[str, np.ndarray]:
    return dict(load((home / "run" / "model" / f"{side}_encoder" / "model.safetensors").read_bytes()))


def figures(home: Location) -> dict[str, Any]:
    """All of an evaluation but the names of its folders."""
    (name,) = (name for name in (home / "test").names() if name.startswith("evaluation-"))
    told = json.loads((home / "test" / name).read_bytes())
    return {name: value for name, value in told.items() if name not in ("data", "vectors")}


def test_a_pipeline_on_a_cluster_with_all_folders_in_a_bucket_gives_what_it_gives_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    write_sources(home)
    said = run(THERE, tmp_path / "there", cluster.environment, "--address", cluster.address)
    # Who encodes the KB and who trains say with how many workers.
    assert said.count("2 x (1 CPUs, 0 GPUs) on the cluster") == 2, said
    run(str(home), tmp_path / "here", environment_without_ray() | {"RAY_worker_niceness": "0"})
    here, there = locate(home), locate(THERE)
    one, other = (VectorFolder.open(place / "vectors") for place in (here, there))
    for (rows, vectors), (rows_there, vectors_there) in zip(one.shards(), other.shards(), strict=True):
        assert rows == rows_there
        np.testing.assert_array_equal(vectors, vectors_there)
    names = [name for name in (here / "negatives").names() if name.startswith("negatives-")]
    assert names
    for name in names:
        assert (here / "negatives" / name).read_bytes() == (there / "negatives" / name).read_bytes()
    for side in ("mention", "entity"):
        expected = weights(here, side)
        for name, value in weights(there, side).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-4)
    # Of the same weights: those of two workers differ in the last digits from those of one, and with them a rank.
    shutil.rmtree(home / "test")
    told = {"data": str(home / "set"), "vectors": f"{THERE}/run", "out": str(home / "test"), "resources": ONE_CORE}
    evaluate(EvaluateSettings.model_validate(told | EVALUATED))
    assert figures(here) == figures(there)
