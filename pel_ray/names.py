"""Names of entities made comparable, and the entities that share a name with a gold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.tables import TableFolder

_WORD = re.compile(r"[^\W_]+")
_ASCII = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
"""What each ASCII character becomes; most names need no more, in half the time of the general way."""


def normalised(name: str) -> str:
    """The name without case, width and punctuation: `Alpha-2B  (human)` becomes `alpha 2b human`."""
    if name.isascii():
        words = name.translate(_ASCII).split()
    else:
        words = _WORD.findall(unicodedata.normalize("NFKC", name).casefold())
    # Names such as "+" have no word at all, which does not make them equal.
    return " ".join(words) or name.casefold().strip()


@dataclass(frozen=True)
class Namesakes:
    """Which other entities share a title or synonym with a gold: drawn as its negatives, they would be half right."""

    names: Mapping[int, frozenset[str]]
    """Normalised title and synonyms of each gold row."""
    rows: Mapping[str, list[int]]
    """Every entity that has one of these names."""

    @classmethod
    def of(cls, kb: TableFolder, gold_rows: Iterable[int]) -> Namesakes:
        """Reads the KB twice, so that memory holds the names of the golds and not those of the KB."""
        names: dict[int, set[str]] = {int(row): set() for row in gold_rows}
        for row, name in _names_of_rows(kb, np.array(sorted(names), np.int64)):
            names[row].add(name)
        rows: dict[str, list[int]] = {name: [] for of_gold in names.values() for name in of_gold}
        for row, name in _all_names(kb):
            if name in rows:
                rows[name].append(row)
        return cls({row: frozenset(of_gold) for row, of_gold in names.items()}, rows)

    def of_gold(self, row: int) -> np.ndarray:
        """Rows of the other entities that share a name with this gold, ascending."""
        found = {other for name in self.names[row] for other in self.rows[name]} - {row}
        return np.array(sorted(found), np.int64)


def namesakes_of(kb: TableFolder, golds: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """For each mention, given its gold rows, the rows of all entities that share a name with one of them."""
    found = Namesakes.of(kb, {row for rows in golds for row in rows})
    return [np.unique(np.concatenate([found.of_gold(row) for row in rows])) for rows in golds]


def _names_of_rows(kb: TableFolder, rows: np.ndarray) -> Iterator[tuple[int, str]]:
    """Row and name of the given rows, which ascend."""
    first = 0
    for table in kb.tables(["title", "synonyms"]):
        start, stop = np.searchsorted(rows, [first, first + table.num_rows])
        yield from _names(table.take(rows[start:stop] - first), rows[start:stop])
        first += table.num_rows


def _all_names(kb: TableFolder) -> Iterator[tuple[int, str]]:
    first = 0
    for table in kb.tables(["title", "synonyms"]):
        yield from _names(table, np.arange(first, first + table.num_rows))
        first += table.num_rows


def _names(table: pa.Table, rows: np.ndarray) -> Iterator[tuple[int, str]]:
    """Row and normalised name, for every title and every synonym; an empty one names nothing."""
    titles, synonyms = table["title"], table["synonyms"]
    of_synonyms = rows[pc.list_parent_indices(synonyms).to_numpy()]
    for owners, names in ((rows, titles), (of_synonyms, pc.list_flatten(synonyms))):
        for row, name in zip(owners.tolist(), map(normalised, names.to_pylist()), strict=True):
            if name:
                yield row, name
