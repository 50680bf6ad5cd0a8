"""The rounds of a training: mine, train an epoch, validate, until the best model stands in its folder."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from pel_ray.artifacts import MANIFEST, Work, read_manifest
from pel_ray.encoder import ModelSettings, is_saved_model, load_model, load_parts, save_whole
from pel_ray.golds import GoldMentions
from pel_ray.negative_folder import NegativeFolder
from pel_ray.runtime import Ask, Workers
from pel_ray.search import PoolFilter
from pel_ray.steps.encode_kb import EncodePlan, EncodeSettings, encode_kb
from pel_ray.steps.epoch import TrainingLoop
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.train_plan import TrainPlan, TrainSettings
from pel_ray.steps.validate import validate
from pel_ray.storage import Location, join, locate
from pel_ray.training_job import RetrieverJob
from pel_ray.training_source import TrainingSource
from pel_ray.vectors import VectorFolder

EXTRA_HARD = 2
"""Mined for each hard negative asked for where several epochs draw from one mining: they then draw different ones."""


class Rounds(TrainingLoop):
    """What is a retriever's own: the KB's vectors by each model, negatives mined with them, and recall."""

    _plan: TrainPlan
    _settings: TrainSettings

    def __init__(self, plan: TrainPlan, mentions: GoldMentions, work: Work, carrier: Workers, ask: Ask) -> None:
        super().__init__(plan, work, carrier, ask)
        self._mentions = mentions
        self._tokens = work.folder / "tokens"
        self._negatives: NegativeFolder | None = None
        self._encode_seconds = 0.0

    def run(self, namesakes: list[np.ndarray], pools: PoolFilter | None) -> None:
        self._source = self._prepare(namesakes, pools)
        self._rounds(len(self._mentions))

    def _prepare(self, namesakes: list[np.ndarray], pools: PoolFilter | None) -> TrainingSource:
        """The untrained model as a folder, the KB's word pieces, and the arrays that workers map."""
        plan, settings = self._plan, self._settings
        model = self._model(0)
        if not is_saved_model(model):
            save_whole(load_model(settings.model), model)
        encode_plan = EncodePlan(self._encode_settings(0))
        if encode_plan.tokens_done is None:
            self._encode(0)
        token_request = encode_plan.token_request
        names = sorted(name for name in self._tokens.names() if token_request.fingerprint[:8] in name)
        source = TrainingSource(
            folder=self._state,
            tag=self._work.tag,
            num_entities=plan.data.kb.num_rows,
            token_files=[self._tokens / name for name in names if name.endswith(".arrow")],
        )
        texts = load_parts(ModelSettings(encoder=model.uri)).texts
        pool_of = (pools.of_entity, pools.of_query) if pools else (None, None)
        source.prepare(plan.data.mentions, self._mentions, namesakes, texts, *pool_of)
        return source

    def _job(self, epoch: int) -> RetrieverJob:
        settings, negatives = self._settings, self._settings.negatives
        if negatives.num_hard and epoch % negatives.mine_every == 0:
            self._mine(epoch)
        return RetrieverJob(
            source=replace(self._source, negatives=self._negatives),
            model=ModelSettings(encoder=self._model(0).uri),
            objective=settings.objective,
            negatives=negatives,
            **self._basics(),
        )

    def _encode_settings(self, epoch: int, only: str | None = None) -> EncodeSettings:
        kind = "pool" if only else "vectors"
        return EncodeSettings(
            kb=join(self._settings.data, "kb"),
            out=(self._state / f"{kind}-{epoch:03d}").uri,
            tokens=self._tokens.uri,
            model=ModelSettings(encoder=self._model(epoch).uri),
            only=only,
            reuse=self._settings.vectors if epoch == 0 else None,
            resources=self._settings.resources,
        )

    def _encode(self, epoch: int, only: str | None = None) -> VectorFolder:
        """Vectors of the model after so many epochs; a frozen entity tower gives the same after any."""
        if self._settings.negatives.refresh == "frozen":
            epoch = 0
        outcome = encode_kb(self._encode_settings(epoch, only), self._carrier)
        self._encode_seconds += outcome.manifest.seconds if outcome.is_new else 0
        return VectorFolder.open(outcome.folder)

    def _mine(self, epoch: int) -> None:
        out = self._state / f"negatives-{epoch:03d}"
        if not _is_finished(out):
            self._mine_now(epoch, out)
        self._negatives = NegativeFolder.open(out)

    def _mine_now(self, epoch: int, out: Location) -> None:
        settings = self._settings.negatives
        is_full = epoch % (settings.mine_every * settings.full_every) == 0 or settings.refresh != "pool"
        # What is validated has whole vectors anyway.
        is_validated = epoch == 0 or epoch % self._settings.validation.validate_every == 0
        if is_full or self._negatives is None or is_validated:
            vectors = self._encode(epoch)
        else:
            vectors = self._encode(epoch, only=self._negatives.folder.uri)
        mine(
            MineSettings.model_validate(
                {
                    "data": self._settings.data,
                    "vectors": vectors.folder.uri,
                    "out": out.uri,
                    "encoder": self._model(epoch).uri,
                    "split": self._settings.split,
                    "max_mentions": self._settings.max_mentions,
                    "num_negatives": min(
                        settings.num_hard * min(settings.mine_every, EXTRA_HARD), self._plan.data.kb.num_rows - 1
                    ),
                    "pool": settings.pool,
                    "filter": {"keep_namesakes": settings.keep_namesakes},
                    "resources": self._settings.resources,
                }
            ),
            self._carrier,
        )
        (self._state / f"pool-{epoch:03d}").delete_folder()

    def _validate(self, epoch: int) -> None:
        is_new = not _is_finished(self._state / f"validation-{epoch:03d}")
        super()._validate(epoch)
        if is_new:
            # A rerun that only reads what it validated before may be in the middle of a later epoch.
            self._drop_vectors(keep={epoch, self._best})

    def _validation(self, epoch: int) -> tuple[dict[str, float], str]:
        watched, out = self._settings.validation, self._state / f"validation-{epoch:03d}"
        if not _is_finished(out):
            validate(
                self._plan.data,
                self._encode(epoch),
                self._model(epoch).uri,
                out,
                split=watched.validation_split,
                num_mentions=watched.validation_mentions,
                pool=self._settings.negatives.pool,
                within=self._carrier,
            )
        counts = read_manifest(out).counts
        recalls = {name: value for name, value in counts.items() if name.startswith("recall@")}
        return recalls, f"{counts['rows']:,} mentions, {counts['pool']}"

    def _drop_vectors(self, keep: set[int]) -> None:
        """Those of other epochs: for a KB of millions they are gigabytes each. A frozen tower has only the first."""
        if keep and self._settings.negatives.refresh == "frozen":
            return
        for name in self._state.names():
            found = re.fullmatch(r"vectors-(\d{3})", name)
            if found and int(found[1]) not in keep:
                (self._state / name).delete_folder()

    def _data_counts(self) -> dict[str, Any]:
        return {
            "mentions left out: NIL": self._mentions.num_nil,
            "mentions left out: gold not in the KB": self._mentions.num_outside,
        }

    def _round_counts(self) -> dict[str, Any]:
        num_missing = int(sum(line["missing_hard"] for line in self._metrics.training))
        return {
            "encoding seconds, since the last start": round(self._encode_seconds, 1),
            **super()._round_counts(),
            "hard negatives missing, filled with random ones": num_missing,
        }

    def _keep(self, best: int) -> None:
        """The model, and the KB by it: what evaluating, indexing and linking start from."""
        super()._keep(best)
        validated = 0 if self._settings.negatives.refresh == "frozen" else best
        found = self._encode_settings(validated)
        model = ModelSettings(encoder=(self._work.folder / "model").uri)
        asked = {"out": (self._work.folder / "vectors").uri, "model": model}
        reuse = found.out if _is_finished(locate(found.out)) else None
        encode_kb(found.model_copy(update=asked | {"reuse": reuse}), self._carrier)
        self._drop_vectors(keep=set())


def _is_finished(folder: Location) -> bool:
    """A finished part of this run, by its name: what it was made from may be gone."""
    return (folder / MANIFEST).is_file()
