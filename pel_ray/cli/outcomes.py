"""What a command prints about the folders it leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

from pel_ray import console
from pel_ray.errors import ArtifactError
from pel_ray.steps.importing import Outcome
from pel_ray.steps.show import show_coverage
from pel_ray.storage import locate


def show_outcomes(outcomes: Sequence[Outcome], out: str) -> None:
    for outcome in outcomes:
        show_outcome(outcome)
        if "splits" in outcome.manifest.counts:
            console.say()
            console.show_splits(outcome.manifest.counts["splits"])
    try:
        show_coverage(locate(out))
    except ArtifactError as error:
        # The work is done; that the table beside it is damaged must not make it look failed.
        console.say(f"golds not compared with the KB: {error}")


def show_training(outcome: Outcome, made: str) -> None:
    """What a training has left, which is called `made`."""
    show_outcome(outcome)
    console.show_counts(outcome.manifest.counts)
    console.heading(f"{made} is in {outcome.folder / 'model'}, its curves are in {outcome.folder / 'training.png'}")


def show_outcome(outcome: Outcome) -> None:
    manifest = outcome.manifest
    state = f"done in {manifest.seconds:.1f} s" if outcome.is_new else "already done, nothing to do"
    console.heading(f"{outcome.folder}: {manifest.request.kind}, {manifest.counts['rows']:,} rows, {state}")
    if "sources" in manifest.counts:
        console.show_sources(manifest.counts["sources"])
