"""Folders and sources in a bucket, on a real S3-compatible server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from pel_ray.storage import locate
from pel_ray.vectors import VectorFolder
from tests.conftest import RunCommand
from tests.models import write_encoder
from tests.reading import rows_of
from tests.samples import KB_ROWS, MENTION_ROWS, write_jsonl, write_jsonl_set

BUCKET = "team"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    settings = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ENDPOINT_URL": server, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=server, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield client
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    client.delete_bucket(Bucket=BUCKET)


def keys(client: object) -> list[str]:
    """All objects but the empty `folder/` ones that pyarrow leaves where it deleted something."""
    found = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])  # type: ignore[attr-defined]
    return [entry["Key"] for entry in found if not entry["Key"].endswith("/")]


def test_a_data_set_in_a_bucket_equals_the_local_one(pel_ray: RunCommand, bucket: object, tmp_path: Path) -> None:
    arguments = write_jsonl_set(tmp_path / "in")
    pel_ray(*arguments, "--out", "local")
    for file in (tmp_path / "in").iterdir():
        bucket.upload_file(str(file), BUCKET, f"in/{file.name}")  # type: ignore[attr-defined]
    remote = [argument.replace(f"{tmp_path}/in", f"s3://{BUCKET}/in") for argument in arguments]
    assert pel_ray(*remote, "--out", f"s3://{BUCKET}/sets/a").code == 0
    for kind in ("kb", "mentions"):
        assert rows_of(f"s3://{BUCKET}/sets/a", kind) == rows_of("local", kind)
    # Nothing but what the manifests list: no temporary objects.
    assert sorted(key.split("/", 2)[2].rsplit("-", 1)[0] for key in keys(bucket) if key.startswith("sets/")) == [
        "kb/manifest.json",
        "kb/part-00000",
        "mentions/manifest.json",
        "mentions/part-00000",
    ]
    assert pel_ray(*remote, "--out", f"s3://{BUCKET}/sets/a").out.count("already done") == 2
    assert "fever" in pel_ray("show", f"s3://{BUCKET}/sets/a").out
    assert pel_ray("okb", f"s3://{BUCKET}/sets/a", "--out", f"s3://{BUCKET}/sets/b").code == 0
    assert len(rows_of(f"s3://{BUCKET}/sets/b", "kb")) == 2


def test_a_failure_publishes_nothing(pel_ray: RunCommand, bucket: object, tmp_path: Path) -> None:
    arguments = write_jsonl_set(tmp_path / "in")
    write_jsonl(tmp_path / "in" / "mentions.jsonl", [*MENTION_ROWS, {"mention_id": "9", "label": "E1"}])
    assert "mentions.jsonl:6" in pel_ray(*arguments, "--out", f"s3://{BUCKET}/sets/a").error
    assert keys(bucket) == []


def test_a_missing_key_and_a_missing_bucket_are_one_line(pel_ray: RunCommand, bucket: object, tmp_path: Path) -> None:
    kb = write_jsonl(tmp_path / "kb.jsonl", KB_ROWS)
    missing = pel_ray("import", "jsonl", "--kb", f"s3://{BUCKET}/no.jsonl", "--out", "set").error
    assert f"s3://{BUCKET}/no.jsonl: no such file" in missing
    assert "s3://nobody" in pel_ray("import", "jsonl", "--kb", kb, "--out", "s3://nobody/set").error


def test_vectors_in_a_bucket_equal_the_local_ones(
    pel_ray: RunCommand, bucket: object, ray_here: None, tmp_path: Path
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
    assert not [key for key in keys(bucket) if ".tmp" in key or "unfinished" in key]
    reused = pel_ray(
        "encode-kb", "local", "--out", f"s3://{BUCKET}/again", "--reuse", f"s3://{BUCKET}/sets/a/vectors", *arguments
    )
    assert reused.code == 0
    assert VectorFolder.open(locate(f"s3://{BUCKET}/again")).manifest.counts["kept"] == len(KB_ROWS)
