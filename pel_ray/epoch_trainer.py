"""The training loop: one epoch from wherever its last checkpoint left it, alone or as one of many workers.

What is trained comes from the job: the retriever and the ranker differ in their learner alone.

Everything random is a function of (seed, epoch, mention row) or (seed, epoch, step), so a checkpoint needs no random
state, and any number of workers takes the same steps. Workers share the micro-batches of a step among themselves, and
add their gradients up once a step. DistributedDataParallel would want every worker to have the same number of
micro-batches, which the last batch of an epoch need not have.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import distributed

from pel_ray.encoder import choose_dtype
from pel_ray.errors import ResourceError, TrainingError
from pel_ray.memory import peak_bytes
from pel_ray.optimiser import learning_rate, load_state, make_optimiser, save_state
from pel_ray.shard_work import ShardWorker
from pel_ray.training_learner import TrainJob
from pel_ray.vectors import Shard


@dataclass
class Sums:
    """Statistics of the steps since they were last reported."""

    values: dict[str, float] = field(default_factory=dict)
    num_steps: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, values: dict[str, float]) -> None:
        self.num_steps += 1
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        return {name: value / self.num_steps for name, value in self.values.items()}


class EpochTrainer(ShardWorker):
    """Loads what is trained and the last checkpoint once, then trains the epoch it is called with."""

    job: TrainJob

    def __init__(self, job: TrainJob, rank: int = 0, num_workers: int = 1) -> None:
        super().__init__(job)
        self._rank, self._num_workers = rank, num_workers

    def start(self) -> None:
        began = time.monotonic()
        job = self.job
        if job.threads:
            torch.set_num_threads(job.threads)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = choose_dtype(job.precision, self._device)
        self._learner = job.learner(self._device)
        self._module, self._data = self._learner.module, self._learner.data
        self._counts = ("texts", "pieces", self._learner.missing)
        self._optimiser = make_optimiser(self._module, job.optimiser)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._dtype == torch.float16)
        self._weights = [weight for weight in self._module.parameters() if weight.requires_grad]
        self._unwritten: list[dict[str, Any]] = []
        self._written_at = began
        self._start_seconds = time.monotonic() - began

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        epoch, job = shard.number, self.job
        num_steps = -(-len(self._data) // job.optimiser.batch_size)
        first = self._resume(epoch, num_steps)
        order = self._data.order(job.seed, epoch)
        recent = Sums()
        for step in range(first, num_steps):
            numbers = order[step * job.optimiser.batch_size : (step + 1) * job.optimiser.batch_size]
            values = self._step(epoch, step, num_steps, numbers)
            recent.add(values)
            is_saved = step + 1 == num_steps or (step + 1) % job.checkpoint_steps == 0
            if recent.num_steps == job.log_steps or is_saved:
                self._log(epoch, step, num_steps, recent, at_once=is_saved)
                recent = Sums()
            if is_saved:
                self._save(epoch, step + 1, num_steps)
        if self._rank == 0:
            self._learner.save(self.job.model_folder(epoch + 1))
        return {
            "epoch": epoch + 1,
            "steps": num_steps,
            "start_seconds": round(self._start_seconds, 2),
            "seconds": round(time.monotonic() - began, 2),
            "peak_memory_bytes": peak_bytes(),
        }

    def _step(self, epoch: int, step: int, num_steps: int, numbers: np.ndarray) -> dict[str, float]:
        """One step of the optimiser over the mentions `numbers`; returns its statistics over all workers."""
        job = self.job
        lr = learning_rate(job.optimiser, epoch * num_steps + step, job.optimiser.epochs * num_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        self._optimiser.zero_grad(set_to_none=True)
        values = self._backward(epoch, step, numbers)
        self._add_up(values)
        self._scaler.unscale_(self._optimiser)
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, job.optimiser.clip))
        self._check_finite(values, norm, epoch, step, numbers)
        self._scaler.step(self._optimiser)
        self._scaler.update()
        return values | {"gradient_norm": norm, "lr": lr}

    def _backward(self, epoch: int, step: int, numbers: np.ndarray) -> dict[str, float]:
        """Gradients and statistics of this worker's micro-batches."""
        job = self.job
        values: dict[str, float] = {}
        starts = range(0, len(numbers), job.optimiser.micro_batch)
        for number, start in list(enumerate(starts))[self._rank :: self._num_workers]:
            some = numbers[start : start + job.optimiser.micro_batch]
            share = len(some) / len(numbers)
            batch, num_missing = self._data.batch(some, epoch)
            seed = int(np.random.SeedSequence((job.seed, epoch, step, number)).generate_state(1)[0])
            with _out_of_memory(job), self._autocast():
                loss, statistics = self._module(batch, seed)
            with _out_of_memory(job):
                self._scaler.scale(loss * share).backward()
            found = {name: float(value) for name, value in statistics.items()}
            found |= {"loss": float(loss), self._learner.missing: float(num_missing)}
            for name, value in found.items():
                values[name] = values.get(name, 0.0) + (value if name in self._counts else value * share)
        return values

    def _autocast(self) -> Any:
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32)

    def _add_up(self, values: dict[str, float]) -> None:
        """Sums gradients and statistics over the workers, in one message each."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        if self._num_workers == 1:
            return
        names = [*self._learner.statistics, *self._counts]
        flat = torch.cat(
            [
                *(weight.grad.flatten() for weight in self._weights if weight.grad is not None),
                torch.tensor([values.get(name, 0.0) for name in names], device=self._device),
            ]
        )
        distributed.all_reduce(flat)
        place = 0
        for weight in self._weights:
            assert weight.grad is not None
            weight.grad.copy_(flat[place : place + weight.numel()].view_as(weight))
            place += weight.numel()
        values |= dict(zip(names, flat[place:].tolist(), strict=True))

    def _check_finite(self, values: dict[str, float], norm: float, epoch: int, step: int, numbers: np.ndarray) -> None:
        # With fp16 an overflow of the gradient is expected now and then: the scaler skips that step.
        if np.isfinite(values["loss"]) and (np.isfinite(norm) or self._scaler.is_enabled()):
            return
        rows = ", ".join(map(str, self._data.rows_M[numbers[:5]]))
        raise TrainingError(
            f"the loss is {values['loss']} at epoch {epoch + 1}, step {step + 1} (mention rows {rows}, ...), its "
            f"gradient {norm}. {self.job.when_not_finite} in a new --out; the last good checkpoint is kept in "
            f"{self.job.folder}"
        )

    def _resume(self, epoch: int, num_steps: int) -> int:
        """Takes the newest checkpoint; returns the step of the epoch to go on with."""
        num_done = 0
        checkpoints = self.job.checkpoints()
        if checkpoints:
            state = load_state(checkpoints[-1], self._module, self._optimiser)
            self._scaler.load_state_dict(state["scaler"])
            num_done = state["step"]
        if self._rank == 0:
            self.job.metrics.forget_after(num_done)
        return max(num_done - epoch * num_steps, 0)

    def _save(self, epoch: int, step: int, num_steps: int) -> None:
        if self._rank != 0:
            return
        number = epoch * num_steps + step
        state = {"step": number, "scaler": self._scaler.state_dict()}
        save_state(self.job.checkpoint(number), self._module, self._optimiser, state)
        for old in self.job.checkpoints()[: -self.job.keep_checkpoints]:
            old.delete_file()

    def _log(self, epoch: int, step: int, num_steps: int, recent: Sums, at_once: bool) -> None:
        if self._rank != 0:
            return
        seconds = time.monotonic() - recent.began
        line = {
            "step": epoch * num_steps + step + 1,
            "epoch": round(epoch + (step + 1) / num_steps, 4),
            **{name: round(value, 8) for name, value in recent.means().items()},
            self._learner.missing: int(recent.values[self._learner.missing]),
            "steps_per_second": round(recent.num_steps / seconds, 3),
            "pieces_per_second": round(recent.values["pieces"] / seconds, 1),
        }
        self._unwritten.append(line)
        is_time = time.monotonic() - self._written_at >= self.job.metrics.seconds_between
        # A checkpoint has all lines before it: none of them is written again by who goes on from there.
        if at_once or is_time:
            self.job.metrics.append(self._unwritten)
            self._unwritten, self._written_at = [], time.monotonic()


@contextmanager
def _out_of_memory(job: TrainJob) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not any(said in str(error).lower() for said in ("out of memory", "can't allocate", "not enough memory")):
            raise
        raise ResourceError(f"out of memory with {job.sizes}. {job.remedy}") from error
