"""pel-ray report."""

from __future__ import annotations

import click

from pel_ray import console
from pel_ray.steps.report import write_report


@click.command("report", epilog="Example: pel-ray report runs/hpo/pb runs/hpo/ce --out reports/hpo")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--out", default="report", show_default=True, metavar="FOLDER", help="Where report.html and its figures go."
)
def command(folders: tuple[str, ...], out: str) -> None:
    """Make one HTML page of training runs and evaluations: figures, curves, mistakes, settings and cost.

    A FOLDER is a run, an evaluation, or holds some directly below it. The page needs no other file and no network.
    """
    console.say(str(write_report(folders, out)))
