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
SUBJECTS = {"MRCONSO": "names", "MRSTY": "types", "MRDEF": "definitions"}
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
    type_rows = _Cursor(types, "MRSTY", tally)
    definition_rows = _Cursor(definitions, "MRDEF", tally) if definitions else None
    if definitions is None:
        tally.read("definitions", 0)
        tally.note("definitions", "there is no MRDEF.RRF")
    unseen = set(rules.sources)
    for concept, rows, where in _concepts(names, "MRCONSO", tally):
        tally.read("concepts")
        if unseen:
            unseen.difference_update(row[11] for row in rows)
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
    if rules.sources:
        tally.read("vocabularies", len(rules.sources))
    for source in sorted(unseen):
        tally.drop("vocabularies", f"{source}: no name is of it")


def _entity(
    concept: str, names: Rows, types: Rows, definitions: Rows, rules: Rules, tally: Tally, where: str
) -> Entity | None:
    active = [row for row in names if row[16] == "N"]
    spoken = [row for row in active if row[1] == rules.language]
    reason = _why_not(types, active, spoken, rules)
    preferred = max(spoken, key=_preference, default=None)
    if reason:
        tally.drop("concepts", reason)
    elif preferred is None or not preferred[14].strip():
        problem = f"{concept} has no title: its preferred name is blank. Correct it, or pass --on-error skip"
        tally.problem("concepts", "without a title", where, problem)
    if reason or preferred is None or not preferred[14].strip():
        tally.drop("types", "of a concept that was dropped", len(types))
        tally.drop("definitions", "of a concept that was dropped", len(definitions))
        return None
    if _preference(preferred) < _PREFERRED:
        tally.note("concepts", "title is not the preferred name, which is suppressed or in another language")
    texts = _distinct([preferred, *spoken])
    tally.drop("names", "suppressed", len(names) - len(active))
    tally.drop("names", f"not in {rules.language}", len(active) - len(spoken))
    tally.drop("names", "blank, or said before but for case", len(spoken) - len(texts))
    description = _definition(definitions, rules.definition_sources)
    tally.drop("definitions", "suppressed, or another is preferred", len(definitions) - bool(description))
    return Entity(
        entity_id=concept,
        title=texts[0],
        types=tuple(row[3] for row in types),
        description=description,
        synonyms=tuple(texts[1:]),
        where=where,
    )


def _why_not(types: Rows, active: Rows, spoken: Rows, rules: Rules) -> str:
    """Why a concept is left out, or nothing."""
    if rules.types and not any(row[1] in rules.types for row in types):
        return "of another type" if types else "without a row in MRSTY"
    if rules.sources and not any(row[11] in rules.sources for row in active):
        return "in none of the source vocabularies"
    return "" if spoken else f"without an unsuppressed name in {rules.language}"


def _distinct(rows: Rows) -> list[str]:
    texts: dict[str, str] = {}
    for row in rows:
        text = row[14].strip()
        if text:
            texts.setdefault(text.casefold(), text)
    return list(texts.values())


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


def _concepts(lines: Lines, table: str, tally: Tally) -> Iterator[tuple[str, Rows, str]]:
    """The rows of one concept after the other, with the place of the first."""
    subject = SUBJECTS[table]
    num_fields = NUM_FIELDS[table]
    concept, first = "", 0
    rows: Rows = []
    for number, line in lines:
        row = line.split("|")
        tally.read(subject)
        # Every row ends in a pipe, so there is one empty field more.
        if len(row) != num_fields + 1 or row[-1]:
            problem = (
                f"has {line.count('|')} pipes, expected {num_fields} with one at the end ({table}). "
                "Is the file cut short, or of another table? --on-error skip leaves such rows out"
            )
            tally.problem(subject, "wrong number of fields", lines.where(number), problem)
            continue
        if not row[0]:
            problem = "has no concept (CUI) in its first field. Add it, or pass --on-error skip to leave such rows out"
            tally.problem(subject, "without a concept", lines.where(number), problem)
            continue
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

    def __init__(self, lines: Lines, table: str, tally: Tally) -> None:
        self._concepts = _concepts(lines, table, tally)
        self._subject = SUBJECTS[table]
        self._tally = tally
        self._concept = ""
        self._rows: Rows = []

    def rows_of(self, concept: str) -> Rows:
        while self._concept < concept:
            # What is still here was not asked for.
            self._tally.drop(self._subject, "of a concept without names", len(self._rows))
            self._concept, self._rows, _ = next(self._concepts, (_AFTER_ALL, [], ""))
        if self._concept != concept:
            return []
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> None:
        """Reads to the end, so that a damaged last part does not go unnoticed."""
        self.rows_of(_AFTER_ALL)


_AFTER_ALL = "\U0010ffff"
