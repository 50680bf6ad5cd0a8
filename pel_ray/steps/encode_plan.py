"""What encoding a KB will cost, from a short calibration on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch

from pel_ray.console import human_bytes
from pel_ray.encoder import BiEncoder, load_model
from pel_ray.runtime import Resources
from pel_ray.shard_encoder import EncodeJob
from pel_ray.steps.encode_kb import EncodePlan, EncodeSettings
from pel_ray.tokens import COLUMNS, TokenShard, tokenise
from pel_ray.vectors import Shard

SAMPLE_ROWS = 256
WARM_UP_TEXTS = 16


def estimate(settings: EncodeSettings) -> list[tuple[str, str]]:
    """Lines of (what, how much); the sample is a stretch from the middle of the KB."""
    plan = EncodePlan(settings)
    num_rows = plan.kb.num_rows
    start = max((num_rows - SAMPLE_ROWS) // 2, 0)
    rows = plan.kb.rows(start, min(start + SAMPLE_ROWS, num_rows), COLUMNS).to_pylist()
    model = load_model(settings.model)
    tokens = TokenShard.of_table(tokenise(model.texts, rows, 0, settings.views == "synonyms"))
    pieces = [ids.tolist() for ids in np.split(tokens.pieces, tokens.offsets[1:-1])]
    num_workers = 1 if settings.resources.workers == "auto" else settings.resources.workers
    threads = _threads_here(settings.resources, num_workers)
    with _threads_of_torch(threads):
        seconds = _calibrated(model, pieces, settings)
    job = plan.job(threads)
    num_left = 0 if plan.done else _num_left(job, plan.shards)
    num_wanted = num_rows if job.only is None else len(job.only)
    texts_each = len(pieces) / len(rows)
    bytes_each = model.dimension * (2 if settings.store == "fp16" else 4)
    weights = sum(weight.numel() for weight in model.entity_tower.parameters()) * 4
    duration = timedelta(seconds=round(num_left * texts_each / len(pieces) * seconds / num_workers))
    to_encode = "" if num_left == num_rows else f", {num_left:,} of them to encode"
    unchanged = "; less where texts are unchanged, which is not counted here" if plan.reuse else ""
    token_bytes = num_rows * texts_each * (tokens.lengths.mean() * 4 + 40)
    worker_bytes = 2 * weights + settings.shard_rows * texts_each * model.dimension * 6
    return [
        ("entities", f"{num_rows:,} in {len(plan.shards):,} shards{to_encode}"),
        ("texts", f"about {num_left * texts_each:,.0f}, {tokens.lengths.mean():.1f} pieces each"),
        ("rate of a worker here", f"{len(pieces) / seconds:,.0f} texts/s (calibrated on {len(pieces)} texts)"),
        ("time", f"about {duration} with {num_workers} such workers, and the start of Ray{unchanged}"),
        ("disk: vectors", human_bytes(num_wanted * texts_each * bytes_each)),
        ("disk: word pieces", human_bytes(token_bytes)),
        ("memory of a worker", f"{human_bytes(worker_bytes)} and torch itself"),
        ("already done", "yes" if plan.done else "no"),
    ]


def _calibrated(model: BiEncoder, pieces: Sequence[Sequence[int]], settings: EncodeSettings) -> float:
    """Seconds that these texts take."""

    def encode(some: Sequence[Sequence[int]]) -> None:
        model.encode(some, "entity", batch_tokens=settings.batch_tokens, precision=settings.precision)

    # The first texts wait for what is only set up once.
    encode(pieces[:WARM_UP_TEXTS])
    began = time.perf_counter()
    encode(pieces)
    return time.perf_counter() - began


def _threads_here(resources: Resources, num_workers: int) -> int:
    """Of a worker, if all of them were on this machine."""
    return max(torch.get_num_threads() // num_workers, 1) if resources.cpus == "auto" else resources.cpus


@contextmanager
def _threads_of_torch(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _num_left(job: EncodeJob, shards: Sequence[Shard]) -> int:
    """Entities that were asked for and are in no finished shard."""
    names = job.names()
    ends = np.array([(shard.start, shard.stop) for shard in shards if not job.is_done(shard, names)]).reshape(-1, 2)
    places = ends if job.only is None else np.searchsorted(job.only, ends)
    return int(np.diff(places).sum())
