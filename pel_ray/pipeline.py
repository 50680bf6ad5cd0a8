"""Pipeline specs: several commands in one file, each with a name, its settings and its folders."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings, assign, merged, read_spec, resolve

Value = str | int | float | bool
_PLACEHOLDER = re.compile(r"\{([^\W\d]\w*)\}")


class Step(Settings):
    """One command of a pipeline."""

    name: Annotated[str, Field(min_length=1)]
    """How messages, --set and --only call it."""
    each: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(default={}, alias="for")
    """Names with values, as in {row: [a, b], seed: [1, 2]}: the step is done once for each combination, and {row} and
    {seed} stand for its values. Neighbours with the same `for` go round together."""
    run: Annotated[str, Field(min_length=1)]
    """A pel-ray command: train, encode-kb, import obo, ..."""
    spec: str | None = None
    """A job spec of this command to start from."""
    settings: dict[str, Any] = Field(default={}, alias="with")
    """Its settings, as a job spec of the command has them; {out} stands for the pipeline's folder."""

    def filled(self, values: Mapping[str, Value]) -> Step:
        """The same with the names in braces replaced, and done once."""
        texts = {"name": self.name, "run": self.run} | ({} if self.spec is None else {"spec": self.spec})
        # Also a name that is no more than a number stays a text, where a setting becomes the number.
        found = {key: _text(text, values) for key, text in texts.items()} | {"with": _filled(self.settings, values)}
        _check_filled(f"step {self.name}", found, list(values))
        try:
            return resolve(Step, values=found)
        except SettingsError as error:
            raise SettingsError(f"step {self.name}: {error}") from error


class PipelineSettings(Settings):
    """What `pel-ray run` carries out, from top to bottom."""

    out: Annotated[str, Field(min_length=1)]
    """Folder (or URI) that the steps call {out}."""
    values: dict[str, Value] = {}
    """What else they call by a name in braces; `--set NAME=value` changes it."""
    steps: Annotated[list[Step], Field(min_length=1)]
    """The commands in their order."""


def read_pipeline(spec: str, sets: Sequence[str], out: str | None) -> PipelineSettings:
    """The pipeline of a file, each step as often as it is done; `--set NAME.key=value` changes a setting of a step."""
    found = resolve(PipelineSettings, spec=spec, flags={} if out is None else {"out": out})
    if "out" in found.values:
        raise SettingsError(f"{spec}: values.out is not a value: {{out}} stands for the pipeline's own `out`")
    for assignment in sets:
        _check_assignment(assignment)
    values = {**_assigned(found.values, filter(_is_value, sets)), "out": found.out}
    try:
        steps = [step for group in _groups(found.steps) for step in _rounds(group, values)]
    except SettingsError as error:
        raise SettingsError(f"{spec}: {error}") from error
    except RecursionError as error:
        raise SettingsError(f"{spec}: a setting contains itself (an alias, `*name`, within what it names)") from error
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{spec}: two steps are called {name!r}. Give each a name of its own")
    changed = {step.name: merged({}, step.settings) for step in steps}
    for assignment in sets:
        if not _is_value(assignment):
            pattern, inner = _step_and_setting(names, assignment)
            for name in _matching(names, pattern, f"--set {assignment}"):
                assign(changed[name], inner)
    return found.model_copy(
        update={"steps": [step.model_copy(update={"settings": changed[step.name]}) for step in steps]}
    )


def only(steps: Sequence[Step], patterns: Sequence[str]) -> list[Step]:
    """Those whose names match a pattern; all of them where there is none."""
    names = [step.name for step in steps]
    wanted = {name for pattern in patterns for name in _matching(names, pattern, f"--only {pattern}")}
    return [step for step in steps if step.name in wanted or not patterns]


def settings_of(step: Step) -> dict[str, Any]:
    """What the command is told: its own spec, and over it what the pipeline says."""
    return merged(read_spec(step.spec) if step.spec else {}, step.settings)


def _check_assignment(assignment: str) -> None:
    """Refuses it by its whole text, before it is taken apart."""
    said: dict[str, Any] = {}
    assign(said, assignment)
    if not _is_value(assignment):
        _check_filled(f"--set {assignment}", said, [])


def _assigned(known: Mapping[str, Value], sets: Iterable[str]) -> dict[str, Value]:
    values: dict[str, Any] = dict(known)
    for assignment in sets:
        name = assignment.partition("=")[0]
        _check_known(f"--set {assignment}", name, list(values), "a value")
        assign(values, assignment)
        if not isinstance(values[name], Value):
            raise SettingsError(f"--set {assignment}: expected a text (quote it?), a number, true or false")
    return values


def _is_value(assignment: str) -> bool:
    """`NAME=value` names a value of the pipeline, `STEP.key=value` a setting of a step."""
    return "." not in assignment.partition("=")[0]


def _step_and_setting(names: Sequence[str], assignment: str) -> tuple[str, str]:
    """What stands before the first dot; or, where no step is called so, before the first at which one is: "0.003-1"."""
    key, _, value = assignment.partition("=")
    parts = key.split(".")
    splits = [(".".join(parts[:n]), f"{'.'.join(parts[n:])}={value}") for n in range(1, len(parts))]
    return next((split for split in splits if any(_matches(name, split[0]) for name in names)), splits[0])


def _groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    for _, group in itertools.groupby(steps, key=lambda step: step.each):
        yield list(group)


def _rounds(group: Sequence[Step], values: Mapping[str, Value]) -> Iterator[Step]:
    """The steps of a group for each combination of what their `for` names."""
    each = group[0].each
    for combination in itertools.product(*each.values()):
        found = {**values, **dict(zip(each, combination, strict=True))}
        for step in group:
            yield step.filled(found)


def _matching(names: Sequence[str], pattern: str, said: str) -> list[str]:
    found = [name for name in names if _matches(name, pattern)]
    if not found:
        _check_known(said, pattern, names, "a step")
    return found


def _matches(name: str, pattern: str) -> bool:
    # A name may itself look like a pattern: "[a]".
    return name == pattern or fnmatchcase(name, pattern)


def _check_known(said: str, name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        shown = ", ".join(known) if known else "none"
        raise SettingsError(f"{said}: {name!r} is not {what} of this pipeline, which has {shown}")


def _filled(value: Any, values: Mapping[str, Value]) -> Any:
    if isinstance(value, str):
        whole = values.get(value[1:-1]) if value[:1] == "{" and value[-1:] == "}" else None
        return _text(value, values) if whole is None or isinstance(whole, str) else whole
    if isinstance(value, Mapping):
        return {key: _filled(inner, values) for key, inner in value.items()}
    return [_filled(inner, values) for inner in value] if isinstance(value, list) else value


def _text(text: str, values: Mapping[str, Value]) -> str:
    # What a name stands for may hold other names, but none of them itself.
    for _ in values:
        for name, meant in values.items():
            text = text.replace(f"{{{name}}}", str(meant))
    return text


def _check_filled(whose: str, value: Any, known: Sequence[str], key: str = "") -> None:
    """Refuses names in braces that nothing has replaced, but in templates, which have names of their own."""
    if isinstance(value, str) and (found := _PLACEHOLDER.search(value)):
        near = difflib.get_close_matches(found[1], known, n=1)
        hint = f"did you mean {{{near[0]}}}?" if near else f"known names are {', '.join(known) or 'none'}"
        raise SettingsError(f"{whose}: {key} has {found[0]}, which stands for nothing here; {hint}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "template":
                _check_filled(whose, inner, known, f"{key}.{name}" if key else str(name))
    if isinstance(value, list):
        for inner in value:
            _check_filled(whose, inner, known, key)
