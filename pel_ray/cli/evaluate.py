"""pel-ray evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.evaluate import EvaluateSettings, evaluate, read_evaluation

NAME_WIDTH = 22
NUM_ROWS = 12
"""Worlds or types shown; the evaluation's file has all."""


def run(settings: EvaluateSettings) -> None:
    outcome = evaluate(settings)
    show_outcome(outcome)
    show_evaluation(read_evaluation(outcome))
    if settings.tune_nil:
        console.say(f"the threshold is stored in {read_evaluation(outcome)['model']}")


def show_evaluation(found: Mapping[str, Any]) -> None:
    """The tables, each under the pool and the policy that it holds for."""
    policy = found["policy"]
    console.say(
        f"split {found['split']}: {found['mentions']:,} mentions, {found['NIL mentions']:,} of them NIL; golds that "
        f"the KB lacks: {found['gold not in the KB']:,}, counted as wrong; pool: {policy['pool']}, {policy['search']} "
        f"search; of several golds {policy['golds']} must be found; 95% intervals over documents"
    )
    systems = found["systems"]
    first = next(iter(systems))
    show_systems(systems)
    for group, heading in (("all", "macro"), ("seen", "entities"), ("world", "by world"), ("type", "by type")):
        rows = [(row["name"], row) for row in systems[first] if row["group"] == group and row["name"] != "micro"]
        if rows:
            console.say()
            console.show_table(*_table(f"{first}, {heading}", rows[:NUM_ROWS]))
            if len(rows) > NUM_ROWS:
                console.say(f"... and {len(rows) - NUM_ROWS:,} more, in the evaluation's file")
    if found["nil"]:
        _show_nil(found["nil"])


def show_systems(systems: Mapping[str, Any]) -> None:
    """Each system over all mentions that have a gold."""
    console.show_table(*_table("all with a gold", [(name, rows[0]) for name, rows in systems.items()]))


def _table(heading: str, rows: list[tuple[str, Mapping[str, Any]]]) -> tuple[list[str], list[list[Any]]]:
    names = [name for name, value in rows[0][1].items() if isinstance(value, Mapping)]
    short = [name.replace("recall", "R").replace("normalised", "norm") for name in names]
    shown = [
        [_cut(name), row["mentions"], *(_value(row[column]) for column in names[:1]), _interval(row[names[0]])]
        + [_value(row[column]) for column in names[1:]]
        for name, row in rows
    ]
    return [heading, "mentions", short[0], "95%", *short[1:]], shown


def _cut(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}\u2026"


def _value(figure: Mapping[str, Any]) -> str:
    return "-" if figure["value"] is None else f"{figure['value']:.3f}"


def _interval(figure: Mapping[str, Any]) -> str:
    return "-" if figure["low"] is None else f"{figure['low']:.3f}-{figure['high']:.3f}"


def _show_nil(found: Mapping[str, Any]) -> None:
    value = found["auPR"]
    console.heading(f"NIL: {found['NIL mentions']:,} of {found['mentions']:,} mentions")
    rows = [("auPR", f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]")]
    at = found["threshold"]
    if at:
        rows.append((f"threshold, chosen on {at['split']}", f"{at['threshold']:.4f}"))
        rows += [(f"{name} of NIL", f"{at[name]:.3f}") for name in ("precision", "recall", "f1")]
        rows += [(f"{name}, NIL as a class", f"{at[name]:.3f}") for name in ("recall@1", "recall@64") if name in at]
    console.show_table(("", ""), rows)
    if not at:
        console.say(
            "no threshold is in the model: --split validation --tune-nil chooses one and stores it in a saved model"
        )


command = settings_command(
    "evaluate",
    EvaluateSettings,
    run,
    argument="data",
    nested=True,
    help="Measure a retriever on a split: recall, MRR, NIL, with intervals and beside baselines.",
    example="pel-ray evaluate data/hpo --vectors runs/hpo/pb --out runs/hpo/pb/test",
)
