"""rank train: a ranker over a retriever's candidates, in rounds that a rerun finds finished, or goes on with."""

from __future__ import annotations

from pel_ray.artifacts import building, read_manifest
from pel_ray.runtime import Workers
from pel_ray.steps.epoch import check_workers, forget_other_runs
from pel_ray.steps.importing import Outcome
from pel_ray.steps.rank_plan import RankPlan, RankTrainSettings
from pel_ray.steps.rank_rounds import RankRounds
from pel_ray.steps.sharded import at_work


def rank_train(settings: RankTrainSettings, within: Workers | None = None) -> Outcome:
    """Trains what is not trained yet and finishes the folder."""
    plan = RankPlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    with at_work(settings.resources, within) as (carrier, ask):
        check_workers(ask, settings.optimiser)
        with building(plan.out, plan.request, resumable=True) as work:
            forget_other_runs(plan.out, work.tag)
            RankRounds(plan, work, carrier, ask).run()
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)
