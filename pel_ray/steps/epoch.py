"""The loop of a training, whatever is trained: epochs on one worker or many, each followed, validated and told."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from pel_ray import console
from pel_ray.artifacts import Work
from pel_ray.epoch_trainer import EpochTrainer
from pel_ray.errors import SettingsError
from pel_ray.metrics_file import METRICS, NO_SHARE, MetricsFile
from pel_ray.optimiser import OptimiserSettings
from pel_ray.plots import BEST_BY, plot_run, write_events
from pel_ray.runtime import Ask, Workers
from pel_ray.steps.data_parallel import train_on_many
from pel_ray.steps.rank_plan import RankPlan
from pel_ray.steps.sharded import finish_shards
from pel_ray.steps.train_plan import LoopSettings, TrainPlan
from pel_ray.steps.train_progress import following
from pel_ray.storage import Location
from pel_ray.training_learner import TrainJob
from pel_ray.vectors import Shard


def num_steps(num_mentions: int, settings: OptimiserSettings) -> int:
    """Of the optimiser in an epoch."""
    return -(-num_mentions // settings.batch_size)


def forget_other_runs(folder: Location, tag: str) -> None:
    """With --overwrite: what a run of other settings has left, which only it could go on with."""
    states = {name for name in folder.names() if re.fullmatch("state-[0-9a-f]{8}", name)}
    if f"state-{tag}" not in states:
        for name in ("tokens", "vectors"):
            (folder / name).delete_folder()
        (folder / METRICS).delete_file()
    for other in states - {f"state-{tag}"}:
        (folder / other).delete_folder()


def check_workers(ask: Ask, settings: OptimiserSettings) -> None:
    """Refuses more workers than a step has micro-batches."""
    num_parts = -(-settings.batch_size // settings.micro_batch)
    if ask.workers > num_parts:
        raise SettingsError(
            f"{ask.workers} workers share the micro-batches of a step, but batch_size {settings.batch_size} has only "
            f"{num_parts} of {settings.micro_batch} mentions. Lower --micro-batch to "
            f"{max(settings.batch_size // ask.workers, 1)}, or ask for fewer workers"
        )


class TrainingLoop:
    """Epochs and validations, until the best model stands in its folder; a rerun finds every part that is finished."""

    def __init__(self, plan: TrainPlan | RankPlan, work: Work, carrier: Workers, ask: Ask) -> None:
        self._plan, self._work, self._carrier, self._ask = plan, work, carrier, ask
        self._settings = plan.settings
        self._state = work.folder / f"state-{work.tag}"
        self._state.make_folder()
        self._metrics = MetricsFile.of_run(work.folder)
        self._num_mentions = 0
        self._found: dict[int, dict[str, float]] = {}
        self._receipts: list[dict[str, Any]] = []
        self._round_seconds: list[float] = []

    def _job(self, epoch: int) -> TrainJob:
        """What trains an epoch, when all that comes before it is done."""
        raise NotImplementedError

    def _validation(self, epoch: int) -> tuple[dict[str, float], str]:
        """What validating the model after so many epochs finds, and on what."""
        raise NotImplementedError

    def _data_counts(self) -> dict[str, Any]:
        """What the manifest says of the data."""
        raise NotImplementedError

    def _basics(self) -> dict[str, Any]:
        """What every TrainJob is told, whatever it trains."""
        names = {"optimiser", *LoopSettings.model_fields} - {"resources", "overwrite"}
        told = {name: getattr(self._settings, name) for name in names}
        folder, tag = self._state, self._work.tag
        return told | {"folder": folder, "tag": tag, "threads": self._ask.cpus, "metrics": self._metrics}

    def _model(self, epoch: int) -> Location:
        return self._state / f"model-{epoch:03d}-{self._work.tag}"

    def _rounds(self, num_mentions: int) -> None:
        optimiser, every = self._settings.optimiser, self._settings.validation.validate_every
        self._num_mentions = num_mentions
        self._validate(0)
        for epoch in range(optimiser.epochs):
            began = time.monotonic()
            receipt = self._train(self._job(epoch), epoch)
            self._receipts.append(receipt)
            if epoch + 1 == optimiser.epochs or (epoch + 1) % every == 0:
                self._validate(epoch + 1)
            seconds = time.monotonic() - began
            self._round_seconds.append(round(seconds, 1))
            self._say(epoch, receipt, seconds)
            write_events(self._work.folder, epoch)
        self._finish()

    def _train(self, job: TrainJob, epoch: int) -> dict[str, Any]:
        """The receipt of an epoch, which an earlier try may have finished."""
        shard = Shard(epoch, epoch, epoch + 1)
        with following(job.metrics, epoch, num_steps(self._num_mentions, job.optimiser), job.optimiser.epochs):
            if self._ask.workers > 1 or not self._ask.is_local:
                self._carrier.check_sees(job.folder)
                self._carrier.stop()
                return train_on_many(job, shard, self._ask)
            (receipt,) = finish_shards(self._carrier, EpochTrainer, job, [shard], lambda *_: None)
            return receipt

    def _validate(self, epoch: int) -> None:
        found, watched = self._validation(epoch)
        self._found[epoch] = found
        if epoch not in {line["epoch"] for line in self._metrics.validation}:
            step = epoch * num_steps(self._num_mentions, self._settings.optimiser)
            self._metrics.append([{"step": step, "epoch": epoch, "validation": found}])
        when = f"after epoch {epoch}" if epoch else "before training"
        shown = ", ".join(f"{name} {value:{'.3g' if name == NO_SHARE else '.3f'}}" for name, value in found.items())
        console.say(f"validation {when}: {shown} ({watched})")

    def _say(self, epoch: int, receipt: Mapping[str, Any], seconds: float) -> None:
        losses = [line["loss"] for line in self._metrics.training if epoch < line["epoch"] <= epoch + 1]
        console.say(
            f"epoch {epoch + 1} of {self._settings.optimiser.epochs}: loss {sum(losses) / len(losses):.4f}, "
            f"{receipt['steps']:,} steps in {receipt['seconds']:.0f} s; the round {seconds:.0f} s, of which starting "
            f"to train took {receipt['start_seconds']:.1f} s"
        )

    @property
    def _best(self) -> int:
        """The epoch that validates best, of equal ones the first."""
        metric = next(metric for metric in BEST_BY if metric in self._found[0])
        return max(self._found, key=lambda epoch: (self._found[epoch][metric], -epoch))

    def _keep(self, best: int) -> None:
        """Copies the best epoch's model to model/ of the run, and counts its files."""
        model, kept = self._model(best), self._work.folder / "model"
        kept.delete_folder()
        for name in model.files():
            (kept / name).copy_from(model / name)
            self._work.count(f"model/{name}")

    def _finish(self) -> None:
        best = self._best
        self._keep(best)
        plot_run(self._work.folder)
        for name in (METRICS, "training.png"):
            self._work.count(name)
        self._work.counts |= {
            "rows": self._num_mentions,
            **self._data_counts(),
            "best epoch": best,
            "validation before training": self._found[0],
            "validation of the best epoch": self._found[best],
            "steps": sum(receipt["steps"] for receipt in self._receipts),
            "training seconds": round(sum(receipt["seconds"] for receipt in self._receipts), 1),
            **self._round_counts(),
            "worker peak memory bytes": max((receipt["peak_memory_bytes"] for receipt in self._receipts), default=0),
            "workers": str(self._ask),
        }

    def _round_counts(self) -> dict[str, Any]:
        """What the manifest says of the rounds, beside their training."""
        return {"round seconds": self._round_seconds}
