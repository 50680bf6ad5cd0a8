"""Progress: a bar on a terminal, and in the log of a job a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def byte_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes just read."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


class RateProgress:
    """What is done of all, with its rate, the time left and, where something is encoded, the share of padding."""

    def __init__(self, label: str, total: int, already_done: int = 0) -> None:
        self._label, self._total, self._first = label, total, already_done
        self._done = already_done
        self._pieces = self._computed = 0
        self._note = ""
        self._partly = 0
        self._began = self._last_line = time.monotonic()
        self._has_begun = False
        self._lock = threading.Lock()
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(label, total=total, completed=already_done)

    def __enter__(self) -> RateProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, count: int, pieces: int = 0, computed: int = 0, note: str = "") -> None:
        with self._lock:
            self._note = note and f", {note}"
            self._done += count
            # What was seen of it before it was whole.
            self._partly = max(self._partly - count, 0)
            self._pieces += pieces
            self._computed += computed
            self._show()

    def partly(self, count: int) -> None:
        """So much is done of what is not whole yet; the first call says that work has begun."""
        with self._lock:
            if not self._has_begun:
                self._has_begun, self._began = True, time.monotonic()
            self._partly = min(count, self._total - self._done)
            if self._partly:
                self._show()

    def _show(self) -> None:
        now, done = time.monotonic(), self._done + self._partly
        if self._bar:
            self._bar.update(self._task, completed=done, description=self._status(done, now))
        elif now - self._last_line >= SECONDS_BETWEEN_LINES or self._done == self._total:
            self._last_line = now
            share = f"{done:,} of {self._total:,} ({done / self._total:.0%})"
            self._console.print(f"{self._label} {share}, {self._status(done, now)}", soft_wrap=True)

    def _status(self, done: int, now: float) -> str:
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = timedelta(seconds=round((self._total - done) / rate)) if rate else "unknown"
        padding = f", padding {1 - self._pieces / self._computed:.1%}" if self._computed else ""
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"
        return f"{shown}/s, {left} left{padding}{self._note}"
