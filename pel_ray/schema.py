"""The two tables everything starts from: entities of a KB and mentions in text, as rows and as Arrow schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

STRINGS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """One thing a mention can mean. Its row number in the table is its address everywhere else."""

    entity_id: str
    title: str
    types: tuple[str, ...] = ()
    description: str = ""
    synonyms: tuple[str, ...] = ()
    alternative_ids: tuple[str, ...] = ()
    """Other ids that mean exactly this entity: merged or replaced ones. A gold may use them."""
    xrefs: tuple[str, ...] = ()
    """Ids in other vocabularies that mean roughly this entity."""
    world: str = ""
    """The closed world a ZESHEL entity belongs to; empty elsewhere."""
    where: str = ""
    """File and line it was read from, for error messages; not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One span of text and what it means. No entity ids is NIL: the KB does not hold what it means."""

    mention_id: str
    document_id: str
    context_left: str
    mention: str
    context_right: str
    entity_ids: tuple[str, ...] = ()
    split: str = ""
    world: str = ""
    types: tuple[str, ...] = ()
    """The types the corpus gives, which need not be those of the KB."""
    where: str = ""


KB_SCHEMA = pa.schema(
    [
        ("entity_id", pa.string()),
        ("title", pa.string()),
        ("types", STRINGS),
        ("description", pa.string()),
        ("synonyms", STRINGS),
        ("alternative_ids", STRINGS),
        ("xrefs", STRINGS),
        ("world", pa.string()),
    ]
)
MENTION_SCHEMA = pa.schema(
    [
        ("mention_id", pa.string()),
        ("document_id", pa.string()),
        ("context_left", pa.string()),
        ("mention", pa.string()),
        ("context_right", pa.string()),
        ("entity_ids", STRINGS),
        ("split", pa.string()),
        ("world", pa.string()),
        ("types", STRINGS),
    ]
)
SCHEMAS = {"kb": KB_SCHEMA, "mentions": MENTION_SCHEMA}


def table_of(kind: str, rows: Sequence[Entity | Mention]) -> pa.Table:
    schema = SCHEMAS[kind]
    return pa.table({name: [getattr(row, name) for row in rows] for name in schema.names}, schema=schema)


def num_characters(row: Entity | Mention) -> int:
    """About how much memory the row takes."""
    if isinstance(row, Entity):
        return len(row.title) + len(row.description) + sum(map(len, row.synonyms))
    return len(row.context_left) + len(row.mention) + len(row.context_right)
