"""The README: its session runs as it stands and says what it shows, and its Python lines run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from pel_ray.steps.quickstart import hpo_file
from tests.conftest import RunCommand
from tests.models import write_encoder

README = (Path(__file__).parent.parent / "README.md").read_text()
_SESSION = re.compile(r"^```\n\$ (pel-ray .*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINKED = re.compile(r"`echo '(.*?)' \| (pel-ray link .*?)`")


def words_of(text: str) -> list[str]:
    """Without times, and however lines are broken."""
    return re.sub(r"done in [\d.]+ s", "done in S s", text).split()


def test_the_sessions_say_what_they_show(pel_ray: RunCommand, tmp_path: Path) -> None:
    os.symlink(hpo_file(), tmp_path / "hp.obo")
    sessions = _SESSION.findall(README)
    assert len(sessions) == 2
    for command, said in sessions:
        result = pel_ray(*shlex.split(command)[1:])
        assert words_of(result.out + result.err) == words_of(said)


def test_the_python_lines_and_the_same_on_the_command_line_run(
    pel_ray: RunCommand,
    tmp_path: Path,
    ray_here: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_encoder(tmp_path / "tiny")
    (tmp_path / "hp.obo").write_text("[Term]\nid: HP:1\nname: Heart attack\n\n[Term]\nid: HP:2\nname: Fever\n")
    assert pel_ray("import", "obo", "hp.obo", "--out", "data/hpo").code == 0
    assert pel_ray("encode-kb", "data/hpo", "--out", "runs/quickstart/run", "--encoder", "tiny").code == 0
    for lines in _PYTHON.findall(README):
        exec(compile(lines, "README.md", "exec"), {})
    assert re.search(r"^HP:[12] ", capsys.readouterr().out, re.MULTILINE)
    ((text, command),) = _LINKED.findall(README)
    (tmp_path / "text").write_text(text)
    with open(tmp_path / "text") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        result = pel_ray(*shlex.split(command)[1:])
    assert '"entity_id": "HP:' in result.out


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:jobs|benchmarks|cluster|docs)/[\w./-]+)`|\]\(([\w./-]+)\)", README))
    files = {first or second for first, second in named}
    assert len(files) > 10
    for file in files:
        assert (Path(__file__).parent.parent / file).exists(), file
