"""The manifests of KubeRay, those in cluster/ and those that submit writes, against the schemas of who reads them."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pel_ray.kuberay import cluster_spec
from tests.conftest import RunCommand

pytestmark = pytest.mark.jobs

CLUSTER = Path(__file__).parent.parent / "cluster"
MANIFESTS = ["kuberay-raycluster.yaml", "kuberay-rayjob.yaml"]
SAPBERT = "cambridgeltl/SapBERT-from-PubMedBERT-fulltext-mean-token"
JOB = ["encode-kb", "/shared/data/umls", "--out", "/shared/runs/umls-vectors", "--encoder", SAPBERT]
PLAIN = ("string", "integer", "number", "boolean")
# What the operator itself checks: a service that it names after a cluster must fit a name of the network.
NAME = r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?"

Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


def pods(manifest: Manifest) -> Iterator[Manifest]:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["template"] | {"apiVersion": "v1", "kind": "Pod"}


def kuberay_schema() -> dict[str, Any]:
    """A JSON schema out of tests/data/kuberay.yaml that allows no other fields."""
    types = yaml.safe_load((Path(__file__).parent / "data" / "kuberay.yaml").read_text())

    def schema_of(kind: Any) -> dict[str, Any]:
        if isinstance(kind, list):
            return {"type": "array", "items": schema_of(kind[0])}
        if " | " in kind:
            return {"enum": kind.split(" | ")}
        if kind in PLAIN:
            return {"type": kind}
        if kind == "strings":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        return {"type": "object"} if kind == "kubernetes" else {"$ref": f"#/$defs/{kind}"}

    definitions = {
        name: {
            "type": "object",
            "properties": {field.rstrip("!"): schema_of(kind) for field, kind in fields.items()},
            "required": [field.rstrip("!") for field in fields if field.endswith("!")],
            "additionalProperties": False,
        }
        for name, fields in types.items()
    }
    return {"$defs": definitions}


def check(manifest: Manifest) -> None:
    """All of one document: what is KubeRay's by its fields, what is of Kubernetes itself by its published schema."""
    version = kubernetes_validate.latest_version()
    if manifest["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(manifest, version, strict=True)
        return
    schema = kuberay_schema()
    jsonschema.validate(manifest, schema | {"$ref": f"#/$defs/{manifest['kind']}"})
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest["metadata"]}, version, strict=True
    )
    assert re.fullmatch(NAME, manifest["metadata"]["name"])
    for pod in pods(manifest):
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("name", [*MANIFESTS, "kuberay-storage.yaml"])
def test_a_manifest_has_only_fields_that_its_schemas_know(name: str) -> None:
    for document in documents(CLUSTER / name):
        check(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "backofLimit"], 2),
        (["spec", "backoffLimit"], "2"),
        (["spec", "rayClusterSpec", "authOption"], {"mode": "token"}),
        (["spec", "rayClusterSpec", "authOptions", "mode"], "tokens"),
        (["spec", "rayClusterSpec", "headGroupSpec", "numCpus"], "0"),
        (["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"], 0),
        (["spec", "rayClusterSpec", "workerGroupSpecs", 0, "maxReplica"], 1),
        (["spec", "rayClusterSpec", "workerGroupSpecs", 0, "groupName"], None),
        (["metdata"], {}),
    ],
)
def test_the_fields_of_kuberay_find_a_wrong_one(path: list[Any], value: Any) -> None:
    manifest = copy.deepcopy(documents(CLUSTER / "kuberay-rayjob.yaml")[0])
    inner: Any = manifest
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(manifest)


def test_the_schema_of_kubernetes_finds_a_wrong_field() -> None:
    manifest = documents(CLUSTER / "kuberay-raycluster.yaml")[0]
    manifest["spec"]["headGroupSpec"]["template"]["spec"]["volume"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check(manifest)


@pytest.mark.parametrize("name", MANIFESTS)
def test_rays_autoscaler_reads_a_head_without_work_and_workers_with_a_gpu(name: str) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    spec = documents(CLUSTER / name)[-1]["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    read = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "x", "namespace": "y"}, "spec": cluster})
    types = read["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0 and types["gpu"]["resources"]["GPU"] == 1
    assert cluster["authOptions"] == {"mode": "token"}


def test_the_manifest_of_a_cluster_is_that_of_a_job() -> None:
    assert documents(CLUSTER / "kuberay-raycluster.yaml")[0]["spec"] == cluster_spec()


def test_the_manifest_of_a_job_is_what_submit_writes(pel_ray: RunCommand, tmp_path: Path) -> None:
    result = pel_ray("submit", "--kuberay", "job.yaml", "--retries", 2, "--", *JOB)
    assert result.code == 0 and "kubectl apply -f job.yaml" in result.out
    lines = (CLUSTER / "kuberay-rayjob.yaml").read_text().splitlines(keepends=True)
    written = (tmp_path / "job.yaml").read_text()
    assert "".join(line for line in lines if not line.startswith("# ")) == written
    assert pel_ray("submit", "--kuberay", "job.yaml", "--", *JOB).code == 0


def test_a_spec_is_not_replaced_by_the_manifest_of_its_job(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OKB)
    refused = pel_ray("submit", "--kuberay", "mine.yaml", "--", "okb", "--spec", "mine.yaml").error
    assert "mine.yaml: is something else than a RayJob manifest" in refused
    assert (tmp_path / "mine.yaml").read_text() == OKB


ENCODE = "kb: /shared/kb\nout: /shared/vectors\nresources: {workers: 3, cpus: 4}\n"
STEPS = """\
out: /shared/made
steps:
  - {name: index, run: index, with: {vectors: "{out}/vectors", out: "{out}/index"}}
  - {name: few, run: encode-kb, spec: encode.yaml, with: {out: "{out}/few", resources: {cpu: true}}}
  - {name: many, run: encode-kb, spec: encode.yaml, with: {out: "{out}/many", resources: {workers: 5, gpus: 2}}}
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*JOB, "--workers", "4"], (4, "8", "1")),
        ([*JOB, "--workers", "2", "--cpu"], (2, "8", None)),
        ([*JOB, "--gpus", "0"], (1, "8", None)),
        ([*JOB, "--gpus", "0.5", "--cpus", "16"], (1, "16", "1")),
        (["encode-kb", "--spec", "encode.yaml"], (3, "4", "1")),
        (["encode-kb", "--spec", "encode.yaml", "--workers", "2"], (2, "4", "1")),
        (["encode-kb", "--spec", "encode.yaml", "--set", "resources.gpus=2"], (3, "4", "2")),
        (["run", "steps.yaml"], (5, "4", "2")),
        (["run", "steps.yaml", "--only", "few"], (3, "4", None)),
    ],
)
def test_the_pods_are_those_that_the_command_or_its_spec_asks_for(
    pel_ray: RunCommand, tmp_path: Path, words: list[str], expected: tuple[int, str, str | None]
) -> None:
    (tmp_path / "encode.yaml").write_text(ENCODE)
    (tmp_path / "steps.yaml").write_text(STEPS)
    result = pel_ray("submit", "--kuberay", "job.yaml", "--", *words)
    assert result.code == 0, result.err
    job = documents(tmp_path / "job.yaml")[-1]
    check(job)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (group["replicas"], limits["cpu"], limits.get("nvidia.com/gpu")) == expected
    assert group["minReplicas"] == group["maxReplicas"] == group["replicas"]


OKB = "data: /shared/mm   # it's\nout: /shared/mm-okb\nby: types\n"


def carried_out(manifests: Path, folder: Path) -> tuple[list[str], Path]:
    """The words that the head would run, and their working directory with the files that it would see there."""
    config, job = documents(manifests)
    for document in (config, job):
        check(document)
    assert config["metadata"] == job["metadata"]
    (mounted,) = (pod for pod in pods(job) if any(volume["name"] == "specs" for volume in pod["spec"]["volumes"]))
    (container,) = mounted["spec"]["containers"]
    assert container["name"] == "ray-head"
    (volume,) = (volume for volume in mounted["spec"]["volumes"] if volume["name"] == "specs")
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    items = volume["configMap"]["items"]
    assert {item["key"] for item in items} == set(config["data"])
    for item in items:
        (folder / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / item["path"]).write_text(config["data"][item["key"]])
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "specs")
    env, change, to, *words = shlex.split(job["spec"]["entrypoint"])
    assert [env, change, to] == ["env", "-C", mount["mountPath"]]
    return words, folder


@pytest.mark.parametrize("form", ["alone", "spec", "equals", "absolute"])
def test_a_spec_goes_into_the_manifest_word_for_word(pel_ray: RunCommand, tmp_path: Path, form: str) -> None:
    text = "# Command   pel-ray okb --spec jobs/A_b.yaml\n" + OKB
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "A_b.yaml").write_text(text)
    words = {
        "alone": ["jobs/A_b.yaml"],
        "spec": ["okb", "--spec", "jobs/A_b.yaml"],
        "equals": ["okb", "--spec=jobs/A_b.yaml"],
        "absolute": ["okb", "--spec", str(tmp_path / "jobs" / "A_b.yaml")],
    }[form]
    assert pel_ray("submit", "--kuberay", "job.yaml", "--", *words, "--seed", 3).code == 0
    words, pod = carried_out(tmp_path / "job.yaml", tmp_path / "pod")
    assert (pod / "jobs" / "A_b.yaml").read_text() == text
    given = ["--spec=jobs/A_b.yaml"] if form == "equals" else ["--spec", "jobs/A_b.yaml"]
    assert words == ["pel-ray", "okb", *given, "--seed", "3"]


def test_only_the_same_job_has_the_same_name(pel_ray: RunCommand, tmp_path: Path) -> None:
    paths = ["nil.yaml", "open/nil.yaml", f"{'long' * 20}.yaml"]
    for number, path in enumerate(paths):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"{OKB}seed: {number}\n")

    def name(*words: str) -> str:
        assert pel_ray("submit", "--kuberay", "job.yaml", "--", *words).code == 0
        for document in documents(tmp_path / "job.yaml"):
            check(document)
        return str(document["metadata"]["name"])

    jobs = [JOB, [*JOB, "--cpu"], *(["okb", "--spec", path] for path in paths)]
    names = [name(*words) for words in jobs]
    assert names == [name(*words) for words in jobs]
    (tmp_path / "nil.yaml").write_text(f"{OKB}seed: 9\n")
    assert len({*names, name("okb", "--spec", "nil.yaml")}) == len(jobs) + 1
    assert max(map(len, names)) <= 40 and names[0].startswith("pel-ray-encode-kb-")


@pytest.mark.parametrize(
    "words",
    [
        "okb /shared/a --out /shared/b --by types --types okb",
        "evaluate /shared/a --vectors /shared/v --out /shared/b --split test --train-split train",
        "encode-kb /shared/a --out /shared/b --template synonyms --pooling mean",
        "run split.yaml",
    ],
)
def test_a_word_is_not_taken_for_the_folder_of_that_name(pel_ray: RunCommand, tmp_path: Path, words: str) -> None:
    for folder in ("types", "okb", "test", "train", "synonyms", "mean"):
        (tmp_path / folder).mkdir()
    step = "{name: a, run: evaluate, with: {data: /shared/a, vectors: /shared/v, out: /shared/b, split: test}}"
    (tmp_path / "split.yaml").write_text(f"out: /shared/made\nsteps: [{step}]\n")
    result = pel_ray("submit", "--kuberay", "job.yaml", "--", *words.split())
    assert result.code == 0, result.err


PIPELINE = """\
out: /shared/made
steps:
  - name: "{row}"
    for: {row: [a, b]}
    run: okb
    spec: "{row}/okb.yaml"
    with: {out: "{out}/{row}"}
  - name: index
    run: index
    with: {vectors: "{out}/vectors", out: "{out}/index"}
"""


def write_pipeline(folder: Path) -> None:
    for row in "ab":
        (folder / row).mkdir()
        (folder / row / "okb.yaml").write_text(f"extends: ../my base.yaml\nseed: {ord(row)}\n")
    (folder / "my base.yaml").write_text(OKB)
    (folder / "unused.yaml").write_text(OKB)
    (folder / "pipeline.yaml").write_text(PIPELINE)


def test_a_pipeline_takes_along_the_specs_of_its_steps_and_what_they_extend(
    pel_ray: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(tmp_path)
    here = pel_ray("run", "pipeline.yaml", "--plan")
    assert pel_ray("submit", "--kuberay", "job.yaml", "--", "run", "pipeline.yaml", "--plan").code == 0
    words, pod = carried_out(tmp_path / "job.yaml", tmp_path / "pod")
    found = {path.relative_to(pod).as_posix() for path in pod.rglob("*.yaml")}
    assert found == {"pipeline.yaml", "a/okb.yaml", "b/okb.yaml", "my base.yaml"}
    monkeypatch.chdir(pod)
    there = pel_ray(*words[1:])
    assert there.code == 0 and there.out == here.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "pipeline.yaml", "--out", "made"], "out made: a relative folder would be"),
        (["encode-kb", "/shared/kb", "--out", "/shared/v", "--encoder", "a"], "encoder a: is here but does not go"),
        (["encode-kb", "/shared/kb", "--out", "/shared/v", "--reuse", "a"], "reuse a: is here but does not go"),
        (["import", "jsonl", "--kb", "unused.yaml", "--out", "/shared/v"], "kb unused.yaml: is here but does not go"),
        (["link", "/shared/run", "--model", "a", "--out", "/shared/v"], "model a: is here but does not go"),
        (["okb", "--spec", "../else.yaml"], "else.yaml: is outside of the working directory"),
        (["okb", "--spec", "/{folder}/else.yaml"], "is a file of this machine"),
        (["okb", "--spec", "large.yaml"], "a ConfigMap holds job specs of 204,800 at most"),
    ],
)
def test_what_pods_would_not_find_is_refused(
    pel_ray: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    (tmp_path / "else.yaml").write_text(OKB)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write_pipeline(tmp_path / "work")
    (tmp_path / "work" / "large.yaml").write_text(OKB + "#" * 300_000)
    words = [word.replace("/{folder}", str(tmp_path)) for word in words]
    assert said in pel_ray("submit", "--kuberay", "job.yaml", "--", *words).error
    assert not (tmp_path / "work" / "job.yaml").exists()
