"""import jsonl, import blink: KBs and mentions that are JSON lines already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pel_ray.errors import SettingsError
from pel_ray.formats.blink_labels import BlinkLabels
from pel_ray.formats.jsonl import BLINK, PLAIN, Dialect, Reader, labels_of, read_entities, read_texts
from pel_ray.formats.texts import spooled_texts
from pel_ray.schema import Entity, Mention
from pel_ray.steps.importing import (
    MentionImportSettings,
    NamedFiles,
    Outcome,
    Reading,
    Table,
    import_tables,
    named_files,
    one_file,
    split_files,
)
from pel_ray.storage import Location


class BlinkSettings(MentionImportSettings):
    """BLINK's JSON lines: context_left, mention, context_right, label_id, which is a row of the mention's world."""

    kb: list[str] = []
    """[WORLD=]FILE of entities: {id, title or name, types, description, synonyms, world}; all but id and title
    optional. WORLD is the world of those that name none."""
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
    kb_files = named_files(settings.kb, "kb")
    text_files = {f"documents {number}": one_file(path) for number, path in enumerate(documents, start=1)}
    mention_files = split_files(settings.mentions, "mentions")
    if not kb_files and not mention_files:
        raise SettingsError("nothing to import: pass --kb FILE, --mentions [SPLIT=]FILE, or both")
    if text_files and not mention_files:
        raise SettingsError("--documents are only read for mentions: pass --mentions [SPLIT=]FILE too")

    def entities(reading: Reading) -> Iterator[Entity]:
        for role, (world, _) in kb_files.items():
            yield from read_entities(reading.lines(role), dialect, reading.tally, world)

    def mentions(reading: Reading) -> Iterator[Mention]:
        labels = BlinkLabels()
        for role, (world, _) in kb_of_labels.items():
            labels.read(reading.lines(role), world)
        golds = labels.golds if kb_of_labels else labels_of
        with spooled_texts() as texts:
            reader = Reader(dialect=dialect, texts=texts, splits={}, context=settings.context, golds=golds)
            for role in text_files:
                read_texts(reading.lines(role), texts, reader.splits, reading.tally)
            for role, (split, _) in mention_files.items():
                yield from reader.read(reading.lines(role), split, reading.tally)

    kb_of_labels = kb_files if dialect is BLINK else {}
    # Rows once shifted after a skipped line; in BLINK's files URLs were ids, and labels were taken for ids.
    version = 2 if dialect is BLINK or settings.on_error == "skip" else 1
    tables = []
    if kb_files:
        tables.append(
            Table(
                kind="kb",
                sources=_sources(kb_files),
                settings=settings.what_counts_for_kb() | _worlds(kb_files),
                rows=entities,
                subject="entities",
                version=version,
            )
        )
    if mention_files:
        splits = {"splits": [split for split, _ in mention_files.values()]}
        tables.append(
            Table(
                kind="mentions",
                sources=_sources(kb_of_labels) | text_files | _sources(mention_files),
                settings=settings.what_counts() | splits | _worlds(kb_of_labels),
                rows=mentions,
                subject="mentions",
                version=version,
            )
        )
    return import_tables(settings, tables)


def _sources(files: NamedFiles) -> dict[str, list[Location]]:
    return {role: [file] for role, (_, file) in files.items()}


def _worlds(files: NamedFiles) -> dict[str, list[str]]:
    worlds = [world for world, _ in files.values()]
    return {"worlds": worlds} if any(worlds) else {}
