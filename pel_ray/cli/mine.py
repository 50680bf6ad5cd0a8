"""pel-ray mine."""

from __future__ import annotations

import json

from pel_ray import console
from pel_ray.artifacts import Manifest
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.storage import Location


def run(settings: MineSettings) -> None:
    outcome = mine(settings)
    show_outcome(outcome)
    show_report(outcome.folder, outcome.manifest)


def show_report(folder: Location, manifest: Manifest) -> None:
    """What was found, what was dropped and why, and some examples to judge by."""
    console.show_counts(manifest.counts)
    (name,) = (name for name in manifest.files if name.startswith("report-"))
    report = json.loads((folder / name).read_bytes())
    if "audit" in report:
        console.heading("compared with the vectors of the whole KB")
        console.show_table(("", ""), report["audit"].items())
    console.heading("examples")
    for example in report["examples"]:
        console.say(f"... {example['mention']} ...")
        place = (
            f"rank {example['gold rank']}"
            if example["gold rank"]
            else f"below rank {manifest.counts['hits looked at']}"
        )
        console.say(f"    gold      {example['gold score']}  {example['gold']} ({place})")
        for negative in example["negatives"]:
            console.say(f"    negative  {negative['score']}  {negative['title']}")


command = settings_command(
    "mine",
    MineSettings,
    run,
    argument="data",
    nested=True,
    help="Find hard negatives: the entities that a model confuses with the golds of the training mentions.",
    example="pel-ray mine data/hpo --vectors runs/hpo/vectors --out runs/hpo/negatives",
)
