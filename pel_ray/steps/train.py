"""train: a retriever, in rounds that a rerun finds finished, or goes on with."""

from __future__ import annotations

from pel_ray.artifacts import building, read_manifest
from pel_ray.runtime import Workers
from pel_ray.steps.epoch import check_workers, forget_other_runs
from pel_ray.steps.importing import Outcome
from pel_ray.steps.rounds import Rounds
from pel_ray.steps.searching import pool_filter
from pel_ray.steps.sharded import at_work
from pel_ray.steps.train_plan import TrainPlan, TrainSettings


def train(settings: TrainSettings, within: Workers | None = None) -> Outcome:
    """Trains what is not trained yet and finishes the folder."""
    plan = TrainPlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    mentions = plan.mentions()
    namesakes = plan.namesakes(mentions)
    pools = pool_filter(settings.negatives.pool, plan.data.kb, mentions)
    plan.check_enough(mentions, namesakes, pools)
    with at_work(settings.resources, within) as (carrier, ask):
        check_workers(ask, settings.optimiser)
        with building(plan.out, plan.request, resumable=True) as work:
            forget_other_runs(plan.out, work.tag)
            rounds = Rounds(plan, mentions, work, carrier, ask)
            rounds.run(namesakes, pools)
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)
