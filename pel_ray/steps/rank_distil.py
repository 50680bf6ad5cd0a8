"""rank distil: a retriever learns from a ranker's scores of its candidates, in rounds like those of train."""

from __future__ import annotations

from pel_ray.artifacts import building, read_manifest
from pel_ray.runtime import Workers
from pel_ray.steps.distil_plan import DistilPlan, DistilSettings
from pel_ray.steps.distil_rounds import DistilRounds, teach
from pel_ray.steps.epoch import check_workers, forget_other_runs
from pel_ray.steps.importing import Outcome
from pel_ray.steps.searching import pool_filter
from pel_ray.steps.sharded import at_work
from pel_ray.taught import Taught


def rank_distil(settings: DistilSettings, within: Workers | None = None) -> Outcome:
    """Finds and scores candidates, trains what is not trained yet and finishes the folder."""
    plan = DistilPlan(settings)
    if plan.done is not None:
        return Outcome(plan.out, plan.done, is_new=False)
    mentions = plan.mentions()
    plan.check_enough(mentions, plan.namesakes(mentions), pool_filter(settings.pool, plan.data.kb, mentions))
    with at_work(settings.resources, within) as (carrier, ask):
        check_workers(ask, settings.optimiser)
        with building(plan.out, plan.request, resumable=True) as work:
            forget_other_runs(plan.out, work.tag)
            teacher = teach(plan, work.folder / f"state-{work.tag}", carrier, ask)
            # Those whose gold is not among their candidates may be left out.
            taught = set(Taught.read(teacher).examples.rows_M.tolist())
            mentions = mentions.only(number for number, row in enumerate(mentions.rows) if row in taught)
            rounds = DistilRounds(plan, mentions, work, carrier, ask, teacher)
            rounds.run(plan.namesakes(mentions), pool_filter(settings.pool, plan.data.kb, mentions))
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)
