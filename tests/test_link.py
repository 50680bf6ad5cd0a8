"""link on a real Ray: what a plain loop would find, the same bytes as a stream and as a folder, whoever is killed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pel_ray import ModelSettings, load_model
from pel_ray.artifacts import Request, building, read_manifest
from pel_ray.errors import PelRayError, ResourceError
from pel_ray.formats import linking
from pel_ray.formats.linking import without_marks
from pel_ray.linker import Link, Linker
from pel_ray.nil import NilThreshold, store_threshold
from pel_ray.runtime import Resources, Workers
from pel_ray.shard_link import ShardLinker
from pel_ray.steps import link as link_step
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.index import IndexSettings, build_index
from pel_ray.steps.link import LinkSettings, link_files, link_stream
from pel_ray.steps.sharded import at_work
from pel_ray.storage import locate
from tests.conftest import RunCommand
from tests.killing import wait_for
from tests.models import WORDS, write_encoder
from tests.processes import started
from tests.reading import rows_of
from tests.samples import PUBTATOR, write_jsonl

NUM_ENTITIES, NUM_MENTIONS = 120, 60
ONE_WORKER = {"workers": 1, "cpus": 1}


def entity(number: int) -> dict[str, Any]:
    words = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 7))
    types = [f"type {number % 3}", "other"] if number % 4 else []
    return {"id": f"E{number}", "title": f"{WORDS[number % 13]} {number}", "description": words, "types": types}


def mention(number: int) -> dict[str, str]:
    name = f"{WORDS[number % 11]} {number * 7 % NUM_ENTITIES}"
    return {"left": f"patient {number} has the ", "mention": name, "right": " with name"}


def import_kb(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "kb.jsonl", rows)
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", "--kb", "kb.jsonl", "--out", "set"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return folder / "set"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    """A folder with a model `model`, a KB `set`, its vectors `vectors`, and 60 mentions in `mentions.jsonl`."""
    home = tmp_path_factory.mktemp("link")
    write_encoder(home / "tiny")
    load_model(ModelSettings(encoder=str(home / "tiny"))).save(home / "model")
    import_kb(home, [entity(number) for number in range(NUM_ENTITIES)])
    encode(home / "set", home / "model", home / "vectors")
    write_jsonl(home / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    return home


def encode(kb: Path, model: Path, out: Path) -> None:
    given = {"kb": str(kb), "out": str(out), "model": {"encoder": str(model)}, "shard_rows": 50}
    encode_kb(EncodeSettings.model_validate(given | {"resources": ONE_WORKER}))


@pytest.fixture(scope="module")
def index(home: Path) -> Path:
    build_index(IndexSettings(vectors=str(home / "vectors"), out=str(home / "index"), kind="flat"))
    return home / "index"


@pytest.fixture(scope="module")
def one_worker(ray_here: None) -> Iterator[Workers]:
    """For all tests that need no worker of their own: starting one costs seconds."""
    with at_work(Resources.model_validate(ONE_WORKER)) as (carrier, _):
        yield carrier


@pytest.fixture(scope="module")
def links(home: Path) -> list[Link]:
    return list(Linker.load(home / "vectors", k=5).link(map(mention, range(NUM_MENTIONS))))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 7 mentions and shards of two groups, so that 60 mentions make five shards."""
    monkeypatch.setattr(linking, "GROUP_MENTIONS", 7)
    monkeypatch.setattr(link_step, "GROUPS_PER_SHARD", 2)


def settings(home: Path, *files: Path, **more: Any) -> LinkSettings:
    given = {"folder": str(home / "vectors"), "files": list(map(str, files or [home / "mentions.jsonl"]))}
    return LinkSettings.model_validate(given | {"candidates": 5, "resources": ONE_WORKER} | more)


def streamed(given: LinkSettings) -> tuple[bytes, list[str]]:
    content, told = io.BytesIO(), []
    link_stream(given, content.write, told.append)
    return content.getvalue(), told


def lines_of(given: LinkSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in streamed(given)[0].splitlines()]


def in_folder(folder: Path) -> bytes:
    names = sorted(name for name in read_manifest(locate(folder)).files)
    return b"".join((folder / name).read_bytes() for name in names)


def test_links_are_the_best_scored_entities(home: Path, links: list[Link]) -> None:
    model = load_model(ModelSettings(encoder=str(home / "model")))
    kb = rows_of(home / "set", "kb")
    entities = model.encode_entities(kb).astype(np.float16).astype(np.float32)
    rows = [
        {f"context_{key}" if key != "mention" else key: text for key, text in mention(n).items()} for n in range(60)
    ]
    scores = model.encode_mentions(rows) @ entities.T
    for found, expected in zip(links, scores, strict=True):
        np.testing.assert_allclose([one.score for one in found.candidates], np.sort(expected)[::-1][:5], atol=1e-5)
        best = kb[int(found.candidates[0].entity_id[1:])]
        assert (found.entity_id, found.title) == (best["entity_id"], best["title"])
        assert found.entity_type == (best["types"][0] if best["types"] else None)
        assert found.is_nil is None and found.score == found.candidates[0].score


def test_the_command_gives_what_the_library_gives(home: Path, links: list[Link]) -> None:
    for line, link in zip(lines_of(settings(home)), links, strict=True):
        assert (line["entity_id"], line["title"], line["nil"]) == (link.entity_id, link.title, None)
        assert line["score"] == pytest.approx(link.score, abs=1e-5) and "start" not in line
        assert [one["entity_id"] for one in line["candidates"]] == [one.entity_id for one in link.candidates]


def test_a_mention_by_offsets_or_twice_gets_the_link_of_its_contexts(home: Path, links: list[Link]) -> None:
    linker = Linker.load(home / "vectors", k=5)
    rows: list[dict[str, Any]] = []
    for number in (3, 9, 3):
        left, name, right = mention(number).values()
        rows.append({"text": left + name + right, "start": len(left), "end": len(left + name)})
    found = [link.entity_id for link in linker.link(rows)]
    assert found == [links[number].entity_id for number in (3, 9, 3)]
    for bad, expected in (
        ({"text": "fever", "start": 2, "end": 9}, "mention 1: start 2 and end 9 are no span"),
        ({"left": "the", "mention": " "}, "mention 1: has no text"),
        ({"name": "fever"}, "has no text. Expected mention, .*; found name"),
        ({"left": 3, "mention": "fever"}, "must be text"),
    ):
        with pytest.raises(PelRayError, match=expected):
            list(linker.link([mention(0), bad]))


def test_an_index_finds_what_exact_search_finds(home: Path, index: Path, links: list[Link]) -> None:
    found = Linker.load(index, k=5).link(map(mention, range(NUM_MENTIONS)))
    assert [link.candidates for link in found] == [link.candidates for link in links]
    assert len(next(Linker.load(index, k=500).link([mention(0)])).candidates) == NUM_ENTITIES
    assert len(next(Linker.load(home / "vectors", k=500).link([mention(0)])).candidates) == NUM_ENTITIES


def test_a_training_run_is_searched_by_its_own_vectors(home: Path, links: list[Link], tmp_path: Path) -> None:
    with building(locate(tmp_path / "run"), Request(kind="run", inputs={}, settings={})):
        pass
    shutil.copytree(home / "vectors", tmp_path / "run" / "vectors")
    found = Linker.load(str(tmp_path / "run"), k=5).link(map(mention, range(9)))
    assert [link.entity_id for link in found] == [link.entity_id for link in links[:9]]


def test_pubtator_comes_back_with_the_ids_of_the_kb(home: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(PUBTATOR + "\n103|t|Nothing here\n103|a|At all.\n")
    found = lines_of(settings(home, tmp_path / "in.txt"))
    assert [(line["document"], line["start"], line["mention"]) for line in found][3:] == [
        ("101", 50, "fever and chills"),
        ("102", 2, "rare syndrome"),
    ]
    text = streamed(settings(home, tmp_path / "in.txt", output="pubtator"))[0].decode()
    assert text.endswith("103|t|Nothing here\n103|a|At all.\n\n") and "CID" not in text
    annotations = [line.split("\t") for line in text.splitlines() if "\t" in line]
    types = {row["entity_id"]: (row["types"] or ["-"])[0] for row in rows_of(home / "set", "kb")}
    for columns, line in zip(annotations, found, strict=True):
        start, end = str(line["start"]), str(line["end"])
        expected = [line["document"], start, end, line["mention"], types[line["entity_id"]], line["entity_id"]]
        assert columns == expected
    # What comes out can go in again.
    (tmp_path / "again.txt").write_text(text)
    assert streamed(settings(home, tmp_path / "again.txt", output="pubtator"))[0].decode() == text


def test_all_formats_of_one_text_get_the_same_links(home: Path, tmp_path: Path) -> None:
    text = "the hospital has a scanner"
    write_jsonl(tmp_path / "spans.gz", [{"id": 7, "text": text, "spans": [[4, 12], {"start": 19, "end": 26}]}])
    write_jsonl(tmp_path / "one", [{"text": text, "start": 4, "end": 12}, {"text": text, "start": 19, "end": 26}])
    (tmp_path / "marked").write_text("\n\nthe [[hospital]] has a [[scanner]]\n")
    (tmp_path / "pubtator").write_text(
        "7|t|the hospital\n7|a|has a scanner\n7\t4\t12\thospital\tx\ty\n7\t19\t26\tscanner\tx\ty\n"
    )
    spans = lines_of(settings(home, tmp_path / "spans.gz"))
    assert [(line["document"], line["start"], line["end"]) for line in spans] == [("7", 4, 12), ("7", 19, 26)]
    for name, documents in (("one", ["1", "2"]), ("marked", ["3", "3"]), ("pubtator", ["7", "7"])):
        found = lines_of(settings(home, tmp_path / name))
        assert [line.pop("document") for line in found] == documents
        assert found == [{key: value for key, value in line.items() if key != "document"} for line in spans]
    both = lines_of(settings(home, tmp_path / "marked", tmp_path / "one"))
    assert [line["document"] for line in both] == ["1:3", "1:3", "2:1", "2:2"]


@pytest.mark.parametrize(
    ("line", "text", "spans", "num_faults"),
    [
        ("[[a]] and [[b c]].", "a and b c.", [(0, 1), (6, 9)], 0),
        ("no mark ]] at all", "no mark ]] at all", [], 0),
        ("[[a]] [[]] b", "a  b", [(0, 1)], 1),
        ("[[a]] [[ b", "a [[ b", [(0, 1)], 1),
        ("[[a [[b]] [[c]]", "a [[b c", [(6, 7)], 1),
        ("[[" * 1000, "[[" * 1000, [], 1),
    ],
)
def test_marks_are_taken_out_of_the_text(line: str, text: str, spans: list[tuple[int, int]], num_faults: int) -> None:
    found, places, faults = without_marks(line)
    assert (found, places, len(faults)) == (text, spans, num_faults)


GOOD = json.dumps({"text": "has fever", "spans": [[4, 9]]}).encode()


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b'{"text": "has fever", "spans": [[4, 19]]}', "start 4 and end 19 are no span of the text"),
        (b'{"text": "has fever", "spans": [[-1, 3]]}', "start -1 and end 3 are no span"),
        (b'{"text": "has fever", "spans": [[3, 4]]}', "the mention at 3-4 is empty"),
        (b'{"text": "has fever", "spans": [[4, 9.0]]}', "a span is"),
        (b'{"text": "has fever", "spans": [7]}', "a span is 7, expected"),
        (b'{"text": "has fever"}', "has no list of spans"),
        (b'{"left": "has", "mention": ""}', "has an empty mention"),
        (b'{"left": "has"}', "has no mention"),
        (b'{"text": 3.5, "spans": []}', "text is 3.5, expected text"),
        (b'{"text": "has', "is not JSON"),
        (b"[1, 2]", "expected a JSON object"),
        (b'{"text": "\\ud800", "spans": []}', "half a surrogate pair"),
        (b'{"text": "f\xff"}', "byte 0xff at column 12 is not UTF-8"),
        (b'{"text": "f\0"}', "holds a NUL byte"),
        (b'{"text": "' + b"x" * 10_000_001, "is longer than 10,000,000 bytes"),
    ],
)
def test_a_bad_record_is_told_and_the_rest_linked(home: Path, tmp_path: Path, bad: bytes, expected: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(GOOD + b"\n" + bad + b"\n" + GOOD + b"\n")
    content, told = streamed(settings(home, tmp_path / "x.jsonl"))
    assert len(content.splitlines()) == 2 and len(told) == 1
    assert told[0].startswith(f"{tmp_path / 'x.jsonl'}:2: ") and expected in told[0]


def test_a_pubtator_document_without_its_text_is_left_out(home: Path, tmp_path: Path) -> None:
    blocks = [
        b"1|t|has fever\n1|a|f\xff\n1\t4\t9\tfever\tx\ty\n",
        b"2|t|has fever\n2|a|\n2\t4\t9\tfever\tx\ty\n2\t4\t8\tfever\tx\ty\n2\t4\t9\tf\0ver\tx\ty\n2\t3\t4\t \tx\ty\n",
        b"3|t|has fever\n4|a|\n3\t4\t9\tfever\tx\ty\n",
        b"5\t4\t9\tfever\tx\ty\n",
        b"6|t|has fever\n6\t4\t9\tfever\tx\ty\n",
    ]
    (tmp_path / "x").write_bytes(b"\n".join(blocks))
    given = settings(home, tmp_path / "x", input="pubtator")
    content, told = streamed(given)
    assert [json.loads(line)["document"] for line in content.splitlines()] == ["2", "6"]
    assert [message.removeprefix(f"{tmp_path / 'x'}:").split(":")[0] for message in told] == [
        *["2", "9", "8", "10", "13", "16"]
    ]
    assert "The document is left out" in told[0] and "The document is left out" in told[4]


def test_exit_code_3_says_that_records_were_left_out(home: Path, tmp_path: Path, link_command: RunCommand) -> None:
    (tmp_path / "x").write_bytes(b"\n".join([GOOD, *[b"{"] * 25, GOOD]))
    flags = ["--candidates", 2]
    found = link_command(home / "vectors", tmp_path / "x", *flags)
    told = found.err.splitlines()
    assert found.code == 3 and len(found.out.splitlines()) == 2
    assert len(told) == 21 and "x:2: is not JSON" in told[0] and "25 bad records" in told[-1]
    for state in ("done in", "already done"):
        again = link_command(home / "vectors", tmp_path / "x", *flags, "--out", "out", "--workers", 1, "--cpus", 1)
        assert again.code == 3 and state in again.out
        assert "x:2: is not JSON" in again.err and "25 bad records" in again.err
    assert in_folder(tmp_path / "out").decode() == found.out


@pytest.fixture
def link_command(pel_ray: RunCommand) -> RunCommand:
    """`pel-ray link ...`."""
    return lambda *arguments: pel_ray("link", *arguments)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n \n", "holds blank lines only"),
        (b"\0\0\n", "none of its first lines is text: line 1: holds a NUL byte"),
        (b"\x89PNG\r\n\x1a\n", "is a PNG image"),
        (b"\n" + b"\xe9t\xe9\n" * 40 + GOOD, "none of its first lines is text: line 2: byte 0xe9"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (gzip.compress(GOOD * 1000, mtime=0)[:-20], "cut short"),
        (b"no mention here\n", "holds no [[mention]]. Read as marked"),
        (b"{}\n", "holds no JSON line"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("out", [[], ["--out", "out"]])
def test_a_file_that_cannot_be_linked_is_one_line(
    home: Path, tmp_path: Path, link_command: RunCommand, content: bytes | None, expected: str, out: list[str]
) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    found = link_command(home / "vectors", tmp_path / "x", *out)
    assert found.code == 1 and expected in found.err.splitlines()[-1] and "Traceback" not in found.err
    assert not (tmp_path / "out").exists()


def test_what_is_piped_in_is_linked(
    home: Path, tmp_path: Path, link_command: RunCommand, monkeypatch: pytest.MonkeyPatch, one_worker: Workers
) -> None:
    (tmp_path / "x").write_text("has [[fever]]\n")
    expected = streamed(settings(home, tmp_path / "x"))[0]
    for arguments in ([], ["-"]):
        with open(tmp_path / "x") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert link_command(home / "vectors", *arguments, "--candidates", 5).out == expected.decode()
    for is_new in (True, False):
        with open(tmp_path / "x") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            outcome = link_files(settings(home, files=[], out=str(tmp_path / "out")), one_worker)
        assert outcome.is_new == is_new and in_folder(tmp_path / "out") == expected


def test_wrong_usage_is_exit_code_2(home: Path, link_command: RunCommand) -> None:
    for arguments in ([], [home / "vectors", "--candidates", 0], [home / "vectors", "--input", "xml"]):
        assert link_command(*arguments).code == 2
    assert "Pass --out" in link_command(home / "vectors", home / "mentions.jsonl", "--workers", 2).error


@pytest.mark.parametrize(
    ("workers", "output"), [(1, "jsonl"), (1, "pubtator"), pytest.param(2, "jsonl", marks=pytest.mark.workers)]
)
def test_a_folder_holds_the_bytes_of_the_stream(
    home: Path, tmp_path: Path, small_groups: None, one_worker: Workers, workers: int, output: str
) -> None:
    out = tmp_path / "out"
    expected, _ = streamed(settings(home, output=output))
    given = settings(home, output=output, out=str(out), resources={"workers": workers, "cpus": 1})
    outcome = link_files(given, one_worker if workers == 1 else None)
    assert len(outcome.manifest.files) == 5 and outcome.manifest.counts["rows"] == NUM_MENTIONS
    assert in_folder(out) == expected
    assert {path.name for path in out.iterdir()} == {*outcome.manifest.files, "manifest.json"}
    assert not link_files(given).is_new
    with pytest.raises(PelRayError, match="candidates is 5 there and 6 here"):
        link_files(settings(home, output=output, out=str(out), candidates=6))


DRIVER = """
import sys
import threading
from pel_ray import cli
from pel_ray.formats import linking
from pel_ray.shard_link import ShardLinker
from pel_ray.steps import link

class WaitingLinker(ShardLinker):
    def do(self, shard):
        if shard.number == 3:
            threading.Event().wait(600)
        return super().do(shard)

linking.GROUP_MENTIONS, link.GROUPS_PER_SHARD, link.ShardLinker = 7, 2, WaitingLinker
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("asked", "visible"), [({"cpu": True}, ""), ({"cpu": True, "gpus": 1}, ""), ({"gpus": 0}, ""), ({}, "0,1")]
)
def test_a_stream_that_asks_for_no_gpu_sees_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen: list[str] = []

    def linker(*arguments: Any) -> Linker:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return Linker(*arguments)

    monkeypatch.setattr(link_step, "Linker", linker)
    streamed(settings(home, resources=ONE_WORKER | asked))
    assert seen == [visible] and os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_stream_is_refused_a_gpu_where_there_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ResourceError, match="gpus is 1, but there is no GPU here. Pass --cpu to run on CPUs"):
        streamed(settings(home, resources=ONE_WORKER | {"gpus": 1}))


@pytest.mark.workers
def test_a_killed_driver_is_run_again_and_does_only_the_rest(
    home: Path, tmp_path: Path, small_groups: None, one_worker: Workers
) -> None:
    out = tmp_path / "out"
    flags = ["--candidates", "5", "--workers", "1", "--cpus", "1"]
    arguments = ["link", str(home / "vectors"), str(home / "mentions.jsonl"), "--out", str(out), *flags]
    with started([sys.executable, "-c", DRIVER, *arguments], stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: len(list(out.glob("receipt-*"))) == 3 or driver.poll() is not None)
    done = {file: file.stat().st_mtime_ns for file in (*out.glob("links-*"), *out.glob("input-*"))}
    assert len(done) == 3 + 5
    link_files(settings(home, out=str(out)), one_worker)
    assert all(file.stat().st_mtime_ns == when for file, when in done.items() if "links-" in file.name)
    assert in_folder(out) == streamed(settings(home))[0]


class DyingLinker(ShardLinker):
    """Is killed at a shard, once."""

    def do(self, shard: Any) -> dict[str, Any]:
        marker = Path(self.job.folder.path).parent / "killed"
        if shard.number == 2 and not marker.exists():
            marker.write_text("")
            os.kill(os.getpid(), 9)
        return super().do(shard)


def test_a_killed_worker_changes_nothing(
    home: Path, tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch, one_worker: Workers
) -> None:
    monkeypatch.setattr(link_step, "ShardLinker", DyingLinker)
    link_files(settings(home, out=str(tmp_path / "out")), one_worker)
    assert (tmp_path / "killed").exists()
    assert in_folder(tmp_path / "out") == streamed(settings(home))[0]


@pytest.fixture
def with_threshold(home: Path, tmp_path: Path, links: list[Link]) -> tuple[Path, float]:
    """A model like the other, with a threshold that half of the mentions reach."""
    model = tmp_path / "with-threshold"
    shutil.copytree(home / "model", model)
    middle = float(np.median([link.score or 0 for link in links]))
    numbers = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "mentions": 1, "nil_mentions": 1}
    said = {"data": "", "split": "validation", "vectors": ""}
    store_threshold(model, NilThreshold(threshold=middle, **numbers, **said))  # type: ignore[arg-type]
    return model, middle


def test_below_the_threshold_is_nil_with_its_candidates(
    home: Path, with_threshold: tuple[Path, float], links: list[Link], tmp_path: Path, one_worker: Workers
) -> None:
    model, middle = with_threshold
    found = lines_of(settings(home, model=str(model)))
    assert 20 < sum(line["nil"] for line in found) < 40
    for line, link in zip(found, links, strict=True):
        assert line["nil"] == (link.score < middle) and len(line["candidates"]) == 5
        assert line["entity_id"] == (None if line["nil"] else link.entity_id)
        assert line["score"] == pytest.approx(link.score, abs=1e-5)
    text = streamed(settings(home, model=str(model), output="pubtator"))[0].decode()
    assert text.count("\t-\t-1\n") == sum(line["nil"] for line in found)
    assert not any(line["nil"] for line in lines_of(settings(home, model=str(model), nil=False)))
    assert all(line["nil"] for line in lines_of(settings(home, model=str(model), threshold=2.0)))
    outcome = link_files(settings(home, model=str(model), out=str(tmp_path / "out")), one_worker)
    assert outcome.manifest.counts["NIL"] == sum(line["nil"] for line in found)


def test_nil_without_a_threshold_is_refused(home: Path) -> None:
    with pytest.raises(PelRayError, match="evaluate DATA --vectors .* --split validation --tune-nil"):
        streamed(settings(home, nil=True))
    assert any(line["nil"] is False for line in lines_of(settings(home, nil=True, threshold=-2.0)))
    with pytest.raises(PelRayError, match="Leave one of both out"):
        streamed(settings(home, nil=False, threshold=0.5))


def test_what_does_not_belong_together_is_refused(home: Path, index: Path, tmp_path: Path) -> None:
    rows = [entity(number) for number in range(NUM_ENTITIES)]
    other = import_kb(tmp_path / "other", [*rows[1:], rows[0]])
    write_encoder(tmp_path / "model", with_unused=False)
    for folder in ("vectors", "index"):
        with pytest.raises(PelRayError, match="another KB|was not built from the KB"):
            Linker.load(home / folder, kb=other)
        with pytest.raises(PelRayError, match="was encoded with another model"):
            Linker.load(home / folder, model=tmp_path / "model")
    with pytest.raises(PelRayError, match="holds kb, expected vectors, a training run or an index"):
        Linker.load(home / "set" / "kb")
    with pytest.raises(PelRayError, match="does not exist"):
        Linker.load(home / "nowhere")


def test_what_has_moved_can_be_named(home: Path, index: Path, links: list[Link], tmp_path: Path) -> None:
    for name in ("set", "vectors", "model", "index"):
        shutil.copytree(home / name, tmp_path / name)
    hidden = home.with_name("hidden")
    home.rename(hidden)
    try:
        with pytest.raises(PelRayError, match=r"which is not there. Name the KB \(kb, --kb\)"):
            Linker.load(tmp_path / "vectors")
        with pytest.raises(PelRayError, match=r"gone or has changed.*Name the KB"):
            Linker.load(tmp_path / "index")
        for folder in ("vectors", "index"):
            found = Linker.load(tmp_path / folder, kb=tmp_path / "set", k=5).link(map(mention, range(9)))
            assert [link.entity_id for link in found] == [link.entity_id for link in links[:9]]
        (tmp_path / "model").rename(tmp_path / "elsewhere")
        with pytest.raises(PelRayError, match="which is not there. Name the model"):
            Linker.load(tmp_path / "vectors", kb=tmp_path / "set")
        Linker.load(tmp_path / "vectors", tmp_path / "elsewhere", tmp_path / "set")
        rows = [entity(number) for number in range(NUM_ENTITIES)]
        for number, other in enumerate((rows[:-1], [*rows[1:], rows[0]])):
            kb = import_kb(tmp_path / f"other-{number}", other)
            with pytest.raises(PelRayError, match="was not built from the KB"):
                Linker.load(tmp_path / "index", tmp_path / "elsewhere", kb)
    finally:
        hidden.rename(home)
