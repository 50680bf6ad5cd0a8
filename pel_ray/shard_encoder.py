"""The work of encode-kb, as plain Python with a contract; what carries it to workers is not its business."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from pel_ray.batches import num_computed, plan_batches
from pel_ray.encoder import Encoding, ModelSettings, Precision, load_parts, load_tower
from pel_ray.errors import PelRayError
from pel_ray.memory import peak_bytes
from pel_ray.reuse import Reuse
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.tokens import COLUMNS, TokenShard, read_shard, tokenise, write_shard
from pel_ray.vectors import Shard, vector_names, write_vectors

MAX_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class EncodeJob:
    """All a worker needs to know, wherever it runs."""

    kb: TableFolder
    model: ModelSettings
    tokens: Location
    tokens_tag: str
    vectors: Location
    tag: str
    with_synonyms: bool
    store: Literal["fp16", "fp32"]
    precision: Precision
    batch_tokens: int
    threads: int | None
    """Threads of torch; the same number gives the same bytes."""
    reuse: Reuse | None = None

    def token_file(self, shard: Shard) -> Location:
        return self.tokens / f"tokens-{shard.stem}-{self.tokens_tag}.arrow"

    def receipt_file(self, shard: Shard) -> Location:
        return self.vectors / f"receipt-{shard.stem}-{self.tag}.json"

    def finished_names(self, shard: Shard) -> set[str]:
        """What a finished shard leaves in the folder of the vectors."""
        return {self.receipt_file(shard).name, *vector_names(shard, self.tag)}

    def attempt_file(self, shard: Shard, attempt: int) -> Location:
        return self.vectors / f"attempt-{shard.stem}-{attempt}-{self.tag}.json"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What became of one shard."""

    shard: int
    entities: int = 0
    texts: int = 0
    encoded: int = 0
    """Texts that were computed, and not taken from old vectors."""
    pieces: int = 0
    """Word pieces of the computed texts."""
    computed: int = 0
    """The same with the padding."""
    kept: int = 0
    changed: int = 0
    added: int = 0
    """Entities by what became of their texts since the old vectors."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    dtype: str = ""
    error: str = ""
    """Why the shard could not be done: a user's matter, such as a full disk."""
    is_poison: bool = False
    """The shard has killed its worker too often to be tried again."""


class ShardEncoder:
    """Loads the entity tower once, then turns one shard of entities into one shard of vectors.

    A worker may be killed and its shard given to another, so the same shard always gives the same bytes, and
    appears under its final name only when whole.
    """

    def __init__(self, job: EncodeJob) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        parts = load_parts(self.job.model)
        tower = load_tower(parts, "entity")
        self._dimension = tower.dimension
        self._texts = parts.texts
        self._encoding = Encoding(tower, parts.settings, parts.markers.pad, self.job.precision)

    def __call__(self, shard: Shard) -> dict[str, Any]:
        attempt = self._next_attempt(shard)
        if attempt is None:
            return asdict(Receipt(shard=shard.number, is_poison=True))
        try:
            attempt.write_bytes(b"{}")
            receipt = self._encode(shard)
            self.job.receipt_file(shard).write_bytes(json.dumps(asdict(receipt)).encode())
        except PelRayError as error:
            # Told, not raised: a worker's exception would reach the user as a traceback of the carrier.
            receipt = Receipt(shard=shard.number, error=str(error))
        for number in range(1, MAX_ATTEMPTS + 1):
            self.job.attempt_file(shard, number).delete_file()
        return asdict(receipt)

    def _next_attempt(self, shard: Shard) -> Location | None:
        """The file that marks this attempt; nothing if the shard has killed its worker too often."""
        for number in range(1, MAX_ATTEMPTS + 1):
            file = self.job.attempt_file(shard, number)
            if not file.is_file():
                return file
        return None

    def _encode(self, shard: Shard) -> Receipt:
        began = time.monotonic()
        tokens = self._tokens(shard)
        vectors = np.empty((len(tokens.hashes), self._dimension), np.float32)
        stored = np.empty(vectors.shape, np.float16 if self.job.store == "fp16" else np.float32)
        old, counts = self._take_old(tokens, stored)
        batches = plan_batches(tokens.lengths, self.job.batch_tokens, np.flatnonzero(~old))
        self._encoding.fill(vectors, tokens.pieces, tokens.offsets, batches)
        stored[~old] = vectors[~old]
        write_vectors(self.job.vectors, shard, self.job.tag, tokens, stored)
        return Receipt(
            shard=shard.number,
            entities=shard.stop - shard.start,
            texts=len(old),
            encoded=int((~old).sum()),
            pieces=int(tokens.lengths[~old].sum()),
            computed=num_computed(tokens.lengths, batches),
            seconds=time.monotonic() - began,
            peak_memory_bytes=peak_bytes(),
            dtype=str(self._encoding.dtype).removeprefix("torch."),
            kept=counts["kept"],
            changed=counts["changed"],
            added=counts["added"],
        )

    def _tokens(self, shard: Shard) -> TokenShard:
        file = self.job.token_file(shard)
        if not file.is_file():
            rows = self.job.kb.rows(shard.start, shard.stop, COLUMNS).to_pylist()
            write_shard(file, tokenise(self._texts, rows, shard.start, self.job.with_synonyms))
        return read_shard(file)

    def _take_old(self, tokens: TokenShard, stored: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        """Copies vectors of unchanged texts; returns which those are, and the entities kept, changed and added."""
        if self.job.reuse is None:
            num_entities = len(np.unique(tokens.entity_rows))
            return np.zeros(len(tokens.hashes), bool), {"kept": 0, "changed": 0, "added": num_entities}
        return self.job.reuse.take(tokens, stored)
