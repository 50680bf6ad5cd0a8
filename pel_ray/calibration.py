"""How fast this machine trains and encodes, measured on a few real texts before anything starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pel_ray.batches import PASS_TOKENS
from pel_ray.chunks import Pieces
from pel_ray.encoder import Precision, choose_dtype
from pel_ray.objective import TrainingBatch
from pel_ray.rank_objective import RankBatch
from pel_ray.rank_pairs import pair_texts
from pel_ray.tables import TableFolder
from pel_ray.text import Texts
from pel_ray.tokens import COLUMNS
from pel_ray.training_source import mention_pieces

SAMPLE_ROWS = 256
NUM_PASSES = 2
"""Full passes of a device that are measured."""
CANDIDATES_AT_ONCE = 8


@dataclass(frozen=True)
class Speed:
    """Word pieces a second, in training and without gradients."""

    training: float
    encoding: float
    num_pieces: int
    """That it was measured on."""


@dataclass(frozen=True)
class Sample:
    """Texts from the middle of the training mentions, and from that of the KB."""

    mentions: Pieces
    entities: Pieces

    @classmethod
    def of(cls, mentions: TableFolder, rows: Sequence[int], kb: TableFolder, texts: Texts) -> Sample:
        some = np.array(rows)[_middle(len(rows))]
        here = _middle(kb.num_rows)
        entities = texts.entities(kb.rows(here.start, here.stop, COLUMNS).to_pylist())
        return cls(Pieces.of(mention_pieces(mentions, some, texts)), Pieces.of(entities))

    @property
    def mention_pieces(self) -> float:
        """Of a mention with its context, on average."""
        return float(np.diff(self.mentions.offsets).mean())

    @property
    def entity_pieces(self) -> float:
        return float(np.diff(self.entities.offsets).mean())

    @property
    def pair_pieces(self) -> float:
        return self.mention_pieces + self.entity_pieces - 1

    def retriever_batch(self) -> TrainingBatch:
        """Mentions with different candidates, for a few passes of the device."""
        num_mentions, num_candidates = self._shape(self.entity_pieces)
        numbers_T = np.arange(num_mentions * num_candidates) % len(self.entities)
        rows_U, columns_T = np.unique(numbers_T, return_inverse=True)
        return TrainingBatch(
            _first(self.mentions, num_mentions), _first(self.entities, len(rows_U)), columns_T.reshape(num_mentions, -1)
        )

    def ranker_batch(self) -> RankBatch:
        num_mentions, num_candidates = self._shape(self.pair_pieces)
        mention_T = np.repeat(np.arange(num_mentions), num_candidates)
        entity_T = np.arange(len(mention_T)) % len(self.entities)
        pairs = pair_texts(self.mentions, self.entities, mention_T, entity_T)
        return RankBatch(pairs, np.ones((num_mentions, num_candidates), bool))

    def _shape(self, pieces: float) -> tuple[int, int]:
        """Mentions, and candidates of each."""
        num_texts = NUM_PASSES * PASS_TOKENS[device_here().type] / pieces
        most = min(len(self.mentions), len(self.entities) // CANDIDATES_AT_ONCE or 1)
        return min(max(int(num_texts / CANDIDATES_AT_ONCE), 1), most), min(CANDIDATES_AT_ONCE, len(self.entities))


def chunk_to_measure(pieces: float, chunk_tokens: int) -> int:
    """Makes the measured batch keep its activations, or compute them again, as a micro-batch of so many pieces will."""
    return PASS_TOKENS[device_here().type] if pieces > chunk_tokens else 1 << 40


def measure(trained: nn.Module, plain: nn.Module, batch: Any, precision: Precision) -> Speed:
    """Of an objective as it is trained, and of the same without FGSM as it encodes."""
    device = device_here()
    dtype = choose_dtype(precision, device)

    def run(module: nn.Module, is_training: bool) -> tuple[float, int]:
        began = time.perf_counter()
        with torch.set_grad_enabled(is_training):
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss, statistics = module(batch, 0)
            if is_training:
                loss.backward()
        # Reading the loss waits for the device.
        float(loss.detach())
        return time.perf_counter() - began, int(statistics["pieces"])

    # The first of two warms up, and the better one is less disturbed by others.
    (seconds, num_pieces), encoding = (
        min(run(module, is_training) for _ in range(2)) for module, is_training in ((trained, True), (plain, False))
    )
    return Speed(num_pieces / seconds, encoding[1] / encoding[0], num_pieces)


def device_here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _middle(num_rows: int) -> slice:
    start = max((num_rows - SAMPLE_ROWS) // 2, 0)
    return slice(start, min(start + SAMPLE_ROWS, num_rows))


def _first(pieces: Pieces, count: int) -> Pieces:
    return Pieces(pieces.flat[: pieces.offsets[count]], pieces.offsets[: count + 1])
