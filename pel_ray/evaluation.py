"""The tables of an evaluation: recalls by group with their intervals, NIL, and how far scores can be trusted.

Shapes: Q mentions, K entities found for each, best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pel_ray.golds import GoldMentions, gold_mentions, rows_at
from pel_ray.metrics import Bootstrap, Figures, GoldPolicy, gold_ranks
from pel_ray.nil import (
    NilThreshold,
    average_precision,
    best_threshold,
    nil_figures,
    precision_recall_curve,
    recall_with_nil,
)
from pel_ray.search import Hits
from pel_ray.tables import DataSet

RELIABILITY_BINS = 10
NIL_RECALL_AT = (1, 64)


@dataclass(frozen=True)
class Judged:
    """What a system found for each mention, and where the gold was among it."""

    hits: Hits
    ranks_Q: np.ndarray

    @classmethod
    def of(cls, hits: Hits, mentions: GoldMentions, policy: GoldPolicy) -> Judged:
        return cls(hits, gold_ranks(hits.rows_QK, mentions.golds, policy, mentions.num_golds))

    @property
    def best_Q(self) -> np.ndarray:
        """The score of the best entity."""
        return self.hits.scores_QK[:, 0]


class Evaluation:
    """The mentions of a split, cut into the groups that people ask about."""

    def __init__(self, data: DataSet, mentions: GoldMentions, train_split: str, num_resamples: int) -> None:
        self._data, self._mentions, self._train_split = data, mentions, train_split
        self._bootstrap = Bootstrap(mentions.documents, num_resamples)
        self._is_nil_Q = np.array(mentions.is_nil, bool)

    def rows(self, judged: Judged) -> list[dict[str, Any]]:
        """One row of figures for each group; NIL mentions have no gold to find and belong to none."""
        figures = Figures.of(judged.ranks_Q, judged.hits.rows_QK.shape[1])
        # A world may have the name of a type.
        found = self._bootstrap.rows(figures, {(group, name): mask for group, name, mask in self._groups})
        rows = [{"group": group, "name": name} | row for (group, name), row in found.items()]
        worlds = {name: mask for group, name, mask in self._groups if group == "world"}
        if len(worlds) > 1:
            macro = self._bootstrap.macro(figures, worlds)
            rows.insert(1, {"group": "all", "name": "macro over worlds"} | macro)
        return rows

    @cached_property
    def _groups(self) -> list[tuple[str, str, np.ndarray]]:
        """Group, name and mask."""
        has_gold_Q = ~self._is_nil_Q
        groups = [("all", "micro", has_gold_Q)]
        seen_Q = self._seen
        if self._train_split in self._data.mentions.manifest.counts["splits"]:
            groups += [("seen", "seen in training", has_gold_Q & seen_Q)]
            groups += [("seen", "unseen in training", has_gold_Q & ~seen_Q)]
        groups += [("world", world, has_gold_Q & mask) for world, mask in _masks([[w] for w in self._mentions.worlds])]
        groups += [("type", name, has_gold_Q & mask) for name, mask in _masks(self._types)]
        return [(group, name, mask) for group, name, mask in groups if mask.any() or group == "all"]

    @cached_property
    def _seen(self) -> np.ndarray:
        trained = gold_mentions(self._data.mentions, self._data.kb, self._train_split)
        # By name too, for golds that the KB lacks; by row too, for those that have several names.
        rows = {row for golds in trained.golds for row in golds}
        names = {name for golds in trained.names for name in golds}
        pairs = zip(self._mentions.golds, self._mentions.names, strict=True)
        return np.array([not rows.isdisjoint(golds) or not names.isdisjoint(named) for golds, named in pairs], bool)

    @cached_property
    def _types(self) -> list[Sequence[str]]:
        """The semantic types of each mention's golds."""
        wanted = {row for golds in self._mentions.golds for row in golds}
        types = {row: entity["types"] for row, entity in rows_at(self._data.kb, wanted, ["types"]).items()}
        return [sorted({name for row in golds for name in types[row]}) for golds in self._mentions.golds]

    def choose_threshold(self, judged: Judged) -> dict[str, Any]:
        """The NIL threshold with the highest F1 here, and what it achieves."""
        threshold = best_threshold(judged.best_Q, self._is_nil_Q)
        return {
            "threshold": threshold,
            **nil_figures(judged.best_Q, self._is_nil_Q, threshold),
            "mentions": len(self._mentions),
            "nil_mentions": int(self._is_nil_Q.sum()),
        }

    def nil(self, judged: Judged, threshold: NilThreshold | None) -> dict[str, Any] | None:
        """How well scores tell NIL; nothing where no mention is NIL."""
        if not self._is_nil_Q.any():
            return None
        scores_Q, is_nil_Q = judged.best_Q, self._is_nil_Q
        low, high = self._bootstrap.interval(lambda weights_Q: average_precision(scores_Q, is_nil_Q, weights_Q))
        value = round(average_precision(scores_Q, is_nil_Q), 4)
        return {
            "mentions": len(scores_Q),
            "NIL mentions": int(is_nil_Q.sum()),
            "auPR": {"value": value, "low": low, "high": high},
            "threshold": self._at_threshold(judged, threshold) if threshold else None,
            "curve": precision_recall_curve(scores_Q, is_nil_Q),
        }

    def _at_threshold(self, judged: Judged, chosen: NilThreshold) -> dict[str, Any]:
        at = chosen.threshold
        recalls = {
            f"recall@{k}": round(recall_with_nil(judged.hits.scores_QK, judged.ranks_Q, self._is_nil_Q, at, k), 4)
            for k in NIL_RECALL_AT
            if k <= judged.hits.scores_QK.shape[1]
        }
        return {
            "threshold": at,
            "split": chosen.split,
            **nil_figures(judged.best_Q, self._is_nil_Q, at),
            **recalls,
        }

    def reliability(self, judged: Judged) -> list[dict[str, Any]]:
        """How often the best entity is right, by its score, in bins of as many mentions each."""
        is_right_Q = judged.ranks_Q == 1
        order = np.argsort(judged.best_Q, kind="stable")
        bins = [part for part in np.array_split(order, RELIABILITY_BINS) if len(part)]
        return [
            {
                "from": round(float(judged.best_Q[part].min()), 4),
                "to": round(float(judged.best_Q[part].max()), 4),
                "score": round(float(judged.best_Q[part].mean()), 4),
                "correct": round(float(is_right_Q[part].mean()), 4),
                "mentions": len(part),
            }
            for part in bins
        ]


def _masks(names: Sequence[Sequence[str]]) -> list[tuple[str, np.ndarray]]:
    """The mentions of each name, the most frequent first; a mention may have several names."""
    members: dict[str, list[int]] = {}
    for number, some in enumerate(names):
        for name in some:
            if name:
                members.setdefault(name, []).append(number)
    masks = []
    for name in sorted(members, key=lambda name: (-len(members[name]), name)):
        mask = np.zeros(len(names), bool)
        mask[members[name]] = True
        masks.append((name, mask))
    return masks
