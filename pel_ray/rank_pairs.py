"""Pairs of a mention and an entity: their texts, put together from word pieces, and their scores.

Shapes: T pairs, B of a batch, L word pieces of the longest.
"""

from __future__ import annotations

import numpy as np
import torch

from pel_ray.batches import PASS_TOKENS, Batch, gathered, plan_batches
from pel_ray.chunks import Pieces
from pel_ray.encoder import Precision, choose_dtype
from pel_ray.ragged import Ragged
from pel_ray.ranker import Ranker
from pel_ray.threads import one_thread_each


def pair_texts(mentions: Pieces, entities: Pieces, mention_T: np.ndarray, entity_T: np.ndarray) -> Pieces:
    """The texts of pairs, from texts of mentions and entities that are word pieces already."""
    left = Ragged(mentions.flat, mentions.offsets).take(mention_T)
    right = Ragged(entities.flat, entities.offsets).take(entity_T)
    # Without the [CLS] of the entity: the text has that of the mention.
    both = left.joined(right.where(right.positions > 0))
    return Pieces(both.values, both.offsets)


class Scoring:
    """A cross-encoder made ready to score texts on this machine's device."""

    def __init__(self, ranker: Ranker, precision: Precision = "auto") -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = choose_dtype(precision, self.device)
        self._module = ranker.module.to(self.device).eval()
        self._pad = ranker.pad

    def run(self, pairs: Pieces) -> np.ndarray:
        """Scores (T) in the order given, computed in batches of like length."""
        scores_T = np.empty(len(pairs), np.float32)
        batches = plan_batches(np.diff(pairs.offsets), PASS_TOKENS[self.device.type])

        def score(batch: Batch) -> None:
            scores_T[batch.rows] = self._scores(batch)

        one_thread_each(score, gathered(batches, pairs.flat, pairs.offsets, self._pad), self.device)
        return scores_T

    def _scores(self, batch: Batch) -> np.ndarray:
        ids_BL = torch.from_numpy(batch.ids).to(self.device)
        mask_BL = None if batch.mask is None else torch.from_numpy(batch.mask).to(self.device)
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            scores_B: np.ndarray = self._module(ids_BL, mask_BL).float()[:, 0].cpu().numpy()
        return scores_B
