"""Where workers find what they train on: arrays that the driver prepares once, mapped by every worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pel_ray.arrays import read_array, write_array
from pel_ray.batches import ragged
from pel_ray.chunks import Pieces
from pel_ray.golds import GoldMentions
from pel_ray.negative_folder import NegativeFolder
from pel_ray.negatives import Pools
from pel_ray.ragged import Ragged
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.taught import Taught
from pel_ray.text import MENTION_COLUMNS, Texts
from pel_ray.token_table import TokenTable
from pel_ray.training_data import TrainingData

MENTIONS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class TrainingSource:
    """Names the files; the same for every epoch but for the negatives."""

    folder: Location
    tag: str
    num_entities: int
    token_files: Sequence[Location]
    negatives: NegativeFolder | None = None
    taught: Location | None = None
    """A ranker's scores of the mentions' candidates."""

    def prepare(
        self,
        mentions: TableFolder,
        chosen: GoldMentions,
        namesakes: Sequence[np.ndarray],
        texts: Texts,
        pool_of_entity: np.ndarray | None,
        pool_of_mention: np.ndarray | None,
    ) -> None:
        """Writes what is not there yet; the rows of the mentions come last and say that all of it is."""
        if self._file("rows").is_file():
            return
        rows = np.array(chosen.rows, np.int64)
        golds = Ragged.of(chosen.golds)
        excluded = golds.joined(Ragged.of(namesakes))
        flat, offsets = ragged(mention_pieces(mentions, rows, texts))
        arrays = {"golds": golds.values, "gold-offsets": golds.offsets, "texts": flat, "text-offsets": offsets}
        arrays |= {"excluded": excluded.values, "excluded-offsets": excluded.offsets}
        if pool_of_entity is not None and pool_of_mention is not None:
            arrays |= {"entity-pools": pool_of_entity, "mention-pools": pool_of_mention}
        for name, array in (arrays | {"rows": rows}).items():
            write_array(self._file(name), array)

    def load(self) -> TrainingData:
        rows_M = self._array("rows")
        has_pools = self._file("mention-pools").is_file()
        pools = Pools.of_numbers(self._array("entity-pools")) if has_pools else Pools.whole(self.num_entities)
        return TrainingData(
            rows_M=rows_M,
            texts=Pieces(self._array("texts"), self._array("text-offsets")),
            golds=Ragged(self._array("golds"), self._array("gold-offsets")),
            excluded=Ragged(self._array("excluded"), self._array("excluded-offsets")),
            pool_M=self._array("mention-pools") if has_pools else np.zeros(len(rows_M), np.int64),
            pools=pools,
            entities=TokenTable(self.token_files),
            hard=self._hard(rows_M) if self.negatives else None,
            taught=Taught.read(self.taught) if self.taught else None,
        )

    def _hard(self, rows_M: np.ndarray) -> Ragged:
        """The mined negatives of each mention; none where nothing was mined for it."""
        assert self.negatives is not None
        lists: list[Sequence[int]] = [()] * len(rows_M)
        for table in self.negatives.tables(["mention_row", "entity_rows"]):
            rows = table["mention_row"].to_numpy()
            places = np.minimum(np.searchsorted(rows_M, rows), len(rows_M) - 1)
            for number in np.flatnonzero(rows_M[places] == rows).tolist():
                lists[places[number]] = table["entity_rows"][number].values.to_numpy()
        return Ragged.of(lists)

    def _file(self, name: str) -> Location:
        return self.folder / f"mentions-{name}-{self.tag}.npy"

    def _array(self, name: str) -> np.ndarray:
        return np.asarray(read_array(self._file(name)))


def mention_pieces(mentions: TableFolder, rows: np.ndarray, texts: Texts) -> list[list[int]]:
    """The texts of mentions at ascending rows, as word pieces."""
    pieces: list[list[int]] = []
    for start in range(0, len(rows), MENTIONS_AT_ONCE):
        some = rows[start : start + MENTIONS_AT_ONCE]
        table = mentions.rows(int(some[0]), int(some[-1]) + 1, MENTION_COLUMNS)
        pieces += texts.mentions(table.take(some - some[0]).to_pylist())
    return pieces
