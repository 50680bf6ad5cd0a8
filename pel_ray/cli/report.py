"""pel-ray report."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.spec import Settings
from pel_ray.steps.report import write_report


class ReportSettings(Settings):
    """What goes into a page."""

    folders: Annotated[list[str], Field(min_length=1)]
    """Runs, evaluations, or folders that hold some directly below them."""
    out: Annotated[str, Field(min_length=1)] = "report"
    """Folder for report.html and its figures."""


def run(settings: ReportSettings) -> None:
    console.say(str(write_report(settings.folders, settings.out)))


command = settings_command(
    "report",
    ReportSettings,
    run,
    argument="folders",
    help="Make one HTML page of training runs and evaluations: figures, curves, mistakes, settings and cost.",
    example="pel-ray report runs/hpo/pb runs/hpo/ce --out reports/hpo",
)
