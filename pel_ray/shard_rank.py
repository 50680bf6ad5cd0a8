"""The work of ranking over many shards: entities become word pieces, and mentions get scores of their candidates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pel_ray.arrays import read_array, write_array
from pel_ray.artifacts import Request
from pel_ray.encoder import Precision
from pel_ray.memory import peak_bytes
from pel_ray.rank_tokens import token_name, write_token_shard
from pel_ray.ranker import RankerSettings, load_ranker, load_ranker_parts
from pel_ray.reranker import Reranker
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.text import MENTION_COLUMNS
from pel_ray.token_table import TokenTable
from pel_ray.vectors import Shard


@dataclass(frozen=True, kw_only=True)
class TokenJob(ShardJob):
    """Whose entities become word pieces; a shard is a range of the KB."""

    phase = "tokens-"
    remedy = "Try fewer workers on a node, or look at these entities"

    kb: TableFolder
    model: RankerSettings
    request: Request

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (token_name(shard, self.request),)


class ShardTokeniser(ShardWorker):
    """Loads the tokenizer once, then turns ranges of entities into word pieces."""

    job: TokenJob

    def start(self) -> None:
        self._texts = load_ranker_parts(self.job.model).texts

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        file = self.job.folder / self.job.result_names(shard)[0]
        write_token_shard(self.job.kb, self._texts, shard, file)
        return {"entities": shard.stop - shard.start, "seconds": time.monotonic() - began}


@dataclass(frozen=True, kw_only=True)
class ScoreJob(ShardJob):
    """Which pairs are scored; a shard is a range of the mentions."""

    phase = "pairs-"
    unit = "mentions"
    remedy = "Try fewer workers on a node, or look at these mentions"

    mentions: TableFolder
    rows_Q: np.ndarray
    candidates: Location
    """The array (Q, K) of their entities, as rows of the KB."""
    model: RankerSettings
    token_files: Sequence[Location]
    precision: Precision

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (f"pair-scores-{shard.stem}-{self.tag}.npy",)


class ShardScorer(ShardWorker):
    """Loads the ranker once, then scores the candidates of ranges of mentions."""

    job: ScoreJob

    def start(self) -> None:
        job = self.job
        if job.threads:
            torch.set_num_threads(job.threads)
        self._reranker = Reranker(load_ranker(job.model), TokenTable(job.token_files), job.precision)

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        job = self.job
        wanted = job.rows_Q[shard.start : shard.stop]
        table = job.mentions.rows(int(wanted[0]), int(wanted[-1]) + 1, MENTION_COLUMNS)
        rows_QK = np.asarray(read_array(job.candidates)[shard.start : shard.stop])
        scores_QK = self._reranker.scores(table.take(wanted - wanted[0]).to_pylist(), rows_QK)
        write_array(job.folder / job.result_names(shard)[0], scores_QK)
        return {
            "mentions": len(wanted),
            "pairs": int((rows_QK >= 0).sum()),
            "seconds": time.monotonic() - began,
            "peak_memory_bytes": peak_bytes(),
        }


def read_scores(job: ScoreJob, shards: Sequence[Shard]) -> np.ndarray:
    """The scores (Q, K) of all shards, in order."""
    return np.concatenate([read_array(job.folder / job.result_names(shard)[0]) for shard in shards])
