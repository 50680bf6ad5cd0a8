"""ZESHEL in its original layout: `documents/<world>.json` and `mentions/<split>.json`, JSON lines both.

Every document is an entity of its world, and mentions stand in documents: `start_index` and `end_index` are
positions of whitespace tokens, and the end is inclusive.
"""

from __future__ import annotations

from collections.abc import Iterator

from pel_ray.errors import InputError
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


def read_entities(lines: Lines, world: str, tally: Tally) -> Iterator[Entity]:
    for record in read_records(lines, DOCUMENTS, tally, "entities"):
        yield Entity(
            entity_id=record.text("document_id"),
            title=record.text("title").strip(),
            description=record.text("text"),
            world=world,
            where=record.where,
        )


def read_texts(lines: Lines, texts: Texts, tally: Tally) -> None:
    for record in read_records(lines, DOCUMENTS, tally, "documents"):
        texts.add(record.text("document_id"), record.text("text"))


def read_mentions(lines: Lines, split: str, texts: Texts, tally: Tally, *, context: int) -> Iterator[Mention]:
    for record in read_records(lines, MENTIONS, tally, "mentions"):
        parts = _parts(record, texts, tally)
        if parts is not None:
            yield Mention(
                mention_id=record.text("mention_id"),
                document_id=record.text("document_id"),
                context_left=cut_left(parts[0], context),
                mention=parts[1],
                context_right=cut_right(parts[2], context),
                entity_ids=(record.text("label"),),
                split=split_name(split),
                world=record.text("world"),
                where=record.where,
            )


def _parts(record: Record, texts: Texts, tally: Tally) -> tuple[str, str, str] | None:
    """Left context, mention and right context, joined from tokens."""
    document_id = record.text("document_id")
    text = texts.get(document_id)
    if text is None:
        raise InputError(
            record.where,
            f"document {document_id} is in no file of documents/ (its world is {record.text('world')!r})",
        )
    tokens = text.split()
    start, end = record.number("start"), record.number("end")
    if start > end or end >= len(tokens):
        tally.problem(
            "mentions", "index past the text", record.where,
            f"tokens {start} to {end} (inclusive) of document {document_id}, which has {len(tokens)} tokens",
        )  # fmt: skip
        return None
    mention = " ".join(tokens[start : end + 1])
    if mention != record.text("text"):
        tally.problem(
            "mentions", "text and index disagree", record.where,
            f"tokens {start} to {end} (inclusive) are {mention!r}, the record says {record.text('text')!r}",
        )  # fmt: skip
        return None
    return " ".join(tokens[:start]) + " ", mention, " " + " ".join(tokens[end + 1 :])
