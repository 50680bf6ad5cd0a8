"""The command line. Nothing heavy is imported until a command runs, so that --help answers at once."""

from __future__ import annotations

import sys
from typing import Any

import click

from pel_ray import __version__
from pel_ray.cli.lazy import LazyGroup
from pel_ray.errors import PelRayError

COMMANDS = {
    "import": (
        "pel_ray.cli.imports:group",
        "Bring a KB or annotated text in: OBO, UMLS, PubTator, ZESHEL, JSON lines.",
    ),
    "okb": ("pel_ray.cli.okb:command", "Make a data set with NILs by taking entities out of its KB."),
    "show": ("pel_ray.cli.show:command", "Show what a folder holds."),
    "quickstart": (
        "pel_ray.cli.quickstart:command",
        "Run the whole flow on the Human Phenotype Ontology, offline.",
    ),
    "doctor": ("pel_ray.cli.doctor:command", "Say what this machine has, what is missing and how to get it."),
}


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: pel-ray quickstart",
)
@click.version_option(__version__, prog_name="pel-ray")
def cli() -> None:
    """Link mentions in biomedical text to a knowledge base of thousands to millions of entities.

    Every step reads folders and leaves one finished folder behind; running it again does nothing, and a
    folder of other settings is refused. Folders may be local or s3://, gs:// URIs.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line; a user's mistake is one line and exit code 1."""
    try:
        cli.main(args=arguments, prog_name="pel-ray", standalone_mode=True)
    except PelRayError as error:
        click.echo(f"pel-ray: error: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
