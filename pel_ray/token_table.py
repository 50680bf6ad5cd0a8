"""The texts of entities by row, from mapped token shards: training reads some of them at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pel_ray.chunks import Pieces
from pel_ray.ragged import Ragged
from pel_ray.storage import Location
from pel_ray.tokens import read_shard


class TokenTable:
    """An entity's own text; those of its synonyms, where there are any, come after it and are not used."""

    def __init__(self, files: Sequence[Location]) -> None:
        self._shards = [read_shard(file) for file in files]
        self._first_rows = np.array([shard.entity_rows[0] for shard in self._shards])

    def take(self, rows: np.ndarray) -> Pieces:
        """The pieces of entities, whose rows ascend."""
        of_shard = np.searchsorted(self._first_rows, rows, side="right") - 1
        flat, lengths = [], []
        for number in np.unique(of_shard):
            shard = self._shards[number]
            texts = np.searchsorted(shard.entity_rows, rows[of_shard == number])
            found = Ragged(shard.pieces, shard.offsets).take(texts)
            flat.append(found.values)
            lengths.append(found.lengths)
        return Pieces(np.concatenate(flat), np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))
