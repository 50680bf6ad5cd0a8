"""From the hits of mentions to rows of negatives/, and a comparison with what other vectors would have given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.chance import position
from pel_ray.golds import GoldMentions
from pel_ray.mining import SCHEMA, Filter, Summary
from pel_ray.search import Hits, PoolFilter, exact_top_k, scores_of
from pel_ray.vectors import VectorFolder

NUM_AUDITED = 1000


@dataclass
class Miner:
    """Turns the hits of mentions into rows of negatives/."""

    mentions: GoldMentions
    namesakes: list[np.ndarray]
    filter: Filter
    summary: Summary

    def table(self, first: int, hits: Hits, gold_scores_Q: np.ndarray) -> pa.Table:
        rows = [self.row(first + number, hits, number, gold_scores_Q) for number in range(len(hits.rows_QK))]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def row(self, mention: int, hits: Hits, number: int, gold_scores_Q: np.ndarray) -> dict[str, Any]:
        rows_K, scores_K = hits.rows_QK[number], hits.scores_QK[number]
        golds, gold_score = self.mentions.golds[mention], float(gold_scores_Q[number])
        kept = self.filter.keep(rows_K, scores_K, golds, self.namesakes[mention], gold_score)
        found = np.flatnonzero(np.isin(rows_K, golds))
        rank = int(found[0]) + 1 if len(found) else 0
        self.summary.add(gold_score, rank, scores_K[kept])
        return {
            "mention_row": self.mentions.rows[mention],
            "mention_id": self.mentions.ids[mention],
            "gold_rows": golds,
            "gold_score": gold_score if np.isfinite(gold_score) else None,
            "gold_rank": rank or None,
            "entity_rows": rows_K[kept],
            "scores": scores_K[kept],
        }


@dataclass
class Audit:
    """Compares the negatives of some mentions with those that the vectors of the whole KB give."""

    full: VectorFolder
    miner: Miner
    num_hits: int
    pools: PoolFilter | None
    overlaps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = self.miner.mentions.ids
        self._numbers = set(sorted(range(len(ids)), key=lambda number: position(17, ids[number]))[:NUM_AUDITED])
        # Its own counts, or the report would tell of these mentions twice.
        self._other = Miner(
            self.miner.mentions,
            self.miner.namesakes,
            Filter(self.miner.filter.settings, self.miner.filter.num_kept),
            Summary(),
        )

    def add(self, first: int, queries_QD: np.ndarray, table: pa.Table) -> None:
        some = np.array([n for n in range(first, first + len(queries_QD)) if n in self._numbers], np.int64)
        if not len(some):
            return
        queries = queries_QD[some - first]
        hits = exact_top_k(self.full, queries, self.num_hits, pools=self.pools and self.pools.only(some))
        gold_scores_Q = scores_of(self.full, queries, [self.miner.mentions.golds[number] for number in some])
        for place, number in enumerate(some.tolist()):
            there = self._other.row(number, hits, place, gold_scores_Q)["entity_rows"].tolist()
            here = table["entity_rows"][number - first].as_py()
            self.overlaps.append(len(set(here) & set(there)) / max(len(there), 1))

    def to_json(self, vectors: VectorFolder) -> dict[str, Any]:
        return {
            "mentions compared": len(self.overlaps),
            "overlap of the hard negatives": round(float(np.mean(self.overlaps)), 4),
            "seconds to encode these vectors": vectors.manifest.counts["worker seconds"],
            "seconds to encode the whole KB": self.full.manifest.counts["worker seconds"],
        }
