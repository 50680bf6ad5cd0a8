"""What a report shows: the runs and evaluations below some folders, read, named and brought together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pel_ray.artifacts import MANIFEST, UNFINISHED, Manifest, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.evaluation_file import EvaluationFile, Row, read_evaluation
from pel_ray.run_folder import RUN_KINDS, Run, read_run
from pel_ray.storage import Location, locate

KINDS = (*RUN_KINDS, "evaluation")
COLOURS = ("#2f6fdf", "#d9622b", "#17936b", "#8a4fd3", "#c63d86", "#a77f00", "#0e8fb0", "#7a5c3e")
BASELINE_COLOURS = ("#7b8494", "#a07c4a", "#5c8a8c")
"""Neither light nor dark: a dark page turns figures to their negative."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation, with the run that made its model where that is among those shown."""

    name: str
    folder: Location
    manifest: Manifest
    content: EvaluationFile
    run: Run | None
    starts: Sequence[str]
    """The names of the runs that began with its model."""

    @property
    def is_untrained(self) -> bool:
        """A run began with its model, and no run here made it."""
        return bool(self.starts) and self.run is None

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by what they were spent on."""
        seconds = self.manifest.counts.get("seconds", {})
        return dict(seconds) if isinstance(seconds, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class System:
    """What has a row in the tables: the retriever of an evaluation, or a baseline."""

    name: str
    colour: str
    rows: Sequence[Row]
    evaluation: Evaluation | None = None

    @property
    def is_baseline(self) -> bool:
        return self.evaluation is None

    def row(self, group: str, name: str) -> Row | None:
        return next((row for row in self.rows if (row.group, row.name) == (group, name)), None)

    def value(self, metric: str) -> float | None:
        """Over all mentions."""
        row = self.row("all", "micro")
        return row.figures[metric].value if row and metric in row.figures else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Systems that were asked about the same mentions under the same policy."""

    evaluations: Sequence[Evaluation]
    systems: Sequence[System]


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a page shows."""

    runs: Sequence[Run]
    comparisons: Sequence[Comparison]
    unfinished: Sequence[str]
    """Folders that were left out because their work is not done."""

    @property
    def evaluations(self) -> list[Evaluation]:
        return [evaluation for comparison in self.comparisons for evaluation in comparison.evaluations]


def gather(folders: Sequence[str]) -> Report:
    """Reads every run and evaluation that the folders are or hold, each once, in the order they are named."""
    found: dict[str, tuple[str, Location]] = {}
    unfinished: dict[str, None] = {}
    for where in folders:
        folder = locate(where)
        here = list(_below(folder))
        for kind, location in here:
            found.setdefault(_identity(location), (kind, location))
        missing = [str(folder / name) for name in folder.names() if (folder / name / UNFINISHED).is_file()]
        unfinished |= dict.fromkeys(missing)
        if not here:
            raise ArtifactError(_why_nothing(folder, missing))
    runs = _runs([location for kind, location in found.values() if kind in RUN_KINDS])
    evaluations = _evaluations([location for kind, location in found.values() if kind == "evaluation"], runs)
    return Report(runs=runs, comparisons=list(_comparisons(evaluations, runs)), unfinished=list(unfinished))


def _below(folder: Location) -> Iterator[tuple[str, Location]]:
    kind = _kind(folder)
    if kind in KINDS:
        yield kind, folder
    if kind == "evaluation":
        return
    for child_kind, child in _children(folder):
        yield child_kind, child
        if child_kind in RUN_KINDS:
            yield from _children(child)


def _children(folder: Location) -> Iterator[tuple[str, Location]]:
    for name in folder.names():
        kind = _kind(folder / name)
        if kind in KINDS:
            yield kind, folder / name


def _kind(folder: Location) -> str:
    """Without a look at the files: a damaged folder of another kind is none of a report's business."""
    file = folder / MANIFEST
    if not file.is_file():
        return ""
    try:
        return str(json.loads(file.read_bytes())["kind"])
    except (ValueError, KeyError, TypeError):
        return read_manifest(folder).request.kind


def _identity(folder: Location) -> str:
    return os.path.realpath(folder.path) if folder.is_local else str(folder)


def _why_nothing(folder: Location, unfinished: Sequence[str]) -> str:
    if not folder.exists():
        return f"{folder} does not exist. Expected a folder that pel-ray train or evaluate has made"
    also = f" ({unfinished[0]} is unfinished)" if unfinished else ""
    return (
        f"{folder} holds no finished run or evaluation{also}. Expected a folder that pel-ray train or evaluate "
        "has made, or one with such folders directly below it"
    )


def _runs(folders: Sequence[Location]) -> list[Run]:
    names = short_names(folders)
    return [read_run(folder, names[number], COLOURS[number % len(COLOURS)]) for number, folder in enumerate(folders)]


def _evaluations(folders: Sequence[Location], runs: Sequence[Run]) -> list[Evaluation]:
    made = {run.name: run.made_model for run in runs} if folders else {}
    begun = {run.name: run.first_models for run in runs} if folders else {}
    names = short_names(folders, least=2)
    found = []
    for folder, name in zip(folders, names, strict=True):
        manifest = read_manifest(folder, "evaluation")
        model = _model(manifest)
        maker = _maker(folder, [run for run in runs if model and made[run.name] == model])
        starts = [run.name for run in runs if model in begun[run.name] and run is not maker]
        found.append(
            Evaluation(
                name=maker.name if maker else "untrained" if starts else name,
                folder=folder,
                manifest=manifest,
                content=read_evaluation(folder, manifest),
                run=maker,
                starts=starts,
            )
        )
    return found


def _model(manifest: Manifest) -> str:
    source = manifest.request.inputs.get("model")
    return source.digest if source else ""


def _maker(folder: Location, makers: Sequence[Run]) -> Run | None:
    """Of several runs with the same model, the one that the evaluation lies in."""
    inside = [run for run in makers if folder.path.startswith(f"{run.folder.path}/")]
    return next(iter([*inside, *makers]), None)


def short_names(folders: Sequence[Location], least: int = 1) -> list[str]:
    """The last parts of each path, as many as it takes to tell them apart."""
    parts = [folder.path.strip("/").split("/") for folder in folders]
    for length in range(least, max(map(len, parts), default=0) + 1):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _comparisons(evaluations: Sequence[Evaluation], runs: Sequence[Run]) -> Iterator[Comparison]:
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(_what_was_asked(evaluation), []).append(evaluation)
    colours = {run.name: run.colour for run in runs}
    for group in groups.values():
        told_apart = _told_apart(group)
        for evaluation in told_apart:
            colours.setdefault(evaluation.name, COLOURS[len(colours) % len(COLOURS)])
        systems = [*_retrievers(told_apart, colours), *_baselines(told_apart)]
        yield Comparison(evaluations=told_apart, systems=systems)


def _told_apart(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Several of one model, such as exact and through an index, are named by their folders too."""
    names = [evaluation.name for evaluation in evaluations]
    folders = short_names([evaluation.folder for evaluation in evaluations])
    return [
        evaluation if names.count(evaluation.name) == 1 else replace(evaluation, name=f"{evaluation.name} ({folder})")
        for evaluation, folder in zip(evaluations, folders, strict=True)
    ]


def _what_was_asked(evaluation: Evaluation) -> str:
    """Equal for evaluations whose figures may stand in one table; how they searched is part of the answer."""
    inputs, content = evaluation.manifest.request.inputs, evaluation.content
    tables = [inputs[role].digest if role in inputs else content.data for role in ("kb", "mentions")]
    policy = {name: value for name, value in content.policy.items() if name not in ("search", "ranked")}
    return json.dumps([*tables, content.split, content.mentions, policy], sort_keys=True)


def _retrievers(evaluations: Sequence[Evaluation], colours: Mapping[str, str]) -> list[System]:
    return [
        System(
            name=evaluation.name,
            colour=colours[evaluation.name],
            rows=next(iter(evaluation.content.systems.values())),
            evaluation=evaluation,
        )
        for evaluation in evaluations
    ]


def _baselines(evaluations: Sequence[Evaluation]) -> list[System]:
    """Each once: evaluations of the same mentions have measured the same baselines."""
    found: dict[str, Sequence[Row]] = {}
    for evaluation in evaluations:
        for name, rows in list(evaluation.content.systems.items())[1:]:
            if name in found and _values(found[name]) != _values(rows):
                found[f"{name} ({evaluation.name})"] = rows
            else:
                found[name] = rows
    return [
        System(name=name, colour=BASELINE_COLOURS[number % len(BASELINE_COLOURS)], rows=rows)
        for number, (name, rows) in enumerate(found.items())
    ]


def _values(rows: Sequence[Row]) -> list[Any]:
    return [(row.group, row.name, [figure.value for figure in row.figures.values()]) for row in rows]
