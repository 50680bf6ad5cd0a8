"""encode-kb on a real Ray: the same bytes whoever did the work, whoever was killed, and never twice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pel_ray.errors import PelRayError, ResourceError
from pel_ray.shard_encoder import ShardEncoder
from pel_ray.steps import encode_kb as step
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.storage import locate
from pel_ray.vectors import Shard, VectorFolder
from tests.conftest import RunCommand
from tests.killing import run_and_kill, wait_for
from tests.models import WORDS, write_encoder
from tests.processes import started
from tests.reading import rows_of
from tests.samples import write_jsonl

NUM_ENTITIES = 1200
SHARD_ROWS = 16


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny encoder `tiny` and a data set `set` with a KB."""
    home = tmp_path_factory.mktemp("encode")
    write_encoder(home / "tiny")
    write_jsonl(home / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    import_kb(home, "kb.jsonl")
    return home


def import_kb(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", "--kb", name, "--out", "set"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)


def entity(number: int, **fields: Any) -> dict[str, Any]:
    words = [WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 7)]
    synonyms = [f"name {number}"] if number % 3 == 0 else []
    return {
        "id": f"E{number}",
        "title": f"term {number}",
        "description": " ".join(words),
        "synonyms": synonyms,
    } | fields


def settings(home: Path, out: Path, **more: Any) -> EncodeSettings:
    given: dict[str, Any] = {
        "kb": str(home / "set"),
        "out": str(out),
        "model": {"encoder": str(home / "tiny")},
        "shard_rows": SHARD_ROWS,
        "resources": {"workers": 1, "cpus": 1},
    }
    return EncodeSettings.model_validate(given | more)


def contents(folder: Path) -> dict[str, bytes]:
    """All that a vectors folder holds but its manifest, which tells the time."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def vectors_of(folder: Path) -> tuple[list[int], np.ndarray]:
    shards = list(VectorFolder.open(locate(folder)).shards())
    rows = [row for table, _ in shards for row in table["entity_row"].to_pylist()]
    return rows, np.concatenate([vectors for _, vectors in shards])


@pytest.fixture(scope="module")
def undisturbed(home: Path, ray_here: None) -> dict[str, bytes]:
    encode_kb(settings(home, home / "undisturbed"))
    return contents(home / "undisturbed")


def test_vectors_are_those_of_the_library_call(home: Path, undisturbed: dict[str, bytes]) -> None:
    from pel_ray import ModelSettings, load_model

    rows, vectors = vectors_of(home / "undisturbed")
    assert rows == list(range(NUM_ENTITIES)) and vectors.dtype == np.float16
    expected = load_model(ModelSettings(encoder=str(home / "tiny"))).encode_entities(rows_of(home / "set", "kb"))
    np.testing.assert_allclose(vectors.astype(np.float32), expected, atol=1e-3)


def test_show_tells_what_was_encoded(home: Path, undisturbed: dict[str, bytes], pel_ray: RunCommand) -> None:
    shown = pel_ray("show", home / "undisturbed").out
    assert "vectors, 1,200 rows" in shown and "texts per worker second" in shown


def test_three_workers_give_the_bytes_of_one(home: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    outcome = encode_kb(settings(home, tmp_path / "out", resources={"workers": 3, "cpus": 1}))
    assert contents(tmp_path / "out") == undisturbed
    assert outcome.manifest.counts["workers"].startswith("3 x (1 CPUs")


def receipts(folder: Path) -> int:
    return sum(1 for _ in folder.glob("receipt-*")) if folder.exists() else 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_killed_in_the_middle_changes_nothing(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    asked = settings(home, tmp_path / "out", resources={"workers": workers, "cpus": 1})
    run_and_kill(lambda: encode_kb(asked), lambda: receipts(tmp_path / "out") >= 3)
    assert contents(tmp_path / "out") == undisturbed


def test_a_killed_driver_is_run_again_and_does_only_the_rest(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, pel_ray: RunCommand
) -> None:
    out = tmp_path / "out"
    flags = ["--encoder", home / "tiny", "--shard-rows", SHARD_ROWS, "--workers", "1", "--cpus", "1"]
    arguments = [str(word) for word in ("encode-kb", home / "set", "--out", out, *flags)]
    command = [sys.executable, "-m", "pel_ray", *arguments]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: receipts(out) >= 5 or driver.poll() is not None)
    assert not (out / "manifest.json").exists()
    assert "is unfinished" in pel_ray("show", out).error
    first, lost = sorted(out.glob("vectors-*"))[:2]
    written = first.stat().st_mtime_ns
    lost.unlink()
    assert pel_ray(*arguments).code == 0
    assert first.stat().st_mtime_ns == written
    assert contents(out) == undisturbed
    assert "already done" in pel_ray(*arguments).out


def test_synonyms_can_have_vectors_of_their_own(home: Path, ray_here: None, tmp_path: Path) -> None:
    from pel_ray import ModelSettings, load_model

    encode_kb(settings(home, tmp_path / "out", views="synonyms"))
    rows, vectors = vectors_of(tmp_path / "out")
    assert len(rows) == NUM_ENTITIES + len(range(0, NUM_ENTITIES, 3)) and rows == sorted(rows)
    model = load_model(ModelSettings(encoder=str(home / "tiny")))
    name = {"title": "name 3", "types": [], "description": "", "synonyms": []}
    np.testing.assert_allclose(vectors[rows.index(3) + 1], model.encode_entities([name])[0], atol=1e-3)


@pytest.fixture
def changed(home: Path, tmp_path: Path) -> Path:
    """The KB a month later: some entities gone, some new, some with another text, the rest in another place."""
    rows = [entity(number) for number in range(100, NUM_ENTITIES)]
    rows[7] |= {"description": "has the fever"}
    rows[8] |= {"synonyms": ["only the names changed"]}
    rows = [entity(5000 + number) for number in range(30)] + rows
    write_jsonl(tmp_path / "new.jsonl", rows)
    import_kb(tmp_path, "new.jsonl")
    (tmp_path / "tiny").symlink_to(home / "tiny")
    return tmp_path


def test_reuse_encodes_only_what_changed_and_keeps_the_rest_byte_for_byte(
    home: Path, undisturbed: dict[str, bytes], changed: Path
) -> None:
    counts = encode_kb(settings(changed, changed / "new", reuse=str(home / "undisturbed"))).manifest.counts
    assert {name: counts[name] for name in ("added", "changed", "removed", "kept", "encoded")} == {
        "added": 30,
        "changed": 1,
        "removed": 100,
        "kept": NUM_ENTITIES - 101,
        "encoded": 31,
    }
    encode_kb(settings(changed, changed / "full"))
    old, new, full = (vectors_of(folder)[1] for folder in (home / "undisturbed", changed / "new", changed / "full"))
    kept = [number for number in range(100, NUM_ENTITIES) if number != 107]
    assert (new[[30 + number - 100 for number in kept]] == old[kept]).all()
    # Other batch shapes may change the last bit.
    np.testing.assert_allclose(new.astype(np.float32), full.astype(np.float32), atol=1e-3)


def test_reuse_of_another_model_or_setting_is_refused(home: Path, undisturbed: dict[str, bytes], changed: Path) -> None:
    write_encoder(changed / "other", with_unused=False)
    for more, expected in (
        ({"model": {"encoder": str(changed / "other")}}, "was encoded with another model"),
        ({"model": {"encoder": str(home / "tiny"), "layers": 1}}, "was encoded with model"),
        ({"store": "fp32"}, "was encoded with store fp16"),
    ):
        with pytest.raises(PelRayError, match=expected):
            encode_kb(settings(changed, changed / "new", reuse=str(home / "undisturbed"), **more))
    assert not (changed / "new").exists()


class KillingEncoder(ShardEncoder):
    """Dies at one shard, as a worker does that runs out of memory."""

    def _encode(self, shard: Shard) -> Any:
        if shard.number == 2:
            os._exit(1)
        return super()._encode(shard)


@pytest.mark.workers
@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_that_kills_its_workers_is_named_and_the_rest_is_kept(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    asked = settings(home, tmp_path / "out", shard_rows=200, resources={"workers": workers, "cpus": 1})
    monkeypatch.setattr(step, "ShardEncoder", KillingEncoder)
    with pytest.raises(ResourceError, match=r"shard 00002 \(entities 400 to 599\) killed its worker three times"):
        encode_kb(asked)
    assert receipts(tmp_path / "out") == 5
    done_by = [json.loads(path.read_bytes())["worker"] for path in (tmp_path / "out").glob("receipt-*")]
    assert {worker["host"] for worker in done_by} == {socket.gethostname()}
    assert os.getpid() not in {worker["pid"] for worker in done_by}
    monkeypatch.undo()
    assert encode_kb(asked).manifest.counts["shards"] == 6


def test_a_disk_that_fills_up_keeps_the_finished_shards(
    home: Path, undisturbed: dict[str, bytes], full_disk: Path, tmp_path: Path
) -> None:
    out = full_disk / "out"
    asked = settings(home, out, tokens=str(tmp_path / "tokens"))
    with pytest.raises(PelRayError, match="the disk is full.*run the same command again"):
        encode_kb(asked)
    num_done = receipts(out)
    assert 0 < num_done < NUM_ENTITIES // SHARD_ROWS
    subprocess.run(["mount", "-o", "remount,size=8m", full_disk], check=True)
    encode_kb(asked)
    assert contents(out) == undisturbed


def test_word_pieces_are_made_once_for_all_models_of_a_tokenizer(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    tokens = next(home.glob("tokens-*"))
    before = {path.name: path.stat().st_mtime_ns for path in tokens.iterdir()}
    model = {"encoder": str(home / "tiny"), "layers": 1}
    encode_kb(settings(home, tmp_path / "out", tokens=str(tokens), model=model))
    assert {path.name: path.stat().st_mtime_ns for path in tokens.iterdir()} == before
    assert contents(tmp_path / "out") != undisturbed


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--workers", "9", "--cpus", "1"], "9 workers of 1 CPUs and 0 GPUs each do not fit"),
        (["--workers", "1", "--gpus", "1"], "there is no GPU here. Pass --cpu"),
        (["--encoder", "nowhere"], "encoder 'nowhere' is no folder here"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(
    home: Path, ray_here: None, pel_ray: RunCommand, flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ["encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny", *flags]
    assert expected in pel_ray(*arguments).error
    assert not Path("out").exists()


def test_wrong_settings_and_other_kinds_are_refused(home: Path, pel_ray: RunCommand) -> None:
    given = ["encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny"]
    assert "did you mean {title}?" in pel_ray(*given, "--template", "{titel}").err
    assert "does not exist" in pel_ray("encode-kb", "nowhere", "--out", "out").error
    assert pel_ray(*given, "--workers", "many").code == 2


def test_other_settings_in_the_same_folder_are_named(
    home: Path, undisturbed: dict[str, bytes], pel_ray: RunCommand
) -> None:
    flags = ["--shard-rows", SHARD_ROWS, "--encoder", home / "tiny", "--entity-length", 16]
    error = pel_ray("encode-kb", home / "set", "--out", home / "undisturbed", *flags).error
    assert "model.text.entity_length is 128 there and 16 here" in error


def test_the_plan_estimates_and_does_nothing(home: Path, pel_ray: RunCommand) -> None:
    result = pel_ray("encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny", "--plan")
    assert result.code == 0 and "texts/s (calibrated on 256 texts)" in result.out and "1,200 in 1 shards" in result.out
    assert not Path("out").exists()


def test_progress_is_lines_where_there_is_no_terminal(
    home: Path, ray_here: None, pel_ray: RunCommand, tmp_path: Path
) -> None:
    result = pel_ray("encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny", "--workers", 1, "--cpus", 1)
    assert "encoding 1,200 of 1,200 (100%)" in result.err and "padding" in result.err
