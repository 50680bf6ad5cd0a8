"""Documents to link: PubTator, JSON lines, or plain text with `[[marked]]` mentions; bad records are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pel_ray.errors import BadRecord, InputError
from pel_ray.formats.lines import CheckedLine
from pel_ray.formats.pubtator import TEXT_LINE, Document, MarkedText, documents_of
from pel_ray.formats.records import Aliases, Record, read_records
from pel_ray.formats.steady_lines import Problems, SteadyLines
from pel_ray.storage import Location

InputFormat = Literal["auto", "pubtator", "jsonl", "marked"]
GROUP_MENTIONS = 1024
GROUP_DOCUMENTS = 4096
GROUP_CHARACTERS = 8 << 20
FIELDS: Aliases = {
    "document_id": ("id", "document_id", "document", "doc_id", "pmid"),
    "text": ("text",),
    "spans": ("spans",),
    "start": ("start",),
    "end": ("end",),
    "left": ("context_left", "left"),
    "mention": ("mention",),
    "right": ("context_right", "right"),
}


@dataclass(frozen=True, slots=True)
class LinkDocument:
    """A text and the spans in it that are to be linked."""

    document_id: str
    text: str
    spans: Sequence[tuple[int, int]]
    title_length: int | None = None
    """PubTator: where the title ends; title and abstract are joined by one space."""
    has_offsets: bool = True
    """Whether the source counts in this text; a mention given by its contexts has no offsets of its own."""

    def to_json(self) -> list[Any]:
        return [self.document_id, self.text, self.spans, self.title_length, self.has_offsets]

    def mentions(self) -> Iterator[dict[str, Any]]:
        """What a Linker takes."""
        for start, end in self.spans:
            yield {"text": self.text, "start": start, "end": end}


def read_files(files: Sequence[Location], form: InputFormat, problems: Problems) -> Iterator[LinkDocument]:
    """The documents of all files; one without an id goes by its line, and by its file too where there are several."""
    for number, file in enumerate(files, start=1):
        yield from _read_file(file, form, problems, f"{number}:" if len(files) > 1 else "")


def _read_file(file: Location, form: InputFormat, problems: Problems, prefix: str) -> Iterator[LinkDocument]:
    lines = SteadyLines(file, problems)
    first = lines.first()
    found = form if form != "auto" else _format_of(first)
    if found == "pubtator":
        documents, expected = _pubtator(lines, problems), "document, which starts with a line `PMID|t|title`"
    elif found == "jsonl":
        documents, expected = _json_lines(lines, problems, prefix), "JSON line with text and spans, or with a mention"
    else:
        documents, expected = _marked(lines, problems, prefix), "[[mention]]"
    is_found = False
    for document in documents:
        is_found |= found != "marked" or bool(document.spans)
        yield document
    if not is_found:
        raise InputError(lines.name, f"holds no {expected}. Read as {found}; another format is named with --input")


def _format_of(line: str) -> InputFormat:
    if line.lstrip().startswith("{"):
        return "jsonl"
    return "pubtator" if TEXT_LINE.fullmatch(line) else "marked"


def grouped(documents: Iterable[LinkDocument]) -> Iterator[list[LinkDocument]]:
    """Documents to be linked together; whoever reads the same documents gets the same groups."""
    group: list[LinkDocument] = []
    num_mentions = num_characters = 0
    for document in documents:
        is_full = num_mentions + len(document.spans) > GROUP_MENTIONS or len(group) == GROUP_DOCUMENTS
        if group and (is_full or num_characters + len(document.text) > GROUP_CHARACTERS):
            yield group
            group, num_mentions, num_characters = [], 0, 0
        group.append(document)
        num_mentions += len(document.spans)
        num_characters += len(document.text)
    if group:
        yield group


@dataclass(frozen=True)
class _Block:
    """The lines of one PubTator document."""

    lines: Sequence[CheckedLine]
    where: Callable[[int], str]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((line.number, line.text) for line in self.lines if not line.fault)


def _pubtator(lines: SteadyLines, problems: Problems) -> Iterator[LinkDocument]:
    for block in _blocks(lines.all()):
        if not _has_whole_text(block, problems):
            continue
        try:
            documents = list(documents_of(_Block(block, lines.where), problems))
        except InputError as error:
            problems.add(f"{error} The document is left out")
            continue
        yield from (_annotated(document, lines.where, problems) for document in documents)


def _blocks(lines: Iterable[CheckedLine]) -> Iterator[list[CheckedLine]]:
    """The lines of each document, up to a blank line or the next title; a line outside comes alone."""
    block: list[CheckedLine] = []
    for line in lines:
        match = TEXT_LINE.fullmatch(line.text)
        is_title = match is not None and match[2] == "t"
        if block and (is_title or not line.text.strip()):
            yield block
            block = []
        if is_title or block:
            block.append(line)
        elif line.text.strip():
            yield [line]
    if block:
        yield block


def _has_whole_text(block: Sequence[CheckedLine], problems: Problems) -> bool:
    """Tells of lines that cannot be read; without its title or abstract, a document's offsets mean nothing."""
    is_whole = True
    for line in block:
        if line.fault and TEXT_LINE.fullmatch(line.text):
            is_whole = False
            problems.add(f"{line.fault}. The document is left out")
        elif line.fault:
            problems.add(line.fault)
    return is_whole


def _annotated(document: Document, where: Callable[[int], str], problems: Problems) -> LinkDocument:
    text = document.text
    marked = MarkedText(text)
    spans = []
    for annotation in document.annotations:
        span = marked.find(annotation.start, annotation.end, annotation.text)
        if span is not None and annotation.text.strip():
            spans.append(span)
            continue
        found = text[annotation.start : annotation.end]
        said = f"the text at {annotation.start}-{annotation.end} is {found!r}, the annotation says {annotation.text!r}"
        is_empty = not annotation.text.strip()
        problems.add(f"{where(annotation.line)}: {'is an empty mention' if is_empty else said}")
    return LinkDocument(document.document_id, text, spans, title_length=len(document.title))


def _json_lines(lines: SteadyLines, problems: Problems, prefix: str) -> Iterator[LinkDocument]:
    for record in read_records(lines, FIELDS, problems, "records"):
        document = problems.attempt("records", partial(_record_document, record, problems, prefix))
        if document is not None:
            yield document


def _record_document(record: Record, problems: Problems, prefix: str) -> LinkDocument:
    # A record knows its line as the end of where it stands.
    document_id = record.name("document_id", "") or f"{prefix}{record.where.rpartition(':')[2]}"
    if record.is_set("text"):
        text = record.text("text")
        found = [problems.attempt("spans", partial(_span, record, span, text)) for span in _given_spans(record)]
        return LinkDocument(document_id, text, [span for span in found if span is not None])
    left, mention, right = record.text("left", ""), record.text("mention"), record.text("right", "")
    if not mention.strip():
        raise BadRecord(record.where, "empty mention", "has an empty mention")
    return LinkDocument(document_id, left + mention + right, [(len(left), len(left) + len(mention))], has_offsets=False)


def _given_spans(record: Record) -> Sequence[Any]:
    if not record.has("spans") and record.has("start"):
        return [{"start": record.number("start"), "end": record.number("end")}]
    spans = record.fields.get("spans")
    if not isinstance(spans, list):
        problem = 'has no list of spans. Expected "spans": [[start, end], ...] beside "text"'
        raise BadRecord(record.where, "without spans", problem)
    return spans


def _span(record: Record, span: Any, text: str) -> tuple[int, int]:
    pair = [span.get("start"), span.get("end")] if isinstance(span, dict) else span
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
        problem = f'a span is {str(span)[:40]}, expected [start, end] or {{"start": ..., "end": ...}}, whole numbers'
        raise BadRecord(record.where, "not a span", problem)
    start, end = pair
    if not 0 <= start < end <= len(text):
        problem = f"start {start} and end {end} are no span of the text, which has {len(text):,} characters"
        raise BadRecord(record.where, "span outside the text", problem)
    if not text[start:end].strip():
        raise BadRecord(record.where, "empty mention", f"the mention at {start}-{end} is empty: only white space")
    return start, end


def _marked(lines: SteadyLines, problems: Problems, prefix: str) -> Iterator[LinkDocument]:
    for number, line in lines:
        if line.strip():
            text, spans, faults = without_marks(line)
            for fault in faults:
                problems.add(f"{lines.where(number)}: {fault}")
            yield LinkDocument(f"{prefix}{number}", text, spans)


def without_marks(line: str) -> tuple[str, list[tuple[int, int]], list[str]]:
    """The text less its marks, where the marked mentions stand in it, and what is wrong with the marks."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    faults: list[str] = []
    length = place = 0
    while (opened := line.find("[[", place)) >= 0:
        closed = line.find("]]", opened)
        if closed < 0:
            faults.append(f"the mark [[ at column {opened + 1} is not closed by ]]")
            break
        mention = line[opened + 2 : closed]
        start = length + opened - place
        if not mention.strip():
            faults.append(f"the mention marked at column {opened + 1} is empty")
        elif "[[" in mention:
            faults.append(f"the mark at column {opened + 1} holds another [[ before its ]]")
        else:
            spans.append((start, start + len(mention)))
        pieces += [line[place:opened], mention]
        length, place = start + len(mention), closed + 2
    return "".join([*pieces, line[place:]]), spans, faults
