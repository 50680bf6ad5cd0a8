"""Scores of candidates by many workers: the part that training a ranker and evaluating it share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pel_ray.arrays import write_array
from pel_ray.artifacts import Work, building, finished
from pel_ray.encoder import Precision
from pel_ray.progress import RateProgress
from pel_ray.rank_tokens import SHARD_ROWS, find_tokens, token_files, token_places, token_request
from pel_ray.ranker import RankerParts, RankerSettings
from pel_ray.runtime import Ask, Workers
from pel_ray.shard_rank import ScoreJob, ShardScorer, ShardTokeniser, TokenJob, read_scores
from pel_ray.steps.sharded import finish_shards
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.vectors import Shard, plan_shards

MENTIONS_PER_SHARD = 512


def kb_tokens(
    kb: TableFolder, parts: RankerParts, folder: Location, beside: Sequence[Location], carrier: Workers, ask: Ask
) -> list[Location]:
    """Files of the entities' word pieces: found in a folder that other steps left them in, or made in `folder`."""
    request = token_request(kb, parts)
    found = find_tokens(request, token_places(beside, request))
    if found is not None:
        return found
    if finished(folder, request) is None:
        with building(folder, request, resumable=True) as work:
            job = TokenJob(folder=folder, tag=work.tag, threads=ask.cpus, kb=kb, model=parts.settings, request=request)
            shards = plan_shards(kb.num_rows, SHARD_ROWS)
            with RateProgress("tokenising entities", kb.num_rows) as progress:
                finish_shards(
                    carrier, ShardTokeniser, job, shards, lambda _, receipt: progress.add(receipt["entities"])
                )
            for shard in shards:
                work.count(job.result_names(shard)[0])
            work.counts |= {"rows": kb.num_rows, "shards": len(shards)}
    return token_files(folder, request)


def score_candidates(
    work: Work,
    carrier: Workers,
    ask: Ask,
    *,
    mentions: TableFolder,
    rows_Q: np.ndarray,
    candidates_QK: np.ndarray,
    model: RankerSettings,
    tokens: Sequence[Location],
    precision: Precision = "auto",
) -> tuple[np.ndarray, float]:
    """Scores (Q, K), and the seconds that workers took; the folder in the making keeps finished shards."""
    file = work.folder / work.name("candidates", ".npy")
    write_array(file, candidates_QK)
    job = ScoreJob(
        folder=work.folder,
        tag=work.tag,
        threads=ask.cpus,
        mentions=mentions,
        rows_Q=rows_Q,
        candidates=file,
        model=model,
        token_files=tokens,
        precision=precision,
    )
    shards = plan_shards(len(rows_Q), MENTIONS_PER_SHARD)
    with RateProgress("scoring candidates of mentions", len(rows_Q)) as progress:

        def seen(shard: Shard, receipt: dict[str, Any]) -> None:
            progress.add(receipt["mentions"])

        receipts = finish_shards(carrier, ShardScorer, job, shards, seen)
    return read_scores(job, shards), round(sum(receipt["seconds"] for receipt in receipts), 2)
