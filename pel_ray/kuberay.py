"""Manifests that run a command on Kubernetes: a RayJob with a cluster of its own, and the spec that it reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from pel_ray import __version__
from pel_ray.errors import InputError

IMAGE = f"pel-ray:{__version__}"
"""What cluster/README.md builds from cluster/Dockerfile."""
SHARED = "/shared"
"""Where every pod sees the same storage."""
CLAIM = "pel-ray-shared"
SPECS = "/pel-ray/specs"
USER = 1000
"""Of the image; the shared storage must let it write."""
SECONDS_KEPT = 600
"""How long a finished cluster stays for a look at its logs."""
MAX_SPEC_BYTES = 512 << 10
"""A ConfigMap holds 1 MiB."""

Manifest = dict[str, Any]


def job_manifests(command: Sequence[str], *, image: str = IMAGE, retries: int = 0) -> list[Manifest]:
    """A RayJob for the words of a pel-ray command; a spec file that they name goes along in a ConfigMap."""
    name = _name(command)
    words, specs = _with_specs(command)
    cluster = cluster_spec(image=image)
    if specs:
        _mount_specs(cluster["headGroupSpec"]["template"]["spec"], name)
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": shlex.join(["pel-ray", *words]),
            # Each retry starts a new cluster; the work goes on from what is on the shared storage.
            "backoffLimit": retries,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": SECONDS_KEPT,
            "rayClusterSpec": cluster,
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": specs}
    return [config, job] if specs else [job]


def cluster_spec(*, image: str = IMAGE) -> Manifest:
    """A head that does no work, and workers with a GPU each."""
    head = _pod("ray-head", image, {"cpu": "2", "memory": "8Gi"})
    head["spec"]["containers"][0]["ports"] = [
        {"containerPort": 6379, "name": "gcs"},
        {"containerPort": 8265, "name": "dashboard"},
    ]
    worker = _pod("ray-worker", image, {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"})
    return {
        "rayVersion": metadata.version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": head},
        "workerGroupSpecs": [
            {
                "groupName": "gpu",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "rayStartParams": {},
                "template": worker,
            }
        ],
    }


def manifest_text(manifests: Sequence[Manifest]) -> str:
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes texts of many lines as they are, so that one can read and change a spec in its manifest."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _pod(name: str, image: str, resources: dict[str, str]) -> Manifest:
    container = {
        "name": name,
        "image": image,
        # The same amount asked for and allowed: Kubernetes then evicts others first.
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "env": [{"name": "HF_HOME", "value": f"{SHARED}/huggingface"}],
        "volumeMounts": [{"name": "shared", "mountPath": SHARED}],
    }
    return {
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER},
            "containers": [container],
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}}],
        }
    }


def _mount_specs(pod: Manifest, config: str) -> None:
    pod["containers"][0]["volumeMounts"].append({"name": "specs", "mountPath": SPECS, "readOnly": True})
    pod["volumes"].append({"name": "specs", "configMap": {"name": config}})


def _name(command: Sequence[str]) -> str:
    """Of Kubernetes' letters, and short enough for the names that KubeRay derives from it."""
    found = [word for word in command if word.endswith((".yaml", ".yml"))]
    words = [command[0], *(Path(word).stem for word in found[:1])]
    if words[1:] and words[1].startswith(words[0]):
        words = words[1:]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(["pel-ray", *words]).lower())[:40].strip("-")


def _with_specs(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words with spec files named as the pod will see them, and the contents of these files."""
    words, specs = [], {}
    for word in command:
        path = Path(word)
        if path.suffix in (".yaml", ".yml") and path.is_file():
            specs[path.name] = _spec_text(path)
            word = f"{SPECS}/{path.name}"
        words.append(word)
    return words, specs


def _spec_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be put into a manifest: {error}") from error
    if len(text) > MAX_SPEC_BYTES:
        raise InputError(str(path), f"has {len(text):,} characters, expected a job spec of at most {MAX_SPEC_BYTES:,}")
    return text
