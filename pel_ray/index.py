"""Search in an index: FAISS finds slots, a table beside it says whose vectors they are.

Shapes: Q queries, D dimensions, K entities asked for, M slots asked of FAISS, P pairs of a query and a slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.artifacts import Manifest
from pel_ray.errors import SettingsError
from pel_ray.index_files import IndexFolder
from pel_ray.index_kinds import flat_part, load_faiss
from pel_ray.search import Hits, merged
from pel_ray.storage import Location

SLACK = 32
"""Slots asked of an exact index beyond those needed, so that ties at the end are seen."""
LEAST = 64
"""Entities asked of an approximate index for a smaller k too: some look only as far, and its recall is that of 64."""
QUERIES_AT_ONCE = 4096
PAIRS_AT_ONCE = 32_768


class IndexShard:
    """One FAISS index over a part of the vectors."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self._flat = flat_part(index)

    def search(self, queries_QD: np.ndarray, entities: Entities, k: int) -> Hits:
        """The best entities; where fewer than k distinct ones come out, FAISS is asked for more slots."""
        hits = Hits.none(len(queries_QD), k)
        open_Q = np.arange(len(queries_QD) if self.index.ntotal else 0)
        num_asked = math.ceil(k * entities.views) + SLACK if self._flat else math.ceil(max(k, LEAST) * entities.views)
        while len(open_Q):
            num_asked = min(num_asked, self.index.ntotal)
            found, is_sure_Q = self._search_once(queries_QD[open_Q], entities, k, num_asked)
            hits.scores_QK[open_Q], hits.rows_QK[open_Q] = found.scores_QK, found.rows_QK
            open_Q = open_Q[~is_sure_Q]
            num_asked *= 2
        return hits

    def _search_once(
        self, queries_QD: np.ndarray, entities: Entities, k: int, num_asked: int
    ) -> tuple[Hits, np.ndarray]:
        """Hits, and for which queries asking for more slots would not change them."""
        scores_QM, slots_QM = self.index.search(queries_QD, num_asked)
        # An approximate index that has fewer to give has looked at all that its search parameter lets it see.
        has_all_Q = (slots_QM < 0).any(1) | (num_asked == self.index.ntotal)
        least_Q = scores_QM[:, -1] + self._rounding(queries_QD)
        if self._flat:
            scores_QM = self._exact_scores(queries_QD, slots_QM)
        rows_QM = np.where(slots_QM < 0, -1, entities.row_of_slot[slots_QM])
        hits = merged([Hits(scores_QM, rows_QM)], k)
        is_whole_Q = hits.scores_QK[:, -1] > least_Q if self._flat else hits.rows_QK[:, -1] >= 0
        return hits, has_all_Q | is_whole_Q

    def _rounding(self, queries_QD: np.ndarray) -> np.ndarray | float:
        """What a score in fp32 can be off by, for any order of its additions."""
        if not self._flat:
            return 0.0
        return np.linalg.norm(queries_QD, axis=1) * self._largest_norm * queries_QD.shape[1] * 2.0**-23

    def _exact_scores(self, queries_QD: np.ndarray, slots_QM: np.ndarray) -> np.ndarray:
        """In float64, pair by pair: the last bits of FAISS' own depend on where a vector lies, and would order ties."""
        places = self._place_of_slot[slots_QM.ravel()]
        scores = np.empty(slots_QM.size, np.float32)
        for begin in range(0, len(places), PAIRS_AT_ONCE):
            pairs = slice(begin, begin + PAIRS_AT_ONCE)
            left_PD = queries_QD[np.arange(len(places))[pairs] // slots_QM.shape[1]].astype(np.float64)
            scores[pairs] = np.einsum("pd,pd->p", left_PD, self._vectors[places[pairs]].astype(np.float64))
        return scores.reshape(slots_QM.shape)

    @cached_property
    def _vectors(self) -> np.ndarray:
        content = load_faiss().rev_swig_ptr(self._flat.get_xb(), self._flat.ntotal * self._flat.d)
        return content.reshape(self._flat.ntotal, self._flat.d)

    @cached_property
    def _place_of_slot(self) -> np.ndarray:
        slots = load_faiss().vector_to_array(load_faiss().downcast_index(self.index).id_map)
        return inverse(slots)

    @cached_property
    def _largest_norm(self) -> float:
        blocks = range(0, len(self._vectors), PAIRS_AT_ONCE)
        return max(
            (float(np.linalg.norm(self._vectors[i : i + PAIRS_AT_ONCE], axis=1).max()) for i in blocks), default=0
        )


def inverse(slots: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """What belongs to each slot (by default its place in `slots`), -1 for numbers that are no slots."""
    found = np.full(int(slots.max()) + 1 if len(slots) else 1, -1, np.int64)
    found[slots] = np.arange(len(slots)) if values is None else values
    return found


@dataclass(frozen=True)
class Entities:
    """Whose vectors the slots are."""

    row_of_slot: np.ndarray
    num_entities: int
    views: float
    """How many times k slots to ask for at first, so that k entities are among them."""

    @classmethod
    def of(cls, slots: pa.Table) -> Entities:
        rows = slots["entity_row"].to_numpy()
        num_entities = len(np.unique(rows))
        # The best slots of a query are often several of one entity, so more than the average is asked for.
        views = 1.0 if num_entities == len(rows) else 1.5 * len(rows) / num_entities
        return cls(inverse(slots["slot"].to_numpy(), rows), num_entities, views)


@dataclass(frozen=True)
class Index:
    """A finished index, ready to be searched."""

    folder: Location
    manifest: Manifest
    entities: Entities
    shards: Sequence[IndexShard]

    @classmethod
    def open(cls, folder: Location, only: Sequence[int] | None = None) -> Index:
        """Reads all of its shards, or those numbered in `only` where several machines share a large KB."""
        opened = IndexFolder.open(folder)
        numbers = range(len(opened.shard_names)) if only is None else only
        return cls(folder, opened.manifest, Entities.of(opened.slots()), [IndexShard(opened.shard(n)) for n in numbers])

    @property
    def similarity(self) -> str:
        return str(self.manifest.request.settings["model"]["similarity"])

    @property
    def dimension(self) -> int:
        return int(self.manifest.counts["dimensions"])

    def search(self, queries_QD: np.ndarray, k: int) -> Hits:
        """The k best entities of each query, ties by entity row; -1 where an approximate index finds fewer."""
        if not 1 <= k <= self.entities.num_entities:
            raise SettingsError(f"k is {k:,}, but {self.folder} has {self.entities.num_entities:,} entities")
        if queries_QD.shape[1] != self.dimension:
            raise SettingsError(
                f"queries have {queries_QD.shape[1]} dimensions, {self.folder} {self.dimension}. "
                "Encode both with the same model"
            )
        return search_shards(self.shards, self.entities, queries_QD, k)

    def check_model(self, digest: str, similarity: str) -> None:
        """Refuses queries or vectors that do not compare with those in the index."""
        IndexFolder(self.folder, self.manifest).check_model(digest, similarity)


def search_shards(shards: Sequence[IndexShard], entities: Entities, queries_QD: np.ndarray, k: int) -> Hits:
    queries_QD = np.ascontiguousarray(queries_QD, np.float32)
    hits = Hits.none(len(queries_QD), k)
    for begin in range(0, len(queries_QD), QUERIES_AT_ONCE):
        some = slice(begin, begin + QUERIES_AT_ONCE)
        parts = [shard.search(queries_QD[some], entities, k) for shard in shards]
        found = parts[0] if len(parts) == 1 else merged(parts, k)
        hits.scores_QK[some], hits.rows_QK[some] = found.scores_QK, found.rows_QK
    return hits
