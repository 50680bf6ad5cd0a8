"""Processes of this machine: who started whom, and ending them by number."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A command that is killed when the block ends, also by an error, with all that it has started: its own Ray."""
    process = subprocess.Popen([str(word) for word in command], **options)
    try:
        yield process
    finally:
        # Before it is killed, for then they have another parent.
        family = with_start(descendants(process.pid))
        process.kill()
        process.wait()
        end_all(family)
        if process.stdout:
            process.stdout.close()


def end_all(pids: dict[int, str]) -> None:
    """Kills those that still run; a number may have gone to a new process, of somebody else."""
    for pid, since in pids.items():
        if since and is_running(pid, since):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def with_start(pids: Sequence[int]) -> dict[int, str]:
    """When each of them began, which tells it from a later one with its number."""
    return {pid: began(pid) for pid in pids}


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, waiting = [], [pid]
    while waiting:
        inner = children.get(waiting.pop(), [])
        found += inner
        waiting += inner
    return found


def program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_running(pid: int, since: str) -> bool:
    """Not a new process with an old number, and not one that ended and only waits for its parent to ask how."""
    fields = _stat(pid)
    return bool(fields) and fields[19] == since and fields[0] not in "ZX"


def began(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process after its name: state, parent, ...; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
