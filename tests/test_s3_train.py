"""Training with every folder in a bucket: what comes out is what comes out of local folders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from pel_ray.artifacts import read_manifest
from pel_ray.linker import Linker
from pel_ray.nil import read_threshold
from pel_ray.runtime import Resources, Workers
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.evaluate import EvaluateSettings, evaluate, read_evaluation
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.rank_plan import RankTrainSettings
from pel_ray.steps.rank_train import rank_train
from pel_ray.steps.sharded import at_work
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.storage import Location, join, locate
from tests.buckets import keys, s3_client, s3_server
from tests.conftest import RunCommand
from tests.killing import wait_for
from tests.models import write_encoder
from tests.processes import started
from tests.ranking_set import NUM_ENTITIES, NUM_MENTIONS, ONE_WORKER, TEXT, entity, mention
from tests.samples import write_jsonl

BUCKET = "team"


@pytest.fixture(scope="module")
def server(ray_here: None) -> Iterator[str]:
    with s3_server() as address:
        s3_client(address).create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture(scope="module")
def bucket(server: str) -> str:
    """A folder in it; nothing but its address says where the server is."""
    host = server.removeprefix("http://")
    return f"s3://{BUCKET}/work?endpoint_override={host}&scheme=http&region=us-east-1"


def prepare(home: str, sources: Path, carrier: Workers) -> None:
    """A data set, an encoder, its vectors, and negatives that it mines."""
    encoder = write_encoder(sources / "tiny")
    for file in encoder.iterdir():
        (locate(join(home, "tiny")) / file.name).copy_from(locate(file))
    write_jsonl(sources / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(sources / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    files = {"kb": [str(sources / "kb.jsonl")], "mentions": [str(sources / "mentions.jsonl")]}
    import_jsonl(JsonlSettings(out=join(home, "set"), **files))
    model = {"encoder": join(home, "tiny"), "pooling": "mention"}
    given = {"kb": join(home, "set"), "out": join(home, "vectors"), "model": model}
    encode_kb(EncodeSettings.model_validate(given), carrier)
    given = {"data": join(home, "set"), "vectors": join(home, "vectors"), "out": join(home, "negatives")}
    mine(MineSettings.model_validate(given | {"num_negatives": 8}), carrier)


def training(home: str, out: str, **more: Any) -> TrainSettings:
    given: dict[str, Any] = {
        "data": join(home, "set"),
        "out": join(home, out),
        "model": {"encoder": join(home, "tiny"), "pooling": "mention"},
        "objective": {"adversarial": {"fgsm": True}},
        "negatives": {"kind": "mixed", "num_negatives": 6},
        "optimiser": {"epochs": 2, "batch_size": 4, "micro_batch": 2, "lr": 1e-3},
        "checkpoint_steps": 2,
        "log_steps": 1,
        "resources": ONE_WORKER,
    }
    return TrainSettings.model_validate(given | more)


def evaluating(home: str, split: str, **more: Any) -> EvaluateSettings:
    given = {"data": join(home, "set"), "vectors": join(home, "run"), "out": join(home, f"run-{split}")}
    return EvaluateSettings.model_validate(given | {"split": split} | more)


def ranking(home: str, **more: Any) -> RankTrainSettings:
    given: dict[str, Any] = {
        "data": join(home, "set"),
        "vectors": join(home, "run"),
        "out": join(home, "ranker"),
        "model": {"encoder": join(home, "tiny"), "text": TEXT},
        "candidates": {"num_candidates": 4},
        "optimiser": {"epochs": 1, "batch_size": 8, "micro_batch": 2, "lr": 1e-3},
        "checkpoint_steps": 2,
        "log_steps": 1,
        "resources": ONE_WORKER,
    }
    return RankTrainSettings.model_validate(given | more)


@pytest.fixture(scope="module")
def carrier(ray_here: None) -> Iterator[Workers]:
    """One warm worker for all steps here."""
    with at_work(Resources.model_validate(ONE_WORKER)) as (carrier, _):
        yield carrier


@pytest.fixture(scope="module")
def homes(carrier: Workers, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same here and in the bucket: encoded, mined, trained, and evaluated to choose a NIL threshold."""
    local = str(tmp_path_factory.mktemp("local"))
    for home in (local, bucket):
        prepare(home, tmp_path_factory.mktemp("sources"), carrier)
        train(training(home, "run"), carrier)
        evaluate(evaluating(home, "validation", tune_nil=True), carrier)
    return local, bucket


def state(run: Location) -> Location:
    (name,) = (name for name in run.names() if name.startswith("state-"))
    return run / name


def model_after(run: Location, epoch: int) -> Location:
    (name,) = (name for name in state(run).names() if name.startswith(f"model-{epoch:03d}-"))
    return state(run) / name


def weights(model: Location) -> dict[str, np.ndarray]:
    names = [name for name in model.files() if name.endswith(".safetensors")]
    return {f"{name} {key}": value for name in names for key, value in load((model / name).read_bytes()).items()}


def lines(run: Location) -> list[dict[str, Any]]:
    """Without what depends on the clock."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("per_second")} for line in found]


def assert_same_weights(model: Location, other: Location, **tolerance: float) -> None:
    found, expected = weights(model), weights(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance.get("atol", 0))


def test_a_run_in_a_bucket_equals_the_local_one(homes: tuple[str, str]) -> None:
    local, remote = (locate(join(home, "run")) for home in homes)
    for epoch in (0, 1, 2):
        assert_same_weights(model_after(remote, epoch), model_after(local, epoch))
    assert lines(local) == lines(remote)
    counts = [read_manifest(run).counts for run in (local, remote)]
    assert counts[0]["validation of the best epoch"] == counts[1]["validation of the best epoch"]
    mined = [read_manifest(locate(join(home, "negatives"))).counts for home in homes]
    assert mined[0]["gold beside its negatives"] == mined[1]["gold beside its negatives"]


def test_what_is_found_in_a_bucket_is_what_is_found_here(homes: tuple[str, str]) -> None:
    found = [read_evaluation(evaluate(evaluating(home, "validation", tune_nil=True))) for home in homes]
    for name in ("systems", "nil", "reliability", "confusions"):
        assert found[0][name] == found[1][name]
    # The threshold lies with the model that it was chosen for.
    thresholds = [read_threshold(join(home, "run/model")) for home in homes]
    assert thresholds[0] and thresholds[1] and thresholds[0].threshold == thresholds[1].threshold
    texts = [{"text": "has the fever 13 with fever", "start": 8, "end": 16}]
    here, there = (list(Linker.load(join(home, "run")).link(texts)) for home in homes)
    assert here == there and here[0].candidates


def test_a_finished_run_in_a_bucket_holds_what_a_local_one_holds(homes: tuple[str, str], server: str) -> None:
    def names(run: Location) -> list[str]:
        """Without tags, which come from where a model lies, and what is called by the time."""
        found = (name for name in run.files() if not name.startswith("tensorboard/"))
        return sorted(re.sub(r"-[0-9a-f]{8}\b", "", name) for name in found)

    local, remote = (locate(join(home, "run")) for home in homes)
    assert names(local) == names(remote)
    assert len((local / "tensorboard").names()) == len((remote / "tensorboard").names()) == 2
    assert not [key for key in keys(s3_client(server), BUCKET) if ".tmp" in key or "unfinished" in key]


def test_a_run_in_a_bucket_is_shown_compared_and_not_made_twice(
    homes: tuple[str, str], carrier: Workers, pel_ray: RunCommand, tmp_path: Path
) -> None:
    runs = [join(home, "run") for home in homes]
    assert not train(training(homes[1], "run"), carrier).is_new
    assert "best epoch" in pel_ray("show", runs[1]).out
    assert pel_ray("curves", *runs, "--out", join(homes[1], "curves.png")).code == 0
    evaluated = [join(home, "run-validation") for home in homes]
    assert pel_ray("report", *runs, *evaluated, "--out", join(homes[1], "report")).code == 0
    written = locate(join(homes[1], "report")).names()
    assert {"report.html", "compared.png"} <= set(written) and locate(join(homes[1], "curves.png")).size() > 1000
    # Nothing was taken for a local path.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.workers
def test_a_killed_driver_is_run_again_to_the_same_weights_in_a_bucket(
    homes: tuple[str, str], carrier: Workers, tmp_path: Path
) -> None:
    asked = training(homes[1], "killed")
    run = locate(asked.out)
    (tmp_path / "spec.yaml").write_text(json.dumps(asked.model_dump(mode="json")))
    command = [sys.executable, "-m", "pel_ray", "train", "--spec", str(tmp_path / "spec.yaml")]
    is_time = re.compile(r"checkpoint-0000000[2-6]-").match
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: driver.poll() is not None or any(map(is_time, state_names(run))))
    assert not (run / "manifest.json").exists() and any(map(is_time, state_names(run)))
    train(asked, carrier)
    undisturbed = locate(join(homes[1], "run"))
    assert_same_weights(model_after(run, 2), model_after(undisturbed, 2))
    assert lines(run) == lines(undisturbed)


def state_names(run: Location) -> list[str]:
    return [found for name in run.names() if name.startswith("state-") for found in (run / name).names()]


@pytest.mark.workers
def test_workers_that_share_a_bucket_train_the_ranker_of_one_here(homes: tuple[str, str], carrier: Workers) -> None:
    local, remote = homes
    rank_train(ranking(local), carrier)
    carrier.stop()
    rank_train(ranking(remote, resources={"workers": 2, "cpus": 1}))
    runs = [locate(join(home, "ranker")) for home in homes]
    assert_same_weights(model_after(runs[1], 1), model_after(runs[0], 1), atol=1e-4)
    counts = [read_manifest(run).counts for run in runs]
    assert counts[0]["validation of the best epoch"] == counts[1]["validation of the best epoch"]
    assert "ray-train" not in state_names(runs[1])
    texts = [{"text": "has the fever 13 with fever", "start": 8, "end": 16}]
    here, there = (list(Linker.load(join(home, "run"), ranker=join(home, "ranker")).link(texts)) for home in homes)
    assert here[0].entity_id == there[0].entity_id
