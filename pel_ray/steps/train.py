"""train: rounds of mining, an epoch of training and validation, until the best model stands in its folder."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from pel_ray import console
from pel_ray.artifacts import Input, Request, Work, building, finished, read_manifest
from pel_ray.encoder import SETTINGS_FILE, ModelSettings, Precision, load_model, load_parts, save_whole
from pel_ray.epoch_trainer import EpochTrainer, TrainJob
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.golds import GoldMentions, gold_mentions
from pel_ray.names import namesakes_of
from pel_ray.negative_folder import NegativeFolder
from pel_ray.objective import ObjectiveSettings
from pel_ray.optimiser import OptimiserSettings
from pel_ray.plots import plot_run, read_metrics, write_events
from pel_ray.runtime import Ask, Resources, Workers
from pel_ray.search import PoolFilter
from pel_ray.spec import Settings
from pel_ray.steps.data_parallel import train_on_many
from pel_ray.steps.encode_kb import EncodePlan, EncodeSettings, encode_kb
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.searching import DataSet, pool_filter
from pel_ray.steps.sharded import at_work, finish_shards
from pel_ray.steps.train_progress import following
from pel_ray.steps.validate import validate
from pel_ray.storage import join, locate
from pel_ray.training_data import NegativeSettings
from pel_ray.training_source import TrainingSource
from pel_ray.vectors import Shard, VectorFolder

METRICS = "metrics.jsonl"
EXTRA_HARD = 2
"""Mined for each hard negative asked for, so that epochs draw different ones."""


class ValidationSettings(Settings):
    """How training is watched."""

    validation_split: str = "validation"
    """Whose mentions choose the best epoch."""
    validation_mentions: int | None = Field(default=None, ge=1)
    """At most so many of them, always the same."""
    validate_every: int = Field(default=1, ge=1)
    """Epochs from one validation to the next; the last epoch always has one."""


class TrainSettings(Settings):
    """How a retriever is trained; the defaults are the paper's."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    out: Path
    """Folder for the run; its model/ is what you want."""
    model: ModelSettings = ModelSettings()
    """Where it starts."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """What it makes smaller."""
    negatives: NegativeSettings = NegativeSettings()
    """What it is trained against."""
    optimiser: OptimiserSettings = OptimiserSettings()
    """How it learns."""
    validation: ValidationSettings = ValidationSettings()
    """How it is watched."""
    vectors: Path | None = None
    """Vectors of the KB by the pel-ray model folder it starts with: the first round then need not encode it."""
    split: str = "train"
    """Whose mentions it learns from."""
    max_outside: float = Field(default=0.5, ge=0, le=1)
    """Share of mentions whose golds the KB may lack; they are left out, and more of them refused."""
    precision: Precision = "auto"
    """Of the computation; auto: bf16 or fp16 where the hardware has it, else fp32."""
    checkpoint_steps: int = Field(default=500, ge=1)
    """Steps from one checkpoint to the next; each epoch ends with one too."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept."""
    log_steps: int = Field(default=10, ge=1)
    """Steps that a line of metrics.jsonl is the mean of."""
    seed: int = Field(default=13, ge=0)
    """Decides the order of mentions, the negatives and the dropout."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace a run of other data or settings."""

    @model_validator(mode="before")
    @classmethod
    def _dot_for_ce(cls, given: Any) -> Any:
        """The paper scores with the dot product when it trains with CE; who says otherwise gets that."""
        if isinstance(given, dict) and _at(given, "objective", "loss", "kind") == "ce":
            model = given.get("model", {})
            is_saved = isinstance(model, dict) and (pathlib.Path(model.get("encoder", "")) / SETTINGS_FILE).is_file()
            if isinstance(model, dict) and "similarity" not in model and not is_saved:
                return given | {"model": model | {"similarity": "dot"}}
        return given


def _at(given: Any, *path: str) -> Any:
    for name in path:
        given = given.get(name) if isinstance(given, dict) else getattr(given, name, None)
    return given


def train(settings: TrainSettings) -> Outcome:
    """Trains what is not trained yet and finishes the folder."""
    plan = TrainPlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    mentions = plan.mentions()
    namesakes = plan.namesakes(mentions)
    pools = pool_filter(settings.negatives.pool, plan.data.kb, mentions)
    plan.check_enough(mentions, namesakes, pools)
    with at_work(settings.resources) as (carrier, ask):
        plan.check_workers(ask)
        with building(plan.out, plan.request, resumable=True) as work:
            _forget_other_runs(plan, work)
            rounds = Rounds(plan, mentions, work, carrier, ask)
            rounds.run(namesakes, pools)
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)


class TrainPlan:
    """What is to be trained, checked before anything starts."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        self.data = DataSet.open(locate(settings.data))
        self.out = locate(settings.out)
        if not self.out.is_local:
            raise SettingsError(f"{settings.out}: a run appends to its files. Expected a local or mounted folder")
        self.parts = load_parts(settings.model)
        splits = self.data.mentions.manifest.counts["splits"]
        for split in (settings.split, settings.validation.validation_split):
            if split not in splits:
                raise ArtifactError(
                    f"{self.data.mentions.folder} has no split {split!r}, only {', '.join(splits)}. "
                    "Name others with --split and --validation-split"
                )
        names = "data out vectors overwrite resources checkpoint_steps keep_checkpoints log_steps model"
        # The chunk changes no result but the dropout, and lowering it is what helps when memory runs out.
        free: dict[str, Any] = dict.fromkeys(names.split(), True) | {"objective": {"chunk_tokens"}}
        self.request = Request(
            kind="run",
            inputs={
                "kb": self.data.kb.as_input,
                "mentions": self.data.mentions.as_input,
                "mention model": Input(path=str(self.parts.folder), digest=self.parts.digest("mention")),
                "entity model": Input(path=str(self.parts.folder), digest=self.parts.digest("entity")),
            },
            settings=settings.model_dump(mode="json", exclude=free)
            | {"model": self.parts.settings.model_dump(mode="json", exclude={"encoder"})},
        )
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)

    def mentions(self) -> GoldMentions:
        """Those of the split that have a gold in the KB."""
        found = gold_mentions(self.data.mentions, self.data.kb, self.settings.split)
        num_golden = len(found) - found.num_nil
        if num_golden and found.num_outside / num_golden > self.settings.max_outside:
            raise ArtifactError(
                f"{self.data.mentions.folder}: the KB lacks the golds of {found.num_outside:,} of {num_golden:,} "
                f"training mentions ({found.num_outside / num_golden:.0%}). Is it the right KB? Else raise "
                "--max-outside"
            )
        some = found.only(number for number, golds in enumerate(found.golds) if golds)
        if not len(some):
            raise ArtifactError(f"{self.data.mentions.folder} has no training mention with a gold in the KB")
        return some

    def namesakes(self, mentions: GoldMentions) -> list[np.ndarray]:
        """For each mention the entities that share a name with a gold, which are no negatives of it."""
        if self.settings.negatives.keep_namesakes:
            return [np.zeros(0, np.int64)] * len(mentions)
        return namesakes_of(self.data.kb, mentions.golds)

    def check_enough(self, mentions: GoldMentions, namesakes: list[np.ndarray], pools: PoolFilter | None) -> None:
        """Refuses now what would stop in the middle of an epoch: a mention with too few entities to draw from."""
        wanted, num_entities = self.settings.negatives.num_negatives, self.data.kb.num_rows
        sizes = None if pools is None else np.bincount(pools.of_entity)
        for number, golds in enumerate(mentions.golds):
            excluded = np.union1d(golds, namesakes[number])
            if pools is not None and sizes is not None:
                pool = pools.of_query[number]
                num_left = sizes[pool] - (pools.of_entity[excluded] == pool).sum()
            else:
                num_left = num_entities - len(excluded)
            if num_left < wanted:
                raise SettingsError(
                    f"mention {mentions.ids[number]} has only {num_left:,} entities to draw negatives from, "
                    f"num_negatives is {wanted:,}. Lower --num-negatives, or use --pool all"
                )

    def check_workers(self, ask: Ask) -> None:
        optimiser = self.settings.optimiser
        num_parts = -(-optimiser.batch_size // optimiser.micro_batch)
        if ask.workers > num_parts:
            raise SettingsError(
                f"{ask.workers} workers share the micro-batches of a step, but batch_size {optimiser.batch_size} has "
                f"only {num_parts} of {optimiser.micro_batch} mentions. Lower --micro-batch to "
                f"{max(optimiser.batch_size // ask.workers, 1)}, or ask for fewer workers"
            )


class Rounds:
    """Mine, train an epoch, validate; every part is a folder of its own that a rerun finds finished."""

    def __init__(self, plan: TrainPlan, mentions: GoldMentions, work: Work, carrier: Workers, ask: Ask) -> None:
        self._plan, self._mentions, self._work, self._carrier, self._ask = plan, mentions, work, carrier, ask
        self._settings = plan.settings
        self._state = work.folder / f"state-{work.tag}"
        self._state.make_folder()
        self._tokens = work.folder / "tokens"
        self._metrics = pathlib.Path(work.folder.path) / METRICS
        self._negatives: NegativeFolder | None = None
        self.recalls: dict[int, dict[str, Any]] = {}
        self._receipts: list[dict[str, Any]] = []
        self._round_seconds: list[float] = []

    def run(self, namesakes: list[np.ndarray], pools: PoolFilter | None) -> None:
        settings = self._settings
        job = self._job(self._prepare(namesakes, pools))
        self._validate(job, 0)
        for epoch in range(settings.optimiser.epochs):
            began = time.monotonic()
            if settings.negatives.num_hard and epoch % settings.negatives.mine_every == 0:
                self._mine(job, epoch)
            receipt = self._train(job, epoch)
            is_last = epoch + 1 == settings.optimiser.epochs
            if is_last or (epoch + 1) % settings.validation.validate_every == 0:
                self._validate(job, epoch + 1)
            self._say(epoch, receipt, time.monotonic() - began)
            write_events(self._metrics, self._metrics.parent / "tensorboard", epoch)
        self._finish(job)

    def _prepare(self, namesakes: list[np.ndarray], pools: PoolFilter | None) -> TrainingSource:
        """The untrained model as a folder, the KB's word pieces, and the arrays that workers map."""
        plan, settings = self._plan, self._settings
        model = pathlib.Path(self._state.path) / f"model-000-{self._work.tag}"
        if not model.exists():
            save_whole(load_model(settings.model), model)
        self._encode(0)
        token_request = EncodePlan(self._encode_settings(0)).token_request
        names = sorted(name for name in self._tokens.names() if token_request.fingerprint[:8] in name)
        source = TrainingSource(
            folder=self._state,
            tag=self._work.tag,
            num_entities=plan.data.kb.num_rows,
            token_files=[self._tokens / name for name in names if name.endswith(".arrow")],
        )
        texts = load_parts(ModelSettings(encoder=str(model))).texts
        pool_of = (pools.of_entity, pools.of_query) if pools else (None, None)
        source.prepare(plan.data.mentions, self._mentions, namesakes, texts, *pool_of)
        return source

    def _job(self, source: TrainingSource) -> TrainJob:
        settings = self._settings
        return TrainJob(
            folder=self._state,
            tag=self._work.tag,
            threads=self._ask.cpus,
            source=source,
            model=ModelSettings(encoder=self._model(0)),
            objective=settings.objective,
            negatives=settings.negatives,
            optimiser=settings.optimiser,
            precision=settings.precision,
            checkpoint_steps=settings.checkpoint_steps,
            keep_checkpoints=settings.keep_checkpoints,
            log_steps=settings.log_steps,
            seed=settings.seed,
            metrics=self._metrics,
        )

    def _model(self, epoch: int) -> str:
        return str(pathlib.Path(self._state.path) / f"model-{epoch:03d}-{self._work.tag}")

    def _encode_settings(self, epoch: int, only: str | None = None) -> EncodeSettings:
        kind = "pool" if only else "vectors"
        return EncodeSettings(
            kb=join(self._settings.data, "kb"),
            out=str((self._state / f"{kind}-{epoch:03d}").path),
            tokens=str(self._tokens.path),
            model=ModelSettings(encoder=self._model(epoch)),
            only=only,
            reuse=self._settings.vectors if epoch == 0 else None,
            resources=self._settings.resources,
        )

    def _encode(self, epoch: int, only: str | None = None) -> VectorFolder:
        """Vectors of the model after so many epochs; a frozen entity tower gives the same after any."""
        if self._settings.negatives.refresh == "frozen":
            epoch = 0
        outcome = encode_kb(self._encode_settings(epoch, only), self._carrier)
        return VectorFolder.open(outcome.folder)

    def _mine(self, job: TrainJob, epoch: int) -> None:
        settings = self._settings.negatives
        is_full = epoch % (settings.mine_every * settings.full_every) == 0 or settings.refresh != "pool"
        whole = self._state / f"vectors-{epoch:03d}"
        if is_full or self._negatives is None or (whole / "manifest.json").is_file():
            vectors = self._encode(epoch)
        else:
            vectors = self._encode(epoch, only=self._negatives.folder.path)
        outcome = mine(
            MineSettings.model_validate(
                {
                    "data": self._settings.data,
                    "vectors": vectors.folder.path,
                    "out": (self._state / f"negatives-{epoch:03d}").path,
                    "encoder": self._model(epoch),
                    "split": self._settings.split,
                    "num_negatives": min(settings.num_hard * EXTRA_HARD, self._plan.data.kb.num_rows - 1),
                    "pool": settings.pool,
                    "filter": {"keep_namesakes": settings.keep_namesakes},
                    "resources": self._settings.resources,
                }
            ),
            self._carrier,
        )
        self._negatives = NegativeFolder.open(outcome.folder)

    def _train(self, job: TrainJob, epoch: int) -> dict[str, Any]:
        job = replace(job, source=replace(job.source, negatives=self._negatives))
        shard = Shard(epoch, epoch, epoch + 1)
        num_steps = -(-len(self._mentions) // self._settings.optimiser.batch_size)
        with following(self._metrics, epoch, num_steps, self._settings.optimiser.epochs):
            if self._ask.workers > 1 or not self._ask.is_local:
                self._carrier.stop()
                receipt = train_on_many(job, shard, self._ask)
            else:
                (receipt,) = finish_shards(self._carrier, EpochTrainer, job, [shard], lambda *_: None)
        self._receipts.append(receipt)
        return receipt

    def _validate(self, job: TrainJob, epoch: int) -> None:
        watched = self._settings.validation
        outcome = validate(
            self._plan.data,
            self._encode(epoch),
            self._model(epoch),
            self._state / f"validation-{epoch:03d}",
            split=watched.validation_split,
            num_mentions=watched.validation_mentions,
            pool=self._settings.negatives.pool,
            within=self._carrier,
        )
        counts = outcome.manifest.counts
        self.recalls[epoch] = {name: value for name, value in counts.items() if name.startswith("recall@")}
        if epoch not in {line["epoch"] for line in read_metrics(self._metrics)[1]}:
            num_steps = -(-len(self._mentions) // self._settings.optimiser.batch_size)
            with open(self._metrics, "a") as file:
                line = {"step": epoch * num_steps, "epoch": epoch, "validation": self.recalls[epoch]}
                file.write(json.dumps(line) + "\n")
        shown = ", ".join(f"{name} {value:.3f}" for name, value in self.recalls[epoch].items())
        when = f"after epoch {epoch}" if epoch else "before training"
        console.say(f"validation {when}: {shown} ({counts['rows']:,} mentions, {counts['pool']})")

    def _say(self, epoch: int, receipt: dict[str, Any], seconds: float) -> None:
        self._round_seconds.append(round(seconds, 1))
        lines = [line for line in read_metrics(self._metrics)[0] if epoch < line["epoch"] <= epoch + 1]
        loss = sum(line["loss"] for line in lines) / len(lines)
        console.say(
            f"epoch {epoch + 1} of {self._settings.optimiser.epochs}: loss {loss:.4f}, {receipt['steps']:,} "
            f"steps in {receipt['seconds']:.0f} s; the round {seconds:.0f} s, of which starting to train took "
            f"{receipt['start_seconds']:.1f} s"
        )

    def _finish(self, job: TrainJob) -> None:
        best = max(self.recalls, key=lambda epoch: (self.recalls[epoch]["recall@1"], -epoch))
        folder = pathlib.Path(self._work.folder.path)
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.copytree(self._model(best), folder / "model")
        for file in sorted((folder / "model").rglob("*")):
            if file.is_file():
                self._work.count(file.relative_to(folder).as_posix())
        plot_run(folder / METRICS, folder)
        for name in (METRICS, "training.png"):
            self._work.count(name)
        num_missing = int(sum(line["missing_hard"] for line in read_metrics(self._metrics)[0]))
        self._work.counts |= {
            "rows": len(self._mentions),
            "mentions left out: NIL": self._mentions.num_nil,
            "mentions left out: gold not in the KB": self._mentions.num_outside,
            "best epoch": best,
            "validation before training": self.recalls[0],
            "validation of the best epoch": self.recalls[best],
            "steps": sum(receipt["steps"] for receipt in self._receipts),
            "training seconds": round(sum(receipt["seconds"] for receipt in self._receipts), 1),
            "round seconds": self._round_seconds,
            "hard negatives missing, filled with random ones": num_missing,
            "worker peak memory bytes": max(receipt["peak_memory_bytes"] for receipt in self._receipts),
            "workers": str(self._ask),
        }


def _forget_other_runs(plan: TrainPlan, work: Work) -> None:
    """With --overwrite: what a run of other settings has left, which only it could go on with."""
    folder = pathlib.Path(plan.out.path)
    for other in folder.glob("state-????????"):
        if other.name != f"state-{work.tag}":
            shutil.rmtree(other, ignore_errors=True)
            shutil.rmtree(folder / "tokens", ignore_errors=True)
            (folder / METRICS).unlink(missing_ok=True)
