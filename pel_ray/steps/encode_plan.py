"""What encoding a KB will cost, from a short calibration on this machine."""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np

from pel_ray.console import human_bytes
from pel_ray.encoder import load_model
from pel_ray.steps.encode_kb import EncodePlan, EncodeSettings
from pel_ray.tokens import COLUMNS, TokenShard, tokenise

SAMPLE_ROWS = 256


def estimate(settings: EncodeSettings) -> list[tuple[str, str]]:
    """Lines of (what, how much); the sample is a stretch from the middle of the KB."""
    plan = EncodePlan(settings)
    num_rows = plan.kb.num_rows
    start = max((num_rows - SAMPLE_ROWS) // 2, 0)
    rows = plan.kb.rows(start, min(start + SAMPLE_ROWS, num_rows), COLUMNS).to_pylist()
    model = load_model(settings.model)
    tokens = TokenShard.of_table(tokenise(model.texts, rows, 0, settings.views == "synonyms"))
    pieces = [ids.tolist() for ids in np.split(tokens.pieces, tokens.offsets[1:-1])]
    began = time.perf_counter()
    model.encode(pieces, "entity", batch_tokens=settings.batch_tokens, precision=settings.precision)
    seconds = time.perf_counter() - began
    num_texts = num_rows * len(pieces) / len(rows)
    num_workers = 1 if settings.resources.workers == "auto" else settings.resources.workers
    bytes_each = model.dimension * (2 if settings.store == "fp16" else 4)
    weights = sum(weight.numel() for weight in model.entity_tower.parameters()) * 4
    shard_texts = settings.shard_rows * len(pieces) / len(rows)
    duration = timedelta(seconds=round(num_texts / len(pieces) * seconds / num_workers))
    return [
        ("entities", f"{num_rows:,} in {len(plan.shards):,} shards"),
        ("texts", f"about {num_texts:,.0f}, {tokens.lengths.mean():.1f} pieces each"),
        ("rate of a worker here", f"{len(pieces) / seconds:,.0f} texts/s (calibrated on {len(pieces)} texts)"),
        ("time", f"about {duration} with {num_workers} such workers, and the start of Ray"),
        ("disk: vectors", human_bytes(num_texts * bytes_each)),
        ("disk: word pieces", human_bytes(num_texts * (tokens.lengths.mean() * 4 + 40))),
        ("memory of a worker", f"{human_bytes(2 * weights + shard_texts * model.dimension * 6)} and torch itself"),
        ("already done", "yes" if plan.done else "no"),
    ]
