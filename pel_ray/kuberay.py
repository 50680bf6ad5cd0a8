"""Manifests that run a command on Kubernetes: a RayJob with a cluster of its own, and the specs that it reads."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
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
"""What the working directory is here: the command finds its specs there under the same names."""
USER = 1000
"""Of the image; the shared storage must let it write."""
SECONDS_KEPT = 600
"""How long a finished cluster stays for a look at its logs."""
MAX_NAME = 40
"""Letters of a job's name: KubeRay derives longer ones from it."""
MAX_SPEC_BYTES = 200 << 10
"""Of all specs: `kubectl apply` writes a ConfigMap into an annotation too, which holds 256 KiB."""

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WorkerPods:
    """The pods that do the work, one for each worker."""

    replicas: int = 1
    cpus: int = 8
    gpus: int = 1

    @property
    def resources(self) -> dict[str, str]:
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        return {"cpu": str(self.cpus), "memory": "32Gi", **gpus}


def job_manifests(
    command: Sequence[str],
    specs: Sequence[str] = (),
    *,
    image: str = IMAGE,
    retries: int = 0,
    workers: WorkerPods | None = None,
) -> list[Manifest]:
    """A RayJob for the words of a pel-ray command; `specs`, files below the working directory, go into a ConfigMap."""
    keys = _keys(specs)
    texts = {key: _spec_text(file) for file, key in keys.items()}
    _check_size(texts)
    # KubeRay writes the entry point into a line of bash for `ray job submit`, where && would end that command.
    change_folder = ["env", "-C", SPECS] if specs else []
    entrypoint = shlex.join([*change_folder, "pel-ray", *command])
    name = _name(command[0], specs, [entrypoint, *texts.values()])
    cluster = cluster_spec(image=image, workers=workers)
    if specs:
        _mount_specs(cluster["headGroupSpec"]["template"]["spec"], name, keys)
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": entrypoint,
            # Each retry starts a new cluster; the work goes on from what is on the shared storage.
            "backoffLimit": retries,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": SECONDS_KEPT,
            "rayClusterSpec": cluster,
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": texts}
    return [config, job] if specs else [job]


def cluster_spec(*, image: str = IMAGE, workers: WorkerPods | None = None) -> Manifest:
    """A head that does no work, and workers; by default one with a GPU."""
    workers = workers or WorkerPods()
    head = _pod("ray-head", image, {"cpu": "2", "memory": "8Gi"})
    head["spec"]["containers"][0]["ports"] = [
        {"containerPort": 6379, "name": "gcs"},
        {"containerPort": 8265, "name": "dashboard"},
    ]
    worker = _pod("ray-worker", image, workers.resources)
    return {
        "rayVersion": metadata.version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": head},
        "workerGroupSpecs": [
            {
                "groupName": "gpu" if workers.gpus else "cpu",
                "replicas": workers.replicas,
                "minReplicas": workers.replicas,
                "maxReplicas": workers.replicas,
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


def _mount_specs(pod: Manifest, config: str, keys: dict[str, str]) -> None:
    pod["containers"][0]["volumeMounts"].append({"name": "specs", "mountPath": SPECS, "readOnly": True})
    items = [{"key": key, "path": file} for file, key in keys.items()]
    pod["volumes"].append({"name": "specs", "configMap": {"name": config, "items": items}})


def _name(command: str, specs: Sequence[str], texts: Sequence[str]) -> str:
    """Of Kubernetes' letters, and of this job alone: `kubectl apply` would change another of that name."""
    words = [command, *(Path(spec).stem for spec in specs[:1])]
    if words[1:] and words[1].startswith(command):
        words = words[1:]
    digits = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:6]
    shown = re.sub(r"[^a-z0-9]+", "-", "-".join(["pel-ray", *words]).lower())
    return f"{shown[: MAX_NAME - 7].strip('-')}-{digits}"


def _keys(files: Sequence[str]) -> dict[str, str]:
    """What the ConfigMap calls each file: of its letters, and never the same for two."""
    keys: dict[str, str] = {}
    for file in files:
        key = re.sub(r"[^A-Za-z0-9._-]+", "_", file)
        keys[file] = f"{len(keys)}-{key}" if key in keys.values() else key
    return keys


def _spec_text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, f"cannot be put into a manifest: {error}") from error


def _check_size(texts: dict[str, str]) -> None:
    num_bytes = sum(len(text.encode()) for text in texts.values())
    if num_bytes > MAX_SPEC_BYTES:
        raise InputError(
            ", ".join(texts), f"have {num_bytes:,} bytes, a ConfigMap holds job specs of {MAX_SPEC_BYTES:,} at most"
        )
