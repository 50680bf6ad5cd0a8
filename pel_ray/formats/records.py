"""JSON lines: one object a line, its fields found under any of the names that corpora use for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pel_ray.errors import InputError
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
                raise InputError(self.where, f"has no {field}. {self._expected(field)}")
            return default
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise InputError(self.where, f"{name} is {_shown(value)}, expected text")

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings; a lone string counts as a list of one."""
        name, value = self._find(field)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in values):
            raise InputError(self.where, f"{name} is {_shown(value)}, expected a list of texts")
        return tuple(str(item) for item in values)

    def number(self, field: str) -> int:
        name, value = self._find(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(
                self.where,
                f"{name} is {_shown(value)}, expected a whole number from 0. {self._expected(field)}",
            )
        return value

    def has(self, field: str) -> bool:
        """Whether the field is given; a null counts, since a null label is a NIL that someone wrote down."""
        return any(name in self.fields for name in self.aliases[field])

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
        fields = _parsed(line, lines.where(number))
        tally.read(subject)
        for name in fields.keys() - known:
            tally.note(subject, f"field {name} not used")
        yield Record(fields, lines.where(number), aliases)


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        # A JSON document laid out over many lines is the commonest mistake.
        raise InputError(where, f"is not JSON ({error}). Expected JSON lines: one whole object a line") from error
    if not isinstance(content, dict):
        raise InputError(where, f"is {_shown(content)}, expected a JSON object")
    if "\\ud" in line.lower():
        _check_surrogates(content, where)
    return content


def _check_surrogates(content: dict[str, Any], where: str) -> None:
    """Half a surrogate pair can be written in JSON but is no text: it cannot be stored as UTF-8."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            where, f"holds half a surrogate pair ({error.object[error.start]!r}): no valid text"
        ) from error


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else f"{text[:37]}..."
