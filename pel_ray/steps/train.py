"""train: a retriever, in rounds that a rerun finds finished, or goes on with."""

from __future__ import annotations

import pathlib
import shutil

from pel_ray.artifacts import Work, building, read_manifest
from pel_ray.runtime import Workers
from pel_ray.steps.epoch import METRICS, check_workers
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
            _forget_other_runs(plan, work)
            rounds = Rounds(plan, mentions, work, carrier, ask)
            rounds.run(namesakes, pools)
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)


def _forget_other_runs(plan: TrainPlan, work: Work) -> None:
    """With --overwrite: what a run of other settings has left, which only it could go on with."""
    folder = pathlib.Path(plan.out.path)
    for other in folder.glob("state-????????"):
        if other.name != f"state-{work.tag}":
            for name in (other.name, "tokens", "vectors"):
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / METRICS).unlink(missing_ok=True)
