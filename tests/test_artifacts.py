"""Folders: finished once, never mixed, never lost."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from pel_ray.artifacts import Input, Request, building, finished, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.storage import Location, locate
from tests.conftest import RunCommand
from tests.reading import rows_of
from tests.samples import KB_ROWS, OBO, write_jsonl, write_jsonl_set


@pytest.fixture
def imported(pel_ray: RunCommand, tmp_path: Path) -> list[str]:
    """The arguments of an import that has been carried out."""
    arguments = [*write_jsonl_set(tmp_path / "in"), "--out", "set"]
    assert pel_ray(*arguments).code == 0
    return arguments


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def test_a_rerun_does_nothing_and_says_so(pel_ray: RunCommand, imported: list[str]) -> None:
    before = contents("set")
    result = pel_ray(*imported)
    assert result.out.count("already done, nothing to do") == 2
    assert contents("set") == before


def test_a_moved_source_is_the_same_source(pel_ray: RunCommand, imported: list[str]) -> None:
    os.rename("in", "moved")
    arguments = [argument.replace("/in/", "/moved/") for argument in imported]
    assert "already done" in pel_ray(*arguments).out


def test_other_settings_are_refused_by_name(pel_ray: RunCommand, imported: list[str]) -> None:
    before = contents("set")
    error = pel_ray(*imported, "--on-error", "skip").error
    assert "on_error is 'stop' there and 'skip' here" in error and "--overwrite" in error
    assert contents("set") == before


def test_a_changed_source_is_refused_by_name(pel_ray: RunCommand, imported: list[str]) -> None:
    write_jsonl(Path("in/kb.jsonl"), KB_ROWS[:2])
    assert "the content of kb 1 is another" in pel_ray(*imported).error


def test_overwrite_replaces_and_leaves_nothing_of_the_old(pel_ray: RunCommand, imported: list[str]) -> None:
    write_jsonl(Path("in/kb.jsonl"), KB_ROWS[:2])
    assert pel_ray(*imported, "--overwrite").code == 0
    assert len(rows_of("set", "kb")) == 2
    assert len(list(Path("set/kb").glob("*.parquet"))) == 1


def test_an_overwrite_that_fails_leaves_the_old_whole(pel_ray: RunCommand, imported: list[str]) -> None:
    before = contents("set")
    write_jsonl(Path("in/kb.jsonl"), [*KB_ROWS, {"id": "E9"}])
    assert "has no title" in pel_ray(*imported, "--overwrite").error
    assert contents("set") == before


def test_foreign_files_are_never_touched(pel_ray: RunCommand, imported: list[str]) -> None:
    Path("mine/kb").mkdir(parents=True)
    Path("mine/kb/thesis.txt").write_text("years of work")
    arguments = [*imported[:-1], "mine"]
    for more in ([], ["--overwrite"]):
        assert "holds what is not of this step (thesis.txt)" in pel_ray(*arguments, *more).error
    assert Path("mine/kb/thesis.txt").read_text() == "years of work"
    assert not Path("mine/mentions").exists()


def test_files_beside_ours_survive_an_overwrite(pel_ray: RunCommand, imported: list[str]) -> None:
    Path("set/kb/notes.txt").write_text("mine")
    Path("set/kb/draft.tmp").write_text("mine too")
    write_jsonl(Path("in/kb.jsonl"), KB_ROWS[:2])
    assert pel_ray(*imported, "--overwrite").code == 0
    assert Path("set/kb/notes.txt").read_text() == "mine" and Path("set/kb/draft.tmp").exists()


def test_overwrite_mends_a_damaged_manifest(pel_ray: RunCommand, imported: list[str]) -> None:
    Path("set/kb/manifest.json").write_text("{")
    assert "--overwrite" in pel_ray(*imported).error
    assert pel_ray(*imported, "--overwrite").code == 0
    assert len(rows_of("set", "kb")) == len(KB_ROWS)


def test_a_manifest_changed_by_hand_is_not_believed(pel_ray: RunCommand, imported: list[str]) -> None:
    path = Path("set/kb/manifest.json")
    path.write_text(path.read_text().replace('"rows": 4', '"rows": 5'))
    assert "its checksum does not fit" in pel_ray("show", "set").error


def test_a_flipped_bit_in_a_table_is_noticed(imported: list[str]) -> None:
    (part,) = Path("set/mentions").glob("*.parquet")
    content = bytearray(part.read_bytes())
    content[len(content) // 4] ^= 1
    part.write_bytes(content)
    with pytest.raises(ArtifactError, match="is damaged"):
        rows_of("set", "mentions")


def test_a_damaged_neighbour_does_not_make_finished_work_look_failed(
    pel_ray: RunCommand, imported: list[str], tmp_path: Path
) -> None:
    Path("set/mentions/manifest.json").write_text("{")
    result = pel_ray("import", "jsonl", "--kb", "in/kb.jsonl", "--out", "set")
    assert result.code == 0 and "golds not compared with the KB" in result.out


def test_a_cut_off_file_is_noticed(pel_ray: RunCommand, imported: list[str]) -> None:
    (part,) = Path("set/kb").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:-10])
    for arguments in (["show", "set"], imported):
        error = pel_ray(*arguments).error
        assert part.name in error and "its manifest says" in error


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "kb"}', "null", ""])
def test_a_damaged_manifest_is_one_line(pel_ray: RunCommand, imported: list[str], content: str) -> None:
    Path("set/kb/manifest.json").write_text(content)
    assert "manifest.json" in pel_ray("show", "set/kb").error


def test_the_same_sources_give_the_same_bytes(pel_ray: RunCommand, imported: list[str]) -> None:
    pel_ray(*imported[:-1], "again")
    parts = {path.name: path.read_bytes() for path in Path("set").rglob("*.parquet")}
    assert parts == {path.name: path.read_bytes() for path in Path("again").rglob("*.parquet")}


def test_a_full_disk_is_one_line_and_leaves_nothing(pel_ray: RunCommand, full_disk: Path, tmp_path: Path) -> None:
    rows = [{"id": str(n), "name": os.urandom(200).hex()} for n in range(2000)]
    write_jsonl(tmp_path / "big.jsonl", rows)
    error = pel_ray("import", "jsonl", "--kb", "big.jsonl", "--out", full_disk / "set").error
    assert "the disk is full" in error
    assert list(full_disk.rglob("*")) == []


def test_a_disk_without_room_for_another_file_is_left_as_it_was(
    pel_ray: RunCommand, disk_of_one_folder: Path, tmp_path: Path
) -> None:
    error = pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", disk_of_one_folder / "set").error
    assert "the disk is full" in error
    assert list(disk_of_one_folder.iterdir()) == []


def test_a_full_disk_for_temporary_files_is_one_line(
    pel_ray: RunCommand, full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [{"doc_id": n, "text": "x" * 3000} for n in range(50)])
    write_jsonl(tmp_path / "m.jsonl", [{"doc_id": n, "start": 0, "end": 1, "label": "E1"} for n in range(50)])
    monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
    given = ["import", "jsonl", "--documents", "docs.jsonl", "--mentions", "m.jsonl", "--out", "set"]
    error = pel_ray(*given).error
    assert str(full_disk) in error and "TMPDIR" in error
    assert not Path("set").exists()


def test_a_read_only_disk_is_one_line(pel_ray: RunCommand, read_only_disk: Path, tmp_path: Path) -> None:
    error = pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", read_only_disk / "set").error
    assert "read-only" in error


def test_a_file_in_the_way_is_one_line(pel_ray: RunCommand, imported: list[str]) -> None:
    Path("file").touch()
    assert "file" in pel_ray(*imported[:-1], "file").error


SLOW_READER = """
    import sys, time
    from pel_ray.cli import main
    from pel_ray.formats import obo

    read_terms = obo.read_terms
    def slowly(lines, tally):
        for term in read_terms(lines, tally):
            print("reading", flush=True)
            yield term
            time.sleep(60)
    import pel_ray.steps.import_obo as step
    step.read_terms = slowly
    main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_import_leaves_no_finished_folder_and_a_rerun_does_it_all(
    pel_ray: RunCommand, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    arguments = ["import", "obo", "toy.obo", "--out", "set"]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_READER), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    process.send_signal(number)
    assert process.wait() == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    process.stdout.close()
    assert Path("set").exists() == (number == signal.SIGKILL)
    if number == signal.SIGKILL:
        for folder in ("set", "set/kb"):
            assert "set/kb is unfinished: run the command" in pel_ray("show", folder).error
        other = pel_ray(*arguments, "--seed", "14").error
        assert "unfinished work" in other and "seed is 13 there and 14 here" in other
    assert pel_ray(*arguments).code == 0
    assert sorted(path.suffix for path in Path("set/kb").iterdir()) == [".json", ".parquet"]
    assert len(rows_of("set", "kb")) == 4


def test_a_fingerprint_depends_on_content_and_settings_only() -> None:
    def request(path: str = "a", digest: str = "1", **settings: object) -> str:
        return Request(kind="kb", inputs={"x": Input(path, digest)}, settings=settings).fingerprint

    assert request() == request(path="b")
    assert request(a=1, b=2) == request(b=2, a=1)
    assert len({request(), request(digest="2"), request(a=1), request(a=2), request(a="1")}) == 5


def test_a_manifest_tells_how_the_folder_came_to_be(imported: list[str]) -> None:
    content = json.loads(Path("set/kb/manifest.json").read_bytes())
    assert content["kind"] == "kb" and content["counts"]["rows"] == len(KB_ROWS)
    assert content["peak_memory_bytes"] > 2**20 and content["seconds"] > 0
    assert content["fingerprint"] == read_manifest(locate("set/kb")).request.fingerprint
    assert content["inputs"]["kb 1"]["path"] == "in/kb.jsonl"


def test_work_that_fails_before_its_manifest_is_not_finished(tmp_path: Path) -> None:
    folder, request = locate(tmp_path / "new" / "kb"), Request(kind="kb", inputs={}, settings={})
    with pytest.raises(ZeroDivisionError), building(folder, request) as work:
        with work.writing("part", ".bin") as stream:
            stream.write(b"half")
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    assert finished(folder, request) is None
    with pytest.raises(ArtifactError, match="does not exist"):
        read_manifest(folder)


def test_a_second_run_is_refused_while_the_first_writes(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    arguments = ["import", "obo", "toy.obo", "--out", "set"]
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW_READER), *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "reading\n"
        for more in ([], ["--overwrite"]):
            assert "is being written by another run" in pel_ray(*arguments, *more).error
        assert Path("set/kb/unfinished.json").is_file()
    finally:
        first.kill()
        first.communicate()
    assert pel_ray(*arguments).code == 0


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with building(locate(tmp_path / "kb"), Request(kind="kb", inputs={}, settings={})):
        pass
    assert read_manifest(locate(tmp_path / "kb"))


def test_what_a_worker_of_a_killed_run_still_finishes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(kind="vectors", inputs={}, settings={})
    appeared: list[Path] = []
    listed = Location.names

    def names(folder: Location) -> list[str]:
        appeared.append(tmp_path / f"vectors-{len(appeared)}-{request.fingerprint[:8]}.npy")
        appeared[-1].write_bytes(b"whole")
        return listed(folder)

    monkeypatch.setattr(Location, "names", names)
    with building(locate(tmp_path), request, resumable=True) as work:
        assert appeared and all(file.exists() for file in appeared)
        work.files = {file.name: 5 for file in appeared}
