"""Figures of rows on the same resampled documents, their differences, and what these say of a claim.

Shapes: Q test mentions, D documents, B resamples, G groups of mentions whose figures are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

NUM_RESAMPLES = 1000
SEED = 13
NO_HARM = 0.01
"""A loss of recall below this counts as none, where the claim is that something does not hurt."""
Seed = int | None
Kind = Literal["above", "no harm"]
Outcome = Literal["holds", "not shown", "reversed", "not run"]


@dataclass(frozen=True)
class Sampled:
    """A figure, and what it is in each resample; two of the same resamples are paired."""

    value: float
    samples_B: np.ndarray

    def plus(self, sign: int, other: Sampled) -> Sampled:
        return Sampled(self.value + sign * other.value, self.samples_B + sign * other.samples_B)

    @property
    def interval(self) -> tuple[float, float]:
        """The middle 95% of the resamples."""
        low, high = np.nanpercentile(self.samples_B, [2.5, 97.5])
        return float(low), float(high)


def mean_of(figures: Sequence[Sampled]) -> Sampled:
    values, samples = [figure.value for figure in figures], [figure.samples_B for figure in figures]
    return Sampled(float(np.mean(values)), np.mean(samples, axis=0))


class Resamples:
    """Documents drawn again and again, always the same ones: mentions of one text are not independent."""

    def __init__(self, document_Q: np.ndarray, num_resamples: int = NUM_RESAMPLES) -> None:
        self._document_Q = document_Q
        num_documents = int(document_Q.max()) + 1
        chances = np.full(num_documents, 1 / num_documents)
        self._weights_BD = np.random.default_rng(SEED).multinomial(num_documents, chances, num_resamples).astype(float)

    def share(self, is_right_Q: np.ndarray, masks: Sequence[np.ndarray]) -> Sampled:
        """Of the mentions of each group, then the mean over groups."""
        above_DG = np.stack([self._by_document(is_right_Q & mask) for mask in masks], 1)
        below_DG = np.stack([self._by_document(mask) for mask in masks], 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            # A small group may be missing from a resample.
            samples_BG = (self._weights_BD @ above_DG) / (self._weights_BD @ below_DG)
            value = float(np.mean(above_DG.sum(0) / below_DG.sum(0)))
        return Sampled(value, np.nanmean(samples_BG, axis=1))

    def auPR(self, order_Q: np.ndarray, is_nil_Q: np.ndarray, at_once: int = 100) -> Sampled:
        """Of NIL, whose evidence are low scores."""
        parts = np.split(self._weights_BD, range(at_once, len(self._weights_BD), at_once))
        samples = [average_precision(order_Q, is_nil_Q, part[:, self._document_Q]) for part in parts]
        value = average_precision(order_Q, is_nil_Q, np.ones((1, len(order_Q))))[0]
        return Sampled(float(value), np.concatenate(samples))

    def _by_document(self, is_counted_Q: np.ndarray) -> np.ndarray:
        return np.bincount(self._document_Q, is_counted_Q, self._weights_BD.shape[1])


def average_precision(score_Q: np.ndarray, is_nil_Q: np.ndarray, weights_BQ: np.ndarray) -> np.ndarray:
    """(B,) auPR of NIL with each row of weights, as scikit-learn has it; NaN where no NIL mention weighs anything."""
    order = np.argsort(score_Q, kind="stable")
    # Equal scores fall on the same side of a threshold: it can only lie behind the last of them.
    is_last_Q = np.append(np.diff(score_Q[order]) > 0, True)
    weights_BQ = weights_BQ[:, order]
    said = np.cumsum(weights_BQ, 1)[:, is_last_Q]
    right = np.cumsum(weights_BQ * is_nil_Q[order], 1)[:, is_last_Q]
    precision = np.divide(right, said, out=np.zeros_like(right), where=said > 0)
    with np.errstate(invalid="ignore"):
        average: np.ndarray = (np.diff(right, axis=1, prepend=0) * precision).sum(1) / right[:, -1]
    return average


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper shows: the sum of figures of rows, each with its sign, is above zero."""

    text: str
    terms: tuple[tuple[int, str], ...]
    kind: Kind = "above"
    paper: float | None = None
    """The paper's difference."""
    is_ours: bool = False
    """A question that the paper does not ask."""
    gains: tuple[tuple[tuple[int, str], ...], ...] = ()
    """Sums of which one must be above zero: who loses less does not gain more."""

    @classmethod
    def above(cls, text: str, first: str, second: str, paper: float | None = None, kind: Kind = "above") -> Claim:
        return cls(text, ((1, first), (-1, second)), kind, paper)


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim."""

    claim: str
    outcome: Outcome
    words: str
    difference: str = ""
    by_seed: str = ""
    paper: str = "-"
    is_ours: bool = False
    num_runs: int = 0
    """Of each row."""
    micro: Verdict | None = None
    """The same of all mentions alike, where the figures are means over worlds."""

    @property
    def said(self) -> str:
        return self.outcome if not self.words else f"{self.outcome}: {self.words}"

    @property
    def cells(self) -> list[str]:
        beside = [f"{self.micro.difference} {self.micro.said}"] if self.micro else []
        return [self.claim, self.difference, self.by_seed, self.paper, self.said, *beside]

    @property
    def line(self) -> str:
        """For a list of verdicts."""
        said = f": {self.words}" if self.words else ""
        beside = f"; micro {self.micro.difference} {self.micro.said}" if self.micro else ""
        return f"{self.claim}, {self.difference}{said}{beside}"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def judge(claim: Claim, rows: Mapping[str, Mapping[Seed, Sampled]], caveat: str = "") -> Verdict:
    """Over the seeds that all of the claim's rows have."""
    paper = "-" if claim.paper is None else signed(claim.paper)
    found = [rows.get(row, {}) for _, row in claim.terms]
    seeds = [seed for seed in found[0] if all(seed in figures for figures in found)]
    if not seeds:
        missing = [row for row in dict.fromkeys(row for _, row in claim.terms) if not rows.get(row)]
        words = f"without {', '.join(missing)}" if missing else "no seed that all rows have"
        words = "" if len(missing) == len({row for _, row in claim.terms}) else words
        return Verdict(claim.text, "not run", words, paper=paper, is_ours=claim.is_ours)
    gains = {seed: _sum(claim.terms, rows, seed) for seed in seeds}
    found_gains = [mean_of([_sum(terms, rows, seed) for seed in seeds]).value for terms in claim.gains]
    nobody_gains = bool(found_gains) and max(found_gains) <= 0
    return _verdict(claim, gains, paper, caveat, nobody_gains)


def _sum(terms: Sequence[tuple[int, str]], rows: Mapping[str, Mapping[Seed, Sampled]], seed: Seed) -> Sampled:
    total = Sampled(0.0, np.zeros(()))
    for sign, row in terms:
        total = total.plus(sign, rows[row][seed])
    return total


def _verdict(claim: Claim, gains: Mapping[Seed, Sampled], paper: str, caveat: str, nobody_gains: bool) -> Verdict:
    mean = mean_of(list(gains.values()))
    low, high = mean.interval
    outcome, words = _said(claim.kind, low, high, [gain.value for gain in gains.values()])
    if outcome == "holds" and nobody_gains:
        outcome, words = "not shown", "neither gains"
    notes = [words, "one run of each" if len(gains) == 1 else "", caveat]
    by_seed = ", ".join(f"{seed}: {signed(gain.value)}" for seed, gain in gains.items() if seed is not None)
    difference = f"{signed(mean.value)} [{signed(low)}, {signed(high)}]"
    said = "; ".join(filter(None, notes))
    return Verdict(claim.text, outcome, said, difference, by_seed, paper, claim.is_ours, len(gains))


def _said(kind: Kind, low: float, high: float, values: Sequence[float]) -> tuple[Outcome, str]:
    """A difference counts if its interval leaves out zero and every seed agrees."""
    is_above, is_below = low > 0 and min(values) > 0, high < 0 and max(values) < 0
    if kind == "no harm" and low > -NO_HARM:
        return "holds", "helps" if is_above else f"does not hurt by {NO_HARM}"
    if is_above:
        return "holds", ""
    if is_below:
        return "reversed", "hurts" if kind == "no harm" else ""
    if low > 0 or high < 0:
        return "not shown", "seeds disagree"
    return "not shown", f"a loss of {NO_HARM} is in the interval" if kind == "no harm" else "zero is in the interval"
