"""Text in, links out: mentions become vectors, the KB is searched for them, and what scores too low is NIL.

Shapes: Q mentions of a group, D dimensions, K entities found for each, best first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.encoder import Encoding, Precision, load_tower
from pel_ray.errors import InputError, SettingsError
from pel_ray.index import Index
from pel_ray.index_files import IndexFolder
from pel_ray.link_source import LinkSource, text_column
from pel_ray.rank_candidates import CandidateSettings
from pel_ray.reranker import Reranker
from pel_ray.search import ExactSearch, Hits
from pel_ray.tables import TableFolder
from pel_ray.text import MENTION_COLUMNS
from pel_ray.vectors import VectorFolder

MENTIONS_AT_ONCE = 1024
RANKED = CandidateSettings().num_candidates
KEEP_BYTES = 1 << 30
"""Vectors of a KB of up to 700,000 entities with 384 dimensions stay in memory between groups."""
CHARACTERS_PER_PIECE = 16
"""Context beyond so many characters for each word piece of a mention's text cannot count."""
Text = tuple[str, str, str]
"""Left context, mention, right context."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entity that a mention may mean."""

    entity_id: str
    title: str
    score: float


@dataclass(frozen=True, slots=True)
class Link:
    """What a mention means: the best of its candidates, or nothing where it is NIL."""

    entity_id: str | None
    title: str | None
    entity_type: str | None
    """The entity's first type in the KB."""
    score: float | None
    """Of the best candidate, also where it is not good enough."""
    is_nil: bool | None
    """None where no threshold tells."""
    candidates: tuple[Candidate, ...]


class Linker:
    """Links mentions, a group at a time: each group is encoded together and searched for at once."""

    def __init__(
        self, source: LinkSource, k: int = 16, threshold: float | None = None, precision: Precision = "auto"
    ) -> None:
        if k < 1:
            raise SettingsError(f"k is {k}, expected at least 1")
        self.threshold = threshold
        parts = source.parts
        self._texts = parts.texts
        self._reranker = (
            None
            if source.ranker is None
            else Reranker.load(source.ranker.folder, source.kb, precision, [source.searched.folder.parent])
        )
        lengths = [parts.settings.text.mention_length]
        if self._reranker is not None:
            lengths.append(self._reranker.ranker.parts.settings.text.mention_length)
        self._room = max(lengths) * CHARACTERS_PER_PIECE
        self._encoding = Encoding(load_tower(parts, "mention"), parts.settings, parts.markers.pad, precision)
        # A ranker puts as many in order as it was tuned on, also where fewer are asked for.
        self._k = k
        self._search = _searching(source.searched, k if source.ranker is None else max(k, RANKED))
        self._names = _Names(source.kb)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        kb: str | os.PathLike[str] | None = None,
        k: int = 16,
        *,
        nil: bool | None = None,
        threshold: float | None = None,
        ranker: str | os.PathLike[str] | None = None,
        precision: Precision = "auto",
    ) -> Linker:
        """From vectors, a training run or an index, with k candidates for each mention.

        `model` and `kb` say where these are if they have moved. A mention is NIL below `threshold`, by default the one
        that is stored with the model; nil=False tells no NILs, nil=True insists on a threshold. A `ranker` orders the
        candidates by scores of its own, and has a threshold of its own. `precision` is that of the computation, by
        default the quickest that this machine has; fp32 gives the same scores on any.
        """
        source = LinkSource.open(folder, model, kb, ranker)
        return cls(source, k, source.threshold(nil, threshold), precision)

    def link(self, mentions: Iterable[Mapping[str, Any]]) -> Iterator[Link]:
        """One link for each mention, in order.

        A mention is given with its contexts (`context_left`, `mention`, `context_right`, or `left` and `right`), or by
        its place in a text (`text`, `start`, `end`).
        """
        texts = (_text_of(mention, number, self._room) for number, mention in enumerate(mentions))
        while group := list(itertools.islice(texts, MENTIONS_AT_ONCE)):
            yield from self._linked(group)

    def _linked(self, texts: list[Text]) -> list[Link]:
        numbers: dict[Text, int] = {}
        for text in texts:
            numbers.setdefault(text, len(numbers))
        rows = [dict(zip(MENTION_COLUMNS, text, strict=True)) for text in numbers]
        hits = self._search(self._encoding.run_lists(self._texts.mentions(rows)))
        if self._reranker is not None:
            hits = self._reranker.rerank(rows, hits)
            hits = Hits(hits.scores_QK[:, : self._k], hits.rows_QK[:, : self._k])
        links = self._links(hits)
        return [links[numbers[text]] for text in texts]

    def _links(self, hits: Hits) -> list[Link]:
        found = self._names.candidates(hits)
        types = self._names.types(hits.rows_QK[:, 0])
        return [self._link(candidates, kind) for candidates, kind in zip(found, types, strict=True)]

    def _link(self, candidates: tuple[Candidate, ...], kind: str | None) -> Link:
        if not candidates:
            return Link(None, None, None, None, None if self.threshold is None else True, ())
        best = candidates[0]
        is_nil = None if self.threshold is None else best.score < self.threshold
        if is_nil:
            return Link(None, None, None, best.score, True, candidates)
        return Link(best.entity_id, best.title, kind, best.score, is_nil, candidates)


def _searching(searched: VectorFolder | IndexFolder, k: int) -> Callable[[np.ndarray], Hits]:
    if isinstance(searched, VectorFolder):
        exact = ExactSearch(searched, keep_bytes=KEEP_BYTES)
        return lambda queries_QD: exact.top_k(queries_QD, k)
    index = Index.open(searched.folder)
    # An index refuses to give more entities than it has.
    most = min(k, index.entities.num_entities)
    return lambda queries_QD: index.search(queries_QD, most)


class _Names:
    """Ids, titles and first types of a KB by row, as Arrow columns."""

    def __init__(self, kb: TableFolder) -> None:
        self._ids, self._titles = text_column(kb, "entity_id"), text_column(kb, "title")
        first = [_first_types(table["types"].combine_chunks()) for table in kb.tables(["types"])]
        self._types = pa.chunked_array(first, pa.string()).dictionary_encode().unify_dictionaries().combine_chunks()

    def candidates(self, hits: Hits) -> list[tuple[Candidate, ...]]:
        is_found = hits.rows_QK >= 0
        rows = pa.array(hits.rows_QK[is_found])
        columns = (self._ids.take(rows).to_pylist(), self._titles.take(rows).to_pylist())
        candidates = iter(map(Candidate, *columns, hits.scores_QK[is_found].tolist()))
        return [tuple(itertools.islice(candidates, count)) for count in is_found.sum(1).tolist()]

    def types(self, rows_Q: np.ndarray) -> list[str | None]:
        return self._types.take(pa.array(rows_Q, mask=rows_Q < 0)).to_pylist()


def _first_types(lists: pa.ListArray) -> pa.Array:
    """The first of each list, null where it is empty."""
    has_one = pc.greater(pc.list_value_length(lists), 0)
    firsts = pc.if_else(has_one, lists.offsets[:-1], pa.scalar(None, pa.int32()))
    return lists.values.take(firsts)


def _text_of(mention: Mapping[str, Any], number: int, room: int) -> Text:
    """Its parts, with no more context than can count: a long document has many mentions."""
    if "text" in mention:
        text, start, end = mention["text"], mention.get("start"), mention.get("end")
        if not (isinstance(text, str) and isinstance(start, int) and isinstance(end, int)):
            raise InputError(f"mention {number}", "expected a text with start and end, whole numbers")
        if not 0 <= start < end <= len(text):
            problem = f"start {start} and end {end} are no span of its text, which has {len(text):,} characters"
            raise InputError(f"mention {number}", problem)
        parts = text[max(start - room, 0) : start], text[start:end], text[end : end + room]
    else:
        left = mention.get("context_left", mention.get("left", ""))
        right = mention.get("context_right", mention.get("right", ""))
        parts = left, mention.get("mention", ""), right
    if not all(isinstance(part, str) for part in parts):
        raise InputError(f"mention {number}", "its contexts and the mention must be text")
    if not parts[1].strip():
        found = ", ".join(map(str, mention)) or "nothing"
        raise InputError(f"mention {number}", f"has no text. Expected mention, or text, start and end; found {found}")
    return parts
