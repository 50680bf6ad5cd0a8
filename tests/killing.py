"""Waiting for the right moment, and finding whom to kill."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.processes import descendants

SECONDS = 300
"""To wait for what takes a few seconds on a machine that does nothing else."""


def wait_for(condition: Callable[[], bool], every: float = 0.02) -> None:
    """Looks again `every` so many seconds; seldom, where looking takes time of what is waited for."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(every)


def run_and_kill(run: Callable[[], object], is_time: Callable[[], bool]) -> None:
    """Runs it, kills one of its workers when it is time, and expects it to end well all the same."""
    failures: list[BaseException] = []

    def carried() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that asserts
            failures.append(error)

    # A run that hangs must not keep the tests from ending.
    thread = threading.Thread(target=carried, daemon=True)
    thread.start()
    wait_for(lambda: is_time() or not thread.is_alive())
    pids = worker_pids()
    assert pids and thread.is_alive(), f"the run was over before a worker could be killed: {failures}"
    os.kill(pids[0], signal.SIGKILL)
    thread.join(SECONDS)
    assert not thread.is_alive() and failures == []


def worker_pids() -> list[int]:
    """Processes of this test's Ray that do our work; others on this machine may have a Ray whose workers must live."""
    return [pid for pid in descendants(os.getpid()) if does_our_work(pid)]


def does_our_work(pid: int) -> bool:
    """The warm actor, a pool's, or Ray Train's."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    names = (b"_Host", b"PooledWork", b"TrainWorker")
    return title.startswith(b"ray::") and b"IDLE" not in title and any(name in title for name in names)
