"""Ray Train: an epoch on many workers, each of which holds the model and takes its share of every step."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import Any

from pel_ray.epoch_trainer import EpochTrainer
from pel_ray.errors import PelRayError, ResourceError, StorageError, TrainingError
from pel_ray.runtime import Ask
from pel_ray.training_learner import TrainJob
from pel_ray.vectors import Shard

MAX_RESTARTS = 3


def train_on_many(job: TrainJob, epoch: Shard, ask: Ask) -> dict[str, Any]:
    """The receipt of the epoch. When a worker dies, all of them go on from the last checkpoint."""
    import ray.train
    from ray.train.torch import TorchTrainer

    if job.is_done(epoch, job.names()):
        return dict(json.loads(job.receipt_file(epoch).read_bytes()))
    _error_file(job, epoch).delete_file()
    storage = job.folder / "ray-train"
    trainer = TorchTrainer(
        _train_as_one_of_many,
        train_loop_config={"job": job, "epoch": epoch},
        scaling_config=ray.train.ScalingConfig(
            num_workers=ask.workers, use_gpu=ask.gpus > 0, resources_per_worker=_each(ask)
        ),
        run_config=ray.train.RunConfig(
            name=f"{job.tag}-{epoch.number}-{uuid.uuid4().hex[:8]}",
            storage_path=storage.path,
            storage_filesystem=None if storage.is_local else storage.filesystem,
            failure_config=ray.train.FailureConfig(max_failures=MAX_RESTARTS),
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        if not _error_file(job, epoch).is_file():
            reason = " ".join(str(error).split())[-300:]
            raise ResourceError(
                f"epoch {epoch.number + 1} failed {MAX_RESTARTS + 1} times: {reason}. The last checkpoint is kept; run "
                "the same command again"
            ) from error
    finally:
        # Ray may still be writing to it.
        with suppress(StorageError):
            storage.delete_folder()
    if _error_file(job, epoch).is_file():
        raise TrainingError(json.loads(_error_file(job, epoch).read_bytes())["error"])
    return dict(json.loads(job.receipt_file(epoch).read_bytes()))


def _train_as_one_of_many(config: dict[str, Any]) -> None:
    import ray.train

    job, epoch = config["job"], config["epoch"]
    context = ray.train.get_context()
    rank = context.get_world_rank()
    if rank == 0:
        # Of an attempt before this one, which may have been mended by trying again.
        _error_file(job, epoch).delete_file()
    try:
        trainer = EpochTrainer(job, rank, context.get_world_size())
        trainer.start()
        receipt = trainer.do(epoch)
    except PelRayError as error:
        _error_file(job, epoch).write_bytes(json.dumps({"error": str(error)}).encode())
        if isinstance(error, TrainingError):
            # All workers see the same loss and stop here together; trying again would end the same way.
            return
        raise
    if rank == 0:
        job.receipt_file(epoch).write_bytes(json.dumps(receipt).encode())


def _each(ask: Ask) -> dict[str, float]:
    return {"CPU": ask.cpus, "GPU": ask.gpus} if ask.gpus else {"CPU": ask.cpus}


def _error_file(job: TrainJob, epoch: Shard) -> Any:
    return job.folder / f"error-{job.phase}{epoch.stem}-{job.tag}.json"
