"""UMLS Metathesaurus files in Rich Release Format: MRCONSO (names), MRSTY (types), MRDEF (definitions).

NLM ships all three sorted by concept (CUI), so they are read side by side, one concept at a time: memory does not
grow with the release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pel_ray.errors import InputError
from pel_ray.formats.lines import Lines
from pel_ray.schema import Entity
from pel_ray.tally import Tally

NUM_FIELDS = {"MRCONSO": 18, "MRSTY": 6, "MRDEF": 8}
Rows = list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which concepts count, and what of them becomes the entity."""

    types: Collection[str]
    """Type ids of which a concept must have one; empty: any."""
    sources: Collection[str]
    """Source vocabularies of which a concept must have a name; empty: any."""
    language: str
    definition_sources: Sequence[str]
    """Whose definition is preferred, best first."""


def read_entities(
    names: Lines, types: Lines, definitions: Lines | None, rules: Rules, tally: Tally
) -> Iterator[Entity]:
    type_rows = _Cursor(types, "MRSTY")
    definition_rows = _Cursor(definitions, "MRDEF") if definitions else None
    for concept, rows, where in _concepts(names, "MRCONSO"):
        tally.read("concepts")
        tally.read("names", len(rows))
        entity = _entity(
            concept,
            rows,
            type_rows.rows_of(concept),
            definition_rows.rows_of(concept) if definition_rows else [],
            rules,
            tally,
            where,
        )
        if entity is None:
            tally.drop("names", "of a concept that was dropped", len(rows))
        else:
            yield entity
    type_rows.finish()
    if definition_rows:
        definition_rows.finish()


def _entity(
    concept: str, names: Rows, types: Rows, definitions: Rows, rules: Rules, tally: Tally, where: str
) -> Entity | None:
    if rules.types and not any(row[1] in rules.types for row in types):
        tally.drop("concepts", "of another type" if types else "without a row in MRSTY")
        return None
    active = [row for row in names if row[16] == "N"]
    if rules.sources and not any(row[11] in rules.sources for row in active):
        tally.drop("concepts", "in none of the source vocabularies")
        return None
    spoken = [row for row in active if row[1] == rules.language]
    if not spoken:
        tally.drop("concepts", f"without an unsuppressed name in {rules.language}")
        return None
    preferred = max(spoken, key=_preference)
    if _preference(preferred) < _PREFERRED:
        tally.note("concepts", "title is not the preferred name, which is suppressed or in another language")
    title = preferred[14].strip()
    texts = {title.casefold(): title}
    for row in spoken:
        texts.setdefault(row[14].strip().casefold(), row[14].strip())
    tally.drop("names", "suppressed", len(names) - len(active))
    tally.drop("names", f"not in {rules.language}", len(active) - len(spoken))
    tally.drop("names", "said before, but for case", len(spoken) - len(texts))
    description = _definition(definitions, rules.definition_sources)
    if description:
        tally.note("concepts", "with a definition")
    return Entity(
        entity_id=concept,
        title=title,
        types=tuple(row[3] for row in types),
        description=description,
        synonyms=tuple(texts.values())[1:],
        where=where,
    )


_PREFERRED = (True, True, True)


def _preference(row: list[str]) -> tuple[bool, bool, bool]:
    """TS=P, STT=PF, ISPREF=Y: the order in which UMLS itself prefers names; the first of equals wins."""
    return row[2] == "P", row[4] == "PF", row[6] == "Y"


def _definition(rows: Rows, preferred: Sequence[str]) -> str:
    if not rows:
        return ""
    active = [row for row in rows if row[6] == "N"]
    ranks = {source: rank for rank, source in enumerate(preferred)}
    best = min(active, key=lambda row: ranks.get(row[4], len(ranks)), default=None)
    return best[5].strip() if best else ""


def _concepts(lines: Lines, table: str) -> Iterator[tuple[str, Rows, str]]:
    """The rows of one concept after the other, with the place of the first."""
    num_fields = NUM_FIELDS[table]
    concept, first = "", 0
    rows: Rows = []
    for number, line in lines:
        row = line.split("|")
        # Every row ends in a pipe, so there is one empty field more.
        if len(row) != num_fields + 1 or row[-1]:
            raise InputError(
                lines.where(number),
                f"has {line.count('|')} pipes, expected {num_fields} with one at the end ({table}). "
                "Is the file cut short, or of another table?",
            )
        if row[0] != concept:
            if row[0] < concept:
                raise InputError(
                    lines.where(number),
                    f"{row[0]} comes after {concept}, expected the rows sorted by concept, as NLM ships them. "
                    "Sort the file first: LC_ALL=C sort",
                )
            if rows:
                yield concept, rows, lines.where(first)
            concept, rows, first = row[0], [], number
        rows.append(row)
    if rows:
        yield concept, rows, lines.where(first)


class _Cursor:
    """Rows by concept from a sorted file, for a caller that asks in the same order."""

    def __init__(self, lines: Lines, table: str) -> None:
        self._concepts = _concepts(lines, table)
        self._concept = ""
        self._rows: Rows = []

    def rows_of(self, concept: str) -> Rows:
        while self._concept < concept:
            self._concept, self._rows, _ = next(self._concepts, (_AFTER_ALL, [], ""))
        return self._rows if self._concept == concept else []

    def finish(self) -> None:
        """Reads to the end, so that a damaged last part does not go unnoticed."""
        for _ in self._concepts:
            pass


_AFTER_ALL = "\U0010ffff"
