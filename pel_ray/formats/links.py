"""Links as text: JSON lines with one mention a line, or PubTator documents with an annotation for each mention."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pel_ray.formats.linking import LinkDocument

if TYPE_CHECKING:
    # At run time it would bring torch to whoever only reads.
    from pel_ray.linker import Link

OutputFormat = Literal["jsonl", "pubtator"]
DECIMALS = 6
_SEPARATOR = re.compile(r"[\t\r\n]")


def linked_text(document: LinkDocument, links: Sequence[Link], form: OutputFormat) -> str:
    return _pubtator(document, links) if form == "pubtator" else _json_lines(document, links)


def _json_lines(document: LinkDocument, links: Sequence[Link]) -> str:
    lines = []
    for (start, end), link in zip(document.spans, links, strict=True):
        content: dict[str, Any] = {"document": document.document_id}
        if document.has_offsets:
            content |= {"start": start, "end": end}
        content |= {
            "mention": document.text[start:end],
            "entity_id": link.entity_id,
            "title": link.title,
            "score": _rounded(link.score),
            "nil": link.is_nil,
            "candidates": [
                {"entity_id": found.entity_id, "title": found.title, "score": _rounded(found.score)}
                for found in link.candidates
            ],
        }
        lines.append(json.dumps(content, ensure_ascii=False) + "\n")
    return "".join(lines)


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, DECIMALS)


def _pubtator(document: LinkDocument, links: Sequence[Link]) -> str:
    text, name = _column(document.text), _column(document.document_id).replace("|", " ")
    title, abstract = text, ""
    if document.title_length is not None:
        title, abstract = text[: document.title_length], text[document.title_length + 1 :]
    lines = [f"{name}|t|{title}", f"{name}|a|{abstract}"]
    for (start, end), link in zip(document.spans, links, strict=True):
        columns = (name, str(start), str(end), text[start:end], link.entity_type or "-", link.entity_id or "-1")
        lines.append("\t".join(map(_column, columns)))
    return "\n".join([*lines, "", ""])


def _column(text: str) -> str:
    """In one column of one line; a separator becomes one space, so that offsets stay."""
    return _SEPARATOR.sub(" ", text)
