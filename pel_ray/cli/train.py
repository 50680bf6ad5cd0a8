"""pel-ray train."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_training
from pel_ray.steps.train import train
from pel_ray.steps.train_estimate import estimate
from pel_ray.steps.train_plan import TrainSettings


def run(settings: TrainSettings) -> None:
    show_training(train(settings), "The model")


def _plan(settings: TrainSettings) -> None:
    console.show_table(("", ""), estimate(settings), num_text_columns=2)


command = settings_command(
    "train",
    TrainSettings,
    run,
    argument="data",
    plan=_plan,
    nested=True,
    help="Train a retriever: Pb or CE loss, FGSM, random or mixed negatives, on one worker or many.",
    example="pel-ray train data/hpo --out runs/hpo/pb --negatives mixed --epochs 3",
)
