"""The candidates of a retriever's training mentions: what training a ranker and learning from one both start with."""

from __future__ import annotations

from pydantic import Field

from pel_ray.artifacts import MANIFEST
from pel_ray.encoder import Precision
from pel_ray.errors import ArtifactError
from pel_ray.rank_candidates import Candidates, CandidateSettings, Examples, examples_of
from pel_ray.runtime import Resources, Workers
from pel_ray.spec import Settings
from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.steps.importing import Path
from pel_ray.steps.searching import Pool
from pel_ray.steps.train_plan import ValidationSettings
from pel_ray.storage import Location


class CandidateTrainSettings(Settings):
    """What any training on a retriever's candidates can be told."""

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
    precision: Precision = "auto"
    """Of the computation; auto: bf16 or fp16 where the hardware has it, else fp32."""
    checkpoint_steps: int = Field(default=500, ge=1)
    """Steps from one checkpoint to the next; each epoch ends with one too."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept."""
    log_steps: int = Field(default=10, ge=1)
    """Steps that a line of metrics.jsonl is the mean of."""
    seed: int = Field(default=13, ge=0)
    """Decides the order of mentions, the dropout, and what is drawn at random."""
    resources: Resources = Resources()
    """With what it runs."""
    overwrite: bool = False
    """Replace a run of other data or settings."""

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


FREE = frozenset(
    "data out vectors retriever index overwrite resources checkpoint_steps keep_checkpoints log_steps".split()
)
"""Settings that do not say what is made: where it goes, how often it is noted, and inputs, which count by content."""


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
