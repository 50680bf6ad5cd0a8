"""metrics.jsonl of a run: lines of training and of validation, as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyarrow import ArrowException

from pel_ray.storage import Location, storage_errors

METRICS = "metrics.jsonl"
NO_SHARE = "weight"
"""Of what validation finds, the one figure that is no share of the mentions."""
LONGEST_LINE = 4096
SECONDS_BETWEEN = 5.0
"""From one line to the next in a bucket, where each of them writes the file again."""


@dataclass(frozen=True)
class MetricsFile:
    """One process at a time writes to it; others may read meanwhile."""

    file: Location

    @classmethod
    def of_run(cls, run: Location) -> MetricsFile:
        return cls(run / METRICS)

    @property
    def seconds_between(self) -> float:
        """How long lines should wait for others to be written with."""
        return 0.0 if self.file.is_local else SECONDS_BETWEEN

    @property
    def training(self) -> list[dict[str, Any]]:
        """Lines of training."""
        return [line for line in self.lines() if "loss" in line]

    @property
    def validation(self) -> list[dict[str, Any]]:
        """Lines of validation."""
        return [line for line in self.lines() if "validation" in line]

    def lines(self) -> list[dict[str, Any]]:
        """All that are whole: a process that was killed may have left a part of one at the end."""
        return [json.loads(line) for line in self._text().splitlines(keepends=True) if line.endswith(b"\n")]

    def last(self) -> dict[str, Any]:
        """The newest whole line; nothing where there is none, or where it is being written."""
        with suppress(OSError, ArrowException, ValueError):
            with self.file.filesystem.open_input_file(self.file.path) as stream:
                stream.seek(max(stream.size() - LONGEST_LINE, 0))
                lines = stream.read().splitlines(keepends=True)
            whole = [line for line in lines[-2:] if line.endswith(b"\n")]
            return dict(json.loads(whole[-1])) if whole else {}
        return {}

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """To a local file at its end; a bucket has no such thing, there the file is written again."""
        added = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if not self.file.is_local:
            self.file.write_bytes(self._text() + added)
            return
        self.file.parent.make_folder()
        with storage_errors(self.file, "write"), open(self.file.path, "ab") as file:
            file.write(added)

    def forget_after(self, step: int) -> None:
        """Drops lines of steps that will be taken again."""
        kept = b"".join(json.dumps(line).encode() + b"\n" for line in self.lines() if line.get("step", 0) <= step)
        if kept != self._text():
            self.file.write_bytes(kept)

    def _text(self) -> bytes:
        return self.file.read_bytes() if self.file.is_file() else b""
