"""Pipeline specs: several commands in one file, each with a name, its settings and its folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings, assign, read_spec, resolve

OUT = "{out}"
"""In the settings of a step, stands for the pipeline's own folder."""


class Step(Settings):
    """One command of a pipeline."""

    name: Annotated[str, Field(min_length=1)]
    """How messages and --set call it."""
    run: Annotated[str, Field(min_length=1)]
    """A pel-ray command: train, encode-kb, import obo, ..."""
    spec: str | None = None
    """A job spec of this command to start from."""
    settings: dict[str, Any] = Field(default={}, alias="with")
    """Its settings, as a job spec of the command has them; {out} stands for the pipeline's folder."""


class PipelineSettings(Settings):
    """What `pel-ray run` carries out, from top to bottom."""

    out: Annotated[str, Field(min_length=1)]
    """Folder (or URI) that the steps call {out}."""
    steps: Annotated[list[Step], Field(min_length=1)]
    """The commands in their order."""


def read_pipeline(spec: str, sets: Sequence[str], out: str | None) -> PipelineSettings:
    """The pipeline of a file; `--set NAME.key=value` changes a setting of a step."""
    found = resolve(PipelineSettings, spec=spec, flags={"out": out} if out else None)
    names = [step.name for step in found.steps]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{spec}: two steps are called {name!r}. Give each a name of its own")
    changed = {step.name: dict(step.settings) for step in found.steps}
    for assignment in sets:
        name, dot, rest = assignment.partition(".")
        if not dot or name not in changed:
            raise SettingsError(f"--set {assignment}: expected STEP.key=value with a step of {', '.join(names)}")
        assign(changed[name], rest)
    steps = [step.model_copy(update={"settings": changed[step.name]}) for step in found.steps]
    return found.model_copy(update={"steps": steps})


def settings_of(step: Step, out: str) -> dict[str, Any]:
    """What the command is told: its own spec, and over it what the pipeline says."""
    values = read_spec(step.spec) if step.spec else {}
    merged: dict[str, Any] = _filled(_over(values, step.settings), out)
    return merged


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _filled(value: Any, out: str) -> Any:
    if isinstance(value, str):
        return value.replace(OUT, out)
    if isinstance(value, Mapping):
        return {key: _filled(inner, out) for key, inner in value.items()}
    return [_filled(inner, out) for inner in value] if isinstance(value, list) else value
