"""pel-ray import: one command per source format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from pel_ray import console
from pel_ray.cli.options import settings_command
from pel_ray.cli.outcomes import show_outcomes
from pel_ray.spec import Settings
from pel_ray.steps.import_jsonl import BlinkSettings, JsonlSettings, import_blink, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.import_pubtator import (
    MedMentionsSettings,
    PubtatorSettings,
    import_medmentions,
    import_pubtator,
    published_differences,
)
from pel_ray.steps.import_umls import UmlsSettings, import_umls
from pel_ray.steps.import_zeshel import ZeshelSettings, import_zeshel
from pel_ray.steps.importing import Outcome

group = click.Group(
    "import",
    help="Bring a KB or annotated text in, as OUT/kb and OUT/mentions. Every importer ends with a table of what it "
    "read, kept, dropped and why.",
)


def _add(
    name: str,
    model: type[Settings],
    step: Callable[[Any], list[Outcome]],
    *,
    help: str,
    example: str,
    argument: str | Sequence[str] = (),
) -> None:
    def run(settings: Any) -> None:
        outcomes = step(settings)
        show_outcomes(outcomes, settings.out)
        if isinstance(settings, MedMentionsSettings):
            _show_published(outcomes[0], settings.subset)

    group.add_command(
        settings_command(name, model, run, help=help, example=f"pel-ray import {name} {example}", argument=argument)
    )


def _show_published(outcome: Outcome, subset: str) -> None:
    rows = published_differences(outcome, subset)
    console.heading(f"Against the published counts of MedMentions {subset}")
    console.show_table(
        ("split", "", "published", "here", "difference"),
        [(split, what, published, here, here - published) for split, what, published, here in rows],
        num_text_columns=2,
    )
    if all(published == here for _, _, published, here in rows):
        console.say("All counts are as published.")
    else:
        console.say(
            "Some counts differ: the files are not the whole published corpus, or of another subset (--subset)."
        )


_add(
    "obo", OboSettings, import_obo, argument="file",
    help="An ontology in OBO format becomes a KB; its synonyms can become mentions to train on.",
    example="hp.obo --out data/hpo --mentions synonyms",
)  # fmt: skip
_add(
    "umls", UmlsSettings, import_umls, argument="folder",
    help="UMLS RRF files become a KB, filtered by semantic type and source vocabulary.",
    example="2017AA/META --out data/mm --types st21pv",
)  # fmt: skip
_add(
    "medmentions", MedMentionsSettings, import_medmentions, argument="files",
    help="MedMentions becomes mentions, split by its PMID lists and checked against its published counts.",
    example="st21pv/data/corpus_pubtator.txt.gz --splits full/data --out data/mm",
)  # fmt: skip
_add(
    "pubtator", PubtatorSettings, import_pubtator, argument="files",
    help="PubTator files become mentions: BC5CDR, the NCBI disease corpus, PubTator exports.",
    example="train=CDR_TrainingSet.PubTator.txt test=CDR_TestSet.PubTator.txt --out data/cdr",
)  # fmt: skip
_add(
    "zeshel", ZeshelSettings, import_zeshel, argument="folder",
    help="ZESHEL in its original layout becomes a KB of all worlds and mentions in its five splits.",
    example="zeshel --out data/zeshel",
)  # fmt: skip
_add(
    "jsonl", JsonlSettings, import_jsonl,
    help="JSON lines become a KB, mentions, or both; mentions have contexts, or offsets into documents.",
    example="--kb kb.jsonl.gz --documents docs.jsonl.gz --mentions train=train.jsonl,test=test.jsonl --out data/my",
)  # fmt: skip
_add(
    "blink", BlinkSettings, import_blink,
    help="BLINK's JSON lines become a KB, mentions, or both.",
    example="--kb entity.jsonl --mentions train=train.jsonl,validation=valid.jsonl --out data/blink",
)  # fmt: skip
