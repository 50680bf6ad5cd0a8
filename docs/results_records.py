"""Records of runs: all that the page of results needs of a run, in a small file that stays when the run is deleted.

Shapes: Q test mentions.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pel_ray.errors import ArtifactError

FORMAT = 1
DATA = {"retrieval": "medmentions", "zero-shot": "wordnet", "nil": "nil", "ranker": "medmentions"}
DATA |= {"longer": "medmentions", "zero-shot-longer": "wordnet", "refresh": "medmentions"}
DATA |= {"zero-shot-worlds": "wordnet-worlds"}
"""The data set of each table."""
MICRO, MACRO = "micro", "macro over worlds"
Interval = list[float | None]
"""A figure, and where its 95% interval begins and ends."""


def pack_bits(is_true_Q: np.ndarray) -> str:
    return base64.b64encode(np.packbits(is_true_Q.astype(bool)).tobytes()).decode()


def unpack_bits(text: str, num_bits: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:num_bits].astype(bool)


def pack_numbers(numbers_Q: np.ndarray) -> str:
    """Whole numbers as differences, the bytes of all by their place in the number: most of them are zero."""
    steps_Q = np.diff(numbers_Q, prepend=0).astype("<i4")
    by_place = steps_Q.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(by_place, 9)).decode()


def unpack_numbers(text: str) -> np.ndarray:
    by_place = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.cumsum(np.ascontiguousarray(by_place.T).view("<i4").ravel(), dtype=np.int64)


def numbered(names: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """Each name by the number of its first appearance, and the names."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64), list(numbers)


@dataclass(frozen=True, kw_only=True)
class Mentions:
    """The test mentions of a data set, and the fingerprints of its tables."""

    name: str
    kb: str
    mentions: str
    num_mentions: int
    documents: str
    """The number of each mention's document; a mention without one stands for itself."""
    world_names: list[str]
    worlds: str
    """The number of each mention's world."""
    nil: str
    """Bits: which mentions are NIL."""
    format: int = FORMAT

    @classmethod
    def of(
        cls, name: str, kb: str, mentions: str, documents: list[str], worlds: list[str], is_nil: list[bool]
    ) -> Mentions:
        # No document has a number for its name.
        documents_Q, _ = numbered(document or number for number, document in enumerate(documents))
        worlds_Q, world_names = numbered(world or "" for world in worlds)
        return cls(
            name=name,
            kb=kb,
            mentions=mentions,
            num_mentions=len(documents),
            documents=pack_numbers(documents_Q),
            world_names=world_names,
            worlds=pack_numbers(worlds_Q),
            nil=pack_bits(np.array(is_nil)),
        )

    @property
    def file(self) -> str:
        return f"data-{self.name}.json"

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"kb": self.kb, "mentions": self.mentions}

    @cached_property
    def document_Q(self) -> np.ndarray:
        return unpack_numbers(self.documents)

    @cached_property
    def is_nil_Q(self) -> np.ndarray:
        return unpack_bits(self.nil, self.num_mentions)

    @cached_property
    def micro(self) -> list[np.ndarray]:
        """One group: a NIL mention has no gold to find."""
        return [~self.is_nil_Q]

    @cached_property
    def macro(self) -> list[np.ndarray]:
        """A group for each world."""
        world_Q = unpack_numbers(self.worlds)
        groups = [~self.is_nil_Q & (world_Q == number) for number, name in enumerate(self.world_names) if name]
        return [mask_Q for mask_Q in groups if mask_Q.any()]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished run and its test."""

    table: str
    row: str
    seed: int | None
    """By the name of its folder; none where a table has one run of each row."""
    data: Mapping[str, str]
    """Fingerprints of the KB and the mentions that it was tested on."""
    fingerprint: str
    """Of the run; of its test where something else than pel-ray trained it, or nothing did."""
    finished_at: str
    settings: Mapping[str, Any]
    """Of the training, as its manifest has them."""
    versions: Mapping[str, str]
    vectors: str
    """Fingerprint of the vectors that were searched."""
    retriever: str | None
    """Of a ranker, or of what learned from one: the vectors that found its candidates."""
    best_epoch: int | None
    num_steps: int | None
    seconds: Mapping[str, float | None]
    """Of the run, its training and its encoding."""
    is_resumed: bool
    """It was stopped and went on, so that the seconds of the run and of encoding lack what came before."""
    num_candidates: int | None
    """Of a ranker."""
    systems: Mapping[str, Mapping[str, Mapping[str, Interval]]]
    """By system (what was evaluated first, then baselines) and group (micro, macro, seen or not) the figures."""
    worlds: Mapping[str, Mapping[str, float | None]]
    """recall@1 and recall@64 of each world."""
    first: str
    """Bits: whose gold came first."""
    nil: Mapping[str, Any] | None
    """auPR, what the threshold comes to, the curve, and `order`: the place of each mention's best score among all."""
    training: Mapping[str, list[float]] | None
    """Step, epoch, loss and gradient norm, of each line of metrics.jsonl."""
    validation: Mapping[str, list[float]] | None
    """Epoch, and what validation found after it."""
    format: int = FORMAT

    @property
    def file(self) -> str:
        return f"{self.table}-{self.row}{'' if self.seed is None else f'-seed-{self.seed}'}.json"

    @property
    def main(self) -> Mapping[str, Mapping[str, Interval]]:
        """The figures of what was evaluated."""
        return next(iter(self.systems.values()))

    def figure(self, group: str, name: str) -> Interval | None:
        return self.main.get(group, {}).get(name)

    @property
    def is_untrained(self) -> bool:
        """Whether no epoch of its training was better than none; one that asks for none is what it should be."""
        return self.best_epoch == 0 and self.settings.get("optimiser", {}).get("epochs") != 0

    def first_Q(self, mentions: Mentions) -> np.ndarray:
        return unpack_bits(self.first, mentions.num_mentions)


def text_of(record: Record | Mentions) -> str:
    """A line for each field, so that two versions compare line by line."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in asdict(record).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_record(file: Path) -> Record | Mentions:
    kind: type[Record | Mentions] = Mentions if file.name.startswith("data-") else Record
    try:
        content = json.loads(file.read_text())
        wanted = {field.name for field in fields(kind)}
        if content.get("format") != FORMAT or content.keys() != wanted:
            raise ValueError(f"format {content.get('format')}, expected {FORMAT} and other fields")
        return kind(**content)
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"{file} is no record ({error}). Collect it again, or delete it") from error


@dataclass(frozen=True)
class Records:
    """All records, each of the data that its data record describes."""

    runs: list[Record]
    data: dict[str, Mentions]

    @classmethod
    def of(cls, records: Iterable[Record | Mentions]) -> Records:
        found = list(records)
        runs = [record for record in found if isinstance(record, Record)]
        made = cls(runs, {record.name: record for record in found if isinstance(record, Mentions)})
        for record in runs:
            made._check(record)
        return made

    @classmethod
    def read(cls, folder: Path) -> Records:
        return cls.of(read_record(file) for file in sorted(folder.glob("*.json")))

    def _check(self, record: Record) -> None:
        name = DATA[record.table]
        if name not in self.data:
            raise ArtifactError(f"{record.file} has no data-{name}.json beside it. Collect where {name}'s mentions are")
        expected = self.data[name].fingerprints
        others = [part for part in expected if record.data[part] != expected[part]]
        if others:
            part = others[0]
            raise ArtifactError(
                f"{record.file} was tested on other {part} ({record.data[part][:8]}) than data-{name}.json describes "
                f"({expected[part][:8]}). Run its row on this data and collect it again, or delete the record"
            )

    def rows(self, table: str) -> list[str]:
        """The rows of a table that were collected."""
        return sorted({record.row for record in self.runs if record.table == table})

    def of_row(self, table: str, row: str) -> dict[int | None, Record]:
        """By seed."""
        found = [record for record in self.runs if (record.table, record.row) == (table, row)]
        return {record.seed: record for record in sorted(found, key=lambda record: record.seed or 0)}

    def mentions(self, table: str) -> Mentions:
        return self.data[DATA[table]]

    def retriever_of(self, record: Record) -> Record | None:
        """The retriever whose vectors found the candidates of a ranker, or of what it taught."""
        tables = ("longer", "retrieval")
        found = (other for other in self.runs if other.table in tables and other.vectors == record.retriever)
        return next(found, None)
