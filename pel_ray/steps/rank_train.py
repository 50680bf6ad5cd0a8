"""rank train: a ranker over a retriever's candidates, in rounds that a rerun finds finished, or goes on with."""

from __future__ import annotations

import pathlib
import shutil

from pel_ray.artifacts import building, read_manifest
from pel_ray.runtime import Workers
from pel_ray.steps.epoch import METRICS, check_workers
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
            _forget_other_runs(pathlib.Path(plan.out.path), work.tag)
            RankRounds(plan, work, carrier, ask).run()
    return Outcome(plan.out, read_manifest(plan.out), is_new=True)


def _forget_other_runs(folder: pathlib.Path, tag: str) -> None:
    """With --overwrite: what a run of other settings has left, which only it could go on with."""
    for other in folder.glob("state-????????"):
        if other.name != f"state-{tag}":
            for name in (other.name, "tokens"):
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / METRICS).unlink(missing_ok=True)
