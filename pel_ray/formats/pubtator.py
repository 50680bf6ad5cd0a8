"""PubTator documents as MedMentions, BC5CDR and the NCBI disease corpus write them.

    26797704|t|The Impact of Deployment ...
    26797704|a|Since 9/11, military service ...
    26797704<TAB>99<TAB>115<TAB>military service<TAB>T097<TAB>C1550414

Offsets count characters of title, one separator, abstract. An id of `-1` or `-` is NIL, `A|B` and `A;B` are
several ids, `A+B` is a composite mention, a seventh column names the parts of a composite, and four-column lines are
relations between entities, which linking does not use. A mutation (`tmVar:p|SUB|V|600|E;RS#:113488022`) has several
ids between semicolons only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pel_ray.errors import InputError
from pel_ray.formats.lines import Lines
from pel_ray.formats.spans import cut_left, cut_right, unique_id
from pel_ray.schema import Mention
from pel_ray.tally import Tally

TEXT_LINE = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
_RELATION = re.compile(r"[A-Za-z_][\w-]*")
_OFFSET = re.compile(r"[0-9]{1,9}")
_ID_SEPARATOR = re.compile(r"[|;+]")
_MUTATION = re.compile(r"tmVar:|HGVS:|RS#:|[a-z]?\|[A-Za-z]+\|")
_NO_IDS = ("VariantGroup:", "Corresponding")
"""What stands beside the ids of a mutation: the number of a group in the document, its gene, its species."""
_NIL_IDS = frozenset({"", "-", "-1", "NIL"})


class LineSource(Protocol):
    """Numbered lines, and how an error names one."""

    def __iter__(self) -> Iterator[tuple[int, str]]: ...

    def where(self, number: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotated span as the file states it."""

    line: int
    start: int
    end: int
    text: str
    types: tuple[str, ...]
    ids: tuple[str, ...]
    composite: bool


@dataclass(slots=True)
class Document:
    """One abstract with its annotations, in the order of the file."""

    document_id: str
    line: int
    title: str = ""
    abstract: str = ""
    annotations: list[Annotation] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"{self.title} {self.abstract}"


def read_documents(lines: Lines, tally: Tally, seen: dict[str, str]) -> Iterator[Document]:
    """Documents one by one; a bad annotation or a repeated document stops or is counted, as the tally says.

    `seen` remembers over all files of a corpus where each document stands.
    """
    num_documents = 0
    for document in documents_of(lines, tally):
        num_documents += 1
        tally.read("documents")
        where = lines.where(document.line)
        # Not setdefault and a comparison: in a file that is given twice, both stand at the same place.
        first = seen.get(document.document_id)
        if first is None:
            seen[document.document_id] = where
            yield document
            continue
        second = f"stands here and at {first}. Remove one, or pass --on-error skip"
        if first == where:
            second = "was read from here before: the file is given twice. Name it once"
        tally.problem("documents", "occurs twice", where, f"document {document.document_id} {second}")
        tally.drop("mentions", "in a document that occurs twice", len(document.annotations))
    if not num_documents:
        raise InputError(lines.name, "holds no PubTator document, which starts with a line `PMID|t|title`")


def documents_of(lines: LineSource, tally: Tally) -> Iterator[Document]:
    """The documents of some lines; a title or abstract out of place stops."""
    document: Document | None = None
    has_abstract = False
    for number, line in lines:
        match = TEXT_LINE.fullmatch(line)
        if match and match[2] == "t":
            if document is not None:
                yield document
            document, has_abstract = Document(match[1], number, title=match[3]), False
        elif match and document is not None and not has_abstract:
            if match[1] != document.document_id:
                raise InputError(lines.where(number), _other_document(match[1], document))
            document.abstract, has_abstract = match[3], True
        elif match:
            problem = (
                "a second abstract" if has_abstract else "an abstract without a title line `PMID|t|title` before it"
            )
            raise InputError(lines.where(number), f"is {problem}")
        elif line.strip():
            _annotate(document, line, number, lines, tally)
        elif document is not None:
            yield document
            document = None
    if document is not None:
        yield document


def _annotate(document: Document | None, line: str, number: int, lines: LineSource, tally: Tally) -> None:
    columns = line.split("\t")
    if len(columns) in (4, 5) and _RELATION.fullmatch(columns[1]):
        tally.read("relations")
        tally.drop("relations", "not used in linking")
        return
    tally.read("mentions")
    fault = _fault(document, columns)
    if document is None or fault:
        tally.problem("mentions", "malformed line", lines.where(number), fault)
        return
    _, start, end, text, types, ids, *parts = columns
    document.annotations.append(
        Annotation(
            line=number,
            start=int(start),
            end=int(end),
            text=text,
            types=tuple(filter(None, types.split(","))),
            ids=_ids(ids),
            composite=("+" in ids and not _MUTATION.match(ids)) or bool(parts and parts[0]),
        )
    )


def _ids(column: str) -> tuple[str, ...]:
    # The parts of a mutation are joined by what joins ids elsewhere: c.35+1G>A, p|SUB|V|600|E.
    words = column.split(";") if _MUTATION.match(column) else _ID_SEPARATOR.split(column)
    names = (word.strip() for word in words)
    return tuple(name for name in names if name not in _NIL_IDS and not name.startswith(_NO_IDS))


def _fault(document: Document | None, columns: list[str]) -> str:
    """What is wrong with an annotation line, or nothing."""
    if document is None:
        return "is not in a document. Expected a line `PMID|t|title` before it"
    if len(columns) not in (6, 7):
        return f"has {len(columns)} tab-separated columns, expected 6 (document, start, end, text, type, id) or 7"
    if columns[0] != document.document_id:
        return _other_document(columns[0], document)
    if not (_OFFSET.fullmatch(columns[1]) and _OFFSET.fullmatch(columns[2])):
        return f"start and end are {columns[1][:20]!r} and {columns[2][:20]!r}, expected whole numbers"
    return ""


def _other_document(document_id: str, document: Document) -> str:
    return f"belongs to document {document_id!r}, but stands in {document.document_id!r}. Is a line missing or moved?"


def mentions_of(
    document: Document,
    where: Callable[[int], str],
    tally: Tally,
    *,
    context: int,
    split: str = "",
    strip_prefixes: Iterable[str] = (),
    keep_composites: bool = True,
    type_name: Callable[[str], str] = str,
) -> Iterator[Mention]:
    """The mentions of one document, each checked against the text it claims to stand for."""
    text = document.text
    marked = MarkedText(text)
    ids_used: set[str] = set()
    for annotation in document.annotations:
        span = marked.find(annotation.start, annotation.end, annotation.text)
        if span is None:
            tally.problem(
                "mentions",
                "text and offsets disagree",
                where(annotation.line),
                f"the text at {annotation.start}-{annotation.end} is "
                f"{text[annotation.start : annotation.end]!r}, the annotation says {annotation.text!r}. "
                "Correct it, or pass --on-error skip to leave such mentions out",
            )
            continue
        if annotation.composite:
            if not keep_composites:
                tally.drop("mentions", "composite")
                continue
            tally.note("mentions", "composite, all parts kept as golds")
        if span != (annotation.start, annotation.end):
            tally.note("mentions", "offsets moved past invisible marks")
        start, end = span
        yield Mention(
            mention_id=unique_id(f"{document.document_id}:{start}-{end}", ids_used),
            document_id=document.document_id,
            context_left=cut_left(text[:start], context),
            mention=text[start:end],
            context_right=cut_right(text[end:], context),
            entity_ids=_without_prefixes(annotation.ids, strip_prefixes),
            split=split,
            types=tuple(map(type_name, annotation.types)),
            where=where(annotation.line),
        )


class MarkedText:
    """A text in which invisible format marks (U+200E and the like) may stand that offsets do not count."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: list[int] | None = None
        if not text.isascii():
            places = [place for place, character in enumerate(text) if unicodedata.category(character) != "Cf"]
            self._places = places if len(places) < len(text) else None

    def find(self, start: int, end: int, wanted: str) -> tuple[int, int] | None:
        """Where `wanted` stands: at its offsets, or where they point when the marks are not counted."""
        if not wanted or not start < end:
            return None
        if end <= len(self._text) and _same(self._text[start:end], wanted):
            return start, end
        if self._places is None:
            return None
        if end <= len(self._text) and _same(_plain(self._text[start:end]), _plain(wanted)):
            return start, end
        if end <= len(self._places):
            first, last = self._places[start], self._places[end - 1] + 1
            if _same(_plain(self._text[first:last]), _plain(wanted)):
                return first, last
        return None


def _same(found: str, wanted: str) -> bool:
    # Corpora differ in whether title and abstract are joined by a space or a line end.
    return found.replace("\n", " ") == wanted.replace("\n", " ")


def _plain(text: str) -> str:
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


def _without_prefixes(ids: Iterable[str], prefixes: Iterable[str]) -> tuple[str, ...]:
    kept = []
    for name in ids:
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        kept.append(name)
    return tuple(dict.fromkeys(kept))
