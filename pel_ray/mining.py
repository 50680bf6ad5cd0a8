"""Hard negatives from hits: what is dropped and why, and what the rest looks like beside the gold.

Shapes: K hits of a mention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from pel_ray.spec import Settings

SCHEMA = pa.schema(
    [
        ("mention_row", pa.int64()),
        ("mention_id", pa.string()),
        ("gold_rows", pa.list_(pa.int64())),
        ("gold_score", pa.float32()),
        ("gold_rank", pa.int32()),
        ("entity_rows", pa.list_(pa.int64())),
        ("scores", pa.list_(pa.float32())),
    ]
)
RANKS = (1, 4, 16, 64)


class FilterSettings(Settings):
    """Which hits count as hard negatives; golds never do."""

    keep_namesakes: bool = False
    """Keep entities whose normalised title or synonym equals one of the gold's: most of them mean the same."""
    skip_ranks: int = Field(default=0, ge=0)
    """Best hits to leave out after the other filters: the nearest may be right without being annotated."""
    absolute_margin: float | None = None
    """A negative must score at least this much less than the gold."""
    relative_margin: float | None = Field(default=None, gt=0, le=1)
    """A negative must score at most this share of the gold's score: 0.95."""
    max_score: float | None = None
    """A negative must not score more."""
    min_score: float | None = None
    """A negative must not score less."""


@dataclass
class Filter:
    """Applies the settings to one mention after the other, and counts."""

    settings: FilterSettings
    num_kept: int
    dropped: Counter[str] = field(default_factory=Counter)
    mentions_touched: Counter[str] = field(default_factory=Counter)
    num_short: int = 0
    """Mentions that have fewer negatives than asked for."""

    def keep(
        self, rows_K: np.ndarray, scores_K: np.ndarray, golds: Sequence[int], namesakes: np.ndarray, gold_score: float
    ) -> np.ndarray:
        """Which hits stay, at most `num_kept` of them, best first."""
        settings = self.settings
        left = rows_K >= 0
        left = self._drop("gold", left, np.isin(rows_K, golds))
        if not settings.keep_namesakes:
            left = self._drop("shares a name with the gold", left, np.isin(rows_K, namesakes))
        if settings.absolute_margin is not None:
            left = self._drop("within the margin", left, scores_K > gold_score - settings.absolute_margin)
        if settings.relative_margin is not None:
            left = self._drop("within the margin", left, scores_K > gold_score * settings.relative_margin)
        if settings.max_score is not None:
            left = self._drop("scores too high", left, scores_K > settings.max_score)
        if settings.min_score is not None:
            left = self._drop("scores too low", left, scores_K < settings.min_score)
        left = self._drop("among the first ranks", left, np.cumsum(left) <= settings.skip_ranks)
        kept = np.flatnonzero(left)[: self.num_kept]
        self.num_short += len(kept) < self.num_kept
        return kept

    def _drop(self, reason: str, left: np.ndarray, bad: np.ndarray) -> np.ndarray:
        num_dropped = int((left & bad).sum())
        if num_dropped:
            self.dropped[reason] += num_dropped
            self.mentions_touched[reason] += 1
        return left & ~bad


@dataclass
class Summary:
    """The gold beside its negatives, over all mentions."""

    gold_scores: list[float] = field(default_factory=list)
    hardest: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, gold_score: float, gold_rank: int, scores: np.ndarray) -> None:
        self.gold_scores.append(gold_score)
        self.ranks.append(gold_rank)
        self.hardest.append(float(scores[0]) if len(scores) else float("nan"))

    def to_json(self, num_hits: int) -> dict[str, Any]:
        ranks, gold, hardest = np.array(self.ranks), np.array(self.gold_scores), np.array(self.hardest)
        gap = (gold - hardest)[~np.isnan(gold - hardest)]
        found = {
            f"gold at rank 1 to {rank}" if rank > 1 else "gold at rank 1": _share((ranks > 0) & (ranks <= rank))
            for rank in RANKS
            if rank <= num_hits
        }
        return {
            **found,
            "mean score of the gold": _rounded(np.nanmean(gold)) if len(gold) else None,
            "mean score of the hardest negative": _rounded(np.nanmean(hardest)) if len(gap) else None,
            "gold minus hardest negative, 10% / 50% / 90%": (
                " / ".join(f"{value:.3f}" for value in np.percentile(gap, (10, 50, 90))) if len(gap) else None
            ),
            "mentions whose hardest negative beats the gold": _share(gap < 0),
        }


def _share(flags: np.ndarray) -> str:
    return f"{flags.mean():.1%}" if len(flags) else "-"


def _rounded(value: float) -> float:
    return round(float(value), 4)
