"""What all importers share: sources with a fingerprint, rows checked and counted, folders that finish together."""

from __future__ import annotations

import hashlib
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pel_ray.artifacts import Input, Manifest, Request, Work, building, finished, read_manifest
from pel_ray.errors import InputError, SettingsError
from pel_ray.formats.lines import BUFFER_BYTES, Lines
from pel_ray.formats.spans import split_name
from pel_ray.progress import byte_progress
from pel_ray.schema import Entity, Mention
from pel_ray.spec import Settings
from pel_ray.storage import Location, locate, locate_file, storage_errors
from pel_ray.tables import grouped, write_tables
from pel_ray.tally import OnError, Tally

_NAME = re.compile(r"[A-Za-z_]\w*")
Kind = Literal["kb", "mentions"]
Path = Annotated[str, Field(min_length=1)]
PathList = Annotated[list[Path], Field(min_length=1)]
Sources = Mapping[str, Sequence[Location]]
"""The role of a source (`MRCONSO`, `corpus`) -> its file, or its parts in order."""
NamedFiles = Mapping[str, tuple[str, Location]]
"""The role of a file -> the name that was given to it, such as its split, and the file."""
MAX_DIGITS = 18
"""Of a document id that is taken for a number; Python itself refuses to read one of more than 4,300."""


class ImportSettings(Settings):
    """What every importer can be told."""

    out: Path
    """Data set folder (or URI) to write; its tables become OUT/kb and OUT/mentions."""
    on_error: OnError = "stop"
    """At a bad record: stop with an error, or skip it and count it."""
    overwrite: bool = False
    """Replace a finished folder that was made from other sources or settings."""

    elsewhere: ClassVar[frozenset[str]] = frozenset({"out", "overwrite"})
    """Fields that do not say what is made: where it goes, and sources, which count by their content."""

    def what_counts(self, *others: str) -> dict[str, Any]:
        settings = self.model_dump(mode="json", exclude=set(self.elsewhere) | set(others))
        return {"importer": type(self).__name__.removesuffix("Settings").lower()} | settings


class MentionImportSettings(ImportSettings):
    """What importers of mentions can be told."""

    context: int = Field(default=2048, ge=0)
    """Characters of context to keep on each side of a mention; 2048 is more than 512 word pieces can use."""
    validate_every: int | None = Field(default=None, ge=2)
    """For a corpus without a validation split: training documents whose id this number divides become one (of an id
    that is no number of up to 18 digits, its CRC-32)."""

    def what_counts_for_kb(self) -> dict[str, Any]:
        """Of a KB that comes from the same importer."""
        return self.what_counts("context", "validate_every")


@dataclass(frozen=True)
class Reading:
    """What a reader gets: lines by role, and the tally to count with."""

    sources: Sources
    tally: Tally
    on_bytes: Callable[[int], None]

    def lines(self, role: str) -> Lines:
        return Lines(self.sources[role], self.on_bytes)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table to import: from what, by which settings, and how its rows are read."""

    kind: Kind
    sources: Sources
    settings: Mapping[str, Any]
    rows: Callable[[Reading], Iterable[Any]]
    subject: str
    """What the tally calls one row: entities, terms, concepts, mentions."""
    sorted_ids: bool = False
    """The ids come in ascending order, so duplicates show without remembering them all."""
    passes: int = 1
    version: int = 1
    """Raised when the reader starts to make something else of the same sources and settings."""


@dataclass(frozen=True)
class Outcome:
    """A finished folder, and whether this run made it or found it."""

    folder: Location
    manifest: Manifest
    is_new: bool


def import_tables(settings: ImportSettings, tables: Sequence[Table]) -> list[Outcome]:
    """Imports all tables or none: what one of them finds wrong leaves nothing behind of the others."""
    out = locate(settings.out)
    requests = _requests(tables)
    done = [
        finished(out / table.kind, request, overwrite=settings.overwrite)
        for table, request in zip(tables, requests, strict=True)
    ]
    with ExitStack() as stack:
        for table, request, manifest in zip(tables, requests, done, strict=True):
            if manifest is None:
                work = stack.enter_context(building(out / table.kind, request))
                _fill(work, table, settings)
    return [
        Outcome(out / table.kind, manifest or read_manifest(out / table.kind), manifest is None)
        for table, manifest in zip(tables, done, strict=True)
    ]


def named_files(arguments: Sequence[str], option: str) -> NamedFiles:
    """`[NAME=]FILE` arguments by role (`file 1`, `file 2`): the name, empty where there is none, and the file."""
    found: dict[str, tuple[str, Location]] = {}
    for number, argument in enumerate(arguments, start=1):
        name, equals, path = argument.partition("=")
        named = bool(equals) and _NAME.fullmatch(name) is not None and not locate(argument).exists()
        found[f"{option} {number}"] = (name if named else "", locate_file(path if named else argument))
    return found


def split_files(arguments: Sequence[str], option: str) -> NamedFiles:
    """`[SPLIT=]FILE` arguments by role."""
    return {role: (split_name(name), file) for role, (name, file) in named_files(arguments, option).items()}


def one_file(path: str) -> list[Location]:
    return [locate_file(path)]


def _requests(tables: Sequence[Table]) -> list[Request]:
    """What each table asks for; a source that two tables read is hashed once."""
    roles = {role: parts for table in tables for role, parts in table.sources.items()}
    inputs = {role: file_input(parts) for role, parts in roles.items()}
    return [
        Request(
            kind=table.kind,
            inputs={role: inputs[role] for role in table.sources},
            settings=table.settings,
            version=table.version,
        )
        for table in tables
    ]


def file_input(parts: Sequence[Location]) -> Input:
    """A source as an input: known by the bytes of its parts."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open_input() as stream, storage_errors(part, "read"):
            while block := stream.read(BUFFER_BYTES):
                digest.update(block)
    return Input(path=" ".join(map(str, parts)), digest=digest.hexdigest())


def _fill(work: Work, table: Table, settings: ImportSettings) -> None:
    began = time.monotonic()
    tally = Tally(settings.on_error)
    total = table.passes * sum(part.size() for parts in table.sources.values() for part in parts)
    with byte_progress(f"reading {table.kind}", total) as on_bytes:
        rows = table.rows(Reading(table.sources, tally, on_bytes))
        if table.kind == "mentions" and isinstance(settings, MentionImportSettings) and settings.validate_every:
            rows = _held_out(rows, settings.validate_every)
        num_rows = write_tables(work, grouped(table.kind, _checked(rows, table, tally)))
    if num_rows == 0:
        raise InputError(_names(table.sources), f"nothing to keep as {table.kind}{_why_nothing(tally, table.subject)}")
    if num_rows != tally.kept(table.subject):
        raise RuntimeError(f"{table.subject}: counted {tally.kept(table.subject)} kept, wrote {num_rows}")
    work.counts["sources"] = tally.to_json()
    work.seconds = time.monotonic() - began


def _checked(rows: Iterable[Any], table: Table, tally: Tally) -> Iterator[Any]:
    """Passes on rows that have what every row needs: a new id, and a title or a text."""
    seen: set[str] = set()
    previous = ""
    for row in rows:
        row_id, text, missing = _essentials(row)
        if not row_id:
            problem = "has an empty id. Give it one, or pass --on-error skip to leave it out"
            tally.problem(table.subject, "without an id", row.where, problem)
        elif not text.strip():
            problem = f"{row_id} has no {missing}. Give it one, or pass --on-error skip to leave it out"
            tally.problem(table.subject, f"without a {missing}", row.where, problem)
        elif row_id <= previous if table.sorted_ids else row_id in seen:
            problem = f"the id {row_id} occurs twice. Ids must be unique: remove one; --on-error skip keeps the first"
            tally.problem(table.subject, "id occurs twice", row.where, problem)
        else:
            if isinstance(row, Mention) and not row.entity_ids:
                tally.note(table.subject, "NIL")
            if table.sorted_ids:
                previous = row_id
            else:
                seen.add(row_id)
            yield row


def _held_out(mentions: Iterable[Mention], every: int) -> Iterator[Mention]:
    splits: set[str] = set()
    for mention in mentions:
        splits.add(mention.split)
        name = mention.document_id
        number = int(name) if name.isdecimal() and len(name) <= MAX_DIGITS else zlib.crc32(name.encode())
        is_held_out = mention.split == "train" and number % every == 0
        yield replace(mention, split="validation") if is_held_out else mention
    if splits and "train" not in splits:
        found = ", ".join(sorted(split or "without a split" for split in splits))
        raise SettingsError(
            f"--validate-every {every} takes documents of the split train, but all mentions are {found}. "
            "Name the training file as train=FILE, or leave the option out"
        )


def _essentials(row: Entity | Mention) -> tuple[str, str, str]:
    if isinstance(row, Entity):
        return row.entity_id, row.title, "title"
    return row.mention_id, row.mention, "text"


def _names(sources: Sources) -> str:
    return ", ".join(Lines(parts).name for parts in sources.values())


def _why_nothing(tally: Tally, subject: str) -> str:
    counts = tally.to_json().get(subject)
    if not counts:
        return f": it holds no {subject}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
    return f": {counts['read']:,} {subject} read, all dropped ({reasons})"
