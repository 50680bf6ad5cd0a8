"""Mentions with their candidates and a ranker's scores of them, as a folder that every worker maps.

Shapes: M mentions, P golds of the one that has most, N negatives of each, K = P + N; B mentions of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pel_ray.arrays import read_array, write_array
from pel_ray.artifacts import Work, read_manifest
from pel_ray.ragged import Ragged
from pel_ray.rank_candidates import Examples
from pel_ray.storage import Location

KIND = "teacher"


def scored_entities(examples: Examples) -> np.ndarray:
    """(M, K): all golds that may be the positive, then the negatives; -1 where there is no more."""
    golds = examples.positives
    slots_MP = np.full((len(golds), int(golds.lengths.max())), -1, np.int64)
    slots_MP[golds.owners, golds.positions] = golds.values
    return np.concatenate([slots_MP, examples.negatives_MN], axis=1)


@dataclass(frozen=True)
class Taught:
    """What a retriever learns from a ranker."""

    examples: Examples
    positive_scores: Ragged
    """As `examples.positives`."""
    negative_scores_MN: np.ndarray
    """-inf where there is no negative."""

    @classmethod
    def of(cls, examples: Examples, scores_MK: np.ndarray) -> Taught:
        """From scores of the `scored_entities`."""
        golds = examples.positives
        num_slots = scores_MK.shape[1] - examples.negatives_MN.shape[1]
        scores = Ragged(scores_MK[golds.owners, golds.positions], golds.offsets)
        return cls(examples, scores, np.ascontiguousarray(scores_MK[:, num_slots:]))

    def scores(self, numbers_B: np.ndarray, epoch: int) -> np.ndarray:
        """As `examples.candidates`."""
        positives_B = self.positive_scores.turn(numbers_B, self.examples.rows_M[numbers_B] + epoch)
        return np.concatenate([positives_B[:, None], self.negative_scores_MN[numbers_B]], axis=1)

    def write(self, work: Work) -> None:
        scores = {"positive-scores": self.positive_scores.values, "negative-scores": self.negative_scores_MN}
        for name, array in (scores | self.examples.arrays()).items():
            write_array(work.folder / work.name(name, ".npy"), array)
            work.count(work.name(name, ".npy"))

    @classmethod
    def read(cls, folder: Location) -> Taught:
        tag = read_manifest(folder, KIND).request.fingerprint[:8]

        def array(name: str) -> np.ndarray:
            return np.asarray(read_array(folder / f"{name}-{tag}.npy"))

        examples = Examples.of_arrays(array)
        scores = Ragged(array("positive-scores"), examples.positives.offsets)
        return cls(examples, scores, array("negative-scores"))

    @property
    def share_of_golds_first(self) -> float:
        """Of the mentions, those for which the ranker puts a gold before all negatives."""
        best_M = np.maximum.reduceat(self.positive_scores.values, self.positive_scores.offsets[:-1])
        return float((best_M >= self.negative_scores_MN.max(1, initial=-np.inf)).mean())
