"""One GPU for all phases, by Ray's logical GPUs: each takes it when the one before has freed it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCommand
from tests.models import write_encoder
from tests.ray_nodes import environment_without_ray
from tests.samples import write_jsonl
from tests.test_evaluate import NUM_ENTITIES, NUM_MENTIONS, entity, mention

SCRIPT = """
import json, logging, sys, threading
import ray
from pel_ray.runtime import ActorPools, Ask, WarmActor
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings

ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, logging_level=logging.ERROR)
free, ended = [], threading.Event()

def watch():
    while not ended.wait(0.05):
        free.append(ray.available_resources().get("GPU", 0.0))

watcher = threading.Thread(target=watch)
watcher.start()
ask = Ask(1, 1, 1.0, is_local=True)
settings = json.loads(sys.argv[1])
# A pool for each phase, as on a cluster: a phase that kept the GPU would let the next one wait for ever.
pools = ActorPools(ask)
encode_kb(EncodeSettings.model_validate(settings["encode"]), pools)
mine(MineSettings.model_validate(settings["mine"]), pools)
evaluate(EvaluateSettings.model_validate(settings["evaluate"]), pools)
pools.stop()
taken_by_pools = 0.0 in free
free.clear()
actor = WarmActor(ask)
train(TrainSettings.model_validate(settings["train"]), actor)
taken_by_training = 0.0 in free
actor.stop()
ended.set()
watcher.join()
print(json.dumps({"pools": taken_by_pools, "training": taken_by_training, "least": min(free)}))
"""


@pytest.fixture
def settings(tmp_path: Path, pel_ray: RunCommand) -> dict[str, dict[str, Any]]:
    write_encoder(tmp_path / "tiny")
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(tmp_path / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set").code == 0
    model = {"encoder": str(tmp_path / "tiny")}
    searched = {"data": "set", "vectors": "vectors"}
    return {
        "encode": {"kb": "set", "out": "vectors", "model": model, "shard_rows": 16},
        "mine": searched | {"out": "negatives", "num_negatives": 4},
        "evaluate": searched | {"out": "test", "resamples": 10, "baselines": ["none"]},
        "train": {
            "data": "set",
            "out": "run",
            "model": model,
            "negatives": {"kind": "mixed", "num_negatives": 4},
            "optimiser": {"epochs": 2, "batch_size": 8, "micro_batch": 8},
        },
    }


def test_phases_take_the_one_gpu_in_turn(settings: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment_without_ray(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"pools": True, "training": True, "least": 0.0}


def test_a_gpu_that_is_not_there_is_refused_and_cpu_runs_without(
    settings: dict[str, dict[str, Any]], tmp_path: Path, pel_ray: RunCommand, ray_here: None
) -> None:
    flags = ["set", "--encoder", "tiny", "--out", "vectors", "--gpus", 1]
    assert "there is no GPU here. Pass --cpu" in pel_ray("encode-kb", *flags).error
    assert pel_ray("encode-kb", *flags, "--cpu").code == 0
