"""import jsonl, import blink: KBs and mentions that are JSON lines already."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from pel_ray.errors import SettingsError
from pel_ray.formats.jsonl import BLINK, PLAIN, Dialect, Reader, read_entities, read_texts
from pel_ray.formats.texts import spooled_texts
from pel_ray.schema import Entity, Mention
from pel_ray.steps.importing import (
    MentionImportSettings,
    Outcome,
    Reading,
    Table,
    import_tables,
    one_file,
    split_files,
)


class BlinkSettings(MentionImportSettings):
    """BLINK's JSON lines: context_left, mention, context_right, label_id; an entity without an id is its row."""

    kb: list[str] = []
    """Files of entities: {id, title or name, types, description, synonyms, world}; all but id and title optional."""
    mentions: list[str] = []
    """[SPLIT=]FILE of mentions; without SPLIT, a mention's own `split` or that of its document counts."""

    elsewhere: ClassVar[frozenset[str]] = MentionImportSettings.elsewhere | {"kb", "mentions", "documents"}


class JsonlSettings(BlinkSettings):
    """JSON lines of entities, and of mentions with contexts or with character offsets into documents."""

    documents: list[str] = []
    """Files of documents that mentions point into: {doc_id, text, split}."""


def import_jsonl(settings: JsonlSettings) -> list[Outcome]:
    return _import(settings, PLAIN, settings.documents)


def import_blink(settings: BlinkSettings) -> list[Outcome]:
    return _import(settings, BLINK, [])


def _import(settings: BlinkSettings, dialect: Dialect, documents: list[str]) -> list[Outcome]:
    kb_files = {f"kb {number}": one_file(path) for number, path in enumerate(settings.kb, start=1)}
    text_files = {f"documents {number}": one_file(path) for number, path in enumerate(documents, start=1)}
    mention_files = split_files(settings.mentions, "mentions")
    if not kb_files and not mention_files:
        raise SettingsError("nothing to import: pass --kb FILE, --mentions [SPLIT=]FILE, or both")
    if text_files and not mention_files:
        raise SettingsError("--documents are only read for mentions: pass --mentions [SPLIT=]FILE too")

    def entities(reading: Reading) -> Iterator[Entity]:
        rows = itertools.count()
        for role in kb_files:
            yield from read_entities(reading.lines(role), dialect, reading.tally, rows)

    def mentions(reading: Reading) -> Iterator[Mention]:
        with spooled_texts() as texts:
            reader = Reader(dialect=dialect, texts=texts, splits={}, context=settings.context)
            for role in text_files:
                read_texts(reading.lines(role), texts, reader.splits, reading.tally)
            for role, (split, _) in mention_files.items():
                yield from reader.read(reading.lines(role), split, reading.tally)

    tables = []
    if kb_files:
        counts = settings.what_counts_for_kb()
        tables.append(Table(kind="kb", sources=kb_files, settings=counts, rows=entities, subject="entities"))
    if mention_files:
        sources = text_files | {role: [file] for role, (_, file) in mention_files.items()}
        counts = settings.what_counts() | {"splits": [split for split, _ in mention_files.values()]}
        tables.append(Table(kind="mentions", sources=sources, settings=counts, rows=mentions, subject="mentions"))
    return import_tables(settings, tables)
