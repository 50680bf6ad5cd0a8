"""KBs and mentions as JSON lines: our own field names, those of common corpora, and those of BLINK.

A mention's text comes with its contexts (`context_left`, `mention`, `context_right`), or as character offsets
(`start`, `end`) into its own `context` or into a document of a separate file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pel_ray.errors import InputError
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
_NIL_LABELS = frozenset({"", "NIL", "-1"})


def read_entities(lines: Lines, dialect: Dialect, tally: Tally) -> Iterator[Entity]:
    for row, record in enumerate(read_records(lines, dialect.kb, tally, "entities")):
        yield Entity(
            entity_id=record.text("entity_id", str(row) if dialect.rows_are_ids else None),
            title=record.text("title").strip(),
            types=record.texts("types"),
            description=record.text("description", ""),
            synonyms=record.texts("synonyms"),
            alternative_ids=record.texts("alternative_ids"),
            xrefs=record.texts("xrefs"),
            world=record.text("world", ""),
            where=record.where,
        )


def read_texts(lines: Lines, texts: Texts, splits: dict[str, str], tally: Tally) -> None:
    """Puts the documents of a file into `texts`, and the split of each into `splits`."""
    for record in read_records(lines, DOCUMENTS, tally, "documents"):
        document_id = record.text("document_id")
        if document_id in texts:
            raise InputError(record.where, f"document {document_id} stands twice. Ids must be unique")
        texts.add(document_id, record.text("text"))
        splits[document_id] = record.text("split", "")


def read_mentions(
    lines: Lines,
    dialect: Dialect,
    tally: Tally,
    *,
    texts: Texts,
    splits: dict[str, str],
    split: str,
    context: int,
) -> Iterator[Mention]:
    for row, record in enumerate(read_records(lines, dialect.mentions, tally, "mentions")):
        document_id = record.text("document_id", "")
        parts = _parts(record, document_id, texts, tally)
        if parts is None:
            continue
        labels = _labels(record)
        if not labels:
            tally.note("mentions", "NIL")
        yield Mention(
            mention_id=record.text("mention_id", f"{split or 'mention'}-{row}"),
            document_id=document_id,
            context_left=cut_left(parts[0], context),
            mention=parts[1],
            context_right=cut_right(parts[2], context),
            entity_ids=labels,
            split=split_name(split or record.text("split", splits.get(document_id, ""))),
            world=record.text("world", ""),
            types=record.texts("types"),
            where=record.where,
        )


def _labels(record: Record) -> tuple[str, ...]:
    if not record.has("entity_ids"):
        names = " or ".join(record.aliases["entity_ids"])
        raise InputError(record.where, f"has no label ({names}). Write null where the KB does not hold it (NIL)")
    return tuple(dict.fromkeys(label for label in record.texts("entity_ids") if label not in _NIL_LABELS))


def _parts(record: Record, document_id: str, texts: Texts, tally: Tally) -> tuple[str, str, str] | None:
    """Left context, mention, right context; nothing where they cannot be had and such mentions are left out."""
    if record.has("context_left") or record.has("context_right"):
        return record.text("context_left", ""), record.text("mention"), record.text("context_right", "")
    text = record.text("context") if record.has("context") else texts.get(document_id)
    if text is None and not record.has("start"):
        return "", record.text("mention"), ""
    if text is None:
        tally.problem(
            "mentions", "document not given", record.where,
            f"document {document_id!r} is not among the {len(texts):,} documents given. Pass its file with --documents",
        )  # fmt: skip
        return None
    start, end = record.number("start"), record.number("end")
    said = record.text("mention", text[start:end])
    if text[start:end] != said or not said:
        tally.problem(
            "mentions", "text and offsets disagree", record.where,
            f"the text at {start}-{end} is {text[start:end]!r}, the record says {said!r}. "
            "Correct it, or pass --on-error skip to leave such mentions out",
        )  # fmt: skip
        return None
    return text[:start], said, text[end:]
