"""Candidates put in a better order: a ranker reads each of them beside the mention.

Shapes: Q mentions, K candidates of each, T pairs of both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pel_ray.blend import blended
from pel_ray.chunks import Pieces
from pel_ray.encoder import Precision
from pel_ray.rank_pairs import Scoring, pair_texts
from pel_ray.rank_tokens import find_tokens, token_places, token_request, write_tokens
from pel_ray.ranker import Ranker, load_ranker, open_ranker
from pel_ray.search import Hits
from pel_ray.storage import Location, Where, locate
from pel_ray.tables import TableFolder
from pel_ray.token_table import TokenTable

PAIRS_AT_ONCE = 16_384
"""Whose texts are held at once: more would not be padded less."""


class Reranker:
    """A ranker with the word pieces of a KB's entities."""

    def __init__(self, ranker: Ranker, entities: TokenTable, precision: Precision = "auto") -> None:
        self.ranker = ranker
        self._texts = ranker.texts
        self._entities = entities
        self._scoring = Scoring(ranker, precision)

    @classmethod
    def load(
        cls,
        folder: Where,
        kb: TableFolder,
        precision: Precision = "auto",
        beside: Sequence[Location] = (),
    ) -> Reranker:
        """A ranker, by its folder or that of its run, for the entities of a KB.

        Word pieces of the KB are taken from the ranker's run, or from a folder `beside` that a retriever has left them
        in; where neither has them, they are made now.
        """
        parts = open_ranker(folder)
        request = token_request(kb, parts)
        found = find_tokens(request, token_places([parts.folder.parent, *beside], request))
        with tempfile.TemporaryDirectory(prefix="pel-ray-") as scratch:
            # Mapped files stay readable after their folder is gone.
            entities = TokenTable(found or write_tokens(kb, parts.texts, locate(scratch), request))
        return cls(load_ranker(parts.settings), entities, precision)

    def scores(self, mentions: Sequence[Mapping[str, Any]], rows_QK: np.ndarray) -> np.ndarray:
        """The ranker's own scores (Q, K) of rows of the KB for mentions, as rows of mentions/; -inf for no entity."""
        texts = Pieces.of(self._texts.mentions(mentions))
        scores_QK = np.full(rows_QK.shape, -np.inf, np.float32)
        at_once = max(PAIRS_AT_ONCE // max(rows_QK.shape[1], 1), 1)
        for start in range(0, len(rows_QK), at_once):
            some = slice(start, start + at_once)
            is_pair_QK = rows_QK[some] >= 0
            if is_pair_QK.any():
                mention_T = start + np.nonzero(is_pair_QK)[0]
                scores_QK[some][is_pair_QK] = self._pairs(texts, mention_T, rows_QK[some][is_pair_QK])
        return scores_QK

    def _pairs(self, texts: Pieces, mention_T: np.ndarray, rows_T: np.ndarray) -> np.ndarray:
        rows_U, entity_T = np.unique(rows_T, return_inverse=True)
        pairs = pair_texts(texts, self._entities.take(rows_U), mention_T, entity_T)
        return self._scoring.run(pairs)

    def rerank(self, mentions: Sequence[Mapping[str, Any]], hits: Hits) -> Hits:
        """The same entities by the ranker's scores, with as much of the retriever's as it was told, best first."""
        scores_QK = self.scores(mentions, hits.rows_QK)
        return in_order_of(blended(scores_QK, hits.scores_QK, self.ranker.parts.retriever_weight), hits.rows_QK)


def in_order_of(scores_QK: np.ndarray, rows_QK: np.ndarray) -> Hits:
    """Best first; of equal ones the retriever's favourite, and what is no entity last."""
    order_QK = np.argsort(-scores_QK, axis=1, kind="stable")
    return Hits(np.take_along_axis(scores_QK, order_QK, 1), np.take_along_axis(rows_QK, order_QK, 1))
