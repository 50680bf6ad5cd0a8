"""ZESHEL in its original layout: `documents/<world>.json` and `mentions/<split>.json`, JSON lines both.

Every document is an entity of its world, and mentions stand in documents: `start_index` and `end_index` are
positions of whitespace tokens, and the end is inclusive.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pel_ray.errors import BadRecord
from pel_ray.formats.lines import Lines
from pel_ray.formats.records import Aliases, Record, read_records
from pel_ray.formats.spans import cut_left, cut_right, split_name
from pel_ray.formats.texts import Texts
from pel_ray.schema import Entity, Mention
from pel_ray.tally import Tally

SPLITS = ("train", "heldout_train_seen", "heldout_train_unseen", "val", "test")
DOCUMENTS: Aliases = {"document_id": ("document_id",), "title": ("title",), "text": ("text",)}
MENTIONS: Aliases = {
    "mention_id": ("mention_id",),
    "label": ("label_document_id",),
    "document_id": ("context_document_id",),
    "start": ("start_index",),
    "end": ("end_index",),
    "text": ("text",),
    "world": ("corpus",),
    "category": ("category",),
}
_REMEDY = "Correct it, or pass --on-error skip to leave such mentions out"


def read_entities(lines: Lines, world: str, tally: Tally) -> Iterator[Entity]:
    for record in read_records(lines, DOCUMENTS, tally, "entities"):
        entity = tally.attempt("entities", partial(_entity, record, world))
        if entity is not None:
            yield entity


def _entity(record: Record, world: str) -> Entity:
    return Entity(
        entity_id=record.name("document_id"),
        title=record.name("title"),
        description=record.text("text"),
        world=world,
        where=record.where,
    )


def read_texts(lines: Lines, texts: Texts, tally: Tally) -> None:
    for record in read_records(lines, DOCUMENTS, tally, "documents"):
        tally.attempt("documents", partial(_add_text, record, texts))


def _add_text(record: Record, texts: Texts) -> None:
    texts.add(record.name("document_id"), record.text("text"), record.where)


def read_mentions(lines: Lines, split: str, texts: Texts, tally: Tally, *, context: int) -> Iterator[Mention]:
    for record in read_records(lines, MENTIONS, tally, "mentions"):
        mention = tally.attempt("mentions", partial(_mention, record, split, texts, context))
        if mention is not None:
            yield mention


def _mention(record: Record, split: str, texts: Texts, context: int) -> Mention:
    left, mention, right = _parts(record, texts)
    label = record.name("label")
    if not label:
        problem = f"has an empty label_document_id, expected the document it means. {_REMEDY}"
        raise BadRecord(record.where, "without a label", problem)
    return Mention(
        mention_id=record.name("mention_id"),
        document_id=record.name("document_id"),
        context_left=cut_left(left, context),
        mention=mention,
        context_right=cut_right(right, context),
        entity_ids=(label,),
        split=split_name(split),
        world=record.name("world"),
        where=record.where,
    )


def _parts(record: Record, texts: Texts) -> tuple[str, str, str]:
    """Left context, mention and right context, joined from tokens."""
    document_id = record.name("document_id")
    text = texts.get(document_id)
    if text is None:
        world = record.text("world")
        problem = f"document {document_id} is in no file of documents/ (its world is {world!r}). {_REMEDY}"
        raise BadRecord(record.where, "document not given", problem)
    tokens = text.split()
    start, end = record.number("start"), record.number("end")
    if start > end or end >= len(tokens):
        problem = (
            f"tokens {start} to {end} (inclusive) of document {document_id}, which has {len(tokens)} tokens, "
            f"counted from 0. {_REMEDY}"
        )
        raise BadRecord(record.where, "index past the text", problem)
    mention = " ".join(tokens[start : end + 1])
    if mention != record.text("text"):
        problem = (
            f"tokens {start} to {end} (inclusive) are {mention!r}, the record says {record.text('text')!r}. {_REMEDY}"
        )
        raise BadRecord(record.where, "text and index disagree", problem)
    return " ".join(tokens[:start]) + " ", mention, " " + " ".join(tokens[end + 1 :])
