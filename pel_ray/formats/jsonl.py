"""KBs and mentions as JSON lines: our own field names, those of common corpora, and those of BLINK.

A mention's text comes with its contexts (`context_left`, `mention`, `context_right`), or as character offsets
(`start`, `end`) into its own `context` or into a document of a separate file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """An entity without an id is known by its row, counted from 0, and a page of Wikipedia by the number in its URL."""


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
    kb=PLAIN.kb | {"entity_id": ("document_id", "idx", "id"), "title": ("title", "entity"), "number": ("idx", "id")},
    mentions=PLAIN.mentions
    | {"entity_ids": ("label_id",), "world": ("world", "type"), "types": ("types",), "label_title": ("label_title",)},
    rows_are_ids=True,
)
_PAGE_NUMBER = re.compile(r"https?://\S*[?&]curid=([0-9]+)")
_NIL_LABELS = frozenset({"NIL", "-1"})


def read_entities(lines: Lines, dialect: Dialect, tally: Tally, world: str = "") -> Iterator[Entity]:
    """The entities of a file, of `world` where they name none; the tally counts the rows of all files of a KB."""
    for record in read_records(lines, dialect.kb, tally, "entities"):
        # Not the number of records so far: one that is left out keeps its row, or the labels of all later ones shift.
        row = tally.num_read("entities") - 1
        entity = tally.attempt("entities", partial(entity_of, record, dialect, row, world))
        if entity is not None:
            yield entity


def entity_of(record: Record, dialect: Dialect, row: int, world: str) -> Entity:
    entity_id = record.name("entity_id", str(row) if dialect.rows_are_ids else None)
    return Entity(
        entity_id=page_number(entity_id) if dialect.rows_are_ids else entity_id,
        title=record.name("title"),
        types=record.names("types"),
        description=record.text("description", ""),
        synonyms=record.names("synonyms"),
        alternative_ids=record.names("alternative_ids"),
        xrefs=record.names("xrefs"),
        world=record.name("world", world),
        where=record.where,
    )


def page_number(name: str) -> str:
    """The number of a page of Wikipedia, given by its URL; any other name stays as it is."""
    match = _PAGE_NUMBER.fullmatch(name)
    return match[1] if match else name


def labels_of(record: Record) -> tuple[str, ...]:
    """The golds of a mention as its record states them."""
    if not record.has("entity_ids"):
        names = " or ".join(record.aliases["entity_ids"])
        problem = f"has no label ({names}). Write null where the KB does not hold it (NIL)"
        raise BadRecord(record.where, "without a label", problem)
    return tuple(label for label in record.names("entity_ids") if label not in _NIL_LABELS)


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
    golds: Callable[[Record], tuple[str, ...]] = labels_of

    def read(self, lines: Lines, split: str, tally: Tally) -> Iterator[Mention]:
        for record in read_records(lines, self.dialect.mentions, tally, "mentions"):
            # A mention without an id is numbered by its row over all files, left out or not, as entities are.
            row = tally.num_read("mentions") - 1
            mention = tally.attempt("mentions", partial(self._mention, record, split, row))
            if mention is not None:
                yield mention

    def _mention(self, record: Record, split: str, row: int) -> Mention:
        document_id = record.name("document_id", "")
        left, mention, right = self._parts(record, document_id)
        return Mention(
            mention_id=record.name("mention_id", f"mention-{row}"),
            document_id=document_id,
            context_left=cut_left(left, self.context),
            mention=mention,
            context_right=cut_right(right, self.context),
            entity_ids=self.golds(record),
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
        if text is None and not (record.is_set("start") or record.is_set("end")):
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
