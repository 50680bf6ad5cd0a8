"""Figures of training runs, from their metrics."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from pel_ray.metrics_file import NO_SHARE, MetricsFile
from pel_ray.storage import Location, Where, locate

SMOOTHED = 9
"""Lines that a curve is the mean of; the lines themselves are drawn behind it, pale."""
BEST_BY = ("recall@1", "blended", "accuracy")
"""What validation chooses the best epoch by: of retrievers, of rankers with the retriever's score and without."""


def write_events(run: Location, after_epoch: int) -> None:
    """TensorBoard events of the lines after an epoch; those of an earlier try of the same steps are purged."""
    from tensorboardX import SummaryWriter

    metrics = MetricsFile.of_run(run)
    every = metrics.training + metrics.validation
    lines = [line for line in every if line["epoch"] > after_epoch or line["epoch"] == after_epoch == 0]
    purged = min((line["step"] for line in lines), default=0)
    with tempfile.TemporaryDirectory() as scratch:
        # Files are called by the second, and two epochs may end within one.
        with SummaryWriter(scratch, purge_step=purged, filename_suffix=f".epoch-{after_epoch + 1:03d}") as writer:
            for line in lines:
                for name, value in (line | line.get("validation", {})).items():
                    if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                        side = "validation" if "validation" in line else "train"
                        writer.add_scalar(f"{side}/{name}", value, line["step"])
        for name in locate(scratch).names():
            (run / "tensorboard" / name).copy_from(locate(scratch) / name)


def plot_run(run: Location) -> None:
    """Loss, learning rate, gradient norm and validation of a run as training.png."""
    figure, axes = new_figure(2, 2)
    metrics = MetricsFile.of_run(run)
    training, validation = metrics.training, metrics.validation
    for axis, (name, title) in zip(
        (axes[0][0], axes[0][1], axes[1][0]),
        (("loss", "loss"), ("lr", "learning rate"), ("gradient_norm", "gradient norm, before clipping")),
        strict=True,
    ):
        _curve(axis, training, name, None)
        axis.set_title(title)
    axis = axes[1][1]
    watched = [name for name in validation[0]["validation"] if name != NO_SHARE] if validation else []
    for name in watched:
        axis.plot(
            [line["epoch"] for line in validation], [line["validation"][name] for line in validation], "o-", label=name
        )
    axis.set(title="validation", ylim=(0, 1))
    axis.legend(loc="lower right")
    save_figure(figure, run / "training.png")


def plot_compared(runs: Mapping[str, Location], file: Where) -> None:
    """Loss, gradient norm (the paper's figure of CE and Pb) and validation of several runs in one figure."""
    figure, ((left, middle, right),) = new_figure(1, 3)
    watched: dict[str, None] = {}
    for name, run in runs.items():
        metrics = MetricsFile.of_run(run)
        training, validation = metrics.training, metrics.validation
        _curve(left, training, "loss", name)
        _curve(middle, training, "gradient_norm", name)
        # What the best epoch is chosen by: of a ranker, the share of golds that it puts first.
        metric = next(metric for metric in BEST_BY if metric in validation[0]["validation"])
        watched[metric] = None
        values = [line["validation"][metric] for line in validation]
        right.plot([line["epoch"] for line in validation], values, "o-", label=name)
    left.set(title="loss", yscale="log")
    middle.set(title="gradient norm, before clipping", yscale="log")
    right.set(title=f"validation {' and '.join(watched)}")
    for axis in (left, middle, right):
        axis.legend()
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
    width = max(min(SMOOTHED, len(values)), 1)
    smooth = [sum(values[start : start + width]) / width for start in range(len(values) - width + 1)]
    axis.plot(epochs[width // 2 :][: len(smooth)], smooth, color=pale.get_color(), label=label)


def save_figure(figure: Any, file: Where, dpi: int = 110) -> None:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    locate(file).write_bytes(content.getvalue())
