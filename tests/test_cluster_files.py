"""The files of cluster/ against the tools that read them, as far as these run here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import pel_ray as package
from pel_ray.runtime import Resources, ask_of
from pel_ray.steps.encode_kb import EncodeSettings
from tests.scripts import script_at

pytestmark = pytest.mark.jobs

TOP = Path(__file__).parent.parent
CLUSTER = TOP / "cluster"
LAUNCHERS = ["aws", "gcp", "on-premise"]
KUBERAY = ["kuberay-raycluster.yaml", "kuberay-rayjob.yaml"]


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def launcher(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())
    return config


@pytest.mark.parametrize("name", LAUNCHERS)
def test_rays_launcher_accepts_its_files(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(launcher(name))
    validate_config(config)
    assert config["max_workers"] >= 1


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_job_finds_a_worker_on_a_cluster_that_has_just_been_launched(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config

    config = prepare_config(launcher(name))
    # The machines of on-premise.yaml say themselves what they have.
    found = [kind.get("resources") or {"CPU": 8} for kind in config["available_node_types"].values()
             for _ in range(kind["min_workers"])]  # fmt: skip
    assert ask_of(Resources(), [{"CPU": 0}, *found]).workers == len(found) >= 1


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("path", [["max_worker"], ["auth", "ssh_usr"], ["docker", "imge"]])
def test_rays_launcher_finds_a_wrong_field(name: str, path: list[str]) -> None:
    from ray.autoscaler._private.util import validate_config

    config = launcher(name)
    inner = config
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = "x"
    with pytest.raises(jsonschema.ValidationError):
        validate_config(config)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ray_start_knows_the_options_and_the_head_does_no_work(name: str) -> None:
    from ray.scripts.scripts import start

    config = launcher(name)
    for kind in ("head", "worker"):
        (line,) = (line for line in config[f"{kind}_start_ray_commands"] if "ray start" in line)
        subprocess.run(["bash", "-n", "-c", line], check=True)
        words = shlex.split(line)
        options = start.make_context("start", words[words.index("start") + 1 :], resilient_parsing=False).params
        assert options["head"] == (kind == "head")
        assert options["num_cpus"] == (0 if kind == "head" else None)
        # Never reachable from outside: the launcher brings it here through ssh.
        assert options["dashboard_host"] in ("localhost", "127.0.0.1")
    if "available_node_types" in config:
        assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launched_clusters_have_a_token_and_shared_storage(name: str) -> None:
    config = launcher(name)
    (mounted,) = config["file_mounts"]
    assert mounted.endswith("/.ray/auth_token") and config["file_mounts"][mounted] == "~/.ray/auth_token"
    lines = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    starts = [line for line in lines if "ray start" in line]
    in_containers = "--env RAY_AUTH_MODE=token" in config.get("docker", {}).get("run_options", [])
    assert in_containers or all("RAY_AUTH_MODE=token " in line for line in starts)
    assert any("/shared" in line for line in config["initialization_commands"])


def test_versions_are_those_that_we_test() -> None:
    pinned = dict(line.split("==") for line in (TOP / "constraints.txt").read_text().splitlines() if "==" in line)
    for name in KUBERAY:
        spec = documents(name)[-1]["spec"]
        assert spec.get("rayClusterSpec", spec)["rayVersion"] == pinned["ray"]
    for path in CLUSTER.iterdir():
        if path.is_file():
            assert set(re.findall(r"pel-ray:(\d[\d.]*\d)", path.read_text())) <= {package.__version__}, path


def test_a_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, CLUSTER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_dockerfile_copies_is_there_and_sent() -> None:
    sent = {line[1:] for line in (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (.+) \S+$", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == sent and all((TOP / name).exists() for name in names)


def test_the_readme_shows_the_sizing_table_as_computed() -> None:
    sizing = script_at("cluster/sizing.py")
    assert sizing.table() in (CLUSTER / "README.md").read_text()
    assert sizing.SHARD_ROWS == EncodeSettings.model_fields["shard_rows"].default


def test_the_simulated_cluster_is_slowed_by_what_costs_most() -> None:
    simulation = script_at("benchmarks/_simulation.py")
    sizing = script_at("cluster/sizing.py")
    free = {"driver_seconds": 0.0, "start_seconds": 0.0, "storage_bytes": 1e30, "spread": 0.0}
    shards = -(-sizing.ENTITIES // sizing.SHARD_ROWS)
    for workers in (1, 8, 64):
        # Nothing but the GPUs costs anything: the arithmetic of the sizing table.
        seconds, busy = simulation.simulated(workers, simulation.Costs(**free))
        assert seconds == pytest.approx(sizing.encode_seconds(workers))
        assert busy == pytest.approx(shards / workers / -(-shards // workers))
    for name, costs in {
        "the start of workers": {"start_seconds": 1e4},
        "handing out shards": {"driver_seconds": 10.0},
        "the storage": {"storage_bytes": 1e6},
    }.items():
        assert simulation.first_bottleneck(simulation.Costs(**free | costs)) == (1, name)
    # Serial, so a worker more does not help.
    slow = simulation.Costs(**free | {"driver_seconds": 10.0})
    assert simulation.simulated(512, slow)[0] == pytest.approx(10 * shards, rel=0.01)
