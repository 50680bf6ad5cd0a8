"""The candidates that a ranker is trained on and asked about: the best entities of a retriever, from its evaluation.

Shapes: Q mentions of a split, K candidates of each, M mentions that are trained on, N = K - 1 negatives of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from pel_ray.artifacts import read_manifest
from pel_ray.chance import position
from pel_ray.ragged import Ragged
from pel_ray.spec import Settings
from pel_ray.storage import Location

SAMPLE_SEED = 19


class CandidateSettings(Settings):
    """Which entities a mention's gold has to beat."""

    num_candidates: int = Field(default=16, ge=2, le=64)
    """The retriever's best entities that are ranked."""
    missing_gold: Literal["append", "drop"] = "append"
    """In training, where the gold is not among them: put it in the place of the last, or leave the mention out."""


@dataclass(frozen=True)
class Candidates:
    """What a retriever has found for the mentions of a split."""

    rows_Q: np.ndarray
    """Rows of mentions/."""
    entities_QK: np.ndarray
    """Rows of the KB, best first; -1 where there is no more."""
    scores_QK: np.ndarray
    """The retriever's; -inf where there is no more."""
    golds: Ragged
    is_nil_Q: np.ndarray

    @classmethod
    def read(cls, evaluation: Location, k: int) -> Candidates:
        """From the hits of an evaluation folder."""
        (name,) = (name for name in read_manifest(evaluation, "evaluation").files if name.startswith("hits-"))
        columns = ["mention_row", "entity_rows", "scores", "gold_rows", "is_nil"]
        with evaluation.filesystem.open_input_file((evaluation / name).path) as stream:
            table = pq.read_table(stream, columns=columns).combine_chunks()
        entities_QK, scores_QK = (_best(table[name], k) for name in ("entity_rows", "scores"))
        return cls(
            rows_Q=table["mention_row"].to_numpy(),
            entities_QK=entities_QK,
            scores_QK=scores_QK,
            golds=Ragged.of(table["gold_rows"].to_pylist()),
            is_nil_Q=table["is_nil"].to_numpy(zero_copy_only=False),
        )

    def __len__(self) -> int:
        return len(self.rows_Q)

    def only(self, numbers: Iterable[int]) -> Candidates:
        some = np.fromiter(numbers, np.int64)
        return Candidates(
            rows_Q=self.rows_Q[some],
            entities_QK=self.entities_QK[some],
            scores_QK=self.scores_QK[some],
            golds=self.golds.take(some),
            is_nil_Q=self.is_nil_Q[some],
        )

    def with_gold(self, most: int | None) -> Candidates:
        """Mentions that are not NIL; where fewer are asked for, always the same ones."""
        numbers = np.flatnonzero(~self.is_nil_Q).tolist()
        if most is not None and len(numbers) > most:
            drawn = sorted(numbers, key=lambda number: position(SAMPLE_SEED, str(self.rows_Q[number])))
            numbers = sorted(drawn[:most])
        return self.only(numbers)

    def is_gold(self) -> np.ndarray:
        """(Q, K): which candidates are golds."""
        is_gold_QK = np.zeros(self.entities_QK.shape, bool)
        for number in range(len(self)):
            golds = self.golds.values[self.golds.offsets[number] : self.golds.offsets[number + 1]]
            is_gold_QK[number] = np.isin(self.entities_QK[number], golds)
        return is_gold_QK

    @property
    def num_missing(self) -> int:
        """Mentions with a gold in the KB, but none among the candidates."""
        return int((self.golds.lengths > 0).sum()) - int(self.is_gold().any(1).sum())


def _best(column: pa.ChunkedArray, k: int) -> np.ndarray:
    """(Q, K): the first of lists that are all as long."""
    values_QH = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    return np.ascontiguousarray(values_QH[:, :k])


@dataclass(frozen=True)
class Examples:
    """Mentions that a ranker is trained on, each with what its gold has to beat."""

    rows_M: np.ndarray
    positives: Ragged
    """Golds that take turns from epoch to epoch: those among the candidates, or all where none is."""
    negatives_MN: np.ndarray
    """-1 where there is no more."""
    is_missing_M: np.ndarray
    """Whose gold was not among the candidates, and stands in the place of the last."""

    def candidates(self, numbers_B: np.ndarray, epoch: int) -> np.ndarray:
        """(B, K): the positive whose turn it is, then the negatives."""
        positives_B = self.positives.turn(numbers_B, self.rows_M[numbers_B] + epoch)
        return np.concatenate([positives_B[:, None], self.negatives_MN[numbers_B]], axis=1)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it by name, the rows last."""
        return {
            "positives": self.positives.values,
            "positive-offsets": self.positives.offsets,
            "negatives": self.negatives_MN,
            "missing": self.is_missing_M,
            "rows": self.rows_M,
        }

    @classmethod
    def of_arrays(cls, array: Callable[[str], np.ndarray]) -> Examples:
        return cls(
            rows_M=array("rows"),
            positives=Ragged(array("positives"), array("positive-offsets")),
            negatives_MN=array("negatives"),
            is_missing_M=array("missing"),
        )


def examples_of(candidates: Candidates, settings: CandidateSettings) -> Examples:
    """Of all mentions with a gold in the KB; where it is missing from the candidates, as the settings say."""
    is_gold_QK = candidates.is_gold()
    is_found_Q = np.asarray(is_gold_QK.any(1))
    is_used_Q = is_found_Q if settings.missing_gold == "drop" else candidates.golds.lengths > 0
    chosen = np.flatnonzero(is_used_Q)
    positives = []
    negatives_MN = np.full((len(chosen), candidates.entities_QK.shape[1] - 1), -1, np.int64)
    for place, number in enumerate(chosen.tolist()):
        rows_K, is_gold_K = candidates.entities_QK[number], is_gold_QK[number]
        golds = candidates.golds.values[candidates.golds.offsets[number] : candidates.golds.offsets[number + 1]]
        positives.append(np.sort(rows_K[is_gold_K]) if is_gold_K.any() else golds)
        negatives = rows_K[~is_gold_K & (rows_K >= 0)][: negatives_MN.shape[1]]
        negatives_MN[place, : len(negatives)] = negatives
    return Examples(candidates.rows_Q[chosen], Ragged.of(positives), negatives_MN, ~is_found_Q[chosen])
