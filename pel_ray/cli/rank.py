"""pel-ray rank: a cross-encoder over a retriever's candidates, trained and evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pel_ray import console
from pel_ray.cli.evaluate import show_evaluation
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome, show_training
from pel_ray.steps.distil_plan import DistilSettings
from pel_ray.steps.evaluate import read_evaluation
from pel_ray.steps.rank_distil import rank_distil
from pel_ray.steps.rank_estimate import estimate_distilling, estimate_ranker
from pel_ray.steps.rank_evaluate import RankEvaluateSettings, rank_evaluate
from pel_ray.steps.rank_plan import RankTrainSettings
from pel_ray.steps.rank_train import rank_train

group = click.Group(
    "rank",
    help="A ranker reads a mention and an entity together: slower than the retriever, over its best candidates only.",
)


def _train(settings: RankTrainSettings) -> None:
    show_training(rank_train(settings), "The ranker")


def _distil(settings: DistilSettings) -> None:
    show_training(rank_distil(settings), "The model")


def _plan_training(settings: RankTrainSettings) -> None:
    console.show_table(("", ""), estimate_ranker(settings), num_text_columns=2)


def _plan_distilling(settings: DistilSettings) -> None:
    console.show_table(("", ""), estimate_distilling(settings), num_text_columns=2)


def _evaluate(settings: RankEvaluateSettings) -> None:
    outcome = rank_evaluate(settings)
    show_outcome(outcome)
    found = read_evaluation(outcome)
    show_evaluation(found)
    _show_changes(found)
    if settings.tune_nil:
        console.say(f"the threshold is stored in {found['model']}")


def _show_changes(found: Mapping[str, Any]) -> None:
    console.heading(f"What the ranker changed; ranked: {found['policy']['ranked']}")
    rows = [(name.replace("->", " to "), count) for name, count in found["changes"]["counts"].items()]
    console.show_table(("the best entity", "mentions"), rows)


group.add_command(
    settings_command(
        "train",
        RankTrainSettings,
        _train,
        argument="data",
        plan=_plan_training,
        nested=True,
        help="Train a ranker on a retriever's candidates: CE, FGSM, on one worker or many.",
        example="pel-ray rank train data/hpo --vectors runs/hpo/pb --out runs/hpo/ranker",
    )
)
group.add_command(
    settings_command(
        "evaluate",
        RankEvaluateSettings,
        _evaluate,
        argument="data",
        nested=True,
        help="Measure a ranker on a split beside its retriever: accuracy, NIL, and what it changed.",
        example="pel-ray rank evaluate data/hpo --ranker runs/hpo/ranker --vectors runs/hpo/pb --out runs/hpo/ranked",
    )
)
group.add_command(
    settings_command(
        "distil",
        DistilSettings,
        _distil,
        argument="data",
        plan=_plan_distilling,
        nested=True,
        help="Teach a retriever what a ranker makes of its candidates, so that it needs the ranker less.",
        example="pel-ray rank distil data/hpo --ranker runs/hpo/ranker --vectors runs/hpo/pb --out runs/hpo/distilled",
    )
)
