"""rank evaluate: how well a ranker orders what a retriever finds, beside the retriever alone."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from pel_ray.artifacts import Input, Request
from pel_ray.blend import blended
from pel_ray.evaluation import Judged
from pel_ray.golds import GoldMentions
from pel_ray.rank_changes import changes
from pel_ray.rank_tokens import token_request
from pel_ray.ranker import RankerParts, open_ranker
from pel_ray.reranker import in_order_of
from pel_ray.runtime import Workers
from pel_ray.search import Hits, PoolFilter
from pel_ray.steps.evaluate import (
    EvaluatePlan,
    EvaluateSettings,
    Site,
    baseline_hits,
    carry_out,
    retrieved,
)
from pel_ray.steps.evaluation_folder import Found
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.rank_scoring import kb_tokens, score_candidates
from pel_ray.storage import Location, locate


class RankEvaluateSettings(EvaluateSettings):
    """What is measured, and how golds are counted."""

    ranker: Path
    """The ranker, as rank train has made it: its run, or the model/ in it."""
    num_candidates: int = Field(default=16, ge=2, le=64)
    """The retriever's best entities that are ranked."""


class RankEvaluatePlan(EvaluatePlan):
    """What is to be measured, checked before anything starts."""

    command = "rank evaluate"
    settings: RankEvaluateSettings
    ranker: RankerParts

    def _judge(self) -> Location:
        self.ranker = open_ranker(self.settings.ranker)
        self.ranker.check_retriever(self.parts)
        return self.ranker.folder

    def _request(self) -> Request:
        asked = super()._request()
        inputs = dict(asked.inputs)
        inputs["retriever"] = inputs["model"]
        inputs["model"] = Input(path=self.ranker.folder.address, digest=self.ranker.digest)
        settings = dict(asked.settings) | {"num_candidates": self.settings.num_candidates}
        return Request(kind="evaluation", inputs=inputs, settings=settings)


def rank_evaluate(settings: RankEvaluateSettings, within: Workers | None = None) -> Outcome:
    """Evaluates what is not evaluated yet and finishes the folder."""
    return carry_out(RankEvaluatePlan(settings), _systems, within)


def _systems(plan: RankEvaluatePlan, mentions: GoldMentions, pools: PoolFilter | None, site: Site) -> Found:
    hits = retrieved(plan, mentions, pools, site.search)
    ranked = _ranked(plan, mentions, hits, site)
    policy = plan.settings.golds
    before, after = (Judged.of(found, mentions, policy) for found in (hits, ranked))
    k = ranked.rows_QK.shape[1]
    has_gold_Q = ~np.array(mentions.is_nil, bool)
    ceiling = float((after.ranks_Q[has_gold_Q] > 0).mean()) if has_gold_Q.any() else float("nan")
    return Found(
        systems={"ranker": ranked, "retriever": hits} | baseline_hits(plan, mentions, pools),
        policy={"ranked": f"the retriever's {k} best, recall@{k} {ceiling:.4f}: the ceiling{_by(plan)}"},
        more={"changes": changes(plan.data, mentions, before, after)},
    )


def _by(plan: RankEvaluatePlan) -> str:
    """What they are ranked by, where it is not the ranker's score alone."""
    blend = plan.ranker.blend
    if blend is None or not blend.weight:
        return ""
    is_same = blend.retriever_digest == plan.request.inputs["retriever"].digest
    chosen = "" if is_same else f", a weight chosen with another retriever ({blend.retriever})"
    return f"; by the ranker's score + {blend.weight:.4g} times the retriever's{chosen}"


def _ranked(plan: RankEvaluatePlan, mentions: GoldMentions, hits: Hits, site: Site) -> Hits:
    home = locate(plan.settings.out).parent
    name = f"tokens-{token_request(plan.data.kb, plan.ranker).fingerprint[:8]}"
    beside = [plan.ranker.folder.parent, plan.vectors.folder.parent]
    tokens = kb_tokens(plan.data.kb, plan.ranker, home / name, beside, site.carrier, site.ask)
    candidates_QK = np.ascontiguousarray(hits.rows_QK[:, : plan.settings.num_candidates])
    scores_QK, site.search.seconds["scoring"] = score_candidates(
        site.work,
        site.carrier,
        site.ask,
        mentions=plan.data.mentions,
        rows_Q=np.array(mentions.rows),
        candidates_QK=candidates_QK,
        model=plan.ranker.settings,
        tokens=tokens,
    )
    retriever_QK = hits.scores_QK[:, : plan.settings.num_candidates]
    return in_order_of(blended(scores_QK, retriever_QK, plan.ranker.retriever_weight), candidates_QK)
