"""Makes records of run folders: what the page of results needs of each, and of the data they were tested on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results_records import DATA, Interval, Mentions, Record, Records, pack_bits, pack_numbers, read_record, text_of

from pel_ray.artifacts import MANIFEST, Manifest, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.evaluation_file import EvaluationFile, Figure, Nil, Row, read_evaluation
from pel_ray.metrics_file import MetricsFile
from pel_ray.storage import locate
from pel_ray.tables import DataSet

DATA_FOLDERS = {
    "medmentions": "medmentions",
    "wordnet": "wordnet",
    "wordnet-worlds": "wordnet-worlds",
    "nil": "nil/data",
}
GROUPS = ("all", "seen")
OF_WORLDS = ("recall@1", "recall@64")
SERIES = ("step", "epoch", "loss", "gradient_norm")
TRAINED = ("run", "ranker")
"""Kinds of folders that a training leaves."""
CLOCK = timedelta(seconds=2)
"""Manifests tell the time to the second."""


def collect(runs: Path, folder: Path) -> list[str]:
    """Writes a record of each run that has been tested, and of its data; the names of the files."""
    made: dict[str, Record | Mentions] = {record.file: record for record in _data_records(runs)}
    made |= {record.file: record for table in DATA for record in _run_records(runs, table)}
    known = {file.name: read_record(file) for file in folder.glob("*.json") if file.name not in made}
    Records.of([*known.values(), *made.values()])
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in made.items():
        (folder / name).write_text(text_of(record))
    return sorted(made)


def _data_records(runs: Path) -> Iterator[Mentions]:
    for name, folder in DATA_FOLDERS.items():
        if (runs / folder / "mentions" / MANIFEST).is_file():
            yield _mentions(name, DataSet.open(locate(runs / folder)))


def _mentions(name: str, data: DataSet) -> Mentions:
    """Of its test split, in the order of the table, which is that of an evaluation's hits."""
    columns = ["split", "document_id", "world", "entity_ids"]
    table = pa.concat_tables(data.mentions.tables(columns)).to_pydict()
    rows = [row for row, split in enumerate(table["split"]) if split == "test"]
    return Mentions.of(
        name,
        data.kb.manifest.request.fingerprint,
        data.mentions.manifest.request.fingerprint,
        [table["document_id"][row] for row in rows],
        [table["world"][row] for row in rows],
        [not table["entity_ids"][row] for row in rows],
    )


def _run_records(runs: Path, table: str) -> Iterator[Record]:
    for pattern in ("*/test", "*/seed-*/test"):
        for test in sorted((runs / table).glob(f"{pattern}/{MANIFEST}")):
            yield _record(table, test.parent, test.parent.relative_to(runs / table).parts[:-1])


def _record(table: str, test: Path, names: Sequence[str]) -> Record:
    tested = read_manifest(locate(test), "evaluation")
    trained = _training_of(test.parent, tested)
    evaluation = read_evaluation(locate(test), tested)
    made, inputs = trained or tested, tested.request.inputs
    counts = trained.counts if trained else {}
    seed = re.fullmatch(r"seed-(\d+)", names[-1])
    return Record(
        table=table,
        row=names[0],
        seed=int(seed[1]) if seed else None,
        data={part: inputs[part].digest for part in ("kb", "mentions")},
        fingerprint=made.request.fingerprint,
        finished_at=made.finished_at,
        settings=trained.request.settings if trained else {},
        versions=made.versions,
        vectors=inputs["vectors"].digest,
        retriever=_retriever(tested, trained),
        best_epoch=counts.get("best epoch"),
        num_steps=counts.get("steps"),
        seconds={
            "run": trained.seconds if trained else None,
            "training": counts.get("training seconds"),
            "encoding": counts.get("encoding seconds, since the last start"),
        },
        is_resumed=trained is not None and _is_resumed(test.parent, trained),
        num_candidates=tested.request.settings.get("num_candidates"),
        systems={name: _figures(rows) for name, rows in evaluation.systems.items()},
        worlds=_worlds(next(iter(evaluation.systems.values()))),
        **_of_hits(test, tested, evaluation),
        **_of_metrics(test.parent, trained),
    )


def _training_of(run: Path, tested: Manifest) -> Manifest | None:
    """The training in this folder, if it is one, and the test is of its model."""
    if not (run / MANIFEST).is_file():
        return None
    manifest = read_manifest(locate(run))
    if manifest.request.kind not in TRAINED:
        return None
    vectors = run / "vectors" / MANIFEST
    if vectors.is_file():
        fingerprint = read_manifest(locate(run / "vectors")).request.fingerprint
        if fingerprint != tested.request.inputs["vectors"].digest:
            raise ArtifactError(f"{run / 'test'} is a test of other vectors than {run / 'vectors'}. Test the run again")
    return manifest


def _retriever(tested: Manifest, trained: Manifest | None) -> str | None:
    # A ranker's test names the model of its retriever; what learned from a ranker has vectors of its own to test.
    if "retriever" in tested.request.inputs:
        return tested.request.inputs["vectors"].digest
    found = trained.request.inputs.get("vectors") if trained else None
    return found.digest if found else None


def _is_resumed(run: Path, trained: Manifest) -> bool:
    """Whether a part of the run is older than its last start."""
    if trained.counts.get("training seconds", 0) > trained.seconds:
        return True
    began = datetime.fromisoformat(trained.finished_at) - timedelta(seconds=trained.seconds) - CLOCK
    parts = (read_manifest(locate(file.parent)).finished_at for file in run.glob(f"state-*/*/{MANIFEST}"))
    return any(datetime.fromisoformat(part) < began for part in parts)


def _figures(rows: Sequence[Row]) -> dict[str, dict[str, Interval]]:
    return {
        row.name: {name: _interval(figure) for name, figure in row.figures.items()}
        for row in rows
        if row.group in GROUPS
    }


def _interval(figure: Figure) -> Interval:
    return [figure.value, figure.low, figure.high]


def _worlds(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    return {
        row.name: {name: row.figures[name].value for name in OF_WORLDS if name in row.figures}
        for row in rows
        if row.group == "world"
    }


def _of_hits(test: Path, tested: Manifest, evaluation: EvaluationFile) -> dict[str, Any]:
    (name,) = (name for name in tested.files if name.startswith("hits-"))
    hits = pq.read_table(test / name, columns=["gold_rank", "scores"])
    scores_Q = np.array([scores[0] for scores in hits["scores"].to_pylist()]) if evaluation.nil else None
    return {
        "first": pack_bits(hits["gold_rank"].to_numpy() == 1),
        "nil": _nil(evaluation.nil, scores_Q) if evaluation.nil and scores_Q is not None else None,
    }


def _nil(nil: Nil, scores_Q: np.ndarray) -> dict[str, Any]:
    """auPR goes by the order of scores alone, so that keeps it whole; scores of 16 bits would tie."""
    return {
        "num_nil": nil.nil_mentions,
        "auPR": _interval(nil.auPR),
        "threshold": nil.threshold.model_dump(mode="json", by_alias=True) if nil.threshold else None,
        "curve": nil.curve.model_dump(mode="json"),
        "order": pack_numbers(np.unique(scores_Q, return_inverse=True)[1]),
    }


def _of_metrics(run: Path, trained: Manifest | None) -> dict[str, Any]:
    metrics = MetricsFile.of_run(locate(run))
    if trained is None or not metrics.file.is_file():
        return {"training": None, "validation": None}
    found = [{"epoch": line["epoch"], **line["validation"]} for line in metrics.validation]
    return {"training": _series(metrics.training, SERIES), "validation": _series(found, found[0] if found else ())}


def _series(lines: Sequence[Mapping[str, float]], names: Sequence[str] | Mapping[str, float]) -> dict[str, list[float]]:
    """Of each name its values, to four digits."""
    return {name: [_short(line[name]) for line in lines] for name in names}


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.4g}")
