"""JSON lines: one object a line, its fields found under any of the names that corpora use for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pel_ray.errors import BadRecord
from pel_ray.formats.lines import Lines
from pel_ray.tally import Tally

Aliases = dict[str, tuple[str, ...]]
"""Our field name -> the names it may have in a file, best first."""


@dataclass(frozen=True, slots=True)
class Record:
    """One object, with checked access by our field names."""

    fields: dict[str, Any]
    where: str
    aliases: Aliases

    def text(self, field: str, default: str | None = None) -> str:
        """A string; a number counts as one, since ids are often written so. Missing is an error without default."""
        name, value = self._find(field)
        if value is None:
            if default is None:
                raise BadRecord(self.where, f"without {field}", f"has no {field}. {self._expected(field)}. Add it")
            return default
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise BadRecord(self.where, f"{name} is not text", f"{name} is {_shown(value)}, expected text")

    def name(self, field: str, default: str | None = None) -> str:
        """An id, title or the like: text without the white space around it."""
        return self.text(field, default).strip()

    def names(self, field: str) -> tuple[str, ...]:
        """A list of names, each once; a lone string counts as a list of one, and blank ones do not count."""
        name, value = self._find(field)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in values):
            problem = f"{name} is {_shown(value)}, expected a list of texts"
            raise BadRecord(self.where, f"{name} is not a list of texts", problem)
        return tuple(dict.fromkeys(text for item in values if (text := str(item).strip())))

    def span(self, text: str) -> tuple[int, int]:
        """Start and end, which must lie in the text."""
        start, end = self.number("start"), self.number("end")
        if not start < end <= len(text):
            problem = f"start {start} and end {end} are no span of the text, which has {len(text):,} characters"
            raise BadRecord(self.where, "offsets outside the text", problem)
        return start, end

    def number(self, field: str) -> int:
        name, value = self._find(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            problem = f"{name} is {_shown(value)}, expected a whole number from 0. {self._expected(field)}"
            raise BadRecord(self.where, f"{name} is not a number", problem)
        return value

    def has(self, field: str) -> bool:
        """Whether the field is given, be it as null: a null label is a NIL that someone wrote down."""
        return any(name in self.fields for name in self.aliases[field])

    def is_set(self, field: str) -> bool:
        return self._find(field)[1] is not None

    def _find(self, field: str) -> tuple[str, Any]:
        for name in self.aliases[field]:
            if self.fields.get(name) is not None:
                return name, self.fields[name]
        return self.aliases[field][0], None

    def _expected(self, field: str) -> str:
        return f"Expected {' or '.join(self.aliases[field])}; found {', '.join(self.fields) or 'no field'}"


def read_records(lines: Lines, aliases: Aliases, tally: Tally, subject: str) -> Iterator[Record]:
    """The objects of a file of JSON lines; fields that no alias names are counted, so that no one misses them."""
    known = {name for names in aliases.values() for name in names}
    for number, line in lines:
        if not line.strip():
            continue
        tally.read(subject)
        record = tally.attempt(subject, partial(_record, line, lines.where(number), aliases))
        if record is not None:
            for name in sorted(record.fields.keys() - known):
                tally.note(subject, f"field {name} not used")
            yield record


def _record(line: str, where: str, aliases: Aliases) -> Record:
    return Record(_parsed(line, where), where, aliases)


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line, object_pairs_hook=_unique_keys)
        if "\\ud" in line.lower():
            # Half a surrogate pair can be written in JSON but is no text: it cannot be stored as UTF-8.
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"holds half a surrogate pair ({error.object[error.start]!r}): no valid text"
        raise BadRecord(where, "half a surrogate pair", half) from error
    except (ValueError, RecursionError) as error:
        # A JSON document laid out over many lines is the commonest mistake.
        problem = f"is not JSON ({error}). Expected JSON lines: one whole object a line"
        raise BadRecord(where, "not JSON", problem) from error
    if not isinstance(content, dict):
        raise BadRecord(where, "not an object", f"is {_shown(content)}, expected a JSON object")
    return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON itself lets the last of two equal keys win in silence."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return content


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else f"{text[:37]}..."
