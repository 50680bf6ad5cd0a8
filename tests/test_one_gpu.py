"""One GPU for all phases, by Ray's logical GPUs: each takes it when the one before has freed it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCommand
from tests.killing import SECONDS
from tests.models import write_encoder
from tests.ray_nodes import environment_without_ray
from tests.samples import write_jsonl
from tests.test_evaluate import NUM_ENTITIES, NUM_MENTIONS, entity, mention

pytestmark = pytest.mark.jobs

SCRIPT = """
import functools, json, logging, sys, threading, time
import ray, ray.train.torch
from pel_ray.runtime import ActorPools, Ask, WarmActors
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings

# Where a worker has a GPU, workers talk through NCCL, which needs a real one.
gloo = ray.train.torch.TorchConfig(backend="gloo")
ray.train.torch.TorchTrainer = functools.partial(ray.train.torch.TorchTrainer, torch_config=gloo)
ray.init(address="local", num_cpus=3, num_gpus=1, include_dashboard=False, logging_level=logging.ERROR)

def free():
    return ray.available_resources().get("GPU", 0.0)

def times_taken(carrier, step, settings):
    \"\"\"How often the GPU went from free to taken while a step ran; it must be free again after it.\"\"\"
    seen, ended = [1.0], threading.Event()

    def watch():
        while not ended.wait(0.05):
            seen.append(free())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    step(settings, carrier)
    carrier.stop()
    ended.set()
    watcher.join()
    deadline = time.monotonic() + 20
    while free() < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert free() == 1, f"{step.__name__} keeps the GPU"
    return sum(before > after for before, after in zip(seen, seen[1:]))

steps = {"encode": (encode_kb, EncodeSettings), "train": (train, TrainSettings)}
told = json.loads(sys.argv[1])
carriers = {
    # A pool for each phase, as on a cluster: a phase that kept the GPU would let the next one wait for ever.
    "pools": ActorPools(Ask(1, 1, 1.0, is_local=False)),
    # One actor for all phases, as on a machine with one GPU.
    "warm": WarmActors(Ask(1, 1, 1.0, is_local=True)),
}
taken = {}
for kind, carrier in carriers.items():
    for name, (step, model) in steps.items():
        out = f"{told[name]['out']}-{kind}"
        taken[f"{name} {kind}"] = times_taken(carrier, step, model.model_validate({**told[name], "out": out}))
print(json.dumps(taken))
"""


@pytest.fixture
def settings(tmp_path: Path, pel_ray: RunCommand) -> dict[str, dict[str, Any]]:
    write_encoder(tmp_path / "tiny")
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(tmp_path / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set").code == 0
    model = {"encoder": str(tmp_path / "tiny")}
    return {
        "encode": {"kb": "set", "out": "vectors", "model": model, "shard_rows": 16},
        "train": {
            "data": "set",
            "out": "run",
            "model": model,
            "negatives": {"kind": "mixed", "num_negatives": 4},
            "optimiser": {"epochs": 1, "batch_size": 8, "micro_batch": 8},
        },
    }


@pytest.mark.cluster
def test_phases_take_the_one_gpu_in_turn(settings: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment_without_ray(), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout.splitlines()[-1])
    # Training encodes and mines, trains an epoch in another group of workers, and encodes again to validate.
    assert taken["encode pools"] >= 1 and taken["train pools"] >= 3, taken
    # The one actor keeps the GPU from a phase to the next.
    assert taken["encode warm"] == taken["train warm"] == 1, taken


def test_a_gpu_that_is_not_there_is_refused_and_cpu_runs_without(
    settings: dict[str, dict[str, Any]], tmp_path: Path, pel_ray: RunCommand, ray_here: None
) -> None:
    flags = ["set", "--encoder", "tiny", "--out", "vectors", "--gpus", 1]
    assert "there is no GPU here. Pass --cpu" in pel_ray("encode-kb", *flags).error
    assert pel_ray("encode-kb", *flags, "--cpu").code == 0
