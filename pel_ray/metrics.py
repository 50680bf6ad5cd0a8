"""Recall, MRR and their confidence intervals, from the ranks at which golds were found.

Shapes: Q mentions, K entities found for each, D documents, F figures, B resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

RECALL_AT = (1, 2, 4, 8, 16, 32, 64)
RESAMPLES_AT_ONCE = 100
K = TypeVar("K")
GoldPolicy = Literal["any", "all"]
"""Of several golds, one is enough, or all of them must be found."""


def gold_ranks(
    rows_QK: np.ndarray, golds: Sequence[Sequence[int]], policy: GoldPolicy = "any", num_golds: Sequence[int] = ()
) -> np.ndarray:
    """The rank of the gold, from 1; 0 where it was not found.

    `num_golds` says how many golds a mention has in its corpus: with the policy `all`, one that the KB lacks cannot
    be found, and so the mention counts as wrong.
    """
    ranks_Q = np.zeros(len(golds), np.int64)
    for number, rows in enumerate(golds):
        found = np.flatnonzero(np.isin(rows_QK[number], rows)) + 1
        if policy == "any" and len(found):
            ranks_Q[number] = found[0]
        elif policy == "all" and len(found) and len(found) == (num_golds[number] if len(num_golds) else len(rows)):
            ranks_Q[number] = found[-1]
    return ranks_Q


@dataclass(frozen=True)
class Figures:
    """Figures that are ratios of sums over mentions: recall is the found ones over all."""

    names: Sequence[str]
    above_QF: np.ndarray
    below_QF: np.ndarray

    @classmethod
    def of(cls, ranks_Q: np.ndarray, num_hits: int) -> Figures:
        """Recalls, MRR, and recall@1 among the mentions whose gold was found at all (normalised)."""
        depths = [at for at in RECALL_AT if at <= num_hits]
        is_found = ranks_Q > 0
        above = [(is_found & (ranks_Q <= at)).astype(float) for at in depths]
        above += [np.divide(1.0, ranks_Q, out=np.zeros(len(ranks_Q)), where=is_found), (ranks_Q == 1).astype(float)]
        below = [np.ones(len(ranks_Q))] * (len(depths) + 1) + [is_found.astype(float)]
        names = [*(f"recall@{at}" for at in depths), "MRR", "normalised@1"]
        return cls(names, np.stack(above, 1), np.stack(below, 1))


class Bootstrap:
    """Intervals by drawing documents again and again: mentions of one text are not independent of each other."""

    def __init__(self, documents: Sequence[str], num_resamples: int = 1000, seed: int = 13) -> None:
        # A mention without a document stands for itself.
        names = [document or f"\0{number}" for number, document in enumerate(documents)]
        self._document_Q = np.unique(np.array(names, object).astype(str), return_inverse=True)[1]
        self._num_documents = int(self._document_Q.max()) + 1 if len(names) else 0
        self._num_resamples, self._seed = num_resamples, seed

    def rows(self, figures: Figures, groups: Mapping[K, np.ndarray]) -> dict[K, dict[str, Any]]:
        """For each group of mentions (a mask) its figures, each with its interval."""
        above, below = self._sums(figures, groups)
        resampled = list(self._resampled(above, below))
        return {
            name: self._row(figures, mask, [sample[number] for sample in resampled])
            for number, (name, mask) in enumerate(groups.items())
        }

    def macro(self, figures: Figures, groups: Mapping[Any, np.ndarray]) -> dict[str, Any]:
        """The mean over groups of their figures, each group weighing the same."""
        above, below = self._sums(figures, groups)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = _mean_of_known(above.sum(0) / below.sum(0))
            samples = [_mean_of_known(sample) for sample in self._resampled(above, below)]
        row = _with_intervals(figures.names, values, samples)
        return {"mentions": int(sum(mask.sum() for mask in groups.values()))} | row

    def _row(self, figures: Figures, mask: np.ndarray, samples: list[np.ndarray]) -> dict[str, Any]:
        with np.errstate(invalid="ignore", divide="ignore"):
            values = figures.above_QF[mask].sum(0) / figures.below_QF[mask].sum(0)
        return {"mentions": int(mask.sum())} | _with_intervals(figures.names, values, samples)

    def _sums(self, figures: Figures, groups: Mapping[Any, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Sums by document: (D, groups, F)."""
        shape = (self._num_documents, len(groups), len(figures.names))
        above, below = np.zeros(shape), np.zeros(shape)
        for number, mask in enumerate(groups.values()):
            np.add.at(above[:, number], self._document_Q[mask], figures.above_QF[mask])
            np.add.at(below[:, number], self._document_Q[mask], figures.below_QF[mask])
        return above, below

    def interval(self, figure: Callable[[np.ndarray], float]) -> tuple[Any, Any]:
        """The interval of any figure that can be computed with a weight for each mention, of at most 200 resamples."""
        num_resamples = min(self._num_resamples, 200)
        weights = (weights_D for weights_BD in self._weights(num_resamples) for weights_D in weights_BD)
        return interval_of([figure(weights_D[self._document_Q]) for weights_D in weights])

    def _resampled(self, above: np.ndarray, below: np.ndarray) -> Iterator[np.ndarray]:
        """Figures (groups, F) of each resample; NaN where a group is missing from it."""
        for weights_BD in self._weights(self._num_resamples):
            with np.errstate(invalid="ignore", divide="ignore"):
                yield from _weighted(weights_BD, above) / _weighted(weights_BD, below)

    def _weights(self, num_resamples: int) -> Iterator[np.ndarray]:
        """How often each document is drawn, (B, D) for some resamples at a time."""
        random = np.random.default_rng(self._seed)
        chances = np.full(self._num_documents, 1 / max(self._num_documents, 1))
        for begin in range(0, num_resamples, RESAMPLES_AT_ONCE):
            num_now = min(RESAMPLES_AT_ONCE, num_resamples - begin)
            yield random.multinomial(self._num_documents, chances, size=num_now).astype(float)


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Over groups, of those that have a value; NaN where none has."""
    known = ~np.isnan(values)
    mean: np.ndarray = np.where(known, values, 0).sum(0) / known.sum(0)
    return mean


def _weighted(weights_BD: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sums (B, groups, F) over documents of sums (D, groups, F)."""
    return (weights_BD @ sums.reshape(len(sums), -1)).reshape(len(weights_BD), *sums.shape[1:])


def interval_of(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The middle 95% of resampled values."""
    known = np.asarray(values)[~np.isnan(values)]
    if not len(known):
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _with_intervals(names: Sequence[str], values: np.ndarray, samples: Sequence[np.ndarray]) -> dict[str, Any]:
    row = {}
    for number, name in enumerate(names):
        value = float(values[number])
        low, high = interval_of([float(sample[number]) for sample in samples])
        row[name] = {"value": None if np.isnan(value) else round(value, 4), "low": low, "high": high}
    return row
