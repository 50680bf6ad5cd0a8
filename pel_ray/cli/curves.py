"""pel-ray curves."""

from __future__ import annotations

import click

from pel_ray import console
from pel_ray.cli.options import ClusterCommand
from pel_ray.plots import plot_compared
from pel_ray.report import short_names
from pel_ray.run_folder import run_manifest
from pel_ray.storage import locate


@click.command(
    "curves",
    cls=ClusterCommand,
    epilog="Example: pel-ray curves runs/pb-random runs/pb-mixed runs/ce-mixed --out gradients.png",
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", default="curves.png", show_default=True, metavar="FILE", help="Where the figure goes.")
def command(runs: tuple[str, ...], out: str) -> None:
    """Draw losses, gradient norms and validation recalls (of rankers: accuracies) of several runs into one figure."""
    folders = [locate(run) for run in runs]
    for folder in folders:
        run_manifest(folder)
    found = dict(zip(short_names(folders), folders, strict=True))
    plot_compared(found, out)
    console.say(f"{out}: {len(found)} runs")
