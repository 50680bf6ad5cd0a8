"""One HTML page of a report, complete in itself: styles and pictures are inside, and nothing is fetched."""

from __future__ import annotations

import base64
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import jinja2

import pel_ray
from pel_ray import report_tables as tables
from pel_ray.console import human_bytes
from pel_ray.evaluation_file import Changes, Confusion, ShownEntity
from pel_ray.report import Comparison, Evaluation, Report, System
from pel_ray.report_headlines import Headline, best_retriever, headlines, weak_spots
from pel_ray.run_folder import Run

TEMPLATE = "report.html.j2"
NUM_CONFUSIONS = 6
"""Shown at once; the others unfold."""
LONGEST_DESCRIPTION = 300


@dataclass(frozen=True)
class ComparisonPart:
    """What the page says about one comparison."""

    heading: str
    sentence: str
    note: str
    suffix: str
    """Of its anchors and figures."""
    comparison: Comparison
    best: System
    headlines: Sequence[Headline]
    weak_spots: Sequence[str]
    confusions: Sequence[tuple[Evaluation, Sequence[Confusion], Sequence[Confusion]]]
    """Evaluation, those shown at once, and the others."""


def page(report: Report, figures: Mapping[str, bytes]) -> str:
    """The whole page; `figures` are PNGs by their file names."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pel_ray"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "size": human_bytes, "cut": _cut, "marked": _marked, "share": _share}
    differing, settings = tables.settings_rows([run.manifest for run in report.runs])
    return environment.get_template(TEMPLATE).render(
        report=report,
        title=_title(report),
        parts=_parts(report),
        changed_rows=changed_rows,
        images={name: f"data:image/png;base64,{base64.b64encode(png).decode()}" for name, png in figures.items()},
        tables=tables,
        differing=differing,
        settings=settings,
        unevaluated=_unevaluated(report),
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        versions=_versions(report),
        why=why,
        training_figure=training_figure,
    )


def suffix(report: Report, number: int) -> str:
    """Tells the figures and anchors of several comparisons apart."""
    return "" if len(report.comparisons) == 1 else f"-{number + 1}"


def training_figure(report: Report, run: Run) -> str:
    return "training.png" if len(report.runs) == 1 else f"training-{report.runs.index(run) + 1}.png"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def why(confusion: Confusion) -> str:
    """What a person would notice first, where a comparison of texts can notice it."""
    mention, gold, predicted = _plain(confusion.mention), confusion.gold, confusion.predicted
    if _plain(gold.title) == _plain(predicted.title):
        return "both entities have this title"
    is_gold, is_predicted = (mention in _names(entity) for entity in (gold, predicted))
    if is_gold and is_predicted:
        return "the text is a name of both entities"
    if is_gold or is_predicted:
        return f"the text is a name of the {'gold' if is_gold else 'predicted entity'}"
    return "" if gold.description else "the gold has no description"


def _names(entity: ShownEntity) -> set[str]:
    return {_plain(name) for name in (entity.title, *entity.synonyms)}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _title(report: Report) -> str:
    if report.comparisons:
        headings = dict.fromkeys(_heading(comparison) for comparison in report.comparisons)
        return f"Entity linking on {'; '.join(headings)}"
    return f"Training of {', '.join(run.name for run in report.runs)}"


def _heading(comparison: Comparison) -> str:
    content = comparison.evaluations[0].content
    return f"{'/'.join(content.data.rstrip('/').split('/')[-2:])}, {content.split}"


def _parts(report: Report) -> list[ComparisonPart]:
    return [_part(comparison, suffix(report, number)) for number, comparison in enumerate(report.comparisons)]


def _part(comparison: Comparison, suffix: str) -> ComparisonPart:
    best = best_retriever(comparison)
    return ComparisonPart(
        heading=_heading(comparison),
        sentence=_sentence(comparison),
        note=tables.policy_note(comparison.evaluations),
        suffix=suffix,
        comparison=comparison,
        best=best,
        headlines=headlines(comparison, best),
        weak_spots=weak_spots(comparison, best),
        confusions=_confusions(comparison, best),
    )


def _sentence(comparison: Comparison) -> str:
    content = comparison.evaluations[0].content
    pool = content.policy.get("pool", "the whole KB")
    remarks = [f"{content.nil_mentions:,} NIL"] if content.nil_mentions else []
    if content.outside:
        remarks.append(f"{content.outside:,} with a gold that the KB lacks")
    aside = f" ({', '.join(remarks)})" if remarks else ""
    return f"{content.mentions:,} mentions of split {content.split} of {content.data}{aside}, linked against {pool}."


def _confusions(
    comparison: Comparison, best: System
) -> list[tuple[Evaluation, Sequence[Confusion], Sequence[Confusion]]]:
    """The best system's first, and only its are open."""
    ordered = sorted(comparison.evaluations, key=lambda evaluation: evaluation is not best.evaluation)
    found = [(evaluation, evaluation.content.confusions) for evaluation in ordered if evaluation.content.confusions]
    return [
        (evaluation, confusions[:NUM_CONFUSIONS], confusions[NUM_CONFUSIONS:])
        if evaluation is best.evaluation
        else (evaluation, [], confusions)
        for evaluation, confusions in found
    ]


def changed_rows(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(name.replace("->", " to "), [f"{count:,}"]) for name, count in changes.counts.items()]


def _unevaluated(report: Report) -> list[tuple[Run, str]]:
    """Runs whose model no evaluation here is of, and the command that makes one."""
    evaluated = {evaluation.run.name for evaluation in report.evaluations if evaluation.run}
    return [(run, _evaluate_command(run)) for run in report.runs if run.name not in evaluated]


def _evaluate_command(run: Run) -> str:
    inputs, folder = run.manifest.request.inputs, str(run.folder)
    data = inputs["kb"].path.removesuffix("/kb") if "kb" in inputs else "DATA"
    words = ["evaluate", data, "--vectors", folder]
    if run.is_ranker:
        vectors = inputs["vectors"].path if "vectors" in inputs else "VECTORS"
        words = ["rank", "evaluate", data, "--ranker", folder, "--vectors", vectors]
    return shlex.join(["pel-ray", *words, "--out", f"{folder}/test"])


def _versions(report: Report) -> str:
    """Of this page, and of what it shows where that was made by others."""
    here = {"pel_ray": pel_ray.__version__, "python": platform.python_version()}
    made = [run.manifest for run in report.runs] + [evaluation.manifest for evaluation in report.evaluations]
    others = dict.fromkeys(_joined(manifest.versions) for manifest in made)
    return f"{_joined(here)}; what it shows was made with {' / '.join(others)}"


def _joined(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {version}" for name, version in versions.items())


def _cut(text: str | None) -> str:
    text = (text or "").strip()
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[:LONGEST_DESCRIPTION].rstrip()}…"


def _marked(text: str) -> tuple[str, str, str]:
    """`left [[mention]] right`, as mining writes it, in its parts."""
    left, _, rest = text.partition("[[")
    mention, _, right = rest.rpartition("]]")
    return left, mention, right


def _share(value: Any, whole: Any) -> float:
    return round(100 * value / whole, 1) if whole else 0.0
