"""Texts for the two towers: what of a mention or an entity becomes word pieces, in which order, within which budget.

mention   [CLS] left [Ms] mention [Me] right [SEP]
entity    [CLS] title [SEP] types [SEP] description [SEP]      (template `medmentions`)
          [CLS] title [ENT] description [SEP]                  (template `zeshel`)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings

TEMPLATES = {
    "medmentions": "{title} [SEP] {types} [SEP] {description}",
    "zeshel": "{title} [ENT] {description}",
    "synonyms": "{title} [SEP] {synonyms} [SEP] {types} [SEP] {description}",
}
MENTION_COLUMNS = ("context_left", "mention", "context_right")
"""What of mentions/ a text is made of."""
FIELDS = ("title", "types", "synonyms", "description")
"""The fields of an entity in the order in which they get room: a long description never pushes out the others."""
SHARES = {"title": 0.5, "types": 0.25, "synonyms": 0.25, "description": 1.0}
"""Of the room left when a field's turn comes; what others leave unused goes to the fields that were cut."""
_PART = re.compile(r"\{([^{}]*)\}|\[(SEP|ENT)\]")


class TextSettings(Settings):
    """How mentions and entities become word pieces."""

    template: str = "medmentions"
    """medmentions, zeshel, synonyms, or one of your own such as "{title} [SEP] {synonyms}"."""
    entity_length: int = Field(default=128, ge=8)
    """Word pieces of an entity text; longer texts lose the end of their description first."""
    mention_length: int = Field(default=128, ge=8)
    """Word pieces of a mention with its context."""

    @field_validator("template")
    @classmethod
    def _has_known_fields(cls, template: str) -> str:
        parse_template(template)
        return template


@dataclass(frozen=True)
class Part:
    """A field, a separator token (`SEP`, `ENT`) or literal text of a template; exactly one is not empty."""

    field: str = ""
    separator: str = ""
    literal: str = ""


def parse_template(template: str) -> list[Part]:
    text = TEMPLATES.get(template, template)
    parts: list[Part] = []
    end = 0
    for match in _PART.finditer(text):
        literal = text[end : match.start()].strip()
        if literal:
            parts.append(Part(literal=literal))
        if match[2]:
            parts.append(Part(separator=match[2]))
        else:
            parts.append(Part(field=_known_field(match[1], template)))
        end = match.end()
    if text[end:].strip():
        parts.append(Part(literal=text[end:].strip()))
    fields = [part.field for part in parts if part.field]
    if any(brace in part.literal for part in parts for brace in "{}"):
        raise SettingsError(
            f"template {template!r} has a brace without its other half. Expected {{title}} and the like"
        )
    if len(set(fields)) < len(fields):
        # The budget is per field: a second place would take it twice.
        raise SettingsError(f"template {template!r} names a field twice. Each may stand once")
    if not fields:
        names = ", ".join(TEMPLATES)
        raise SettingsError(f"template {template!r} names no field. Expected one of {names}, or one like {{title}}")
    return parts


def _known_field(name: str, template: str) -> str:
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"did you mean {{{near[0]}}}?" if near else f"known fields are {', '.join(FIELDS)}"
        raise SettingsError(f"template {template!r}: unknown field {{{name}}}; {hint}")
    return name


@dataclass(frozen=True)
class Markers:
    """The ids of the special tokens that texts are put together with."""

    cls: int
    sep: int
    mention_start: int
    mention_end: int
    entity: int
    pad: int


class Texts:
    """Puts the word pieces of mentions and entities together with one tokenizer."""

    def __init__(self, tokenizer: Any, markers: Markers, settings: TextSettings) -> None:
        self.markers = markers
        self._tokenizer = tokenizer
        self._settings = settings
        self._parts = parse_template(settings.template)
        self._literals = {part.literal: self._literal(part.literal) for part in self._parts if part.literal}
        self.fields = [field for field in FIELDS if any(part.field == field for part in self._parts)]
        fixed = sum(len(self._literals.get(part.literal, [])) + bool(part.separator) for part in self._parts)
        self._room = settings.entity_length - 2 - fixed
        if self._room < len(self.fields):
            raise SettingsError(
                f"entity_length {settings.entity_length} leaves no room for the fields of template "
                f"{settings.template!r}, whose separators and words take {2 + fixed} pieces"
            )

    def entities(self, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """The word pieces of entity texts; a row has the columns of kb/."""
        pieces = {field: self._pieces([_field_text(row, field) for row in rows]) for field in self.fields}
        return [self._entity({field: pieces[field][number] for field in self.fields}) for number in range(len(rows))]

    def _entity(self, pieces: dict[str, list[int]]) -> list[int]:
        limits = _limits({field: len(ids) for field, ids in pieces.items()}, self._room)
        ids = [self.markers.cls]
        for part in self._parts:
            if part.field:
                ids += pieces[part.field][: limits[part.field]]
            elif part.separator:
                ids.append(self.markers.sep if part.separator == "SEP" else self.markers.entity)
            else:
                ids += self._literals[part.literal]
        ids.append(self.markers.sep)
        return ids

    def mentions(self, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """The word pieces of mentions in their contexts; a row has the columns of mentions/."""
        # A piece is at least one character long, so this much text is enough on each side.
        enough = self._settings.mention_length * 16
        lefts = self._pieces([row["context_left"][max(len(row["context_left"]) - enough, 0) :] for row in rows])
        rights = self._pieces([row["context_right"][:enough] for row in rows])
        names = self._pieces([row["mention"] for row in rows])
        return [self._mention(*parts) for parts in zip(lefts, names, rights, strict=True)]

    def _mention(self, left: list[int], mention: list[int], right: list[int]) -> list[int]:
        room = self._settings.mention_length - 4
        mention = mention[:room]
        num_left, num_right = split_context(len(left), len(right), room - len(mention))
        markers = self.markers
        return [
            markers.cls,
            *left[len(left) - num_left :],
            markers.mention_start,
            *mention,
            markers.mention_end,
            *right[:num_right],
            markers.sep,
        ]

    def _literal(self, words: str) -> list[int]:
        """Of the template, whose author may want a [MASK]."""
        return self._pieces([words], with_special_tokens=True)[0]

    def _pieces(self, texts: list[str], *, with_special_tokens: bool = False) -> list[list[int]]:
        """A [SEP] that somebody wrote is text like any other, unless special tokens are meant."""
        if not texts:
            return []
        encoded = self._tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=not with_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"]


def split_context(num_left: int, num_right: int, room: int) -> tuple[int, int]:
    """How many pieces each side of a mention gets: half each, and what one side does not use goes to the other."""
    left = min(num_left, room // 2)
    right = min(num_right, room - left)
    return min(num_left, room - right), right


def _limits(lengths: Mapping[str, int], room: int) -> dict[str, int]:
    limits: dict[str, int] = {}
    left = room
    for field, length in lengths.items():
        limits[field] = min(length, int(left * SHARES[field]))
        left -= limits[field]
    for field, length in lengths.items():
        more = min(length - limits[field], left)
        limits[field] += more
        left -= more
    return limits


def _field_text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field) or ""
    return value if isinstance(value, str) else ", ".join(value)
