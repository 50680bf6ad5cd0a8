"""import umls: the Metathesaurus becomes a KB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from pel_ray.errors import InputError
from pel_ray.formats import umls
from pel_ray.formats.semantic_types import (
    ST21PV_SOURCES,
    ST21PV_TYPES,
    find_types,
    type_names,
    with_descendants,
)
from pel_ray.schema import Entity
from pel_ray.steps.importing import ImportSettings, Outcome, Path, Reading, Table, import_tables
from pel_ray.storage import Location, locate_folder

_PART = re.compile(r"[A-Z]+\.RRF\.(?:gz\.)?([a-z]{2}|[0-9]{1,3})(?:\.gz)?")


Names = Annotated[list[str], Field(min_length=1)]


class UmlsSettings(ImportSettings):
    """UMLS in Rich Release Format: MRCONSO, MRSTY and, where there is one, MRDEF; plain, gzipped or split."""

    folder: Path
    """Folder with MRCONSO.RRF, MRSTY.RRF and MRDEF.RRF (also .RRF.gz, or .RRF.aa.gz, .RRF.ab.gz, ...)."""
    types: Names = ["st21pv"]
    """Semantic types to keep, by id or name; st21pv: the 21 types of MedMentions ST21pv (the paper's KB); all."""
    descendants: bool = True
    """Keep the types below the named ones in the semantic tree too."""
    sources: Names = ["all"]
    """Vocabularies of which a concept must have a name; st21pv: the 18 of MedMentions ST21pv; all."""
    language: str = "ENG"
    """Language of the names to keep."""
    definition_sources: list[str] = ["NCI", "MSH", "GO"]
    """Whose definition to prefer, best first; after them the first that is not suppressed."""

    elsewhere: ClassVar[frozenset[str]] = ImportSettings.elsewhere | {"folder"}


def import_umls(settings: UmlsSettings) -> list[Outcome]:
    folder = locate_folder(settings.folder)
    sources = {table: _parts(folder, table) for table in umls.NUM_FIELDS}
    if not sources["MRDEF"]:
        del sources["MRDEF"]
    for name in ("MRCONSO", "MRSTY"):
        if not sources[name]:
            raise InputError(str(folder), f"has no {name}.RRF (nor {name}.RRF.gz, {name}.RRF.aa.gz, ...)")
    rules = _rules(settings)

    def rows(reading: Reading) -> Iterator[Entity]:
        definitions = reading.lines("MRDEF") if "MRDEF" in sources else None
        return umls.read_entities(reading.lines("MRCONSO"), reading.lines("MRSTY"), definitions, rules, reading.tally)

    table = Table(
        kind="kb",
        sources=sources,
        settings=settings.what_counts(),
        rows=rows,
        subject="concepts",
        sorted_ids=True,
    )
    return import_tables(settings, [table])


def _parts(folder: Location, table: str) -> list[Location]:
    """The file of a table, or its parts in the order of their names; whole files win over parts beside them."""
    names = folder.names()
    for whole in (f"{table}.RRF", f"{table}.RRF.gz"):
        if whole in names:
            return [folder / whole]
    found = {match[1]: name for name in names if (match := _PART.fullmatch(name)) and name.startswith(f"{table}.")}
    # By length first: 2 before 10.
    suffixes = sorted(found, key=lambda suffix: (len(suffix), suffix))
    _refuse_gaps(folder, table, suffixes)
    return [folder / found[suffix] for suffix in suffixes]


def _refuse_gaps(folder: Location, table: str, suffixes: list[str]) -> None:
    """Parts are numbered aa, ab, ... or 00, 01, ...; a missing one would go unnoticed where it ends at a line end."""
    for before, after in zip(suffixes, suffixes[1:], strict=False):
        expected = f"{int(before) + 1:0{len(before)}d}" if before.isdigit() else _next_letters(before)
        if after != expected:
            raise InputError(str(folder), f"part {expected} of {table}.RRF is missing: {before} is followed by {after}")
    if suffixes and suffixes[0].lstrip("a0") not in ("", "1"):
        raise InputError(str(folder), f"the parts of {table}.RRF begin with {suffixes[0]}: the first are missing")


def _next_letters(letters: str) -> str:
    head, last = letters[:-1], letters[-1]
    return head + chr(ord(last) + 1) if last != "z" else chr(ord(head) + 1) + "a"


def _rules(settings: UmlsSettings) -> umls.Rules:
    types: frozenset[str] = frozenset()
    if settings.types != ["all"]:
        wanted = [name for word in settings.types for name in (ST21PV_TYPES if word == "st21pv" else (word,))]
        ids = {name: type_id for type_id, name in type_names().items()}
        types = frozenset(ids[name] for name in find_types(wanted, ids, "--types"))
        types = with_descendants(types) if settings.descendants else types
    sources = [name for word in settings.sources for name in (ST21PV_SOURCES if word == "st21pv" else (word,))]
    return umls.Rules(
        types=types,
        sources=frozenset() if settings.sources == ["all"] else frozenset(sources),
        language=settings.language,
        definition_sources=settings.definition_sources,
    )
