"""Figures of evaluations: recall at k, precision against recall of NIL, and how far scores can be trusted."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pel_ray.evaluation_file import Bin, Nil, Row
from pel_ray.plots import new_figure, save_figure

DPI = 200
"""Sharp on screens with small pixels."""
LARGEST_DOT = 260


@dataclass(frozen=True)
class Drawn:
    """What a curve is called and looks like, in all figures of a report."""

    name: str
    colour: str
    is_baseline: bool = False

    @property
    def label(self) -> str:
        """As matplotlib takes it literally: `$` starts a formula there, and a leading `_` hides a curve."""
        name = self.name.replace("$", r"\$")
        return f" {name}" if name.startswith("_") else name


def plot_recalls(systems: Sequence[tuple[Drawn, Row]], file: pathlib.Path) -> None:
    """Recall@k of all systems, with their 95% intervals as bands."""
    figure, ((axis,),) = new_figure(1, 1)
    ks: set[int] = set()
    for drawn, row in systems:
        points = list(recalls(row))
        ks |= {k for k, *_ in points}
        line = "--" if drawn.is_baseline else "-"
        numbers, values, lows, highs = zip(*points, strict=True) if points else ((), (), (), ())
        axis.plot(numbers, values, f"o{line}", color=drawn.colour, label=drawn.label, markersize=4)
        axis.fill_between(numbers, lows, highs, color=drawn.colour, alpha=0.13, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(ks), [str(k) for k in sorted(ks)])
    axis.minorticks_off()
    axis.set(title="recall@k", xlabel="k")
    _finish(figure, axis, file)


def recalls(row: Row) -> Iterator[tuple[int, float, float, float]]:
    """k, recall@k and its interval, by k."""
    for name in sorted(row.figures, key=_k):
        figure = row.figures[name]
        if _k(name) and figure.value is not None:
            low = figure.value if figure.low is None else figure.low
            yield _k(name), figure.value, low, figure.value if figure.high is None else figure.high


def _k(name: str) -> int:
    number = name.removeprefix("recall@")
    return int(number) if number != name and number.isdigit() else 0


def plot_nil(curves: Sequence[tuple[Drawn, Nil]], file: pathlib.Path) -> None:
    """Precision against recall of NIL; a dot where the stored threshold lies, dots along chance."""
    figure, ((axis,),) = new_figure(1, 1)
    for drawn, nil in curves:
        axis.plot(nil.curve.recall, nil.curve.precision, color=drawn.colour, label=drawn.label)
        if nil.threshold:
            axis.plot([nil.threshold.recall], [nil.threshold.precision], "o", color=drawn.colour)
        if nil.mentions:
            axis.axhline(nil.nil_mentions / nil.mentions, color="#8b93a0", linestyle=":", linewidth=1)
    axis.set(title="NIL: precision against recall", xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    _finish(figure, axis, file)


def plot_reliability(curves: Sequence[tuple[Drawn, Sequence[Bin]]], file: pathlib.Path) -> None:
    """Score of the best entity against how often it is right; a dot is as large as its share of the mentions."""
    figure, ((axis,),) = new_figure(1, 1)
    most = max((bin.mentions for _, bins in curves for bin in bins), default=1) or 1
    for drawn, bins in curves:
        full = [bin for bin in bins if bin.score is not None and bin.correct is not None and bin.mentions]
        scores, shares = [bin.score for bin in full], [bin.correct for bin in full]
        axis.plot(scores, shares, color=drawn.colour, alpha=0.6, linewidth=1.2, label=drawn.label)
        sizes = [max(LARGEST_DOT * bin.mentions / most, 6) for bin in full]
        axis.scatter(scores, shares, s=sizes, color=drawn.colour, alpha=0.55, linewidth=0)
    axis.set(title="right at a score", xlabel="score of the best entity", ylabel="share that is right", ylim=(0, 1.04))
    _finish(figure, axis, file)


def _finish(figure: Any, axis: Any, file: pathlib.Path) -> None:
    """With the names below, where they cover no curve."""
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    save_figure(figure, file, DPI)
