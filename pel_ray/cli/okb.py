"""pel-ray okb."""

from __future__ import annotations

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcomes
from pel_ray.steps.okb import OkbSettings, make_okb


def _run(settings: OkbSettings) -> None:
    kb, mentions = make_okb(settings)
    show_outcomes([kb, mentions], settings.out)
    console.heading(f"The out-of-KB subset: {kb.manifest.counts['removed']:,} entities left the KB")
    splits = {
        split: {name: count for name, count in counts.items() if name != "NIL mentions"}
        for split, counts in mentions.manifest.counts["okb"].items()
    }
    console.show_splits(splits)


command = settings_command(
    "okb",
    OkbSettings,
    _run,
    argument="data",
    help="Make a data set with NILs: entities leave its KB by type, chance or version, and golds are emptied.",
    example="pel-ray okb data/mm --out data/mm-okb --by types",
)
