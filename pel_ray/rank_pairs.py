"""Pairs of a mention and an entity: their texts, put together from word pieces, and their scores.

Shapes: T pairs, B of a batch, L word pieces of the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pel_ray.batches import Batch, gathered, plan_batches
from pel_ray.chunks import Pieces
from pel_ray.encoder import Precision, choose_dtype
from pel_ray.ragged import Ragged
from pel_ray.ranker import Ranker


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

    def run(self, pairs: Pieces, batch_tokens: int) -> np.ndarray:
        """Scores (T) in the order given, computed in batches of like length."""
        scores_T = np.empty(len(pairs), np.float32)
        batches = plan_batches(np.diff(pairs.offsets), batch_tokens)
        with one_thread_each(self.device) as thread:

            def scored(batch: Batch) -> None:
                scores_T[batch.rows] = self._scores(batch)

            list(thread(scored, gathered(batches, pairs.flat, pairs.offsets, self._pad)))
        return scores_T

    def _scores(self, batch: Batch) -> np.ndarray:
        ids_BL = torch.from_numpy(batch.ids).to(self.device)
        mask_BL = None if batch.mask is None else torch.from_numpy(batch.mask).to(self.device)
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            scores_B: np.ndarray = self._module(ids_BL, mask_BL).float()[:, 0].cpu().numpy()
        return scores_B


@contextmanager
def one_thread_each(device: torch.device) -> Iterator[Callable[..., Iterable[Any]]]:
    """A map whose calls run beside each other on a CPU, each with one of torch's threads.

    Threads that share an operation wait for each other at its end: for small batches, and most of all on a busy
    machine, that takes longer than the work itself.
    """
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        yield map
        return
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map
    # New threads take over the number that was set last.
    torch.set_num_threads(num_threads)
