"""The tables of a report, as rows of what their cells say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pel_ray.artifacts import Manifest
from pel_ray.evaluation_file import Figure, Row
from pel_ray.metrics_file import NO_SHARE
from pel_ray.report import Comparison, Evaluation, System
from pel_ray.run_folder import Round, Run

METRICS = (*(f"recall@{k}" for k in (1, 2, 4, 8, 16, 32, 64)), "MRR", "normalised@1")
GROUPS = {"seen": "Seen and unseen in training", "world": "Worlds", "type": "Semantic types"}
NUM_SHOWN = 15
NOTHING = "–"


def shown(value: float | None, metric: str = "") -> str:
    """A share as per cent; MRR is no share of anything, so it stays a fraction."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if metric == "MRR" else f"{100 * value:.1f}"


def interval(figure: Figure, metric: str = "") -> str:
    if figure.low is None or figure.high is None or math.isnan(figure.low):
        return ""
    return f"{shown(figure.low, metric)}–{shown(figure.high, metric)}"


@dataclass(frozen=True)
class Cell:
    """A figure in a table."""

    text: str = NOTHING
    small: str = ""
    width: float | None = None
    """Of the bar behind it, in per cent."""
    is_best: bool = False


def results(comparison: Comparison) -> tuple[list[str], list[tuple[System, list[Cell]]]]:
    """Metrics, and for each system its figures over all mentions."""
    figures = {system.name: figures_of(system) for system in comparison.systems}
    metrics = [metric for metric in METRICS if any(metric in of_system for of_system in figures.values())]
    best = {metric: _best(figures.values(), metric) for metric in metrics}
    return metrics, [
        (system, [_cell(figures[system.name].get(metric), metric, best[metric]) for metric in metrics])
        for system in comparison.systems
    ]


def _best(systems: Iterable[Mapping[str, Figure]], metric: str) -> str:
    """As it is shown, so that equal looks equal; each system is normalised over mentions of its own."""
    texts = [shown(figures[metric].value, metric) for figures in systems if metric in figures]
    return NOTHING if metric == "normalised@1" else max(texts, key=_number)


def figures_of(system: System) -> Mapping[str, Figure]:
    """Over all mentions."""
    row = system.row("all", "micro")
    return row.figures if row else {}


def _cell(figure: Figure | None, metric: str, best: str) -> Cell:
    if figure is None:
        return Cell()
    text = shown(figure.value, metric)
    return Cell(text, interval(figure, metric), is_best=text == best != NOTHING)


def _number(text: str) -> float:
    return -1.0 if text == NOTHING else float(text)


@dataclass(frozen=True)
class Breakdown:
    """The systems on parts of the mentions."""

    title: str
    rows: Sequence[tuple[str, int, list[Cell]]]
    """Name, mentions and a cell for each system."""
    rest: Sequence[tuple[str, int, list[Cell]]]


def breakdowns(comparison: Comparison) -> list[Breakdown]:
    sizes: dict[str, dict[str, int]] = {}
    for system in comparison.systems:
        for row in system.rows:
            sizes.setdefault(row.group, {}).setdefault(row.name, row.mentions)
    macro = [("all", name, size) for name, size in sizes.pop("all", {}).items() if name != "micro"]
    found = []
    for group in sorted(sizes, key=lambda group: list(GROUPS).index(group) if group in GROUPS else len(GROUPS)):
        parts = [(group, name, size) for name, size in sizes[group].items()]
        if group != "seen":
            parts.sort(key=lambda part: -part[2])
        if group == "world":
            parts = macro + parts
        rows = [(name, size, [_bar(system.row(of, name)) for system in comparison.systems]) for of, name, size in parts]
        found.append(Breakdown(GROUPS.get(group, group), rows[:NUM_SHOWN], rows[NUM_SHOWN:]))
    return found


def _bar(row: Row | None) -> Cell:
    figure = row.figures.get("recall@1") if row else None
    if row is None or figure is None or figure.value is None:
        return Cell()
    at_64 = row.figures.get("recall@64")
    small = [interval(figure), f"@64 {shown(at_64.value)}" if at_64 else ""]
    return Cell(shown(figure.value), " · ".join(filter(None, small)), round(100 * figure.value, 1))


def nil_rows(comparison: Comparison) -> list[tuple[System, list[Cell]]]:
    """auPR; then the threshold and what it comes to."""
    rows = []
    for system in comparison.systems:
        nil = system.evaluation.content.nil if system.evaluation else None
        if nil is None:
            continue
        cells = [Cell(shown(nil.auPR.value), interval(nil.auPR))]
        if nil.threshold is None:
            cells += [Cell(small="none chosen"), *[Cell()] * 5]
        else:
            at = nil.threshold
            cells.append(Cell(f"{at.threshold:.3f}", f"chosen on {at.split}"))
            shares = (at.precision, at.recall, at.f1, at.recall_at_1, at.recall_at_64)
            cells += [Cell(shown(share)) for share in shares]
        rows.append((system, cells))
    return rows


def policy_note(evaluations: Sequence[Evaluation]) -> str:
    """The policy in words; where evaluations differ in it, all that they say."""
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.content.policy)
    said = []
    for name in names:
        values = dict.fromkeys(str(evaluation.content.policy.get(name, NOTHING)) for evaluation in evaluations)
        said.append(f"{name}: {' / '.join(values)}")
    note = " · ".join(said)
    return f"{note[:1].upper()}{note[1:]}"


def epochs(rounds: Sequence[Round]) -> list[str]:
    """The epoch, counted from one, that each round came before."""
    return [str(round.epoch + 1) for round in rounds]


def mining_rows(rounds: Sequence[Round]) -> list[tuple[str, list[str]]]:
    """A line for each statistic, with a value for each round."""
    flat = [_mining_counts(round.manifest) for round in rounds]
    return [(name, [counts.get(name, NOTHING) for counts in flat]) for name in _all_keys(flat)]


def _mining_counts(manifest: Manifest) -> dict[str, str]:
    counts = manifest.counts
    beside, dropped = counts.get("gold beside its negatives", {}), counts.get("dropped", {})
    lines = {"mentions": _text(counts.get("rows")), "pool": _text(counts.get("pool"))}
    lines |= {name: _text(value) for name, value in beside.items()}
    for reason, count in dropped.items():
        lines[f"dropped: {reason}"] = f"{count['hits']:,} hits of {count['of mentions']:,} mentions"
    short = "mentions with fewer negatives than asked for"
    return lines | {short: _text(counts.get(short)), "seconds": f"{manifest.seconds:.0f}"}


def settings_rows(manifests: Sequence[Manifest]) -> tuple[list[tuple[str, list[str]]], list[tuple[str, list[str]]]]:
    """Settings that differ, and all settings; the content of inputs counts as one."""
    flat = [_settings(manifest) for manifest in manifests]
    rows = [(name, [settings.get(name, NOTHING) for settings in flat]) for name in _all_keys(flat)]
    return [(name, values) for name, values in rows if len(set(values)) > 1], rows


def _settings(manifest: Manifest) -> dict[str, str]:
    inputs = manifest.request.inputs.items()
    return dict(_flat(manifest.request.settings)) | {
        f"input: {role}": f"{source.path} ({source.digest[:8]})" for role, source in inputs
    }


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(value)


def _all_keys(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def validation_rows(runs: Sequence[Run]) -> tuple[list[str], list[tuple[Run, list[Cell]]]]:
    """What training watched: metrics, and for each run the best epoch's beside those before training."""
    best = [run.manifest.counts.get("validation of the best epoch", {}) for run in runs]
    first = [run.manifest.counts.get("validation before training", {}) for run in runs]
    metrics = [metric for metric in _all_keys(best) if metric != NO_SHARE]
    return metrics, [
        (run, [_validated(after, before, metric) for metric in metrics])
        for run, after, before in zip(runs, best, first, strict=True)
    ]


def _validated(after: Mapping[str, float], before: Mapping[str, float], metric: str) -> Cell:
    """Retrievers and rankers are watched by metrics of their own."""
    return Cell(shown(after[metric]), f"before {shown(before.get(metric))}") if metric in after else Cell()
