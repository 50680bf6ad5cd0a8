"""pel-ray encode-kb."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.encode_plan import estimate


def run(settings: EncodeSettings) -> None:
    outcome = encode_kb(settings)
    show_outcome(outcome)
    console.show_counts(outcome.manifest.counts)


def _plan(settings: EncodeSettings) -> None:
    console.show_table(("", ""), estimate(settings), num_text_columns=2)


command = settings_command(
    "encode-kb",
    EncodeSettings,
    run,
    argument="kb",
    plan=_plan,
    nested=True,
    help="Turn the entities of a KB into vectors: resumable, in shards, on one worker or many.",
    example="pel-ray encode-kb data/hpo --out runs/hpo/vectors --layers 3",
)
