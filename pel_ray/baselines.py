"""What a retriever has to beat: exact names in a dictionary, and character 3-grams of names by TF-IDF.

Shapes: Q queries, K entities asked for, N entities of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.names import normalised
from pel_ray.search import Hits, PoolFilter, merged
from pel_ray.tables import TableFolder

QUERIES_AT_ONCE = 64
BY_TITLE, BY_SYNONYM = 1.0, 0.5


def dictionary_hits(kb: TableFolder, mentions: Sequence[str], k: int, pools: PoolFilter | None) -> Hits:
    """Entities that have the mention for a name: those whose title it is, then those with such a synonym."""
    wanted = [normalised(mention) for mention in mentions]
    found: dict[str, dict[int, float]] = {name: {} for name in wanted}
    for first, names, owners in _names_of_blocks(kb):
        is_title = np.diff(owners, prepend=-1) > 0
        for name, owner, title in zip(names, owners.tolist(), is_title.tolist(), strict=True):
            rows = found.get(normalised(name))
            if rows is not None:
                rows.setdefault(first + owner, BY_TITLE if title else BY_SYNONYM)
    hits = Hits.none(len(mentions), k)
    for number, name in enumerate(wanted):
        rows = found[name]
        allowed = [row for row in rows if pools is None or pools.of_entity[row] == pools.of_query[number]]
        best = sorted(allowed, key=lambda row: (-rows[row], row))[:k]
        hits.rows_QK[number, : len(best)] = best
        hits.scores_QK[number, : len(best)] = [rows[row] for row in best]
    return hits


def tfidf_hits(kb: TableFolder, mentions: Sequence[str], k: int, pools: PoolFilter | None) -> Hits:
    """Entities by the cosine of the character 3-grams of the mention and of their best name."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Words get a space on both sides, so that their beginnings and ends count as 3-grams of their own.
    vectoriser = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), dtype=np.float32)
    vectoriser.fit(name for _, names, _ in _names_of_blocks(kb) for name in names)
    # A mention that occurs often is searched for once; pools may differ from one occurrence to the next.
    keys = [(mention, -1 if pools is None else int(pools.of_query[number])) for number, mention in enumerate(mentions)]
    distinct = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    queries = vectoriser.transform(mention for mention, _ in distinct)
    pool_Q = np.array([pool for _, pool in distinct])
    hits = Hits.none(len(distinct), k)
    for first, names, owners in _names_of_blocks(kb):
        block = vectoriser.transform(names).T.tocsc()
        starts = np.flatnonzero(np.diff(owners, prepend=-1) > 0)
        of_entity = None if pools is None else pools.of_entity[first : first + len(starts)]
        for begin in range(0, len(distinct), QUERIES_AT_ONCE):
            some = slice(begin, begin + QUERIES_AT_ONCE)
            scores_QN = np.maximum.reduceat((queries[some] @ block).toarray(), starts, axis=1)
            if of_entity is not None:
                scores_QN[of_entity[None] != pool_Q[some, None]] = -np.inf
            here = Hits(hits.scores_QK[some], hits.rows_QK[some])
            best = merged([here, _best_of(scores_QN, first, k)], k)
            hits.scores_QK[some], hits.rows_QK[some] = best.scores_QK, best.rows_QK
    places = np.array([distinct[key] for key in keys], np.int64)
    return Hits(hits.scores_QK[places], hits.rows_QK[places])


def _best_of(scores_QN: np.ndarray, first: int, k: int) -> Hits:
    """The best entities of a block; what shares no 3-gram with the mention is not found."""
    num_kept = min(k, scores_QN.shape[1])
    places_QK = np.argpartition(-scores_QN, num_kept - 1, axis=1)[:, :num_kept]
    scores_QK = np.take_along_axis(scores_QN, places_QK, 1)
    is_found = scores_QK > 0
    return Hits(np.where(is_found, scores_QK, -np.inf), np.where(is_found, places_QK + first, -1))


def _names_of_blocks(kb: TableFolder) -> Iterator[tuple[int, list[str], np.ndarray]]:
    """First row of a block, all names of its entities (title first), and whose name each is, counted from 0."""
    first = 0
    for table in kb.tables(["title", "synonyms"]):
        yield first, *_names(table)
        first += table.num_rows


def _names(table: pa.Table) -> tuple[list[str], np.ndarray]:
    titles: list[Any] = table["title"].to_pylist()
    synonyms = table["synonyms"].combine_chunks()
    owners = np.concatenate([np.arange(len(titles)), pc.list_parent_indices(synonyms).to_numpy()])
    names = np.array(titles + pc.list_flatten(synonyms).to_pylist(), object)
    order = np.argsort(owners, kind="stable")
    return names[order].tolist(), owners[order]
