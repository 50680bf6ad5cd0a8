"""Recall of a model on a split over the whole KB: what training watches after every epoch."""

from __future__ import annotations

import numpy as np

from pel_ray.artifacts import Input, Request, building, finished, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.golds import gold_mentions
from pel_ray.metrics import gold_ranks
from pel_ray.provenance import mention_model
from pel_ray.runtime import Workers
from pel_ray.steps.importing import Outcome
from pel_ray.steps.searching import Pool, Search, pool_filter, pool_sizes
from pel_ray.storage import Location
from pel_ray.tables import DataSet
from pel_ray.vectors import VectorFolder

RECALL_AT = (1, 4, 16, 64)


def validate(
    data: DataSet,
    vectors: VectorFolder,
    encoder: str,
    out: Location,
    *,
    split: str,
    num_mentions: int | None,
    pool: Pool,
    within: Workers,
) -> Outcome:
    """Recall@k of mentions that are not NIL; a gold that the KB lacks counts as not found."""
    parts = mention_model(vectors, encoder, None)
    request = Request(
        kind="validation",
        inputs={
            "mentions": data.mentions.as_input,
            "vectors": vectors.as_input,
            "model": Input(path=parts.named, digest=parts.digest("mention")),
        },
        settings={"split": split, "num_mentions": num_mentions, "pool": pool},
    )
    done = finished(out, request)
    if done is not None:
        return Outcome(out, done, is_new=False)
    every = gold_mentions(data.mentions, data.kb, split)
    mentions = every.only(np.flatnonzero(~np.array(every.is_nil, bool)).tolist()).sampled(num_mentions)
    if not len(mentions):
        raise ArtifactError(f"{data.mentions.folder} has no mention of split {split!r} that is not NIL")
    pools = pool_filter(pool, data.kb, mentions)
    k = min(max(RECALL_AT), data.kb.num_rows)
    ranks = np.zeros(len(mentions), np.int64)
    with building(out, request, resumable=True) as work:
        search = Search(work, within, within.ask, "auto")
        queries = search.encode(data.mentions, np.array(mentions.rows), parts)
        for first, _, hits in search.run(vectors, queries, k, pools):
            here = slice(first, first + len(hits.rows_QK))
            ranks[here] = gold_ranks(hits.rows_QK, mentions.golds[here])
        work.counts |= {
            "rows": len(mentions),
            "gold not in the KB": sum(not golds for golds in mentions.golds),
            "pool": pool_sizes(pools, data.kb.num_rows),
            **{f"recall@{at}": round(float(((ranks > 0) & (ranks <= at)).mean()), 4) for at in RECALL_AT if at <= k},
            "seconds": search.seconds,
        }
    return Outcome(out, read_manifest(out), is_new=True)
