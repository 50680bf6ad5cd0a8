"""What every sharded work has in common: receipts for what is done, and a limit for what kills its worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pel_ray.errors import PelRayError
from pel_ray.storage import Location
from pel_ray.vectors import Shard

MAX_ATTEMPTS = 3


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
    after_an_error = ". Finished shards are kept; run the same command again"
    """What a user is told beside what went wrong."""

    def receipt_file(self, shard: Shard) -> Location:
        return self.folder / f"receipt-{self.phase}{shard.stem}-{self.tag}.json"

    def attempt_file(self, shard: Shard, attempt: int) -> Location:
        return self.folder / f"attempt-{self.phase}{shard.stem}-{attempt}-{self.tag}.json"

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        """The files that a shard leaves in the folder."""
        raise NotImplementedError

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

    def start(self) -> None:
        """Loads what all shards need; here and not when it is made, so that it counts as an attempt if it kills."""

    def do(self, shard: Shard) -> dict[str, Any]:
        """Leaves the results of a shard in the folder, and says what became of it."""
        raise NotImplementedError

    def __call__(self, shard: Shard) -> dict[str, Any]:
        attempt = self._next_attempt(shard)
        if attempt is None:
            return _answer(shard, is_poison=True)
        try:
            attempt.write_bytes(b"{}")
            if not self._has_started:
                self.start()
                self._has_started = True
            receipt = json.dumps(self.do(shard))
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


def _answer(shard: Shard, *, receipt: str = "", error: str = "", is_poison: bool = False) -> dict[str, Any]:
    """What goes back to the driver: the same columns always, as Ray Data wants it."""
    return {"shard": shard.number, "receipt": receipt, "error": error, "is_poison": is_poison}
