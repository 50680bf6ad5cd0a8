"""The gold entities of mentions as rows of a KB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.chance import position
from pel_ray.tables import TableFolder


@dataclass(frozen=True)
class GoldMentions:
    """Mentions of one split, with their golds as rows of the KB."""

    rows: list[int]
    """Rows of mentions/."""
    ids: list[str]
    documents: list[str]
    worlds: list[str]
    golds: list[list[int]]
    """Rows of the KB; empty where the mention is NIL or the KB lacks its golds."""
    num_golds: list[int]
    """Of the rows in `golds`, and of the entities that the KB lacks."""
    names: list[list[str]]
    """The golds as the corpus names them."""
    is_nil: list[bool]
    num_nil: int
    num_outside: int
    """Mentions whose golds the KB lacks, all of them."""

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, numbers: Iterable[int]) -> GoldMentions:
        some = list(numbers)
        names = ("rows", "ids", "documents", "worlds", "golds", "num_golds", "names", "is_nil")
        columns: dict[str, Any] = {name: [getattr(self, name)[number] for number in some] for name in names}
        return replace(self, **columns)

    def golden(self) -> GoldMentions:
        """Those that have a gold in the KB."""
        return self.only(number for number, golds in enumerate(self.golds) if golds)

    def sampled(self, num_mentions: int | None) -> GoldMentions:
        """At most so many, always the same, in the order of the table."""
        if num_mentions is None or len(self) <= num_mentions:
            return self
        by_chance = sorted(range(len(self)), key=lambda number: position(19, self.ids[number]))
        return self.only(sorted(by_chance[:num_mentions]))


def gold_mentions(mentions: TableFolder, kb: TableFolder, split: str | None) -> GoldMentions:
    """All mentions of a split, in the order of the table; None stands for all splits."""
    rows: list[int] = []
    columns: dict[str, list[Any]] = {name: [] for name in ("mention_id", "document_id", "world", "entity_ids")}
    for first, table in _with_first_row(mentions, (*columns, "split")):
        here = pa.array(range(table.num_rows), pa.int64())
        if split is not None:
            here = pc.indices_nonzero(pc.equal(table["split"], split))
        rows += [first + number for number in here.to_pylist()]
        for name, values in columns.items():
            values += table[name].take(here).to_pylist()
    names = columns["entity_ids"]
    known = rows_of_ids(kb, {name for golds in names for name in golds})
    golds = [sorted({known[name] for name in found if name in known}) for found in names]
    is_nil = [not found for found in names]
    num_nil = sum(is_nil)
    return GoldMentions(
        rows=rows,
        ids=columns["mention_id"],
        documents=columns["document_id"],
        worlds=columns["world"],
        golds=golds,
        num_golds=[
            len(rows) + len({name for name in found if name not in known})
            for rows, found in zip(golds, names, strict=True)
        ],
        names=names,
        is_nil=is_nil,
        num_nil=num_nil,
        num_outside=sum(not rows for rows in golds) - num_nil,
    )


def rows_of_ids(kb: TableFolder, wanted: set[str]) -> dict[str, int]:
    """The rows of entities by id, or by an alternative id where no entity has it for its own."""
    own: dict[str, int] = {}
    alternative: dict[str, int] = {}
    values = pa.array(sorted(wanted), pa.string())
    for first, table in _with_first_row(kb, ("entity_id", "alternative_ids")):
        for number in pc.indices_nonzero(pc.is_in(table["entity_id"], values)).to_pylist():
            own[table["entity_id"][number].as_py()] = first + number
        lists = table["alternative_ids"].combine_chunks()
        flat, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
        for number in pc.indices_nonzero(pc.is_in(flat, values)).to_pylist():
            alternative.setdefault(flat[number].as_py(), first + parents[number].as_py())
    return alternative | own


def _with_first_row(folder: TableFolder, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    first = 0
    for table in folder.tables(columns):
        yield first, table
        first += table.num_rows


def rows_at(folder: TableFolder, rows: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """A few rows of a table by number."""
    found = {}
    wanted = sorted(set(rows))
    for first, table in _with_first_row(folder, columns):
        here = [row - first for row in wanted if first <= row < first + table.num_rows]
        for row, entity in zip(here, table.take(here).to_pylist() if here else (), strict=True):
            found[first + row] = entity
    return found
