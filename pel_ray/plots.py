"""Figures of training runs, from their metrics."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

SMOOTHED = 9
"""Lines that a curve is the mean of; the lines themselves are drawn behind it, pale."""


def read_metrics(file: pathlib.Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of training, and lines of validation."""
    if not file.exists():
        return [], []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "loss" in line], [line for line in lines if "validation" in line]


def write_events(metrics: pathlib.Path, folder: pathlib.Path, after_epoch: float) -> None:
    """TensorBoard events of the lines after an epoch; those of an earlier try of the same steps are purged."""
    from tensorboardX import SummaryWriter

    training, validation = read_metrics(metrics)
    lines = [line for line in training + validation if line["epoch"] > after_epoch or line["epoch"] == after_epoch == 0]
    with SummaryWriter(str(folder), purge_step=min((line["step"] for line in lines), default=0)) as writer:
        for line in lines:
            for name, value in (line | line.get("validation", {})).items():
                if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                    side = "validation" if "validation" in line else "train"
                    writer.add_scalar(f"{side}/{name}", value, line["step"])


def plot_run(metrics: pathlib.Path, folder: pathlib.Path) -> None:
    """Loss, learning rate, gradient norm and validation recall of a run as training.png."""
    figure, axes = new_figure(2, 2)
    training, validation = read_metrics(metrics)
    for axis, (name, title) in zip(
        (axes[0][0], axes[0][1], axes[1][0]),
        (("loss", "loss"), ("lr", "learning rate"), ("gradient_norm", "gradient norm, before clipping")),
        strict=True,
    ):
        _curve(axis, training, name, None)
        axis.set_title(title)
    axis = axes[1][1]
    for name in validation[0]["validation"] if validation else ():
        axis.plot(
            [line["epoch"] for line in validation], [line["validation"][name] for line in validation], "o-", label=name
        )
    axis.set(title="validation recall", ylim=(0, 1))
    axis.legend(loc="lower right")
    save_figure(figure, folder / "training.png")


def plot_compared(runs: Mapping[str, pathlib.Path], file: pathlib.Path) -> None:
    """Gradient norm and validation recall@1 of several runs in one figure (the paper's figure of CE and Pb)."""
    figure, ((left, right),) = new_figure(1, 2)
    for name, metrics in runs.items():
        training, validation = read_metrics(metrics)
        _curve(left, training, "gradient_norm", name)
        recalls = [line["validation"]["recall@1"] for line in validation]
        right.plot([line["epoch"] for line in validation], recalls, "o-", label=name)
    left.set(title="gradient norm, before clipping", yscale="log")
    right.set(title="validation recall@1")
    left.legend()
    right.legend()
    save_figure(figure, file)


def new_figure(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure and its axes, which go by epochs unless told otherwise."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    return figure, axes


def _curve(axis: Any, lines: Sequence[Mapping[str, Any]], name: str, label: str | None) -> None:
    epochs, values = [line["epoch"] for line in lines], [line[name] for line in lines]
    (pale,) = axis.plot(epochs, values, alpha=0.3, linewidth=0.8)
    width = min(SMOOTHED, len(values))
    smooth = [sum(values[start : start + width]) / width for start in range(len(values) - width + 1)]
    axis.plot(epochs[width // 2 :][: len(smooth)], smooth, color=pale.get_color(), label=label)


def save_figure(figure: Any, file: pathlib.Path, dpi: int = 110) -> None:
    """Under a temporary name first, so that the file is never half a figure."""
    temporary = file.with_name(f".{file.name}.tmp.png")
    figure.savefig(temporary, dpi=dpi)
    temporary.rename(file)
