"""Command-line options made from a settings class, so that flags, specs and --help cannot drift apart."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings, resolve, to_yaml


def settings_command(
    name: str,
    model: type[Settings],
    run: Callable[[Any], None],
    *,
    help: str,
    example: str,
    argument: str | None = None,
) -> click.Command:
    """A command with one option per simple field of `model`, plus --spec, --set and --plan.

    `argument` names the field that is given by position.
    """

    def callback(spec: str | None, sets: Sequence[str], plan: bool, **given: Any) -> None:
        flags = {
            field: list(value) if field == argument and isinstance(value, tuple) else _value(value)
            for field, value in given.items()
            if value is not None and value != ()
        }
        try:
            settings = resolve(model, spec=spec, sets=sets, flags=flags)
        except SettingsError as error:
            if spec is None:
                # All of it came from the command line: wrong usage, not a wrong file.
                raise click.UsageError(str(error)) from error
            raise
        if plan:
            click.echo(to_yaml(settings), nl=False)
        else:
            run(settings)

    parameters: list[click.Parameter] = []
    for field, info in model.model_fields.items():
        if field == argument:
            many = get_origin(info.annotation) is list
            parameters.append(click.Argument([field], nargs=-1 if many else 1, required=False, metavar=field.upper()))
        elif _is_simple(info.annotation):
            parameters.append(_option(field, info))
    parameters += [
        click.Option(["--spec"], metavar="FILE", help="YAML file with these settings; flags win over it."),
        click.Option(
            ["--set", "sets"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Any setting, also nested: --set a.b=c.",
        ),
        click.Option(["--plan"], is_flag=True, help="Print the resolved settings and stop."),
    ]
    return click.Command(
        name, callback=callback, params=parameters, help=help, epilog=f"Example: {example}", short_help=help
    )


def _option(field: str, info: FieldInfo) -> click.Option:
    flag = f"--{field.replace('_', '-')}"
    annotation = _without_none(info.annotation)
    if annotation is bool:
        declared, extra = f"{flag}/--no-{flag[2:]}" if info.default else flag, {"is_flag": True}
    else:
        declared, extra = flag, _type(annotation)
    return click.Option([declared, field], default=None, help=_help(info), **extra)


def _type(annotation: Any) -> dict[str, Any]:
    if get_origin(annotation) is list:
        return {"multiple": True, "metavar": "A,B,..."}
    if get_origin(annotation) is Literal:
        return {"type": click.Choice(get_args(annotation))}
    return {"type": annotation}


def _help(info: FieldInfo) -> str:
    text = " ".join((info.description or "").split())
    default = info.default
    if default is PydanticUndefined:
        return f"{text}  [required]"
    if default in (None, [], False):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, list) else "yes" if default is True else default
    return f"{text}  [default: {shown}]"


def _is_simple(annotation: Any) -> bool:
    inner = _without_none(annotation)
    return not (isinstance(inner, type) and issubclass(inner, Settings))


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _value(value: Any) -> Any:
    """A list may be given as A,B or by repeating the option."""
    return [word for text in value for word in text.split(",") if word.strip()] if isinstance(value, tuple) else value
