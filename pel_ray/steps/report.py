"""report: one page, and its figures beside it, of runs and evaluations."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator, Sequence

from pel_ray.errors import ArtifactError
from pel_ray.evaluation_plots import Drawn, plot_nil, plot_recalls, plot_reliability
from pel_ray.plots import plot_compared
from pel_ray.report import Comparison, Report, System, gather
from pel_ray.report_page import page, suffix, training_figure
from pel_ray.storage import Location, locate

PAGE = "report.html"


def write_report(folders: Sequence[str], out: str) -> Location:
    """Writes the page of all runs and evaluations that the folders are or hold; other files in `out` stay."""
    folder = locate(out)
    if folder.exists() and not folder.is_folder():
        raise ArtifactError(f"{folder} is a file. Expected a folder for {PAGE} and its figures: choose another --out")
    report = gather(folders)
    with tempfile.TemporaryDirectory() as scratch:
        figures = {file.name: file.read_bytes() for file in _draw(report, pathlib.Path(scratch))}
    # A lone surrogate in a title is valid JSON and no UTF-8.
    content = page(report, figures).encode("utf-8", "replace")
    for name, png in figures.items():
        (folder / name).write_bytes(png)
    (folder / PAGE).write_bytes(content)
    return folder / PAGE


def _draw(report: Report, scratch: pathlib.Path) -> Iterator[pathlib.Path]:
    for number, comparison in enumerate(report.comparisons):
        yield from _draw_comparison(comparison, scratch, suffix(report, number))
    for run in report.runs:
        file = scratch / training_figure(report, run)
        file.write_bytes((run.folder / "training.png").read_bytes())
        yield file
    if len(report.runs) > 1:
        yield _draw_compared(report, scratch / "compared.png")


def _draw_comparison(comparison: Comparison, scratch: pathlib.Path, suffix: str) -> Iterator[pathlib.Path]:
    rows = [(_drawn(system), row) for system in comparison.systems if (row := system.row("all", "micro"))]
    if rows:
        plot_recalls(rows, file := scratch / f"recall{suffix}.png")
        yield file
    contents = [(_drawn(system), system.evaluation.content) for system in comparison.systems if system.evaluation]
    curves = [(drawn, content.nil) for drawn, content in contents if content.nil]
    if curves:
        plot_nil(curves, file := scratch / f"nil{suffix}.png")
        yield file
    bins = [(drawn, content.reliability) for drawn, content in contents if content.reliability]
    if bins:
        plot_reliability(bins, file := scratch / f"reliability{suffix}.png")
        yield file


def _drawn(system: System) -> Drawn:
    return Drawn(system.name, system.colour, system.is_baseline)


def _draw_compared(report: Report, file: pathlib.Path) -> pathlib.Path:
    """The runs in the colours that they have in the other figures."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({"axes.prop_cycle": cycler(color=[run.colour for run in report.runs])}):
        labels = [Drawn(run.name, run.colour).label for run in report.runs]
        plot_compared(dict(zip(labels, (run.folder for run in report.runs), strict=True)), file)
    return file
