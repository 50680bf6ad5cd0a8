"""What a ranker's training step sees: mentions beside their candidates, from arrays that every worker maps.

Shapes: M mentions in all, B of a micro-batch, C candidates of each, N = C - 1 of them negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pel_ray.arrays import read_array, write_array
from pel_ray.batches import ragged
from pel_ray.chunks import Pieces
from pel_ray.rank_candidates import Examples
from pel_ray.rank_objective import RankBatch
from pel_ray.rank_pairs import pair_texts
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.text import Texts
from pel_ray.token_table import TokenTable
from pel_ray.training_source import mention_pieces


@dataclass(frozen=True)
class RankData:
    """All training mentions with their texts and candidates."""

    texts: Pieces
    examples: Examples
    entities: TokenTable

    @property
    def rows_M(self) -> np.ndarray:
        return self.examples.rows_M

    def __len__(self) -> int:
        return len(self.rows_M)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The mentions of an epoch, shuffled."""
        return np.random.default_rng((seed, epoch)).permutation(len(self))

    def batch(self, numbers_B: np.ndarray, epoch: int) -> tuple[RankBatch, int]:
        """A micro-batch, and how many of its golds were not among the retriever's candidates."""
        candidates_BC = self.examples.candidates(numbers_B, epoch)
        is_pair_BC = candidates_BC >= 0
        rows_U, entity_T = np.unique(candidates_BC[is_pair_BC], return_inverse=True)
        pairs = pair_texts(self.texts, self.entities.take(rows_U), numbers_B[np.nonzero(is_pair_BC)[0]], entity_T)
        return RankBatch(pairs, is_pair_BC), int(self.examples.is_missing_M[numbers_B].sum())


@dataclass(frozen=True, kw_only=True)
class RankSource:
    """Names the files."""

    folder: Location
    tag: str
    token_files: Sequence[Location]

    @property
    def is_ready(self) -> bool:
        return self._file("rows").is_file()

    def prepare(self, mentions: TableFolder, examples: Examples, texts: Texts) -> None:
        """Writes all files; the rows of the mentions come last and say that all of them are there."""
        flat, offsets = ragged(mention_pieces(mentions, examples.rows_M, texts))
        for name, array in ({"texts": flat, "text-offsets": offsets} | examples.arrays()).items():
            write_array(self._file(name), array)

    def examples(self) -> Examples:
        return Examples.of_arrays(self._array)

    def load(self) -> RankData:
        texts = Pieces(self._array("texts"), self._array("text-offsets"))
        return RankData(texts, self.examples(), TokenTable(self.token_files))

    def _file(self, name: str) -> Location:
        return self.folder / f"pairs-{name}-{self.tag}.npy"

    def _array(self, name: str) -> np.ndarray:
        return np.asarray(read_array(self._file(name)))
