"""The guides in docs/guides: every block of sh or Python runs as it stands, one guide after the other, in one folder.

That to a cluster runs in test_jobs.py, which has one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunCommand
from tests.reading import blocks

GUIDES = ("own-kb", "fresh-kb", "nil")
_PIPED = re.compile(r"(?P<before>.*?\| )?(?P<command>pel-ray [^>|]*)(?:> (?P<file>\S+))?")


class Shell:
    """Runs the lines of a block: pel-ray in this process, which has torch and Ray already, the rest by sh."""

    def __init__(self, pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pel_ray, self._monkeypatch = pel_ray, monkeypatch
        self.said: dict[str, str] = {}

    def run(self, block: str) -> None:
        waiting: list[str] = []
        for line in block.splitlines():
            match = _PIPED.fullmatch(line) if not waiting else None
            if match:
                self._command(match)
                continue
            waiting.append(line)
            # A line stands alone, unless a here-document goes on.
            if "<<'EOF'" not in waiting[0] or line == "EOF":
                self._sh("\n".join(waiting))
                waiting = []
        assert not waiting

    def _command(self, match: re.Match[str]) -> None:
        given = self._sh(match["before"].rstrip("| ")) if match["before"] else ""
        Path(".stdin").write_text(given)
        with open(".stdin") as stdin:
            self._monkeypatch.setattr("sys.stdin", stdin)
            result = self._pel_ray(*shlex.split(match["command"])[1:])
        assert result.code == 0, (match[0], result.err)
        self.said[match["command"].strip()] = result.out
        if match["file"]:
            Path(match["file"]).write_text(result.out)

    def _sh(self, script: str) -> str:
        return subprocess.run(["sh", "-ec", script], check=True, capture_output=True, text=True, env=os.environ).stdout


def test_every_block_of_the_guides_runs(
    pel_ray: RunCommand,
    ray_here: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shell = Shell(pel_ray, monkeypatch)
    for guide in GUIDES:
        for language, block in blocks(guide):
            if language == "sh":
                shell.run(block)
            else:
                exec(compile(block, f"{guide}.md", "exec"), {})
                assert "D1 myocardial infarction" in capsys.readouterr().out
    linked = shell.said["pel-ray link runs/mine --candidates 2"]
    assert '"entity_id": "D1"' in linked and '"entity_id": "C1"' in linked
    (reused,) = (said for command, said in shell.said.items() if "--reuse" in command)
    assert all(re.search(rf"{name} +1$", reused, re.MULTILINE) for name in ("added", "changed", "removed"))
    assert '"entity_id": "D7"' in shell.said["pel-ray link index-next --no-nil --candidates 1"]
    assert "Disease" in (tmp_path / "report" / "report.html").read_text()
