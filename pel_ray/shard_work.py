"""What every sharded work has in common: receipts for what is done, and a limit for what kills its worker."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pel_ray.errors import PelRayError
from pel_ray.storage import Location
from pel_ray.vectors import Shard

MAX_ATTEMPTS = 3
SECONDS_BETWEEN_NOTES = 2.0
DONE = "done"
"""In an attempt file: how many of the shard's rows."""


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """All a worker needs to know, wherever it runs."""

    folder: Location
    """Where results and receipts appear."""
    tag: str
    threads: int | None
    """Threads of torch; the same number gives the same bytes."""

    phase = ""
    """Tells apart the receipts of phases that share a folder."""
    unit = "entities"
    """What a shard is a range of."""
    remedy = "Try a smaller --batch-tokens, or look at these entities"
    """For a shard that kills its workers."""
    after_an_error = ". Finished shards are kept"
    """What a user is told beside what went wrong."""

    def receipt_file(self, shard: Shard) -> Location:
        return self.folder / f"receipt-{self.phase}{shard.stem}-{self.tag}.json"

    def attempt_file(self, shard: Shard, attempt: int) -> Location:
        return self.folder / f"attempt-{self.phase}{shard.stem}-{attempt}-{self.tag}.json"

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        """The files that a shard leaves in the folder."""
        raise NotImplementedError

    def names(self) -> set[str]:
        """The files by which one sees what is done."""
        return set(self.folder.names())

    def is_done(self, shard: Shard, names: set[str]) -> bool:
        return names.issuperset((self.receipt_file(shard).name, *self.result_names(shard)))


class ShardWorker:
    """Made once with a job, then called with shards.

    A worker may be killed and its shard given to another, so the same shard always gives the same bytes, and
    appears under its final name only when whole.
    """

    job: Any

    def __init__(self, job: Any) -> None:
        self.job = job
        self._has_started = False
        self._attempt: _Attempt | None = None

    def start(self) -> None:
        """Loads what all shards need; here and not when it is made, so that it counts as an attempt if it kills."""

    def do(self, shard: Shard) -> dict[str, Any]:
        """Leaves the results of a shard in the folder, and says what became of it."""
        raise NotImplementedError

    def tell(self, count: int, total: int) -> None:
        """So many more of all parts of the current shard are done; any thread may say so, and a user sees it."""
        if self._attempt:
            self._attempt.add(count / total)

    def __call__(self, shard: Shard) -> dict[str, Any]:
        attempt = self._next_attempt(shard)
        if attempt is None:
            return _answer(shard, is_poison=True)
        self._attempt = _Attempt(attempt, shard.stop - shard.start)
        try:
            attempt.write_bytes(b"{}")
            if not self._has_started:
                self.start()
                self._has_started = True
            receipt = json.dumps(self.do(shard) | {"worker": {"host": socket.gethostname(), "pid": os.getpid()}})
            self.job.receipt_file(shard).write_bytes(receipt.encode())
            answer = _answer(shard, receipt=receipt)
        except PelRayError as error:
            # Told, not raised: a worker's exception would reach the user as a traceback of the carrier.
            answer = _answer(shard, error=str(error))
        for number in range(1, MAX_ATTEMPTS + 1):
            self.job.attempt_file(shard, number).delete_file()
        return answer

    def _next_attempt(self, shard: Shard) -> Location | None:
        """The file that marks this attempt; nothing if the shard has killed its worker too often."""
        for number in range(1, MAX_ATTEMPTS + 1):
            file: Location = self.job.attempt_file(shard, number)
            if not file.is_file():
                return file
        return None


class _Attempt:
    """Notes now and then how far a shard is, in the file that marks the attempt at it."""

    def __init__(self, file: Location, num_rows: int) -> None:
        self._file, self._num_rows = file, num_rows
        self._share, self._last = 0.0, time.monotonic()
        self._lock = threading.Lock()

    def add(self, share: float) -> None:
        with self._lock:
            self._share += share
            now = time.monotonic()
            if now - self._last >= SECONDS_BETWEEN_NOTES:
                self._last = now
                # Not worth a shard: what is wrong with the folder will be told when its result is written.
                with suppress(PelRayError):
                    self._file.write_bytes(json.dumps({DONE: int(self._share * self._num_rows)}).encode())


def partly_done(job: ShardJob) -> int | None:
    """How many rows are done of the shards that workers are at; nothing where none has begun."""
    start, end = f"attempt-{job.phase}", f"-{job.tag}.json"
    found = [name for name in job.folder.names() if name.startswith(start) and name.endswith(end)]
    return sum(_noted(job.folder / name) for name in found) if found else None


def _noted(attempt: Location) -> int:
    try:
        return int(json.loads(attempt.read_bytes()).get(DONE, 0))
    except (PelRayError, ValueError):
        # Its shard was finished since the folder was listed.
        return 0


def _answer(shard: Shard, *, receipt: str = "", error: str = "", is_poison: bool = False) -> dict[str, Any]:
    """What goes back to the driver: the same columns always, as Ray Data wants it."""
    return {"shard": shard.number, "receipt": receipt, "error": error, "is_poison": is_poison}
