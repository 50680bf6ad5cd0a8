"""encode-kb: the entities of a KB become vectors, in shards that workers make, one by one, once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Literal

from pydantic import Field

from pel_ray.artifacts import MANIFEST, Input, Manifest, Request, Work, building, differences, finished, read_manifest
from pel_ray.batches import BatchTokens
from pel_ray.encoder import ModelSettings, Precision, load_parts
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.negative_folder import NegativeFolder
from pel_ray.progress import RateProgress
from pel_ray.reuse import Reuse
from pel_ray.runtime import Ask, Resources, Workers
from pel_ray.shard_encoder import EncodeJob, ShardEncoder
from pel_ray.spec import Settings
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.sharded import at_work, finish_shards, missing_shards
from pel_ray.storage import Location, locate
from pel_ray.tables import TableFolder
from pel_ray.text import Texts
from pel_ray.vectors import Shard, VectorFolder, plan_shards, vector_names


class EncodeSettings(Settings):
    """How a KB becomes vectors."""

    kb: Path
    """KB folder, or a data set folder with kb/ in it."""
    out: Path
    """Folder (or URI) for the vectors."""
    model: ModelSettings = ModelSettings()
    """What encodes them."""
    views: Literal["entity", "synonyms"] = "entity"
    """One vector per entity, or one more for each of its synonyms."""
    reuse: Path | None = None
    """Vectors of an older version of the KB, by the same model: only new and changed texts are encoded."""
    only: Path | None = None
    """Negatives that were mined: encode only their entities and golds, the pool of a cheaper refresh."""
    store: Literal["fp16", "fp32"] = "fp16"
    """Type of the vectors on disk."""
    precision: Precision = "auto"
    """Type of the computation; auto: bf16 or fp16 where the hardware has it, else fp32."""
    batch_tokens: BatchTokens = "auto"
    """Word pieces of a batch, padding included; auto: 1024 on a CPU, 16384 on a GPU."""
    shard_rows: int = Field(default=8192, ge=1)
    """Entities of a shard: what a worker does in one go, and what a crash can cost."""
    tokens: Path | None = None
    """Folder for the word pieces, which other runs on the same KB reuse; by default beside the vectors."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace finished vectors, and the word pieces in --tokens, of another KB, model or setting."""


def encode_kb(settings: EncodeSettings, within: Workers | None = None) -> Outcome:
    """Encodes what is not encoded yet and finishes the folder."""
    plan = EncodePlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    with at_work(settings.resources, within) as (carrier, ask), ExitStack() as stack:
        work = stack.enter_context(building(plan.out, plan.request, resumable=True))
        token_work = None
        if plan.tokens_done is None:
            making = building(plan.tokens, plan.token_request, resumable=True, option="--tokens")
            token_work = stack.enter_context(making)
        receipts = _encode_missing(plan, carrier, ask)
        _finish(plan, receipts, work, token_work, ask)
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)


class EncodePlan:
    """What is to be done, checked before anything starts."""

    def __init__(self, settings: EncodeSettings) -> None:
        self.settings = settings
        self.kb = open_kb(locate(settings.kb))
        self.out = locate(settings.out)
        self.shards = plan_shards(self.kb.num_rows, settings.shard_rows)
        parts = load_parts(settings.model)
        self._model = parts.settings
        kb = self.kb.as_input
        shared = {"views": settings.views, "shard_rows": settings.shard_rows}
        text = parts.settings.text
        self.token_request = Request(
            kind="tokens",
            inputs={"kb": kb, "tokenizer": Input(path=parts.named, digest=parts.tokenizer_digest)},
            settings=shared | {"template": text.template, "entity_length": text.entity_length},
        )
        # After the digest, which changes when the tokenizer is first used.
        _check_template(parts.texts, text.template, settings.views)
        self.only = _open_pool(locate(settings.only), self.kb) if settings.only else None
        inputs = {"kb": kb, "model": Input(path=parts.named, digest=parts.digest("entity"))}
        if self.only:
            inputs["only"] = self.only.as_input
        self.request = Request(
            kind="vectors",
            inputs=inputs,
            settings=shared
            | settings.model_dump(mode="json", include={"store", "precision", "batch_tokens"})
            | {"model": parts.settings.model_dump(mode="json", exclude={"encoder": True, "text": {"mention_length"}})},
        )
        name = f"tokens-{self.token_request.fingerprint[:8]}"
        self.tokens = locate(settings.tokens) if settings.tokens else self.out.parent / name
        self.done = finished(self.out, self.request, overwrite=settings.overwrite)
        if self.tokens == self.out:
            raise SettingsError(f"--tokens and --out are the same folder, {self.out}. Give each its own")
        self.tokens_done = self._tokens_done()
        # Whoever has what they asked for may have deleted the old vectors.
        self.reuse: Reuse | None = None
        if settings.reuse and self.done is None:
            self.reuse = Reuse.of(_open_reuse(locate(settings.reuse), self.request))

    def _tokens_done(self) -> Manifest | None:
        """Whole word pieces stay also with --overwrite, for they may serve others too."""
        try:
            return finished(self.tokens, self.token_request)
        except ArtifactError:
            return finished(self.tokens, self.token_request, overwrite=self.settings.overwrite)

    def job(self, threads: int) -> EncodeJob:
        settings = self.settings
        return EncodeJob(
            kb=self.kb,
            model=self._model,
            tokens=self.tokens,
            tokens_tag=self.token_request.fingerprint[:8],
            folder=self.out,
            tag=self.request.fingerprint[:8],
            with_synonyms=settings.views == "synonyms",
            store=settings.store,
            precision=settings.precision,
            batch_tokens=settings.batch_tokens,
            threads=threads,
            reuse=self.reuse,
            only=self.only.pool() if self.only else None,
        )


def open_kb(folder: Location) -> TableFolder:
    """A KB by its own folder or by that of its data set."""
    kb = TableFolder.open(folder if (folder / MANIFEST).is_file() else folder / "kb", "kb")
    if kb.num_rows == 0:
        raise ArtifactError(f"{kb.folder} has no rows. Import a KB first")
    return kb


def _check_template(texts: Texts, template: str, views: str) -> None:
    if views == "synonyms" and "title" not in texts.fields:
        raise SettingsError(
            f"views is synonyms, but template {template!r} has no {{title}} for a synonym to stand in: the synonyms of "
            "an entity would all be the same text. Add {title}, or leave --views out"
        )


def _open_pool(folder: Location, kb: TableFolder) -> NegativeFolder:
    pool = NegativeFolder.open(folder)
    if pool.manifest.request.inputs["kb"].digest != kb.manifest.request.fingerprint:
        raise ArtifactError(f"{folder} was mined from another KB than {kb.folder}. Encode without --only")
    return pool


def _open_reuse(folder: Location, request: Request) -> VectorFolder:
    old = VectorFolder.open(folder)
    found, asked = old.manifest.request, request
    if found.inputs["model"].digest != asked.inputs["model"].digest:
        raise ArtifactError(
            f"{folder} was encoded with another model ({found.inputs['model'].path}). "
            "Vectors of two models do not compare: encode without --reuse"
        )
    # What else differs, such as the KB, is what is new.
    names = ("model", "store", "views")
    here, there = ({name: one.settings[name] for name in names} for one in (asked, found))
    if differing := differences(here, there):
        raise ArtifactError(
            f"{folder} was encoded otherwise: {'; '.join(differing)}. Encode without --reuse, or with these settings"
        )
    return old


def _encode_missing(plan: EncodePlan, carrier: Workers, ask: Ask) -> list[dict[str, Any]]:
    job = plan.job(ask.cpus)
    num_left = sum(shard.stop - shard.start for shard in missing_shards(job, plan.shards))
    with RateProgress("encoding", plan.kb.num_rows, plan.kb.num_rows - num_left) as progress:

        def seen(shard: Shard, receipt: dict[str, Any]) -> None:
            progress.add(receipt["planned"], receipt["pieces"], receipt["computed"])

        return finish_shards(carrier, ShardEncoder, job, plan.shards, seen, progress.partly)


def _finish(plan: EncodePlan, receipts: list[dict[str, Any]], work: Work, token_work: Work | None, ask: Ask) -> None:
    tag, token_tag = work.tag, plan.token_request.fingerprint[:8]
    for shard in plan.shards:
        for name in vector_names(shard, tag):
            work.count(name)
        if token_work is not None:
            token_work.count(f"tokens-{shard.stem}-{token_tag}.arrow")
    work.counts |= _summed(receipts) | {"workers": str(ask)}
    if plan.reuse is None:
        for name in ("kept", "changed", "added"):
            del work.counts[name]
    else:
        num_known = work.counts["kept"] + work.counts["changed"]
        work.counts["removed"] = len(plan.reuse.entities) - num_known
        work.counts["reused"] = str(plan.reuse.folder.folder)
        work.counts["dtypes"] = sorted({*work.counts["dtypes"], *plan.reuse.folder.manifest.counts["dtypes"]})
    if token_work is not None:
        token_work.counts |= {"rows": work.counts["rows"], "shards": len(plan.shards)}


def _summed(receipts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    receipts = list(receipts)
    total = {
        name: sum(receipt[name] for receipt in receipts)
        for name in ("entities", "texts", "encoded", "pieces", "computed", "kept", "changed", "added", "seconds")
    }
    worker_seconds = total.pop("seconds")
    return {
        "rows": total["texts"],
        **total,
        "shards": len(receipts),
        "padding": round(1 - total["pieces"] / total["computed"], 4) if total["computed"] else 0.0,
        "worker seconds": round(worker_seconds, 1),
        "texts per worker second": round(total["encoded"] / worker_seconds, 1) if worker_seconds else 0.0,
        "worker peak memory bytes": max(receipt["peak_memory_bytes"] for receipt in receipts),
        "dtypes": sorted({receipt["dtype"] for receipt in receipts}),
    }
