"""What an evaluation leaves in its folder: all tables as JSON, and the hits of what was evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pel_ray.artifacts import Work
from pel_ray.confusions import confusions
from pel_ray.evaluation import Evaluation, Judged
from pel_ray.golds import GoldMentions
from pel_ray.index import Index
from pel_ray.nil import NilThreshold
from pel_ray.search import Hits, PoolFilter
from pel_ray.steps.searching import pool_sizes
from pel_ray.storage import Location
from pel_ray.tables import DataSet
from pel_ray.vectors import VectorFolder

HITS_SCHEMA = pa.schema(
    [
        ("mention_row", pa.int64()),
        ("entity_rows", pa.list_(pa.int64())),
        ("scores", pa.list_(pa.float32())),
        ("gold_rows", pa.list_(pa.int64())),
        ("gold_rank", pa.int64()),
        ("is_nil", pa.bool_()),
    ]
)


class Asked(Protocol):
    """What of a plan is told beside what was found."""

    settings: Any
    data: DataSet
    vectors: VectorFolder
    index: Index | None
    judge: Location
    threshold: NilThreshold | None


@dataclass(frozen=True)
class Found:
    """What the systems of an evaluation have found, the evaluated one first, and what else is to be told."""

    systems: Mapping[str, Hits]
    policy: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def write_evaluation(plan: Asked, mentions: GoldMentions, pools: PoolFilter | None, found: Found, work: Work) -> None:
    settings = plan.settings
    judged = {name: Judged.of(hits, mentions, settings.golds) for name, hits in found.systems.items()}
    main = next(iter(judged.values()))
    evaluation = Evaluation(plan.data, mentions, settings.train_split, settings.resamples)
    content: dict[str, Any] = {
        "data": str(plan.data.kb.folder.parent),
        "split": settings.split,
        "model": plan.judge.address,
        "vectors": str(plan.vectors.folder),
        "index": str(plan.index.folder) if plan.index else None,
        "policy": {
            "pool": pool_sizes(pools, plan.data.kb.num_rows),
            "golds": settings.golds,
            "gold not in the KB": "wrong",
            "search": "exact" if plan.index is None else str(plan.index.manifest.counts["kind"]),
            **found.policy,
        },
        "mentions": len(mentions),
        "NIL mentions": mentions.num_nil,
        "gold not in the KB": mentions.num_outside,
        "systems": {name: evaluation.rows(of_system) for name, of_system in judged.items()},
    }
    chosen = evaluation.choose_threshold(main) if settings.tune_nil else None
    threshold = plan.threshold
    if chosen:
        threshold = NilThreshold(
            **chosen, data=content["data"], split=settings.split, vectors=plan.vectors.as_input.digest
        )
        work.counts["chosen threshold"] = threshold.__dict__
    content |= {
        "nil": evaluation.nil(main, threshold),
        "reliability": evaluation.reliability(main),
        "confusions": confusions(plan.data, mentions, main),
        **found.more,
    }
    with work.writing("evaluation", ".json") as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False).encode())
    with work.writing("hits", ".parquet") as stream, pq.ParquetWriter(stream, HITS_SCHEMA) as writer:
        for table in _hit_tables(mentions, main):
            writer.write_table(table)
    first = next(iter(content["systems"].values()))[0]
    work.counts |= {"rows": len(mentions)} | {name: first[name]["value"] for name in ("recall@1", "MRR")}


def _hit_tables(mentions: GoldMentions, judged: Judged, rows_at_once: int = 8192) -> Iterator[pa.Table]:
    for begin in range(0, len(mentions), rows_at_once):
        some = slice(begin, begin + rows_at_once)
        columns = [
            mentions.rows[some],
            judged.hits.rows_QK[some].tolist(),
            judged.hits.scores_QK[some].tolist(),
            mentions.golds[some],
            judged.ranks_Q[some],
            mentions.is_nil[some],
        ]
        yield pa.table([pa.array(values, field.type) for values, field in zip(columns, HITS_SCHEMA, strict=True)],
                       schema=HITS_SCHEMA)  # fmt: skip
