"""The evaluation.json of an evaluation folder, checked as it is read."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pel_ray.artifacts import Manifest
from pel_ray.errors import ArtifactError
from pel_ray.storage import Location

STEM = "evaluation"


class Content(BaseModel):
    """Keys that a report does not know are left alone: a newer version may write more."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Figure(Content):
    """A measured share with its 95% interval; no value where nothing could be measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Row(Content):
    """The figures of a system on some of the mentions."""

    group: str
    name: str
    mentions: int
    figures: dict[str, Figure]
    """recall@1, ..., MRR, normalised@1."""

    @model_validator(mode="before")
    @classmethod
    def _collected(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "figures" in given:
            return given
        return given | {"figures": {name: value for name, value in given.items() if isinstance(value, dict)}}


class Threshold(Content):
    """What a NIL threshold, chosen on another split, comes to on this one."""

    threshold: float
    split: str
    precision: float
    recall: float
    f1: float
    recall_at_1: float | None = Field(default=None, alias="recall@1")
    recall_at_64: float | None = Field(default=None, alias="recall@64")


class Curve(Content):
    """Precision against recall of NIL, from the strictest threshold to the mildest."""

    recall: list[float]
    precision: list[float]

    @model_validator(mode="after")
    def _as_long(self) -> Curve:
        if len(self.recall) != len(self.precision):
            raise ValueError(f"{len(self.recall)} recalls for {len(self.precision)} precisions")
        return self


class Nil(Content):
    """How well NIL mentions are told from the others."""

    mentions: int
    nil_mentions: int = Field(alias="NIL mentions")
    auPR: Figure
    threshold: Threshold | None = None
    curve: Curve


class Bin(Content):
    """Mentions whose best score is in a range, and the share of them that is right."""

    score: float | None
    correct: float | None
    mentions: int


class ShownEntity(Content):
    """An entity as a person needs it to judge a mistake."""

    id: str
    title: str
    description: str | None = None
    synonyms: list[str] = []
    score: float | None = None


class Confusion(Content):
    """A gold and what was predicted in its place, with one mention of it."""

    times: int
    mention: str
    left: str = ""
    right: str = ""
    rank: int | None = None
    gold: ShownEntity
    predicted: ShownEntity


class Change(Content):
    """A mention whose best entity a ranker has replaced by another."""

    mention: str
    left: str = ""
    right: str = ""
    gold: ShownEntity
    before: ShownEntity
    after: ShownEntity


class Changes(Content):
    """What a ranker made of the retriever's order: how often, and some of the mentions."""

    counts: dict[str, int]
    examples: dict[str, list[Change]] = {}


class EvaluationFile(Content):
    """All that an evaluation has found."""

    data: str
    split: str
    model: str
    vectors: str | None = None
    index: str | None = None
    policy: dict[str, Any]
    mentions: int
    nil_mentions: int = Field(default=0, alias="NIL mentions")
    outside: int = Field(default=0, alias="gold not in the KB")
    systems: dict[str, list[Row]] = Field(min_length=1)
    nil: Nil | None = None
    reliability: list[Bin] = []
    confusions: list[Confusion] = []
    changes: Changes | None = None


def read_evaluation(folder: Location, manifest: Manifest) -> EvaluationFile:
    """What the folder's evaluation found, or an error that says what is damaged."""
    content = read_json(folder, manifest, STEM)
    try:
        return EvaluationFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{folder}: its evaluation is damaged ({where}: {first['msg']}). {REMEDY}") from error


REMEDY = "Make its folder again with --overwrite, or copy it again from where it is whole"


def read_json(folder: Location, manifest: Manifest, stem: str) -> Any:
    """The JSON file with this stem among those that the manifest counts."""
    names = [name for name in manifest.files if name.startswith(f"{stem}-") and name.endswith(".json")]
    if len(names) != 1:
        raise ArtifactError(f"{folder} counts {len(names)} files {stem}-*.json, expected one. {REMEDY}")
    try:
        return json.loads((folder / names[0]).read_bytes())
    except ValueError as error:
        raise ArtifactError(f"{folder / names[0]} is damaged ({error}). {REMEDY}") from error
