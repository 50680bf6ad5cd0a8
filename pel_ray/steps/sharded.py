"""Carrying a plan of shards out: only what is missing, with what went wrong said in one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pel_ray import console
from pel_ray.errors import ResourceError, StorageError
from pel_ray.runtime import Ask, Resources, Workers, is_free, resolve_ask, workers
from pel_ray.runtime_session import ray_session
from pel_ray.shard_work import SECONDS_BETWEEN_NOTES, ShardJob, ShardWorker, partly_done
from pel_ray.vectors import Shard


@contextmanager
def at_work(resources: Resources, within: Workers | None = None) -> Iterator[tuple[Workers, Ask]]:
    """Workers as asked for, on the cluster or here; or those of the step that this one is a part of."""
    if within is not None:
        yield within, within.ask
        return
    with ray_session():
        ask = resolve_ask(resources)
        _tell_if_busy(ask)
        with workers(ask) as found:
            yield found, ask


def _tell_if_busy(ask: Ask) -> None:
    """On a cluster that others use too, the first worker may have to wait for them."""
    if not is_free(ask):
        console.say(f"waiting for {ask}: other work has them")


def finish_shards(
    carrier: Workers,
    worker: type[ShardWorker],
    job: ShardJob,
    shards: Sequence[Shard],
    seen: Callable[[Shard, dict[str, Any]], None],
    partly: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """The receipts of all shards in order.

    `seen` hears of those that are done now, `partly` every few seconds of how many rows are done of those that are not.
    """
    missing = missing_shards(job, shards)
    if missing:
        carrier.check_sees(job.folder)
    by_number = {shard.number: shard for shard in shards}
    poison: list[Shard] = []
    with _watching(job, partly):
        for answer in carrier.map(worker, job, missing) if missing else ():
            shard = by_number[answer["shard"]]
            if answer["error"]:
                raise StorageError(f"{answer['error']}{job.after_an_error}")
            if answer["is_poison"]:
                poison.append(shard)
            else:
                seen(shard, json.loads(answer["receipt"]))
    if poison:
        raise ResourceError(
            f"{job.folder}: {', '.join(shard.said(job.unit) for shard in poison)} killed its worker three times; all "
            f"others are done. Is there memory enough? {job.remedy}; then run it again"
        )
    return [json.loads(job.receipt_file(shard).read_bytes()) for shard in shards]


@contextmanager
def _watching(job: ShardJob, partly: Callable[[int], None] | None) -> Iterator[None]:
    """Looks in a thread at what the workers note of the shards that they are at."""
    if partly is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SECONDS_BETWEEN_NOTES):
            # A folder that cannot be listed for a moment is the workers' to complain of.
            with suppress(StorageError):
                count = partly_done(job)
                if count is not None:
                    partly(count)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def missing_shards(job: ShardJob, shards: Sequence[Shard]) -> list[Shard]:
    """What an earlier run has left to do."""
    names = job.names()
    for name in names:
        # Attempts of an earlier run count no more: whoever runs it again may have mended what killed the workers.
        if name.startswith(f"attempt-{job.phase}"):
            (job.folder / name).delete_file()
    return [shard for shard in shards if not job.is_done(shard, names)]
