"""pel-ray curves."""

from __future__ import annotations

import pathlib

import click

from pel_ray import console
from pel_ray.artifacts import read_manifest
from pel_ray.plots import plot_compared
from pel_ray.storage import locate


@click.command(
    "curves", epilog="Example: pel-ray curves runs/pb-random runs/pb-mixed runs/ce-mixed --out gradients.png"
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", default="curves.png", show_default=True, metavar="FILE", help="Where the figure goes.")
def command(runs: tuple[str, ...], out: str) -> None:
    """Draw the gradient norms and validation recalls of several runs into one figure."""
    found = {}
    for run in runs:
        folder = locate(run)
        read_manifest(folder, "run")
        found[folder.name if folder.name not in found else run] = pathlib.Path(folder.path) / "metrics.jsonl"
    file = pathlib.Path(out).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    plot_compared(found, file)
    console.say(f"{out}: {len(found)} runs")
