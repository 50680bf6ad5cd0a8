"""The candidates of a retriever's training mentions: what training a ranker and learning from one both start with."""

from __future__ import annotations

from pydantic import Field

from pel_ray.artifacts import MANIFEST
from pel_ray.errors import ArtifactError
from pel_ray.rank_candidates import Candidates, CandidateSettings, Examples, examples_of
from pel_ray.runtime import Workers
from pel_ray.spec import Settings
from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.steps.importing import Path
from pel_ray.steps.searching import Pool
from pel_ray.steps.train_plan import LoopSettings, ValidationSettings
from pel_ray.storage import Location


class CandidateSource(Settings):
    """Whose candidates are learnt from, and how they are found."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    vectors: Path
    """The retriever whose candidates are ranked: its training run, or vectors of the KB by it."""
    out: Path
    """Folder for the run; its model/ is what you want."""
    candidates: CandidateSettings = CandidateSettings()
    """What it is trained against."""
    validation: ValidationSettings = ValidationSettings()
    """How it is watched."""
    retriever: str | None = None
    """Where the retriever's model is, if it has moved since the vectors were made."""
    index: Path | None = None
    """Search for candidates through this index; by default exactly."""
    pool: Pool = "auto"
    """Where candidates come from: all of the KB, or the mention's world; auto: its world where the KB has worlds."""
    split: str = "train"
    """Whose mentions it learns from."""


class CandidateTrainSettings(LoopSettings, CandidateSource):
    """What any training on a retriever's candidates can be told."""

    seed: int = Field(default=13, ge=0)
    """Decides the order of mentions, the dropout, and what is drawn at random."""

    def search(self, split: str, out: str) -> EvaluateSettings:
        """How the candidates of a split are found: as an evaluation of the retriever."""
        return EvaluateSettings(
            data=self.data,
            vectors=self.vectors,
            out=out,
            index=self.index,
            encoder=self.retriever,
            split=split,
            pool=self.pool,
            baselines=["none"],
            nil=False,
            resamples=10,
            resources=self.resources,
        )


def find_candidates(settings: CandidateTrainSettings, split: str, state: Location, within: Workers) -> Candidates:
    """What the retriever finds for a split, unless it has been found before."""
    out = state / f"candidates-{split}"
    if not (out / MANIFEST).is_file():
        evaluate(settings.search(split, out.uri), within)
    return Candidates.read(out, settings.candidates.num_candidates)


def training_examples(settings: CandidateTrainSettings, candidates: Candidates) -> Examples:
    """The mentions that are learnt from."""
    examples = examples_of(candidates, settings.candidates)
    if not len(examples.rows_M):
        raise ArtifactError(
            f"{settings.data}: no mention of split {settings.split!r} has a gold among its candidates. "
            "Use --missing-gold append, or another retriever"
        )
    return examples
