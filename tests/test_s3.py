"""Folders and sources in a bucket, on a real S3-compatible server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save

from pel_ray import storage
from pel_ray.encoder import ModelSettings, load_model, load_parts, save_whole
from pel_ray.errors import ArtifactError
from pel_ray.metrics_file import MetricsFile
from pel_ray.on_disk import from_disk, on_disk
from pel_ray.storage import locate
from pel_ray.vectors import VectorFolder
from tests.buckets import keys, s3_client, s3_server
from tests.conftest import RunCommand
from tests.models import write_encoder
from tests.reading import rows_of
from tests.samples import KB_ROWS, MENTION_ROWS, write_jsonl, write_jsonl_set

BUCKET = "team"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    settings = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ENDPOINT_URL": server, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    client = s3_client(server)
    client.create_bucket(Bucket=BUCKET)
    yield client
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    client.delete_bucket(Bucket=BUCKET)


def test_a_data_set_in_a_bucket_equals_the_local_one(pel_ray: RunCommand, bucket: Any, tmp_path: Path) -> None:
    arguments = write_jsonl_set(tmp_path / "in")
    pel_ray(*arguments, "--out", "local")
    for file in (tmp_path / "in").iterdir():
        bucket.upload_file(str(file), BUCKET, f"in/{file.name}")
    remote = [argument.replace(f"{tmp_path}/in", f"s3://{BUCKET}/in") for argument in arguments]
    assert pel_ray(*remote, "--out", f"s3://{BUCKET}/sets/a").code == 0
    for kind in ("kb", "mentions"):
        assert rows_of(f"s3://{BUCKET}/sets/a", kind) == rows_of("local", kind)
    # Nothing but what the manifests list: no temporary objects.
    made = [key.split("/", 2)[2] for key in keys(bucket, BUCKET) if key.startswith("sets/")]
    assert sorted(name.rsplit("-", 1)[0] for name in made) == [
        "kb/manifest.json",
        "kb/part-00000",
        "mentions/manifest.json",
        "mentions/part-00000",
    ]
    assert pel_ray(*remote, "--out", f"s3://{BUCKET}/sets/a").out.count("already done") == 2
    assert "fever" in pel_ray("show", f"s3://{BUCKET}/sets/a").out
    assert pel_ray("okb", f"s3://{BUCKET}/sets/a", "--out", f"s3://{BUCKET}/sets/b").code == 0
    assert len(rows_of(f"s3://{BUCKET}/sets/b", "kb")) == 2


def test_a_failure_publishes_nothing(pel_ray: RunCommand, bucket: Any, tmp_path: Path) -> None:
    arguments = write_jsonl_set(tmp_path / "in")
    write_jsonl(tmp_path / "in" / "mentions.jsonl", [*MENTION_ROWS, {"mention_id": "9", "label": "E1"}])
    assert "mentions.jsonl:6" in pel_ray(*arguments, "--out", f"s3://{BUCKET}/sets/a").error
    assert keys(bucket, BUCKET) == []


def test_a_missing_key_and_a_missing_bucket_are_one_line(pel_ray: RunCommand, bucket: Any, tmp_path: Path) -> None:
    kb = write_jsonl(tmp_path / "kb.jsonl", KB_ROWS)
    missing = pel_ray("import", "jsonl", "--kb", f"s3://{BUCKET}/no.jsonl", "--out", "set").error
    assert f"s3://{BUCKET}/no.jsonl: no such file" in missing
    assert "s3://nobody" in pel_ray("import", "jsonl", "--kb", kb, "--out", "s3://nobody/set").error


def test_vectors_in_a_bucket_equal_the_local_ones(
    pel_ray: RunCommand, bucket: Any, ray_here: None, tmp_path: Path
) -> None:
    write_encoder(tmp_path / "tiny")
    pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "local")
    pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", f"s3://{BUCKET}/sets/a")
    arguments = ["--encoder", tmp_path / "tiny", "--shard-rows", 2, "--workers", 1, "--cpus", 1]
    for where in ("local", f"s3://{BUCKET}/sets/a"):
        assert pel_ray("encode-kb", where, "--out", f"{where}/vectors", *arguments).code == 0
    local, remote = (VectorFolder.open(locate(f"{where}/vectors")) for where in ("local", f"s3://{BUCKET}/sets/a"))
    for (rows, vectors), (remote_rows, remote_vectors) in zip(local.shards(), remote.shards(), strict=True):
        assert rows == remote_rows and (vectors == remote_vectors).all()
    assert not [key for key in keys(bucket, BUCKET) if ".tmp" in key or "unfinished" in key]
    reused = pel_ray(
        "encode-kb", "local", "--out", f"s3://{BUCKET}/again", "--reuse", f"s3://{BUCKET}/sets/a/vectors", *arguments
    )
    assert reused.code == 0
    assert VectorFolder.open(locate(f"s3://{BUCKET}/again")).manifest.counts["kept"] == len(KB_ROWS)


def test_what_names_a_location_finds_it_again_and_tells_no_secret(bucket: Any, server: str) -> None:
    query = f"?endpoint_override={server.removeprefix('http://')}&scheme=http&region=us-east-1"
    given = locate(f"s3://x:s%2Fcret@{BUCKET}/a%20b{query}") / "c%d" / "ö?=.txt"
    given.write_bytes(b"here")
    assert keys(bucket, BUCKET) == ["a b/c%d/ö?=.txt"]
    assert "cret" in given.uri
    for shown in (str(given), given.address, repr(given)):
        assert "cret" not in shown
    for name in (given.address, given.uri, locate(given.uri).uri):
        assert locate(name).read_bytes() == b"here" and locate(name).path == given.path
    assert locate(given.parent.uri).files().keys() == {given.name}


def test_copies_are_whole_also_where_the_storage_makes_none_itself(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, content = locate(tmp_path / "file"), bytes(range(256)) * 9000
    here.write_bytes(content)
    for most in (5 << 30, 1 << 20):
        monkeypatch.setattr(storage, "LARGEST_COPY", most)
        there = locate(f"s3://{BUCKET}/{most}")
        (there / "up").copy_from(here)
        (there / "across").copy_from(there / "up")
        (locate(tmp_path) / f"down-{most}").copy_from(there / "across")
        assert (tmp_path / f"down-{most}").read_bytes() == content
        assert sorted(there.files()) == ["across", "up"]
        there.delete_folder()
        there.delete_folder()
        assert not there.exists()


def test_what_fails_to_be_written_on_disk_leaves_no_trace_in_the_bucket(bucket: Any, tmp_path: Path) -> None:
    for target in (locate(f"s3://{BUCKET}/model"), locate(tmp_path / "model")):
        for text in ("old", "new"):
            with from_disk(target, last="last.json") as path:
                path.mkdir()
                for name in (text, "last.json"):
                    (path / name).write_text(text)
        with pytest.raises(ZeroDivisionError), from_disk(target, last="last.json") as path:
            path.mkdir()
            (path / "half").write_text(str(1 / 0))
        assert list(target.files()) == ["last.json", "new"]
        assert target.parent.names() == ["model"]
        with on_disk(target, lambda name: name == "new") as path:
            assert (path / "new").read_text() == "new"
        # A copy goes, the folder itself stays.
        assert path.exists() == target.is_local


def test_lines_of_metrics_are_appended_cut_and_found_whole(bucket: Any, tmp_path: Path) -> None:
    for run in (locate(f"s3://{BUCKET}/run"), locate(tmp_path / "run")):
        metrics = MetricsFile.of_run(run)
        assert metrics.lines() == [] and metrics.last() == {}
        metrics.forget_after(0)
        assert not metrics.file.exists()
        metrics.append([{"step": 0, "validation": {}}, {"step": 1, "loss": 2.0}])
        metrics.append([{"step": 2, "loss": 1.0}])
        assert metrics.last() == {"step": 2, "loss": 1.0} and len(metrics.lines()) == 3
        # A worker that was killed has left a part of a line.
        metrics.file.write_bytes(metrics.file.read_bytes() + b'{"step": 3, "lo')
        assert metrics.last() == {"step": 2, "loss": 1.0} and len(metrics.training) == 2
        metrics.forget_after(1)
        metrics.append([{"step": 2, "loss": 1.5}])
        assert [line["step"] for line in metrics.lines()] == [0, 1, 2] and len(metrics.validation) == 1


def test_a_model_in_a_bucket_is_the_model_that_was_saved(bucket: Any, tmp_path: Path) -> None:
    model = load_model(ModelSettings(encoder=str(write_encoder(tmp_path / "tiny"))))
    for folder in (f"s3://{BUCKET}/model", tmp_path / "model"):
        save_whole(model, folder)
    there, here = (ModelSettings(encoder=name) for name in (f"s3://{BUCKET}/model", str(tmp_path / "model")))
    for side in ("mention", "entity"):
        assert load_parts(there).digest(side) == load_parts(here).digest(side)
    rows = [{"title": "fever", "types": [], "synonyms": [], "description": "hot"}]
    assert (load_model(there).encode_entities(rows) == load_model(here).encode_entities(rows)).all()
    before = load_parts(there).digest("entity")
    changed = locate(f"s3://{BUCKET}/model/entity_encoder/model.safetensors")
    changed.write_bytes(save({}))
    assert load_parts(there).digest("entity") != before
    changed.delete_file()
    with pytest.raises(ArtifactError, match="holds no weights"):
        load_parts(there)


def test_a_model_that_is_not_in_the_bucket_is_one_line(pel_ray: RunCommand, bucket: Any, tmp_path: Path) -> None:
    pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "set")
    asked = pel_ray("encode-kb", "set", "--out", "vectors", "--encoder", f"s3://{BUCKET}/no/model")
    assert f"s3://{BUCKET}/no/model: no such folder" in asked.error
