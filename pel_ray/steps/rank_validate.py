"""Accuracy of a ranker on a split: what its training watches after every epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pel_ray.artifacts import MANIFEST, Request, building, read_manifest
from pel_ray.blend import choose_weight, golds_first
from pel_ray.errors import ArtifactError
from pel_ray.rank_candidates import Candidates
from pel_ray.ranker import RankerSettings
from pel_ray.runtime import Workers
from pel_ray.steps.rank_scoring import score_candidates
from pel_ray.storage import Location, without_credentials
from pel_ray.tables import TableFolder


def rank_validate(
    watched: Candidates,
    mentions: TableFolder,
    model: RankerSettings,
    tokens: Sequence[Location],
    out: Location,
    within: Workers,
    *,
    blend: bool = False,
) -> dict[str, float]:
    """Shares of the mentions whose gold is the ranker's best, the retriever's best, or a candidate at all; and rows.

    A gold that is not among the candidates counts as wrong. To blend, also the share with the best weight of the
    retriever's score, and this weight.
    """
    if not len(watched):
        raise ArtifactError(f"{mentions.folder} has no mention to validate on that is not NIL")
    if not (out / MANIFEST).is_file():
        # A part of its run, known by its name: what it was made from is a part of the run's own request.
        request = Request(
            kind="validation",
            inputs={"mentions": mentions.as_input},
            settings={"model": without_credentials(model.encoder)},
        )
        with building(out, request, resumable=True) as work:
            scores_QK, seconds = score_candidates(
                work,
                within,
                within.ask,
                mentions=mentions,
                rows_Q=watched.rows_Q,
                candidates_QK=watched.entities_QK,
                model=model,
                tokens=tokens,
            )
            work.counts |= _shares(watched, scores_QK) | {"rows": len(watched), "seconds": {"scoring": seconds}}
            if blend:
                work.counts |= _blended(watched, scores_QK)
    counts = read_manifest(out).counts
    names = ("accuracy", "retriever", "ceiling", *(("blended", "weight") if blend else ()), "rows")
    return {name: counts[name] for name in names}


def _shares(watched: Candidates, scores_QK: np.ndarray) -> dict[str, float]:
    is_gold_QK = watched.is_gold()
    shares = {
        "accuracy": golds_first(scores_QK, is_gold_QK),
        "retriever": float(is_gold_QK[:, 0].mean()),
        "ceiling": float(is_gold_QK.any(1).mean()),
    }
    return {name: round(share, 4) for name, share in shares.items()}


def _blended(watched: Candidates, scores_QK: np.ndarray) -> dict[str, float]:
    weight, share = choose_weight(scores_QK, watched.scores_QK, watched.is_gold())
    return {"blended": round(share, 4), "weight": weight}
