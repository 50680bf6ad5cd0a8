"""Entity texts as word pieces, kept in shards of ragged arrays that are mapped into memory and never read as a whole.

A text is one view of an entity: its own text, or one more per synonym. Its hash tells whether it has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.arrays import damaged
from pel_ray.storage import Location, storage_errors
from pel_ray.text import Texts

COLUMNS = ("entity_id", "title", "types", "synonyms", "description")
SCHEMA = pa.schema(
    [
        ("entity_row", pa.int64()),
        ("entity_id", pa.string()),
        ("text_hash", pa.uint64()),
        ("pieces", pa.large_list(pa.int32())),
    ]
)


@dataclass(frozen=True)
class TokenShard:
    """The texts of a range of entities; text i is pieces[offsets[i]:offsets[i + 1]]."""

    entity_rows: np.ndarray
    entity_ids: pa.Array
    hashes: np.ndarray
    pieces: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def only(self, wanted: np.ndarray) -> TokenShard:
        """The texts for which `wanted` is true."""
        kept = np.flatnonzero(wanted)
        lengths = self.lengths[kept]
        return TokenShard(
            self.entity_rows[kept],
            self.entity_ids.take(pa.array(kept)),
            self.hashes[kept],
            self.pieces[np.repeat(wanted, self.lengths)],
            np.concatenate([[0], np.cumsum(lengths)]),
        )

    @classmethod
    def of_table(cls, table: pa.Table) -> TokenShard:
        batch = table.combine_chunks()
        lists = batch["pieces"].chunk(0) if batch.num_rows else pa.array([], SCHEMA.field("pieces").type)
        offsets = lists.offsets.to_numpy()
        return cls(
            entity_rows=batch["entity_row"].to_numpy(),
            entity_ids=batch["entity_id"],
            hashes=batch["text_hash"].to_numpy(),
            pieces=lists.values.to_numpy(),
            offsets=offsets,
        )


def tokenise(texts: Texts, rows: Sequence[Mapping[str, Any]], first_row: int, with_synonyms: bool) -> pa.Table:
    """The texts of entities as a table of SCHEMA; `rows` have COLUMNS, and `first_row` is the row of the first."""
    views = list(_views(rows, first_row, with_synonyms))
    pieces = texts.entities([view for _, view in views])
    return pa.table(
        {
            "entity_row": [row for row, _ in views],
            "entity_id": [view["entity_id"] for _, view in views],
            "text_hash": [text_hash(ids) for ids in pieces],
            "pieces": pieces,
        },
        schema=SCHEMA,
    )


def _views(
    rows: Sequence[Mapping[str, Any]], first_row: int, with_synonyms: bool
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for row, entity in enumerate(rows, start=first_row):
        yield row, entity
        if with_synonyms:
            for synonym in entity["synonyms"]:
                # A name alone: the description has its vector already, and would drown the name.
                yield row, {**entity, "title": synonym, "synonyms": (), "description": ""}


def text_hash(ids: Sequence[int]) -> int:
    return int.from_bytes(hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=8).digest(), "big")


def write_shard(file: Location, table: pa.Table) -> None:
    with file.writing() as stream, pa.ipc.new_file(stream, SCHEMA) as writer:
        writer.write_table(table.combine_chunks())


def read_shard(file: Location) -> TokenShard:
    """A shard, mapped into memory where the file is local."""
    with storage_errors(file, "read"):
        source = pa.memory_map(file.path) if file.is_local else pa.BufferReader(file.read_bytes())
    try:
        with pa.ipc.open_file(source) as reader:
            return TokenShard.of_table(reader.read_all())
    except (pa.ArrowException, OSError, KeyError) as error:
        raise damaged(file, error) from error
