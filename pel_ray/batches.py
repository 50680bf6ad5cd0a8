"""Batches of ragged word pieces: sorted by length, cut by a token budget, gathered while the one before computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

PASS_TOKENS = {"cpu": 1024, "cuda": 16384}
"""What saturates a device; where memory allows more, texts of more different lengths would only be padded more."""
BatchTokens = Annotated[int, Field(ge=1)] | Literal["auto"]
"""Word pieces of a batch, padding included; auto: as many as saturate the device."""


@dataclass(frozen=True)
class Batch:
    """Texts padded to the longest of them; no mask where all have one length."""

    rows: np.ndarray
    ids: np.ndarray
    mask: np.ndarray | None


def ragged(pieces: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All pieces in one array, and where each text begins."""
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    flat = np.concatenate([np.asarray(ids, np.int32) for ids in pieces] or [np.zeros(0, np.int32)])
    return flat, np.concatenate([[0], np.cumsum(lengths)])


def plan_batches(lengths: np.ndarray, batch_tokens: int, rows: np.ndarray | None = None) -> list[np.ndarray]:
    """Rows by batch, longest texts first; a batch has at most `batch_tokens` pieces with its padding, or one text.

    Longest first, so that a batch too large for the memory fails at once and not at the end.
    """
    wanted = np.arange(len(lengths)) if rows is None else rows
    order = wanted[np.argsort(-lengths[wanted], kind="stable")]
    batches = []
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        batch = order[start : start + max(int(batch_tokens // max(longest, 1)), 1)]
        num_equal = int((lengths[batch] == longest).sum())
        if 2 * num_equal >= len(batch):
            # Texts of one length need no padding and no mask, which is worth a somewhat smaller batch.
            batch = batch[:num_equal]
        batches.append(batch)
        start += len(batch)
    return batches


def tokens_of(asked: BatchTokens, device: str) -> int:
    """How many pieces a batch has on a device of this type."""
    return PASS_TOKENS[device] if asked == "auto" else asked


def num_computed(lengths: np.ndarray, batches: Sequence[np.ndarray]) -> int:
    """Pieces that are computed, with the padding."""
    return sum(int(lengths[rows].max()) * len(rows) for rows in batches)


def gathered(batches: Sequence[np.ndarray], flat: np.ndarray, offsets: np.ndarray, pad: int) -> Iterator[Batch]:
    """The batches with their pieces; the next one is gathered in a thread while the caller computes."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming = [thread.submit(_gather, rows, flat, offsets, pad) for rows in batches[:1]]
        for number in range(len(batches)):
            batch = coming.pop().result()
            if number + 1 < len(batches):
                coming.append(thread.submit(_gather, batches[number + 1], flat, offsets, pad))
            yield batch


def _gather(rows: np.ndarray, flat: np.ndarray, offsets: np.ndarray, pad: int) -> Batch:
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    positions = np.arange(lengths.max())
    mask = positions < lengths[:, None]
    places = np.minimum(starts[:, None] + positions, len(flat) - 1)
    ids = np.where(mask, flat[places], pad).astype(np.int64)
    return Batch(rows, ids, None if mask.all() else mask.astype(np.int64))
