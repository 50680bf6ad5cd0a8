"""encode-kb on a real Ray: the same bytes whoever did the work, whoever was killed, and never twice."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from pel_ray.artifacts import Input, Request, building
from pel_ray.encoder import BiEncoder
from pel_ray.errors import ArtifactError, PelRayError, ResourceError, SettingsError
from pel_ray.runtime import Ask, workers
from pel_ray.shard_encoder import ShardEncoder
from pel_ray.steps import encode_kb as step
from pel_ray.steps.encode_kb import EncodePlan, EncodeSettings, encode_kb
from pel_ray.steps.encode_plan import estimate
from pel_ray.storage import locate
from pel_ray.vectors import Shard, VectorFolder
from tests.conftest import RunCommand
from tests.killing import SECONDS, run_and_kill, wait_for
from tests.models import WORDS, write_encoder
from tests.processes import started
from tests.reading import rows_of
from tests.samples import write_jsonl

NUM_ENTITIES = 1200
SHARD_ROWS = 16
ONE, TWO, POOL_OF_TWO = Ask(1, 1, 0, is_local=True), Ask(2, 1, 0, is_local=True), Ask(2, 1, 0, is_local=False)
"""Warm actors, as on one machine, and a pool of Ray Data, as on a cluster."""


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


def encode_with(ask: Ask, asked: EncodeSettings) -> None:
    with workers(ask) as carrier:
        encode_kb(asked, carrier)


def test_three_workers_give_the_bytes_of_one(home: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    outcome = encode_kb(settings(home, tmp_path / "out", resources={"workers": 3, "cpus": 1}))
    assert contents(tmp_path / "out") == undisturbed
    assert outcome.manifest.counts["workers"].startswith("3 x (1 CPUs")


def receipts(folder: Path) -> int:
    return sum(1 for _ in folder.glob("receipt-*")) if folder.exists() else 0


@pytest.mark.parametrize("ask", [ONE, TWO, POOL_OF_TWO], ids=str)
def test_a_worker_killed_in_the_middle_changes_nothing(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, ask: Ask
) -> None:
    asked = settings(home, tmp_path / "out")
    run_and_kill(lambda: encode_with(ask, asked), lambda: receipts(tmp_path / "out") >= 3)
    assert contents(tmp_path / "out") == undisturbed


def words(home: Path, out: Path) -> list[str]:
    flags = ["--encoder", home / "tiny", "--shard-rows", SHARD_ROWS, "--workers", "1", "--cpus", "1"]
    return [str(word) for word in ("encode-kb", home / "set", "--out", out, *flags)]


def test_a_driver_that_is_asked_to_end_leaves_the_code_for_that_and_no_dump(home: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "pel_ray", *words(home, out)]
    with open(log, "wb") as said, started(command, stdout=said, stderr=said) as driver:
        wait_for(lambda: receipts(out) >= 5 or driver.poll() is not None)
        driver.terminate()
        assert driver.wait(SECONDS) == 143, log.read_text()
    assert "SIGTERM" not in log.read_text() and "Traceback" not in log.read_text()
    assert not (out / "manifest.json").exists()


def test_a_killed_driver_is_run_again_and_does_only_the_rest(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, pel_ray: RunCommand
) -> None:
    out, arguments = tmp_path / "out", words(home, tmp_path / "out")
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
        ({"model": {"encoder": str(home / "tiny"), "layers": 1}}, "model.layers is None there and 1 here"),
        ({"store": "fp32"}, "store is 'fp16' there and 'fp32' here"),
    ):
        with pytest.raises(PelRayError, match=expected):
            encode_kb(settings(changed, changed / "new", reuse=str(home / "undisturbed"), **more))
    assert not (changed / "new").exists()


def test_a_finished_reuse_needs_the_old_vectors_no_more(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    shutil.copytree(home / "undisturbed", tmp_path / "old")
    asked = settings(home, tmp_path / "new", reuse=str(tmp_path / "old"))
    assert encode_kb(asked).manifest.counts["encoded"] == 0
    shutil.rmtree(tmp_path / "old")
    assert not encode_kb(asked).is_new


class KillingEncoder(ShardEncoder):
    """Dies at one shard, as a worker does that runs out of memory."""

    def _encode(self, shard: Shard) -> Any:
        if shard.number == 2:
            os._exit(1)
        return super()._encode(shard)


@pytest.mark.workers
@pytest.mark.parametrize("ask", [ONE, TWO, POOL_OF_TWO], ids=str)
def test_a_shard_that_kills_its_workers_is_named_and_the_rest_is_kept(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    asked = settings(home, tmp_path / "out", shard_rows=200)
    monkeypatch.setattr(step, "ShardEncoder", KillingEncoder)
    with pytest.raises(ResourceError, match=r"shard 00002 \(entities 400 to 599\) killed its worker three times"):
        encode_with(ask, asked)
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


@pytest.mark.parametrize("name", ["set/kb", "set/kb/manifest.json"])
def test_what_is_not_vectors_is_never_replaced(home: Path, pel_ray: RunCommand, name: str) -> None:
    shutil.copytree(home / "set", "set")
    before = {path: path.read_bytes() for path in Path("set").rglob("*") if path.is_file()}
    error = pel_ray("encode-kb", "set", "--out", name, "--encoder", home / "tiny", "--overwrite").error
    assert "holds kb, which vectors may not replace" in error or "is a file. Name a folder" in error
    assert {path: path.read_bytes() for path in Path("set").rglob("*") if path.is_file()} == before


def test_word_pieces_and_vectors_do_not_share_a_folder(home: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--tokens and --out are the same folder"):
        EncodePlan(settings(home, tmp_path / "out", tokens=str(tmp_path / "out")))


def model_that(home: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> dict[str, str]:
    shutil.copytree(home / "tiny", folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return {"encoder": str(folder)}


def test_vectors_that_are_no_numbers_are_refused_and_another_model_may_take_their_place(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    def diverge(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.layer.1.output.dense.bias"][3] = torch.nan

    model = model_that(home, tmp_path / "diverged", diverge)
    with pytest.raises(PelRayError, match="shard 000.* are no numbers, or too large for float16"):
        encode_kb(settings(home, tmp_path / "out", model=model))
    encode_kb(settings(home, tmp_path / "out"))
    assert contents(tmp_path / "out") == undisturbed


def test_vectors_too_large_for_half_precision_fit_in_single(home: Path, ray_here: None, tmp_path: Path) -> None:
    def grow(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.layer.1.output.LayerNorm.weight"] *= 1e6

    model = model_that(home, tmp_path / "large", grow) | {"similarity": "dot"}
    with pytest.raises(PelRayError, match="too large for float16.*--store fp32 has room"):
        encode_kb(settings(home, tmp_path / "out", model=model))
    encode_kb(settings(home, tmp_path / "out", model=model, store="fp32"))
    assert np.abs(vectors_of(tmp_path / "out")[1]).max() > np.finfo(np.float16).max


def test_damaged_and_deleted_word_pieces_are_made_again(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    tokens, asked = tmp_path / "tokens", settings(home, tmp_path / "out", tokens=str(tmp_path / "tokens"))
    shutil.copytree(next(home.glob("tokens-*")), tokens)
    whole = contents(tokens)
    damaged, deleted = sorted(tokens.glob("*.arrow"))[1:3]
    damaged.write_bytes(b"?" * damaged.stat().st_size)
    encode_kb(asked)
    assert contents(tmp_path / "out") == undisturbed and contents(tokens) == whole
    deleted.unlink()
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="is missing.*--overwrite"):
        encode_kb(asked)
    encode_kb(asked.model_copy(update={"overwrite": True}))
    assert contents(tmp_path / "out") == undisturbed and contents(tokens) == whole


def test_a_worker_that_finds_no_place_keeps_no_shard_from_the_others(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    import ray

    class Other:
        def is_there(self) -> bool:
            return True

    # Of four CPUs.
    other = ray.remote(num_cpus=3)(Other).remote()
    assert ray.get(other.is_there.remote())
    try:
        encode_with(TWO, settings(home, tmp_path / "out"))
    finally:
        ray.kill(other)
    assert contents(tmp_path / "out") == undisturbed


def test_a_damaged_kb_is_one_line(home: Path, ray_here: None, pel_ray: RunCommand) -> None:
    shutil.copytree(home / "set", "set")
    file = next(Path("set/kb").glob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    file.write_bytes(content)
    flags = ["--encoder", home / "tiny", "--workers", 1, "--cpus", 1]
    assert f"{file.name} is damaged" in pel_ray("encode-kb", "set", "--out", "out", *flags).err.splitlines()[-1]


def test_the_plan_estimates_and_does_nothing(home: Path, pel_ray: RunCommand) -> None:
    result = pel_ray("encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny", "--plan")
    assert result.code == 0 and "texts/s (calibrated on 256 texts)" in result.out and "1,200 in 1 shards" in result.out
    assert not Path("out").exists()


def lines_of(asked: EncodeSettings) -> dict[str, str]:
    return dict(estimate(asked))


def finish_by_hand(asked: EncodeSettings, num_shards: int) -> None:
    """Leaves the names of finished shards, as a killed driver does."""
    plan = EncodePlan(asked)
    job = plan.job(1)
    Path(plan.out.path).mkdir()
    Path(plan.tokens.path).mkdir(exist_ok=True)
    for shard in plan.shards[:num_shards]:
        for name in (job.receipt_file(shard).name, *job.result_names(shard)):
            (Path(plan.out.path) / name).touch()
        Path(job.token_file(shard).path).touch()


def write_negatives(folder: Path, kb: str, golds: list[int]) -> str:
    """What `mine` leaves of a KB with this fingerprint, with entity 0 as the only negative."""
    request = Request(kind="negatives", inputs={"kb": Input(path="", digest=kb)}, settings={})
    with building(locate(folder), request) as work, work.writing("part-00000", ".parquet") as stream:
        pq.write_table(pa.table({"gold_rows": [golds], "entity_rows": [[0]]}), stream)
    return str(folder)


def test_the_plan_leaves_out_finished_shards_and_entities_that_were_not_asked_for(home: Path, tmp_path: Path) -> None:
    assert lines_of(settings(home, tmp_path / "all"))["entities"] == "1,200 in 75 shards"
    finish_by_hand(settings(home, tmp_path / "begun"), num_shards=70)
    begun = lines_of(settings(home, tmp_path / "begun"))
    assert begun["entities"] == "1,200 in 75 shards, 80 of them to encode"
    assert begun["texts"].startswith("about 80,")
    kb = EncodePlan(settings(home, tmp_path / "all")).kb.manifest.request.fingerprint
    only = write_negatives(tmp_path / "negatives", kb, golds=[16, 17, 1199])
    few = settings(home, tmp_path / "few", only=only)
    assert lines_of(few)["entities"] == "1,200 in 75 shards, 4 of them to encode"
    # Of shards 0 and 1 with entities 0, 16 and 17, the first is done.
    finish_by_hand(few, num_shards=1)
    assert lines_of(few)["texts"].startswith("about 3,")


def test_the_plan_of_finished_vectors_has_nothing_to_encode(home: Path, undisturbed: dict[str, bytes]) -> None:
    lines = lines_of(settings(home, home / "undisturbed"))
    assert lines["already done"] == "yes" and lines["entities"].endswith("0 of them to encode")


def test_the_plan_says_that_reused_vectors_make_it_shorter(
    home: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    assert "unchanged" in lines_of(settings(home, tmp_path / "new", reuse=str(home / "undisturbed")))["time"]
    assert "unchanged" not in lines_of(settings(home, tmp_path / "new"))["time"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [({"workers": 2, "cpus": 1}, 1), ({"workers": 2}, 2), ({"workers": 1}, 4), ({"cpus": 3}, 3)],
)
def test_the_plan_measures_with_the_threads_of_a_worker(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, int], expected: int
) -> None:
    threads, encode = set(), BiEncoder.encode

    def encode_and_tell(*arguments: Any, **options: Any) -> np.ndarray:
        threads.add(torch.get_num_threads())
        return encode(*arguments, **options)

    monkeypatch.setattr(BiEncoder, "encode", encode_and_tell)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        estimate(settings(home, tmp_path / "out", resources=resources))
        assert threads == {expected} and torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ({"template": "synonyms and more words {title}", "entity_length": 8}, {}, "leaves no room for the fields"),
        ({"template": "{types} [SEP] {synonyms}"}, {"views": "synonyms"}, "has no {title} for a synonym to stand in"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_before_anything_starts(
    home: Path, tmp_path: Path, text: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    model = {"encoder": str(home / "tiny"), "text": text}
    with pytest.raises(SettingsError, match=expected):
        EncodePlan(settings(home, tmp_path / "out", model=model, **more))


def test_a_template_without_title_does_for_one_view(home: Path, tmp_path: Path) -> None:
    model = {"encoder": str(home / "tiny"), "text": {"template": "{types}"}}
    assert EncodePlan(settings(home, tmp_path / "out", model=model)).done is None


def test_a_kb_without_rows_is_refused(home: Path, tmp_path: Path) -> None:
    with building(locate(tmp_path / "kb"), Request(kind="kb", inputs={}, settings={})) as work:
        work.counts["rows"] = 0
    with pytest.raises(ArtifactError, match="kb has no rows"):
        encode_kb(settings(home, tmp_path / "out", kb=str(tmp_path / "kb")))


def test_negatives_of_another_kb_are_no_pool(home: Path, tmp_path: Path) -> None:
    only = write_negatives(tmp_path / "negatives", "another", golds=[1])
    with pytest.raises(ArtifactError, match="was mined from another KB"):
        encode_kb(settings(home, tmp_path / "out", only=only))


def test_progress_is_lines_where_there_is_no_terminal(
    home: Path, ray_here: None, pel_ray: RunCommand, tmp_path: Path
) -> None:
    result = pel_ray("encode-kb", home / "set", "--out", "out", "--encoder", home / "tiny", "--workers", 1, "--cpus", 1)
    assert "encoding 1,200 of 1,200 (100%)" in result.err and "padding" in result.err
