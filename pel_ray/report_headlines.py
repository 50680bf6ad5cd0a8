"""What decides: the best system's main figures against others, and where a baseline beats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pel_ray.evaluation_file import Figure
from pel_ray.report import Comparison, System
from pel_ray.report_tables import figures_of, interval, shown

METRICS = ("recall@1", "recall@64", "MRR")


@dataclass(frozen=True)
class Against:
    """A headline figure beside that of another system."""

    name: str
    value: str
    difference: str
    is_better: bool
    do_overlap: bool
    """The 95% intervals, where there are any."""


@dataclass(frozen=True)
class Headline:
    """A figure that decides, and what it is to be compared with."""

    name: str
    value: str
    unit: str
    interval: str
    note: str
    against: Sequence[Against]


def best_retriever(comparison: Comparison) -> System:
    """The highest recall@1, of those that were trained where there are such."""
    retrievers = [system for system in comparison.systems if system.evaluation]
    trained = [system for system in retrievers if system.evaluation and not system.evaluation.is_untrained]
    return max(trained or retrievers, key=lambda system: system.value("recall@1") or 0)


def headlines(comparison: Comparison, best: System) -> list[Headline]:
    figures = figures_of(best)
    start = _start(comparison, best)
    found = []
    for metric in METRICS:
        if metric not in figures:
            continue
        baselines = [system for system in comparison.systems if system.is_baseline and metric in figures_of(system)]
        others = sorted(baselines, key=lambda system: -(system.value(metric) or 0))[:1] + ([start] if start else [])
        against = [
            _against(metric, figures[metric], other, figures_of(other)[metric])
            for other in others
            if metric in figures_of(other)
        ]
        unit = "" if metric == "MRR" else "%"
        found.append(
            Headline(metric, shown(figures[metric].value, metric), unit, interval(figures[metric], metric), "", against)
        )
    return found + _nil_headline(best, start)


def _start(comparison: Comparison, best: System) -> System | None:
    """The evaluation of the model that the best one's run began with."""
    run = best.evaluation.run if best.evaluation else None
    for system in comparison.systems:
        if run and system is not best and system.evaluation and run.name in system.evaluation.starts:
            return system
    return None


def _against(metric: str, ours: Figure, other: System, theirs: Figure) -> Against:
    difference = (ours.value or 0) - (theirs.value or 0)
    text = f"{difference:+.3f}" if metric == "MRR" else f"{100 * difference:+.1f}"
    return Against(
        other.name, shown(theirs.value, metric), text.replace("-", "−"), difference >= 0, _overlap(ours, theirs)
    )


def _overlap(one: Figure, other: Figure) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _nil_headline(best: System, start: System | None) -> list[Headline]:
    nil = best.evaluation.content.nil if best.evaluation else None
    if nil is None:
        return []
    if nil.threshold is None:
        return [Headline("NIL auPR", shown(nil.auPR.value), "%", interval(nil.auPR), "; no threshold chosen yet", [])]
    at = nil.threshold
    note = f"precision {shown(at.precision)}, recall {shown(at.recall)} at {at.threshold:.3f}, chosen on {at.split}"
    before = start.evaluation.content.nil if start and start.evaluation else None
    against = []
    if start and before and before.threshold:
        against.append(_against("NIL F1", Figure(value=at.f1), start, Figure(value=before.threshold.f1)))
    return [Headline("NIL F1", shown(at.f1), "%", "", note, against)]


LEAST_MENTIONS = 30
"""Of a group that is named a weak spot: of a handful all can be wrong by chance, whatever the bootstrap says."""


def weak_spots(comparison: Comparison, best: System) -> list[str]:
    """Groups on which a baseline's recall@1 is above the best system's, beyond both intervals; largest first."""
    spots = []
    for row in sorted((row for row in best.rows if row.mentions >= LEAST_MENTIONS), key=lambda row: -row.mentions):
        for baseline in comparison.systems:
            other = baseline.row(row.group, row.name) if baseline.is_baseline else None
            if other and "recall@1" in row.figures and "recall@1" in other.figures:
                ours, theirs = row.figures["recall@1"], other.figures["recall@1"]
                if (theirs.value or 0) > (ours.value or 0) and not _overlap(ours, theirs):
                    values = f"{baseline.name} {shown(theirs.value)}, {best.name} {shown(ours.value)}"
                    spots.append(f"{row.name} ({values}; {row.mentions:,} mentions)")
    return spots
