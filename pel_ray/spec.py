"""Job specs: strict settings that come from defaults, a YAML file, --set and flags, in that order.

An unknown key stops the run before it starts, and the error names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pel_ray.errors import SettingsError
from pel_ray.storage import Location, locate_file


class Settings(BaseModel):
    """What a step can be told; each field is explained under its name, and --help shows it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


SettingsType = TypeVar("SettingsType", bound=Settings)


def resolve(
    model: type[SettingsType],
    *,
    spec: str | None = None,
    values: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> SettingsType:
    """The settings of one run, checked: from a file or as `values`, then changed by `sets` and `flags`."""
    values = dict(values or {})
    if spec is not None:
        values = read_spec(spec)
    for assignment in sets:
        assign(values, assignment)
    for path, value in (flags or {}).items():
        _put(values, path, value, f"--{path.rsplit('.', 1)[-1]}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explained(model, error, spec)) from error


EXTENDS = "extends"
"""The key of a spec that names another, beside it, whose settings it has where it says nothing else."""


def read_spec(path: str) -> dict[str, Any]:
    """The settings of a file, over those of the files it extends."""
    values: dict[str, Any] = {}
    for file in reversed(spec_files(path)):
        values = merged(values, _read_yaml(locate_file(file)))
    values.pop(EXTENDS, None)
    return values


def spec_files(path: str) -> list[str]:
    """A spec and the specs it extends, one from the other."""
    files = [path]
    while True:
        file = locate_file(files[-1])
        below = _read_yaml(file).get(EXTENDS)
        if below is None:
            return files
        if not isinstance(below, str) or not below:
            raise SettingsError(f"{file}: extends is {below!r}, expected the name of a spec")
        files.append(os.path.normpath(file.parent.path + "/" + below) if file.is_local else str(file.parent / below))
        if files[-1] in files[:-1] or locate_file(files[-1]) == locate_file(path):
            raise SettingsError(f"{file}: extends {below}, which in the end extends {file} again")


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What `above` says, and where it says nothing what `below` does, key by key."""
    values = dict(below)
    for key, value in above.items():
        inner = values.get(key)
        if isinstance(value, Mapping):
            value = merged(inner if isinstance(inner, Mapping) else {}, value)
        values[key] = value
    return values


def _read_yaml(file: Location) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_bytes().decode(), _UniqueKeyLoader)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: is not UTF-8 text. Expected a YAML job spec") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{file}: is not YAML: {type(error).__name__}: {str(error)[:100]}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsError(f"{file}{line}: is not YAML: {' '.join(problem.split())}") from error
    if content is None:
        raise SettingsError(f"{file}: is empty, expected `key: value` settings")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{file}: is a {type(content).__name__}, expected `key: value` settings")
    return content


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML itself lets the last of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} occurs twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def to_yaml(settings: Settings) -> str:
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def assign(values: dict[str, Any], assignment: str) -> None:
    """Applies `a.b=c` from the command line; the value is read as YAML, so lists and numbers work."""
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise SettingsError(f"--set {assignment}: expected key=value, as in --set train.lr=2e-5")
    try:
        _put(values, path, yaml.safe_load(text), f"--set {assignment}")
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SettingsError(f"--set {assignment}: {text!r} is not a value (quote it?)") from error


def _put(values: dict[str, Any], path: str, value: Any, said: str) -> None:
    *parents, last = path.split(".")
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{said}: {name} is {values!r}, which has no keys of its own")
    values[last] = value


def _explained(model: type[Settings], error: ValidationError, spec: str | None) -> str:
    by_key: dict[str, list[Any]] = {}
    for detail in error.errors():
        by_key.setdefault(_key(model, detail), []).append(detail)
    problems = [_problem(model, key, details) for key, details in by_key.items()]
    return (f"{spec}: " if spec else "") + "; ".join(problems)


def _key(model: type[Settings], detail: Any) -> str:
    """What a user calls it: pydantic names each kind of value that was tried for it too."""
    path = [str(part) for part in detail["loc"]]
    is_kind = len(path) > 1 and isinstance(detail["loc"][-1], str) and not _fields_at(model, path[:-1])
    return ".".join(path[:-1] if is_kind else path)


def _problem(model: type[Settings], key: str, details: Sequence[Any]) -> str:
    """One of a key, whose value may be wrong in several ways: it is neither a number nor the word `auto`."""
    detail, path = details[0], key.split(".")
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if detail["type"] == "missing":
        return f"{key} is missing: give it on the command line or in a --spec file"
    first, *others = (detail["msg"].removeprefix("Value error, ") for detail in details)
    message = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    return f"{key} is {reprlib.repr(detail['input'])}: {message[0].lower()}{message[1:]}" if key else message


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        if field is None and name.isdigit():
            # The number of an item: the model is that of the list's items already.
            continue
        inner = field and next(
            (kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)), None
        )
        if not inner:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
