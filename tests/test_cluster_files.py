"""The files of cluster/ against the tools that read them, as far as these run here."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import pel_ray as package
from pel_ray.kuberay import cluster_spec
from tests.conftest import RunCommand

TOP = Path(__file__).parent.parent
CLUSTER = TOP / "cluster"
LAUNCHERS = ["aws", "gcp", "on-premise"]
KUBERAY = ["kuberay-raycluster.yaml", "kuberay-rayjob.yaml"]
SAPBERT = "cambridgeltl/SapBERT-from-PubMedBERT-fulltext-mean-token"
JOB = ["encode-kb", "/shared/data/umls", "--out", "/shared/runs/umls-vectors", "--encoder", SAPBERT]
# What KubeRay 1.7.0 documents for ray.io/v1 and we use; its CRD itself is on no package index.
FIELDS = {
    "RayCluster": {"apiVersion", "kind", "metadata", "spec"},
    "RayJob": {"apiVersion", "kind", "metadata", "spec"},
    "RayJobSpec": {
        *("entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"),
        *("activeDeadlineSeconds", "submissionMode", "runtimeEnvYAML", "submitterPodTemplate", "suspend"),
    },
    "RayClusterSpec": {
        *("rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"),
        *("autoscalerOptions", "gcsFaultToleranceOptions", "suspend", "managedBy"),
    },
    "AuthOptions": {"mode", "secretName", "enableK8sTokenAuth"},
    "HeadGroupSpec": {"rayStartParams", "template", "headService", "enableIngress", "serviceType"},
    "WorkerGroupSpec": {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"),
        *("idleTimeoutSeconds", "scaleStrategy", "suspend"),
    },
}


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


def pods(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"] | {"apiVersion": "v1", "kind": "Pod"}


@pytest.mark.parametrize("name", [*KUBERAY, "kuberay-storage.yaml"])
def test_what_is_of_kubernetes_itself_fits_its_published_schema(name: str) -> None:
    version = kubernetes_validate.latest_version()
    for document in documents(name):
        if document["apiVersion"] == "ray.io/v1":
            for pod in pods(document):
                kubernetes_validate.validate(pod, version, strict=True)
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_of_kubernetes_finds_a_wrong_field() -> None:
    pod = next(pods(documents("kuberay-raycluster.yaml")[0]))
    pod["spec"] = pod["spec"] | {"volume": []}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", KUBERAY)
def test_only_fields_that_kuberay_documents_are_used_and_ray_can_read_them(name: str) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    manifest = documents(name)[-1]
    assert set(manifest) == FIELDS[manifest["kind"]]
    cluster = manifest["spec"]
    if manifest["kind"] == "RayJob":
        assert set(cluster) <= FIELDS["RayJobSpec"]
        cluster = cluster["rayClusterSpec"]
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert set(cluster) <= FIELDS["RayClusterSpec"] and set(cluster["authOptions"]) <= FIELDS["AuthOptions"]
    assert set(head) <= FIELDS["HeadGroupSpec"] and all(set(group) <= FIELDS["WorkerGroupSpec"] for group in workers)
    for group in (head, *workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    read = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "x", "namespace": "y"}, "spec": cluster})
    types = read["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0 and types["gpu"]["resources"]["GPU"] == 1
    assert cluster["authOptions"] == {"mode": "token"}


def test_versions_are_those_that_we_test() -> None:
    pinned = dict(line.split("==") for line in (TOP / "constraints.txt").read_text().splitlines() if "==" in line)
    for name in KUBERAY:
        spec = documents(name)[-1]["spec"]
        assert spec.get("rayClusterSpec", spec)["rayVersion"] == pinned["ray"]
    for path in CLUSTER.iterdir():
        if path.is_file():
            assert set(re.findall(r"pel-ray:(\d[\d.]*\d)", path.read_text())) <= {package.__version__}, path


def test_the_manifest_of_a_cluster_is_that_of_a_job() -> None:
    assert documents("kuberay-raycluster.yaml")[0]["spec"] == cluster_spec()


def test_the_manifest_of_a_job_is_what_submit_writes(pel_ray: RunCommand, tmp_path: Path) -> None:
    result = pel_ray("submit", "--kuberay", "job.yaml", "--retries", 2, "--", *JOB)
    assert result.code == 0 and "kubectl apply -f job.yaml" in result.out
    lines = (CLUSTER / "kuberay-rayjob.yaml").read_text().splitlines(keepends=True)
    written = (tmp_path / "job.yaml").read_text()
    assert "".join(line for line in lines if not line.startswith("# ")) == written


def test_a_spec_goes_into_the_manifest_word_for_word(pel_ray: RunCommand, tmp_path: Path) -> None:
    text = "# Command   pel-ray okb --spec A_b.yaml\ndata: /shared/mm   # it's\nout: /shared/mm-okb\nby: types\n"
    (tmp_path / "A_b.yaml").write_text(text)
    assert pel_ray("submit", "--kuberay", "job.yaml", "A_b.yaml", "--seed", 3).code == 0
    config, job = yaml.safe_load_all((tmp_path / "job.yaml").read_text())
    assert config["data"] == {"A_b.yaml": text} and config["metadata"] == job["metadata"]
    assert job["spec"]["entrypoint"] == "pel-ray okb --spec /pel-ray/specs/A_b.yaml --seed 3"
    (mounted,) = (pod for pod in pods(job) if any(volume["name"] == "specs" for volume in pod["spec"]["volumes"]))
    assert mounted["spec"]["containers"][0]["name"] == "ray-head"
    for document in (config, mounted):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


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
    spec = importlib.util.spec_from_file_location("sizing", CLUSTER / "sizing.py")
    assert spec and spec.loader
    sizing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizing)
    assert sizing.table() in (CLUSTER / "README.md").read_text()
