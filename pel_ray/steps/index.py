"""index: vectors become a FAISS index for repeated and online search, with its recall measured."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field

from pel_ray.artifacts import Input, Request, Work, building, finished, read_manifest
from pel_ray.console import human_bytes
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.index import Entities
from pel_ray.index_build import (
    RECALL_AT,
    Loader,
    SlotPlan,
    can_remove,
    fill,
    rates,
    read_rows,
    sampled,
    tune,
)
from pel_ray.index_files import IndexFolder, read_faiss, write_faiss, write_slots
from pel_ray.index_kinds import KINDS, Estimate, available_memory, choose, estimate, load_faiss, new_index, parse_memory
from pel_ray.progress import RateProgress
from pel_ray.search import exact_top_k
from pel_ray.spec import Settings
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.index_queries import encoded_mentions, open_mentions
from pel_ray.storage import locate
from pel_ray.vectors import VectorFolder

SHARE_OF_MEMORY = 0.8


def _checked_memory(text: str) -> str:
    parse_memory(text)
    return text


class IndexSettings(Settings):
    """How vectors become an index."""

    vectors: Path
    """Vectors folder, as encode-kb leaves it."""
    out: Path
    """Folder (or URI) for the index."""
    kind: Annotated[str, Field(min_length=1)] = "auto"
    """auto, flat, hnsw, ivf, ivf_fp16, ivf_sq8, pq, or a FAISS factory string such as IVF1024,SQ8."""
    memory: Annotated[str, AfterValidator(_checked_memory)] | None = None
    """The most that a shard may take while it is built, as in 4G or 512M; by default 80% of what is free here."""
    min_recall: float = Field(default=0.99, ge=0, le=1)
    """A search looks as far as it must to find this share of the true 64 best entities; flat finds all."""
    queries: Path | None = None
    """Data set (or mentions) folder whose mentions measure the recall; by default entities of the KB itself do."""
    split: str = "validation"
    """With --queries: the split to take mentions from."""
    num_queries: int = Field(default=1000, ge=1)
    """How many queries measure the recall."""
    shards: int | None = Field(default=None, ge=1)
    """FAISS files to cut the KB into, one for each machine that searches; by default 1, or as many as --update has."""
    update: Path | None = None
    """An older index by the same model: what has changed since is added and removed, the rest stays; it is kept."""
    seed: int = 13
    """Decides the training sample and the queries."""
    overwrite: bool = False
    """Replace a finished index of other vectors or settings."""


def build_index(settings: IndexSettings) -> Outcome:
    """Builds, or updates, and measures; an index that misses its recall leaves nothing behind."""
    plan = IndexPlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    chosen = plan.estimate
    queries_QD, said = _queries(plan)
    with building(plan.out, plan.request) as work:
        load = _build(plan, chosen, work)
        _measure(plan, work, load, queries_QD)
        work.counts["queries"] = said
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)


class IndexPlan:
    """What is to be built, checked before anything starts."""

    def __init__(self, settings: IndexSettings) -> None:
        load_faiss()
        self.settings = settings
        self.out = locate(settings.out)
        self.vectors = VectorFolder.open(locate(settings.vectors))
        self.queries = open_mentions(locate(settings.queries)) if settings.queries else None
        self.old = self._open_old() if settings.update else None
        self.num_shards = settings.shards or (len(self.old.shard_names) if self.old else 1)
        self.memory = parse_memory(settings.memory) if settings.memory else int(SHARE_OF_MEMORY * available_memory())
        self.request = self._request()
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)

    @cached_property
    def rows(self) -> pa.Table:
        rows = read_rows(self.vectors)
        if rows.num_rows < self.num_shards:
            raise SettingsError(f"{self.vectors.folder} has {rows.num_rows:,} vectors for {self.num_shards} shards")
        return rows

    @cached_property
    def changes(self) -> SlotPlan | None:
        """What an update adds, removes and keeps."""
        return SlotPlan.after(self.old.slots(), self.rows, self.num_shards) if self.old else None

    @cached_property
    def in_place(self) -> bool:
        """Whether the older index can become the new one."""
        if self.old is None or self.changes is None:
            return False
        empty = new_index(self.old.manifest.counts["factory"], self.vectors.dimension)
        return len(self.changes.removed) == 0 or can_remove(empty)

    @cached_property
    def slots(self) -> SlotPlan:
        return self.changes if self.changes and self.in_place else SlotPlan.fresh(self.rows, self.num_shards)

    @cached_property
    def estimate(self) -> Estimate:
        """What is built, and what its largest shard needs; refused where that does not fit."""
        counts = self.old.manifest.counts if self.old else {"kind": self.settings.kind}
        largest = max(self.slots.shard_sizes(self.num_shards))
        asked = counts["factory"] if self.in_place else counts["kind"]
        found = choose(asked, largest, self.vectors.dimension, self.vectors.similarity, self.memory)
        return replace(found, kind=counts["kind"]) if self.old else found

    def _open_old(self) -> IndexFolder:
        settings, request = self.settings, self.vectors.manifest.request
        old = IndexFolder.open(locate(str(settings.update)))
        if old.folder == self.out:
            raise SettingsError(f"--update {old.folder} is --out too. An update leaves the older index as it is")
        old.check_model(request.inputs["model"].digest, self.vectors.similarity)
        counts, found = old.manifest.counts, old.manifest.request.settings
        if found["model"] != request.settings["model"] or found["store"] != request.settings.get("store"):
            raise ArtifactError(
                f"{old.folder} holds vectors that were encoded otherwise. Build an index without --update"
            )
        if settings.kind not in ("auto", counts["kind"], counts["factory"]):
            raise SettingsError(
                f"--kind {settings.kind}: {old.folder} is {counts['kind']}, and an update keeps the kind. "
                "Leave --kind out, or build without --update"
            )
        if settings.shards not in (None, len(old.shard_names)):
            raise SettingsError(
                f"--shards {settings.shards}: {old.folder} has {len(old.shard_names)}, and an update keeps them. "
                "Leave --shards out, or build without --update"
            )
        return old

    def _request(self) -> Request:
        settings, found = self.settings, self.vectors.manifest.request
        inputs = {"vectors": self.vectors.as_input}
        counted = settings.model_dump(mode="json", include={"kind", "min_recall", "num_queries", "seed"})
        if settings.kind == "auto":
            counted["memory"] = settings.memory
        if self.queries is not None:
            inputs["queries"] = self.queries.as_input
            counted["split"] = settings.split
        if self.old is not None:
            inputs["update"] = Input(path=str(self.old.folder), digest=self.old.manifest.request.fingerprint)
        return Request(
            kind="index",
            inputs=inputs | {"model": found.inputs["model"]},
            settings=counted
            | {"shards": self.num_shards, "model": found.settings["model"], "store": found.settings.get("store")},
        )


def _build(plan: IndexPlan, chosen: Estimate, work: Work) -> Loader:
    """Writes the shards one after the other, and the table of slots; returns how to read them again."""
    began = time.monotonic()
    slots, seed = plan.slots, plan.settings.seed
    checksums: dict[str, str] = {}
    index: Any = None
    with RateProgress("indexing", int(slots.is_new_N.sum())) as progress:
        for number in range(plan.num_shards):
            if plan.old is not None and plan.in_place:
                index = plan.old.shard(number)
                if len(slots.removed):
                    index.remove_ids(slots.removed)
            else:
                index = new_index(chosen.factory, plan.vectors.dimension, seed)
            fill(index, plan.vectors, slots, number, seed, progress.add)
            name, checksum = write_faiss(work, number, index)
            checksums[name] = checksum
    name, checksum = write_slots(work, slots.table())
    checksums[name] = checksum
    work.counts |= {
        "rows": plan.rows.num_rows,
        "entities": pc.count_distinct(plan.rows["entity_row"]).as_py(),
        "dimensions": plan.vectors.dimension,
        "kind": chosen.kind,
        "factory": chosen.factory,
        "shards": plan.num_shards,
        "bytes": sum(work.files.values()),
        "estimated bytes": plan.num_shards * chosen.index_bytes,
        "build seconds": round(time.monotonic() - began, 2),
        "checksums": [checksums[name] for name in sorted(work.files)],
    }
    if plan.changes is not None:
        work.counts |= _changes(plan, plan.changes)
    if plan.num_shards == 1:
        return lambda: iter([index])
    return lambda: (
        read_faiss(plan.out / name, checksum) for name, checksum in checksums.items() if name.endswith(".faiss")
    )


def _changes(plan: IndexPlan, changes: SlotPlan) -> dict[str, Any]:
    num_new = int(changes.is_new_N.sum())
    how = "the older index, changed" if plan.in_place else "built anew: FAISS cannot remove vectors from this kind"
    return {
        "update": how,
        "added": num_new,
        "removed": len(changes.removed),
        "kept": len(changes.slots_N) - num_new,
    }


def _measure(plan: IndexPlan, work: Work, load: Loader, queries_QD: np.ndarray) -> None:
    """Finds the search parameters that give the recall asked for."""
    entities = Entities.of(plan.slots.table())
    num_kept = max(k for k in RECALL_AT if k <= entities.num_entities)
    truth = exact_top_k(plan.vectors, queries_QD, num_kept)
    asked = plan.settings.min_recall
    trial = tune(load, entities, queries_QD, truth, asked)
    if trial.last < asked:
        raise SettingsError(
            f"--min-recall {asked}: {work.counts['factory']} finds {trial.last:.4f} of the true {num_kept} best at most"
            f"{f' ({trial.parameters})' if trial.parameters else ''}. Choose another --kind (flat finds all), "
            "or a lower --min-recall"
        )
    batch, single = rates(load, entities, queries_QD, trial.parameters, num_kept)
    work.counts |= {
        "search parameters": trial.parameters,
        **{f"recall@{k}": round(value, 4) for k, value in trial.recall.items()},
        "queries/s in a batch": round(batch, 1),
        "queries/s one at a time": round(single, 1),
        "threads": load_faiss().omp_get_max_threads(),
    }


def _queries(plan: IndexPlan) -> tuple[np.ndarray, str]:
    """Vectors that measure the recall, and what they are."""
    settings = plan.settings
    if plan.queries is not None:
        found = encoded_mentions(plan.vectors, plan.queries, settings.split, settings.num_queries, settings.seed)
        return found, f"{len(found):,} mentions of {settings.split} in {plan.queries.folder}"
    found = sampled(plan.vectors, np.arange(plan.rows.num_rows), settings.num_queries, settings.seed)
    return found, f"{len(found):,} entities of the KB itself; mentions (--queries DATA) would say more"


def estimates(plan: IndexPlan) -> list[tuple[str, str]]:
    """Lines of (what, how much) for --plan."""
    largest = max(plan.slots.shard_sizes(plan.num_shards))
    needs = ", ".join(str(estimate(kind, largest, plan.vectors.dimension)) for kind in KINDS)
    return [
        ("vectors", f"{plan.rows.num_rows:,} of {plan.vectors.dimension} dimensions in {plan.num_shards} shards"),
        ("memory of the largest shard", f"{needs}; allowed {human_bytes(plan.memory)}"),
        ("kind", f"{plan.estimate.kind} ({plan.estimate.factory})"),
        ("disk", human_bytes(plan.num_shards * plan.estimate.index_bytes)),
        ("already done", "yes" if plan.done else "no"),
    ]
