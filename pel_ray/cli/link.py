"""pel-ray link."""

from __future__ import annotations

import sys

import click

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.link import LinkSettings, link_files, link_stream

BAD_RECORDS = 3
"""Exit code where some records could not be linked and the others were."""


def run(settings: LinkSettings) -> None:
    num_bad = _to_folder(settings) if settings.out is not None else _to_stdout(settings)
    if num_bad:
        _tell(f"pel-ray: {num_bad:,} bad record{'s' * (num_bad > 1)} left out, the others are linked")
        click.get_current_context().exit(BAD_RECORDS)


def _to_stdout(settings: LinkSettings) -> int:
    def write(content: bytes) -> None:
        # As bytes: links are UTF-8 whatever the terminal's own encoding is.
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()

    if sys.stdin is not None and sys.stdin.isatty() and set(settings.files) <= {"-"}:
        _tell("pel-ray: reading from the keyboard, for example: We gave [[aspirin]]. End with Ctrl-D")
    return link_stream(settings, write, _tell)


def _to_folder(settings: LinkSettings) -> int:
    outcome = link_files(settings)
    show_outcome(outcome)
    counts = dict(outcome.manifest.counts)
    for problem in counts.pop("first bad records"):
        _tell(problem)
    console.show_counts(counts)
    return int(counts["bad records"])


def _tell(message: str) -> None:
    click.echo(message, err=True)


command = settings_command(
    "link",
    LinkSettings,
    run,
    argument=("folder", "files"),
    nested=True,
    help="Link the mentions in text to the KB: PubTator, JSON lines or [[marked]] text in, links out.",
    example="pel-ray link runs/hpo/pb notes.txt --candidates 4 > links.jsonl",
)
