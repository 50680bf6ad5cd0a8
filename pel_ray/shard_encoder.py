"""The work of encode-kb, as plain Python with a contract; what carries it to workers is not its business."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from pel_ray.batches import BatchTokens, num_computed, plan_batches, tokens_of
from pel_ray.encoder import Encoding, ModelSettings, Precision, load_parts, load_tower
from pel_ray.errors import ArtifactError
from pel_ray.memory import peak_bytes
from pel_ray.reuse import Reuse
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.tokens import COLUMNS, TokenShard, read_shard, tokenise, write_shard
from pel_ray.vectors import Shard, vector_names, write_vectors


@dataclass(frozen=True, kw_only=True)
class EncodeJob(ShardJob):
    """How the entities of a KB become vectors in `folder`."""

    kb: TableFolder
    model: ModelSettings
    tokens: Location
    tokens_tag: str
    with_synonyms: bool
    store: Literal["fp16", "fp32"]
    precision: Precision
    batch_tokens: BatchTokens
    reuse: Reuse | None = None
    only: np.ndarray | None = None
    """Entity rows to encode, ascending; by default all."""

    def token_file(self, shard: Shard) -> Location:
        return self.tokens / f"tokens-{shard.stem}-{self.tokens_tag}.arrow"

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return vector_names(shard, self.tag)

    def names(self) -> set[str]:
        return super().names() | set(self.tokens.names())

    def is_done(self, shard: Shard, names: set[str]) -> bool:
        # The word pieces lie in a folder of their own, which somebody may have deleted.
        return super().is_done(shard, names) and self.token_file(shard).name in names


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What became of one shard."""

    planned: int
    """Entities of the shard."""
    entities: int
    """Those of them that were asked for."""
    texts: int
    encoded: int
    """Texts that were computed, and not taken from old vectors."""
    pieces: int
    """Word pieces of the computed texts."""
    computed: int
    """The same with the padding."""
    kept: int
    changed: int
    added: int
    """Entities by what became of their texts since the old vectors."""
    seconds: float
    peak_memory_bytes: int
    dtype: str


class ShardEncoder(ShardWorker):
    """Loads the entity tower once, then turns one shard of entities into one shard of vectors."""

    job: EncodeJob

    def start(self) -> None:
        if self.job.threads:
            torch.set_num_threads(self.job.threads)
        parts = load_parts(self.job.model)
        tower = load_tower(parts, "entity")
        self._dimension = tower.dimension
        self._texts = parts.texts
        self._encoding = Encoding(tower, parts.settings, parts.markers.pad, self.job.precision)

    def do(self, shard: Shard) -> dict[str, Any]:
        return asdict(self._encode(shard))

    def _encode(self, shard: Shard) -> Receipt:
        began = time.monotonic()
        tokens = self._tokens(shard)
        if self.job.only is not None:
            tokens = tokens.only(np.isin(tokens.entity_rows, self.job.only))
        vectors = np.empty((len(tokens.hashes), self._dimension), np.float32)
        stored = np.empty(vectors.shape, np.float16 if self.job.store == "fp16" else np.float32)
        old, counts = self._take_old(tokens, stored)
        batch_tokens = tokens_of(self.job.batch_tokens, self._encoding.device.type)
        batches = plan_batches(tokens.lengths, batch_tokens, np.flatnonzero(~old))
        computed = num_computed(tokens.lengths, batches)
        seen = partial(self.tell, total=computed)
        self._encoding.fill(vectors, tokens.pieces, tokens.offsets, batches, seen)
        with np.errstate(over="ignore"):
            stored[~old] = vectors[~old]
        self._check_finite(shard, stored)
        write_vectors(self.job.folder, shard, self.job.tag, tokens, stored)
        return Receipt(
            entities=len(np.unique(tokens.entity_rows)),
            planned=shard.stop - shard.start,
            texts=len(old),
            encoded=int((~old).sum()),
            pieces=int(tokens.lengths[~old].sum()),
            computed=computed,
            seconds=time.monotonic() - began,
            peak_memory_bytes=peak_bytes(),
            dtype=str(self._encoding.dtype).removeprefix("torch."),
            kept=counts["kept"],
            changed=counts["changed"],
            added=counts["added"],
        )

    def _check_finite(self, shard: Shard, stored: np.ndarray) -> None:
        is_bad = ~np.isfinite(stored).all(1)
        if is_bad.any():
            raise ArtifactError(
                f"{self.job.folder}: {is_bad.sum():,} vectors of {shard.said(self.job.unit)} are no numbers, or too "
                f"large for {stored.dtype}. Has the model at {self.job.model.encoder} diverged? If it scores by dot "
                "products, --store fp32 has room for larger ones"
            )

    def _tokens(self, shard: Shard) -> TokenShard:
        file = self.job.token_file(shard)
        if file.is_file():
            # What is damaged is made again, of the same bytes.
            with suppress(ArtifactError):
                return read_shard(file)
        rows = self.job.kb.rows(shard.start, shard.stop, COLUMNS).to_pylist()
        write_shard(file, tokenise(self._texts, rows, shard.start, self.job.with_synonyms))
        return read_shard(file)

    def _take_old(self, tokens: TokenShard, stored: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        """Copies vectors of unchanged texts; returns which those are, and the entities kept, changed and added."""
        if self.job.reuse is None:
            num_entities = len(np.unique(tokens.entity_rows))
            return np.zeros(len(tokens.hashes), bool), {"kept": 0, "changed": 0, "added": num_entities}
        return self.job.reuse.take(tokens, stored)
