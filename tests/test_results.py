"""The page of results: its figures are those of the run folders, and its verdicts follow from them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pel_ray.artifacts import Request, building
from pel_ray.storage import locate
from tests.conftest import RunCommand
from tests.samples import KB_ROWS, write_jsonl
from tests.test_report import evaluation

SCRIPT = Path(__file__).parent.parent / "docs" / "results.py"
NUM_DOCUMENTS = 40


@pytest.fixture
def runs(tmp_path: Path, pel_ray: RunCommand) -> Path:
    """The data of the tables: a test mention in each of its documents."""
    kb = write_jsonl(tmp_path / "kb.jsonl", KB_ROWS)
    mentions = [
        {"context_left": "", "mention": "fever", "context_right": f" {number}", "doc_id": f"D{number}", "label": "E1"}
        for number in range(NUM_DOCUMENTS)
    ]
    texts = write_jsonl(tmp_path / "mentions.jsonl", mentions)
    data = tmp_path / "runs" / "medmentions"
    result = pel_ray("import", "jsonl", "--kb", str(kb), "--mentions", f"test={texts}", "--out", str(data))
    assert result.code == 0, result
    return tmp_path / "runs"


def write_test(folder: Path, is_right: Sequence[bool], first: float, settings: Mapping[str, Any] | None = None) -> None:
    """An evaluation of these mentions; `first` is what its table says of recall@1."""
    hits = [
        {"mention_row": row, "entity_rows": [0 if right else 1, 2], "gold_rows": [0], "is_nil": False}
        for row, right in enumerate(is_right)
    ]
    request = Request(kind="evaluation", inputs={}, settings=dict(settings or {}))
    with building(locate(folder), request) as work:
        with work.writing("evaluation", ".json") as stream:
            stream.write(json.dumps(evaluation(first)).encode())
        with work.writing("hits", ".parquet") as stream:
            pq.write_table(pa.Table.from_pylist(hits), stream)


def results_of(runs: Path) -> str:
    done = subprocess.run([sys.executable, SCRIPT, runs, runs.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (runs.parent / "results.md").read_text()


def test_figures_are_those_of_the_folders_and_verdicts_compare_the_same_mentions(runs: Path) -> None:
    all_right, half = [True] * NUM_DOCUMENTS, [number % 2 == 0 for number in range(NUM_DOCUMENTS)]
    other_half = [not right for right in half]
    for row, is_right, first in (
        ("pb-random", all_right, 0.7111),
        ("ce-random", half, 0.6222),
        ("pb-mixed", half, 0.5333),
        ("ce-mixed", other_half, 0.5444),
    ):
        write_test(runs / "retrieval" / row / "seed-1" / "test", is_right, first)
    write_test(runs / "ranker" / "pb-mixed" / "test", all_right, 0.8, {"num_candidates": 4})
    page = results_of(runs)
    assert "| Pb random | 0.711 [0.700, 0.723] | not run | 0.711 |" in page
    assert "| Pb mixed | 0.697 [0.686, 0.709] | 0.800 [0.789, 0.812] |" in page
    (above,) = (line for line in page.splitlines() if line.startswith("| Pb above CE with random negatives | +"))
    assert "+0.500 [+0.3" in above and above.endswith("| holds |")
    assert "mixed above random negatives, Pb | -0.500 [-0.6" in page and "| reversed |" in page
    # As often right, but on other mentions.
    assert (
        "mixed above random negatives, CE | +0.000 [-0.3" in page and "| not shown: zero is in the interval |" in page
    )
    assert "| Pb mixed + FGSM | not run | not run | - | - | 0.724 | 0.937 |" in page


def test_what_was_not_run_is_said_and_no_runs_at_all_is_an_error(runs: Path) -> None:
    assert "Precision against recall of NIL: not run." in results_of(runs)
    done = subprocess.run([sys.executable, SCRIPT, runs / "none"], capture_output=True, text=True)
    assert done.returncode == 1 and "run the pipelines in jobs/paper/open first" in done.stderr
