"""What a user sees of work that is not whole yet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pel_ray import progress, shard_work
from pel_ray.progress import RateProgress
from pel_ray.shard_work import ShardJob, ShardWorker, partly_done
from pel_ray.storage import locate
from pel_ray.vectors import Shard


@dataclass(frozen=True, kw_only=True)
class Job(ShardJob):
    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return ()


class InParts(ShardWorker):
    """Looks after each of four parts at what the driver would see."""

    def do(self, shard: Shard) -> dict[str, Any]:
        found = []
        for _ in range(4):
            self.tell(1, total=4)
            found.append(partly_done(self.job))
        return {"found": found}


def test_a_shard_is_seen_to_grow_and_leaves_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_work, "SECONDS_BETWEEN_NOTES", 0.0)
    job = Job(folder=locate(tmp_path), tag="0" * 8, threads=None)
    assert partly_done(job) is None
    answer = InParts(job)(Shard(0, 100, 300))
    assert json.loads(answer["receipt"])["found"] == [50, 100, 150, 200]
    assert partly_done(job) is None


def test_lines_count_what_is_partly_done_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with RateProgress("encoding", 200) as shown:
        shown.partly(0)
        shown.partly(40)
        shown.add(100)
        shown.partly(30)
        shown.add(100)
    lines = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "encoding 40 of 200 (20%)",
        "encoding 100 of 200 (50%)",
        "encoding 130 of 200 (65%)",
        "encoding 200 of 200 (100%)",
    ]
