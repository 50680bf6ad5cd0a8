"""pel-ray index."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcome
from pel_ray.steps.index import IndexPlan, IndexSettings, build_index, estimates


def _run(settings: IndexSettings) -> None:
    outcome = build_index(settings)
    show_outcome(outcome)
    console.show_counts(outcome.manifest.counts)


def _plan(settings: IndexSettings) -> None:
    console.show_table(("", ""), estimates(IndexPlan(settings)), num_text_columns=2)


command = settings_command(
    "index",
    IndexSettings,
    _run,
    argument="vectors",
    plan=_plan,
    help="Build a FAISS index from vectors, for repeated and online search, and measure its recall.",
    example="pel-ray index runs/hpo/vectors --out runs/hpo/index --queries data/hpo",
)
