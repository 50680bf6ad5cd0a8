"""An epoch of a training, whatever is trained: on one worker or many, followed and told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from pel_ray import console
from pel_ray.artifacts import Work
from pel_ray.epoch_trainer import EpochTrainer
from pel_ray.errors import SettingsError
from pel_ray.metrics_file import METRICS, MetricsFile
from pel_ray.optimiser import OptimiserSettings
from pel_ray.plots import plot_run
from pel_ray.runtime import Ask, Workers
from pel_ray.steps.data_parallel import train_on_many
from pel_ray.steps.sharded import finish_shards
from pel_ray.steps.train_progress import following
from pel_ray.storage import Location
from pel_ray.training_learner import TrainJob
from pel_ray.vectors import Shard


class Trained(Protocol):
    """What the settings of every training say."""

    optimiser: Any
    precision: Any
    checkpoint_steps: int
    keep_checkpoints: int
    log_steps: int
    seed: int


def job_basics(settings: Trained, state: Location, tag: str, ask: Ask, metrics: MetricsFile) -> dict[str, Any]:
    """What every TrainJob is told, whatever it trains."""
    names = "optimiser precision checkpoint_steps keep_checkpoints log_steps seed".split()
    told = {name: getattr(settings, name) for name in names}
    return told | {"folder": state, "tag": tag, "threads": ask.cpus, "metrics": metrics}


def num_steps(num_mentions: int, settings: OptimiserSettings) -> int:
    """Of the optimiser in an epoch."""
    return -(-num_mentions // settings.batch_size)


def train_epoch(job: TrainJob, epoch: int, num_mentions: int, carrier: Workers, ask: Ask) -> dict[str, Any]:
    """The receipt of an epoch, which an earlier try may have finished."""
    shard = Shard(epoch, epoch, epoch + 1)
    with following(job.metrics, epoch, num_steps(num_mentions, job.optimiser), job.optimiser.epochs):
        if ask.workers > 1 or not ask.is_local:
            carrier.check_sees(job.folder)
            carrier.stop()
            return train_on_many(job, shard, ask)
        (receipt,) = finish_shards(carrier, EpochTrainer, job, [shard], lambda *_: None)
        return receipt


def note_validation(metrics: MetricsFile, epoch: int, step: int, found: Mapping[str, Any]) -> None:
    """A line of metrics.jsonl, once."""
    if epoch not in {line["epoch"] for line in metrics.validation}:
        metrics.append([{"step": step, "epoch": epoch, "validation": dict(found)}])


def say_epoch(metrics: MetricsFile, epoch: int, num_epochs: int, receipt: Mapping[str, Any], seconds: float) -> None:
    lines = [line for line in metrics.training if epoch < line["epoch"] <= epoch + 1]
    loss = sum(line["loss"] for line in lines) / len(lines)
    console.say(
        f"epoch {epoch + 1} of {num_epochs}: loss {loss:.4f}, {receipt['steps']:,} "
        f"steps in {receipt['seconds']:.0f} s; the round {seconds:.0f} s, of which starting to train took "
        f"{receipt['start_seconds']:.1f} s"
    )


def forget_other_runs(folder: Location, tag: str) -> None:
    """With --overwrite: what a run of other settings has left, which only it could go on with."""
    states = {name for name in folder.names() if re.fullmatch("state-[0-9a-f]{8}", name)}
    if f"state-{tag}" not in states:
        for name in ("tokens", "vectors"):
            (folder / name).delete_folder()
        (folder / METRICS).delete_file()
    for other in states - {f"state-{tag}"}:
        (folder / other).delete_folder()


def keep_model(work: Work, model: Location) -> None:
    """Copies the best epoch's model to model/ of the run, and counts its files."""
    kept = work.folder / "model"
    kept.delete_folder()
    for name in model.files():
        (kept / name).copy_from(model / name)
        work.count(f"model/{name}")


def draw_curves(work: Work) -> None:
    plot_run(work.folder)
    for name in (METRICS, "training.png"):
        work.count(name)


def check_workers(ask: Ask, settings: OptimiserSettings) -> None:
    """Refuses more workers than a step has micro-batches."""
    num_parts = -(-settings.batch_size // settings.micro_batch)
    if ask.workers > num_parts:
        raise SettingsError(
            f"{ask.workers} workers share the micro-batches of a step, but batch_size {settings.batch_size} has only "
            f"{num_parts} of {settings.micro_batch} mentions. Lower --micro-batch to "
            f"{max(settings.batch_size // ask.workers, 1)}, or ask for fewer workers"
        )
