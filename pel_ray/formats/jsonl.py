"""KBs and mentions as JSON lines: our own field names, those of common corpora, and those of BLINK.

A mention's text comes with its contexts (`context_left`, `mention`, `context_right`), or as character offsets
(`start`, `end`) into its own `context` or into a document of a separate file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from pel_ray.errors import BadRecord
from pel_ray.formats.lines import Lines
from pel_ray.formats.records import Aliases, Record, read_records
from pel_ray.formats.spans import cut_left, cut_right, split_name
from pel_ray.formats.texts import Texts
from pel_ray.schema import Entity, Mention
from pel_ray.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What the fields of a family of files are called."""

    kb: Aliases
    mentions: Aliases
    rows_are_ids: bool = False
    """An entity without an id is known by its row, counted from 0."""


DOCUMENTS: Aliases = {
    "document_id": ("document_id", "doc_id", "id", "pmid"),
    "text": ("text", "document"),
    "split": ("split",),
}
PLAIN = Dialect(
    kb={
        "entity_id": ("entity_id", "id", "cui"),
        "title": ("title", "name"),
        "types": ("types", "type"),
        "description": ("description", "definition", "text"),
        "synonyms": ("synonyms", "aliases"),
        "alternative_ids": ("alternative_ids", "alt_ids"),
        "xrefs": ("xrefs",),
        "world": ("world",),
    },
    mentions={
        "mention_id": ("mention_id", "id"),
        "document_id": ("document_id", "doc_id", "pmid"),
        "context_left": ("context_left", "left"),
        "context_right": ("context_right", "right"),
        "context": ("context",),
        "mention": ("mention", "text"),
        "start": ("start",),
        "end": ("end",),
        "entity_ids": ("entity_ids", "entity_id", "label", "labels"),
        "types": ("types", "type"),
        "split": ("split",),
        "world": ("world",),
    },
)
BLINK = Dialect(
    kb=PLAIN.kb | {"entity_id": ("document_id", "idx", "id"), "title": ("title", "entity"), "world": ("world", "type")},
    mentions=PLAIN.mentions | {"entity_ids": ("label_id",), "world": ("world", "type"), "types": ("types",)},
    rows_are_ids=True,
)
_NIL_LABELS = frozenset({"NIL", "-1"})


def read_entities(lines: Lines, dialect: Dialect, tally: Tally, rows: Iterator[int]) -> Iterator[Entity]:
    """`rows` counts the entities of all files of a KB."""
    for record in read_records(lines, dialect.kb, tally, "entities"):
        row_id = str(next(rows)) if dialect.rows_are_ids else None
        entity = tally.attempt("entities", partial(_entity, record, row_id))
        if entity is not None:
            yield entity


def _entity(record: Record, row_id: str | None) -> Entity:
    return Entity(
        entity_id=record.name("entity_id", row_id),
        title=record.name("title"),
        types=record.names("types"),
        description=record.text("description", ""),
        synonyms=record.names("synonyms"),
        alternative_ids=record.names("alternative_ids"),
        xrefs=record.names("xrefs"),
        world=record.name("world", ""),
        where=record.where,
    )


def read_texts(lines: Lines, texts: Texts, splits: dict[str, str], tally: Tally) -> None:
    """Puts the documents of a file into `texts`, and the split of each into `splits`."""

    def add(record: Record) -> None:
        document_id = record.name("document_id")
        texts.add(document_id, record.text("text"), record.where)
        splits[document_id] = record.name("split", "")

    for record in read_records(lines, DOCUMENTS, tally, "documents"):
        tally.attempt("documents", partial(add, record))


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Turns records into mentions: where their documents are, and what to do where a record does not say it."""

    dialect: Dialect
    texts: Texts
    splits: dict[str, str]
    """The split of each document that has one."""
    context: int
    rows: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for mentions without an id, over all files."""

    def read(self, lines: Lines, split: str, tally: Tally) -> Iterator[Mention]:
        for record in read_records(lines, self.dialect.mentions, tally, "mentions"):
            mention = tally.attempt("mentions", partial(self._mention, record, split))
            if mention is not None:
                if not mention.entity_ids:
                    tally.note("mentions", "NIL")
                yield mention

    def _mention(self, record: Record, split: str) -> Mention:
        document_id = record.name("document_id", "")
        left, mention, right = self._parts(record, document_id)
        return Mention(
            mention_id=record.name("mention_id", f"mention-{next(self.rows)}"),
            document_id=document_id,
            context_left=cut_left(left, self.context),
            mention=mention,
            context_right=cut_right(right, self.context),
            entity_ids=_labels(record),
            split=split_name(split or record.name("split", self.splits.get(document_id, ""))),
            world=record.name("world", ""),
            types=record.names("types"),
            where=record.where,
        )

    def _parts(self, record: Record, document_id: str) -> tuple[str, str, str]:
        """Left context, mention, right context."""
        if record.is_set("context_left") or record.is_set("context_right"):
            return record.text("context_left", ""), record.text("mention"), record.text("context_right", "")
        text = record.text("context") if record.is_set("context") else self.texts.get(document_id)
        if text is None and not record.has("start"):
            return "", record.text("mention"), ""
        if text is None:
            problem = f"document {document_id!r} is not among the {len(self.texts):,} documents given"
            raise BadRecord(record.where, "document not given", f"{problem}. Pass its file with --documents")
        start, end = record.span(text)
        said = record.text("mention", text[start:end])
        if text[start:end] != said:
            problem = (
                f"the text at {start}-{end} is {text[start:end]!r}, the record says {said!r}. "
                "Correct it, or pass --on-error skip to leave such mentions out"
            )
            raise BadRecord(record.where, "text and offsets disagree", problem)
        return text[:start], said, text[end:]


def _labels(record: Record) -> tuple[str, ...]:
    if not record.has("entity_ids"):
        names = " or ".join(record.aliases["entity_ids"])
        problem = f"has no label ({names}). Write null where the KB does not hold it (NIL)"
        raise BadRecord(record.where, "without a label", problem)
    return tuple(label for label in record.names("entity_ids") if label not in _NIL_LABELS)
