"""What a command will be told on a cluster, checked here before it is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pel_ray.cli.options import SettingsCommand
from pel_ray.cli.run import check_outs, resolved
from pel_ray.errors import InputError
from pel_ray.job_package import Package
from pel_ray.job_specs import files_to_send, relative_to_here
from pel_ray.kuberay import SHARED, WorkerPods
from pel_ray.pipeline import only, read_pipeline, settings_of
from pel_ray.runtime import Resources
from pel_ray.spec import assign, merged, read_spec, resolve

STDIN = "-"
"""What a command that takes files reads where it is given none."""
INPUTS = {"kb", "data", "vectors", "file", "folder", "folders", "ranker"}
"""Settings that always name a folder or file to read; of others nobody knows whether they are a word."""


@dataclass(frozen=True)
class Told:
    """The words of a command, and what they come to."""

    words: list[str]
    specs: list[str]
    """The specs it reads, as they are named."""
    places: list[tuple[str, dict[str, Any]]]
    """Of the command or of the steps of a pipeline: whose they are, for a message, and what may name a folder."""
    resources: list[Resources]
    """What each of them asks for that has workers."""

    def pods(self) -> WorkerPods:
        """Pods in which every step finds the workers that it asks for."""
        default = WorkerPods()
        asked = self.resources or [Resources()]
        return WorkerPods(
            replicas=max((each.workers for each in asked if each.workers != "auto"), default=default.replicas),
            cpus=max((each.cpus for each in asked if each.cpus != "auto"), default=default.cpus),
            gpus=max(_num_gpus(each, default.gpus) for each in asked),
        )

    def check_for_job(self, package: Package) -> None:
        """Refuses what a job would not find in its package, or would leave in a folder that goes with the job."""
        self._check_folders(package)
        for file in files_to_send(self.specs):
            if not package.holds(file):
                raise _stays_here(f"spec {file}")

    def check_for_pods(self) -> None:
        """The same for pods, which have no folders but those of their image and of the shared storage."""
        self._check_folders(None)
        for spec in self.specs:
            path = Path(spec)
            if path.is_absolute() and Path(SHARED) not in path.parents and path.exists():
                raise InputError(
                    f"spec {spec}",
                    "is a file of this machine. Put it below the working directory and name it from there, or put it "
                    f"on {SHARED}",
                )

    def _check_folders(self, package: Package | None) -> None:
        for whose, places in self.places:
            for name, value in places.items():
                if name == "out" and isinstance(value, str) and _is_relative(value):
                    raise InputError(
                        f"{whose}out {value}",
                        "a relative folder would be in a temporary place of the cluster and be lost. Give --out an "
                        "absolute path on storage that all nodes share, or an s3:// URI",
                    )
                for path in value if isinstance(value, (list, tuple)) else [value]:
                    if path == STDIN:
                        raise InputError(
                            f"{whose}{name} {STDIN}",
                            "is what is piped in here, which does not go to the cluster. Name files on storage that "
                            "all nodes share, or s3:// URIs",
                        )
                    if not isinstance(path, str) or name == "spec" or not _is_relative(path):
                        continue
                    if not Path(path).exists():
                        if name in INPUTS:
                            raise _is_nowhere(f"{whose}{name} {path}")
                    elif package is None or not package.holds(path):
                        raise _stays_here(f"{whose}{name} {path}")


def told_by(words: Sequence[str]) -> Told:
    """Parses the words as the command will: wrong usage and wrong settings are found here."""
    command, context, rest = _found(words)
    command.parse_args(context, rest)
    given = {name: value for name, value in context.params.items() if value}
    spec = given.get("spec")
    if isinstance(command, SettingsCommand):
        command.settings_given(**context.params)
    if spec is None:
        values = _with_defaults(command, {}, given)
        return Told(list(words), [], [("", _places(command, values))], _resources(command, values))
    named = relative_to_here(spec)
    words = [named if word == spec else f"--spec={named}" if word == f"--spec={spec}" else word for word in words]
    if isinstance(command, SettingsCommand):
        values = _with_defaults(command, read_spec(spec), given)
        return Told(words, [named], [("", _places(command, values))], _resources(command, values))
    pipeline = read_pipeline(spec, given.get("sets", ()), given.get("out"))
    steps = only(pipeline.steps, given.get("patterns", ()))
    found = [(step, *resolved(spec, step, bool(given.get("cpu")))) for step in steps]
    check_outs(spec, [(step, settings) for step, _, settings in found])
    places: list[tuple[str, dict[str, Any]]] = [("", {"out": pipeline.out})]
    resources: list[Resources] = []
    for step, run, _ in found:
        values = _with_defaults(run, settings_of(step), {"cpu": True} if given.get("cpu") else {})
        places.append((f"step {step.name}: ", _places(run, values)))
        resources += _resources(run, values)
    return Told(words, [named, *(step.spec for step in steps if step.spec)], places, resources)


def _found(words: Sequence[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that these words name, and the words that it is given."""
    from pel_ray.cli import cli

    context = click.Context(cli, info_name="pel-ray")
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        name = rest.pop(0)
        inner = command.get_command(context, name)
        if inner is None:
            known = ", ".join(command.list_commands(context))
            raise click.UsageError(f"{name!r} is no command; expected one of {known}")
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    return command, context, rest


def _with_defaults(command: click.Command, spec: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """In the order in which one wins over the other."""
    defaults = {"out": command.model.model_fields["out"].default} if isinstance(command, SettingsCommand) else {}
    sets: dict[str, Any] = {}
    for assignment in given.get("sets", ()):
        assign(sets, assignment)
    return {**merged({**defaults, **spec}, sets), **given}


def _resources(command: click.Command, values: Mapping[str, Any]) -> list[Resources]:
    """What a command asks for in its spec and by its flags; nothing where it has no workers."""
    if not isinstance(command, SettingsCommand) or "resources" not in command.model.model_fields:
        return []
    told = values.get("resources")
    flags = {name: values[name] for name in Resources.model_fields if name in values}
    return [resolve(Resources, values=told if isinstance(told, Mapping) else None, flags=flags)]


def _num_gpus(asked: Resources, default: int) -> int:
    if asked.cpu:
        return 0
    return default if asked.gpus == "auto" else math.ceil(asked.gpus)


def _places(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """What may name a folder, also the encoder in the settings of a model where no flag names another."""
    places = dict(values)
    if isinstance(command, SettingsCommand):
        # Nobody knows beforehand where a folder is: what has a default, such as a split, is a word.
        fields = command.model.model_fields.items()
        names = {name for name, field in fields if field.is_required() or field.default in (None, [])}
        places = {name: value for name, value in values.items() if name in names | {"out", "encoder"}}
        if "files" in names and not places.get("files"):
            places["files"] = STDIN
    for name, inner in values.items():
        if isinstance(inner, Mapping) and "encoder" in inner and "encoder" not in values:
            places[f"{name}.encoder"] = inner["encoder"]
    return places


def _stays_here(what: str) -> InputError:
    return InputError(
        what,
        "is here but does not go to the cluster. Put it on storage that all nodes share and give its absolute path "
        "there, or an s3:// URI",
    )


def _is_nowhere(what: str) -> InputError:
    return InputError(
        what,
        "is not here, so it cannot go to the cluster. Give the absolute path that it has there, on storage that all "
        "nodes share, or an s3:// URI",
    )


def _is_relative(path: str) -> bool:
    return "://" not in path and not Path(path).is_absolute()
