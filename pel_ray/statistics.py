"""What a table holds, counted while it is written: the figures papers print about their data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TRAIN = "train"
SPLIT_ORDER = (TRAIN, "validation", "test")


class KbStatistics:
    """How many entities, and how well they are described."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._types: set[str] = set()

    def add(self, table: pa.Table) -> None:
        num_synonyms = pc.list_value_length(table["synonyms"])
        self._counts["entities"] += table.num_rows
        self._counts["with description"] += _count(pc.not_equal(table["description"], ""))
        self._counts["with synonyms"] += _count(pc.greater(num_synonyms, 0))
        self._counts["synonyms"] += pc.sum(num_synonyms).as_py() or 0
        self._types.update(_distinct(table["types"]))

    def to_json(self) -> dict[str, Any]:
        return {"kb": dict(self._counts) | {"types": len(self._types)}}


class MentionStatistics:
    """Mentions and entities by split, and how many of a split's entities training has seen."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._documents: dict[str, set[str]] = {}
        self._entities: dict[str, set[str]] = {}

    def add(self, table: pa.Table) -> None:
        for split in pc.unique(table["split"]).to_pylist():
            part = table.filter(pc.equal(table["split"], split))
            counts = self._counts.setdefault(split, Counter())
            counts["mentions"] += part.num_rows
            counts["NIL mentions"] += _count(pc.equal(pc.list_value_length(part["entity_ids"]), 0))
            self._documents.setdefault(split, set()).update(pc.unique(part["document_id"]).to_pylist())
            self._entities.setdefault(split, set()).update(_distinct(part["entity_ids"]))

    def to_json(self) -> dict[str, Any]:
        return {"splits": {split: self._of(split) for split in sorted(self._counts, key=_order)}}

    def _of(self, split: str) -> dict[str, Any]:
        entities = self._entities[split]
        trained = self._entities.get(TRAIN)
        seen = None if trained is None or not entities else round(100 * len(entities & trained) / len(entities), 1)
        return {
            "documents": len(self._documents[split]),
            **self._counts[split],
            "entities": len(entities),
            "% entities seen": seen,
        }


def statistics_of(kind: str) -> KbStatistics | MentionStatistics:
    return KbStatistics() if kind == "kb" else MentionStatistics()


def _distinct(lists: pa.ChunkedArray) -> list[str]:
    return pc.unique(pc.list_flatten(lists)).to_pylist()


def _count(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0


def _order(split: str) -> tuple[int, str]:
    return (SPLIT_ORDER.index(split) if split in SPLIT_ORDER else len(SPLIT_ORDER), split)
