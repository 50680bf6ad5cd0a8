"""Command-line options made from a settings class, so that flags, specs and --help cannot drift apart."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings, resolve, to_yaml

WORDS = "pel_ray.words"
"""Where a context keeps the words of the command line."""


class ClusterCommand(click.Command):
    """A command that runs on a cluster with --address: the same words are sent there."""

    def __init__(self, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        help = "Run on a cluster: its job server, as for `pel-ray submit`."
        self.params.append(click.Option(["--address"], metavar="URL", help=help))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = [*ctx.command_path.split()[1:], *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        address = ctx.params.pop("address")
        if address is None or ctx.params.get("only_plan"):
            return super().invoke(ctx)
        from pel_ray.cli.jobs import submit_words

        return submit_words(address, split_address(ctx.meta[WORDS])[0])


class SettingsCommand(ClusterCommand):
    """A command that is all settings, so that a pipeline can run it too."""

    def __init__(
        self,
        *,
        model: type[Settings],
        run_settings: Callable[[Any], None],
        settings_given: Callable[..., Settings],
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.model, self.run_settings, self.settings_given = model, run_settings, settings_given


def settings_command(
    name: str,
    model: type[Settings],
    run: Callable[[Any], None],
    *,
    help: str,
    example: str,
    argument: str | Sequence[str] = (),
    plan: Callable[[Any], None] | None = None,
    nested: bool | Sequence[str] = False,
) -> SettingsCommand:
    """A command with one option per simple field of `model`, plus --spec, --set and --plan.

    `argument` names the fields that are given by position, `plan` prints more than the settings for --plan, and
    `nested` makes options of the fields of inner settings too, or of those it names: `--encoder` for model.encoder.
    """
    fields = dict(_simple_fields(model, nested))
    positions = [argument] if isinstance(argument, str) else list(argument)

    def settings_given(spec: str | None, sets: Sequence[str], **given: Any) -> Settings:
        flags: dict[str, Any] = {}
        for field, (path, _) in fields.items():
            value = given.get(field)
            if value is not None and value != ():
                flags[path] = list(value) if field in positions and isinstance(value, tuple) else _value(value)
        try:
            return resolve(model, spec=spec, sets=sets, flags=flags)
        except SettingsError as error:
            if spec is None:
                # All of it came from the command line: wrong usage, not a wrong file.
                raise click.UsageError(str(error)) from error
            raise

    def callback(only_plan: bool, **given: Any) -> None:
        settings = settings_given(**given)
        if only_plan:
            click.echo(to_yaml(settings), nl=False)
            if plan is not None:
                plan(settings)
        else:
            run(settings)

    parameters: list[click.Parameter] = [_argument(field, fields[field][1]) for field in positions]
    parameters += [_option(field, info) for field, (_, info) in fields.items() if field not in positions]
    parameters += [
        click.Option(["--spec"], metavar="FILE", help="YAML file with these settings; flags win over it."),
        click.Option(
            ["--set", "sets"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Any setting, also nested: --set a.b=c.",
        ),
        click.Option(["--plan", "only_plan"], is_flag=True, help="Print what would be done, and stop."),
    ]
    return SettingsCommand(
        name=name,
        callback=callback,
        params=parameters,
        help=help,
        epilog=f"Example: {example}",
        short_help=help,
        model=model,
        run_settings=run,
        settings_given=settings_given,
    )


def split_address(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The words without --address, and what it names."""
    kept, address = [], None
    rest = iter(words)
    for word in rest:
        if word == "--address":
            address = next(rest, None)
        elif word.startswith("--address="):
            address = word.partition("=")[2]
        else:
            kept.append(word)
    return kept, address


def _simple_fields(
    model: type[Settings], nested: bool | Sequence[str], path: str = ""
) -> Iterator[tuple[str, tuple[str, FieldInfo]]]:
    """Name, path and description of the fields that can be options."""
    for field, info in model.model_fields.items():
        inner = _without_none(info.annotation)
        if not (isinstance(inner, type) and issubclass(inner, Settings)):
            # `--loss pb` for loss.kind: the kind of a thing goes by the name of the thing.
            name = path.rstrip(".").rsplit(".", 1)[-1] if field == "kind" and path else field
            yield name, (f"{path}{field}", info)
        elif nested is True or (nested and field in nested):
            yield from _simple_fields(inner, True, f"{path}{field}.")


def _argument(field: str, info: FieldInfo) -> click.Argument:
    many = get_origin(info.annotation) is list
    shown = f"[{field.upper().removesuffix('S')}]..." if many and info.default == [] else field.upper()
    return click.Argument([field], nargs=-1 if many else 1, required=False, metavar=shown)


def _option(field: str, info: FieldInfo) -> click.Option:
    flag = f"--{field.replace('_', '-')}"
    annotation = _without_none(info.annotation)
    if annotation is bool:
        # What is on by default, or neither on nor off, can be switched off too.
        declared, extra = flag if info.default is False else f"{flag}/--no-{flag[2:]}", {"is_flag": True}
    else:
        declared, extra = flag, _type(annotation)
    return click.Option([declared, field], default=None, help=_help(info), **extra)


def _type(annotation: Any) -> dict[str, Any]:
    if get_origin(annotation) is list:
        return {"multiple": True, "metavar": "A,B,..."}
    if get_origin(annotation) is Literal:
        return {"type": click.Choice(get_args(annotation))}
    # A number or `auto` is taken as text here and told apart by the settings class.
    return {"type": annotation if isinstance(annotation, type) else str}


def _help(info: FieldInfo) -> str:
    text = " ".join((info.description or "").split())
    default = info.default
    if default is PydanticUndefined:
        return f"{text}  [required]"
    if default in (None, [], False):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, list) else "yes" if default is True else default
    return f"{text}  [default: {shown}]"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else annotation
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _value(value: Any) -> Any:
    """A list may be given as A,B or by repeating the option."""
    return [word for text in value for word in _words(text)] if isinstance(value, tuple) else value


def _words(text: str) -> list[str]:
    # A file may have a comma in its name, also behind SPLIT=.
    if "," in text and any(os.path.exists(path) for path in (text, text.partition("=")[2])):
        return [text]
    return [word for word in text.split(",") if word.strip()]
