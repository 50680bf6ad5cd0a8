"""pel-ray show."""

from __future__ import annotations

import click

from pel_ray.cli.options import ClusterCommand
from pel_ray.steps.show import show_folder


@click.command("show", cls=ClusterCommand, epilog="Example: pel-ray show data/hpo/kb --rows 5")
@click.argument("folder")
@click.option("--rows", default=3, show_default=True, type=click.IntRange(0, 1000), help="How many rows to show.")
def command(folder: str, rows: int) -> None:
    """Show what a folder holds: kind, how it was made, counts, and a few rows."""
    show_folder(folder, rows)
