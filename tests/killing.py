"""Waiting for the right moment, and finding whom to kill."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)


def run_and_kill(run: Callable[[], object], is_time: Callable[[], bool], seconds: float = 180) -> None:
    """Runs it, kills one of its workers when it is time, and expects it to end well all the same."""
    failures: list[BaseException] = []

    def carried() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that asserts
            failures.append(error)

    thread = threading.Thread(target=carried)
    thread.start()
    wait_for(lambda: is_time() or not thread.is_alive())
    pids = worker_pids()
    assert pids and thread.is_alive(), f"the run was over before a worker could be killed: {failures}"
    os.kill(pids[0], signal.SIGKILL)
    thread.join(seconds)
    assert not thread.is_alive() and failures == []


def worker_pids() -> list[int]:
    """Processes of this test's Ray that do our work: the warm actor, a pool's, or Ray Train's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        names = (b"_Host", b"PooledWork", b"TrainWorker")
        if title.startswith(b"ray::") and b"IDLE" not in title and any(name in title for name in names):
            found.append(int(path.parent.name))
    # Others on this machine may have a Ray of their own, whose workers must live.
    return [pid for pid in found if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(status.rpartition(")")[2].split()[1])
    return False
