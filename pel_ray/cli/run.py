"""pel-ray run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
import yaml

from pel_ray import console
from pel_ray.cli.options import ClusterCommand, SettingsCommand
from pel_ray.errors import PelRayError, SettingsError, StepFailed
from pel_ray.pipeline import Step, only, read_pipeline, settings_of
from pel_ray.runtime import Resources, resolve_ask
from pel_ray.runtime_session import is_job, ray_session
from pel_ray.spec import Settings, resolve
from pel_ray.storage import locate


@click.command(
    "run", cls=ClusterCommand, epilog="Example: pel-ray run jobs/pipeline.yaml --set train.optimiser.epochs=1"
)
@click.argument("spec", metavar="SPEC")
@click.option("--out", metavar="FOLDER", help="Folder that the steps call {out}; by default what the spec says.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="[STEP.]KEY=VALUE",
    help="Change a setting of a step, or of all steps that a pattern like 'pb-*' matches; without STEP, a value of the "
    "pipeline.",
)
@click.option(
    "--only", "patterns", multiple=True, metavar="STEP", help="Do only this step, or those that a pattern matches."
)
@click.option("--cpu", is_flag=True, help="Use no GPU in any step, whatever the spec says.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the settings of all steps, and stop.")
@click.pass_context
def command(
    context: click.Context,
    spec: str,
    out: str | None,
    sets: tuple[str, ...],
    patterns: tuple[str, ...],
    cpu: bool,
    only_plan: bool,
) -> None:
    """Carry out a pipeline: several commands in their order, each of which does only what is not done yet."""
    chosen = only(read_pipeline(spec, sets, out).steps, patterns)
    # All settings are checked before the first step starts.
    steps = [(step, *resolved(spec, step, cpu)) for step in chosen]
    check_outs(spec, [(step, settings) for step, _, settings in steps])
    if only_plan:
        for step, _, settings in steps:
            shown = {"name": step.name, "run": step.run, "with": settings.model_dump(mode="json")}
            click.echo(yaml.safe_dump([shown], sort_keys=False, allow_unicode=True), nl=False)
        return
    said = [*([] if out is None else ["--out", out]), *_options("--set", sets), *_options("--only", patterns)]
    again = f"go on with: {shlex.join(['pel-ray', 'run', spec, *said, *(['--cpu'] if cpu else [])])}"
    if is_job():
        again = "submit the same again: what is done is not done again"
    worst = 0
    with ray_session():
        for step, _, settings in steps:
            with _failing(step, again):
                _check_ask(settings)
        for number, (step, found, settings) in enumerate(steps, start=1):
            console.heading(f"[{number}/{len(steps)}] {step.name}: {step.run}")
            try:
                with _failing(step, again):
                    found.run_settings(settings)
            except click.exceptions.Exit as end:
                # Such as linking with some bad records: done, and not without a fault.
                worst = max(worst, end.exit_code)
    context.exit(worst)


@contextmanager
def _failing(step: Step, again: str) -> Iterator[None]:
    try:
        yield
    except PelRayError as error:
        raise StepFailed(f"step {step.name}: {error}. Mend it, then {again}") from error


def _check_ask(settings: Settings) -> None:
    """Refuses now what would be refused after hours of the steps before it."""
    resources = getattr(settings, "resources", None)
    if isinstance(resources, Resources):
        resolve_ask(resources)


def _options(name: str, given: Sequence[str]) -> list[str]:
    return [word for value in given for word in (name, value)]


def check_outs(spec: str, steps: Sequence[tuple[Step, Settings]]) -> None:
    """Refuses two steps of one command and folder that differ; a KB and mentions may be imported into one."""
    whose: dict[tuple[str, str], tuple[str, Settings]] = {}
    for step, settings in steps:
        out = getattr(settings, "out", None)
        if out is None or step.run.startswith("import"):
            continue
        first, wanted = whose.setdefault((step.run, str(locate(out))), (step.name, settings))
        if wanted.model_copy(update={"out": out}) != settings:
            raise SettingsError(
                f"{spec}: steps {first} and {step.name} have the same out, {out}. Give each a folder of its own"
            )


def resolved(spec: str, step: Step, cpu: bool) -> tuple[SettingsCommand, Settings]:
    """The command of a step, and its settings checked."""
    from pel_ray.cli import cli

    found: click.Command | None = cli
    context = click.Context(cli)
    for word in step.run.split():
        found = found.get_command(context, word) if isinstance(found, click.Group) else None
    if not isinstance(found, SettingsCommand):
        raise SettingsError(f"{spec}: step {step.name} runs {step.run!r}, which is no command that a pipeline can run")
    flags = {"resources.cpu": True} if cpu and "resources" in found.model.model_fields else None
    try:
        return found, resolve(found.model, values=settings_of(step), flags=flags)
    except SettingsError as error:
        raise SettingsError(f"{spec}: step {step.name}: {error}") from error
