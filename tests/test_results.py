"""The page of results: its figures are those of the runs, its verdicts follow from them, and records are enough."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from pel_ray.artifacts import Input, Request, building, read_manifest
from pel_ray.storage import locate
from tests.conftest import RunCommand
from tests.samples import KB_ROWS, write_jsonl
from tests.test_report import evaluation

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import results  # noqa: E402
import results_differences as differences  # noqa: E402
import results_records as kept  # noqa: E402
from results_collect import DATA_FOLDERS  # noqa: E402
from results_paper import ZERO_SHOTS  # noqa: E402

NUM_DOCUMENTS = 40
ALL = [True] * NUM_DOCUMENTS
HALF = [number % 2 == 0 for number in range(NUM_DOCUMENTS)]
OTHER_HALF = [not right for right in HALF]
MOST = [number % 4 != 0 for number in range(NUM_DOCUMENTS)]


@pytest.fixture
def runs(tmp_path: Path, pel_ray: RunCommand) -> Path:
    """The data of the tables: a test mention in each of its documents, some NIL, or in a small and a large world."""
    kb = write_jsonl(tmp_path / "kb.jsonl", KB_ROWS)
    mentions: list[dict[str, Any]] = [
        {"context_left": "", "mention": "fever", "context_right": f" {number}", "doc_id": f"D{number}", "label": "E1"}
        for number in range(NUM_DOCUMENTS)
    ]
    texts = write_jsonl(tmp_path / "mentions.jsonl", mentions)
    for number in range(0, NUM_DOCUMENTS, 5):
        mentions[number]["label"] = None
    some_nil = write_jsonl(tmp_path / "nil.jsonl", mentions)
    for number, mention in enumerate(mentions):
        mention |= {"label": "E1", "world": "small" if number < 10 else "large"}
    in_worlds = write_jsonl(tmp_path / "worlds.jsonl", mentions)
    for folder, file in (
        ("medmentions", texts),
        ("nil/data", some_nil),
        ("wordnet", in_worlds),
        ("wordnet-worlds", in_worlds),
    ):
        given = ("--kb", kb, "--mentions", f"test={file}", "--out", tmp_path / "runs" / folder)
        assert pel_ray("import", "jsonl", *given).code == 0
    return tmp_path / "runs"


def inputs_of(data: Path, vectors: str) -> dict[str, Input]:
    found = {kind: read_manifest(locate(data / kind)).request.fingerprint for kind in ("kb", "mentions")}
    return {name: Input(name, digest) for name, digest in (found | {"vectors": vectors}).items()}


def write_test(
    folder: Path,
    is_right: Sequence[bool],
    first: float = 0.8,
    *,
    vectors: str = "",
    scores: Sequence[float] = (),
    k: int | None = None,
    inputs: Mapping[str, Input] | None = None,
) -> None:
    """An evaluation of these mentions; `first` is what its table says of recall@1. With k, one of a ranker."""
    runs = next(parent for parent in folder.parents if parent.name == "runs")
    data = DATA_FOLDERS[kept.DATA[folder.relative_to(runs).parts[0]]]
    found = inputs_of(runs / data, vectors or str(folder)) | dict(inputs or {})
    content = evaluation(first) | ({} if scores else {"nil": None})
    if k:
        found["retriever"] = Input("retriever", "its model")
        content["systems"] = {"ranker": content["systems"]["retriever"], "retriever": content["systems"]["tf-idf"]}
    rows = [
        {"gold_rank": 1 if right else 2, "scores": [float(score), -1.0]}
        for right, score in zip(is_right, scores or [0.5] * len(is_right), strict=True)
    ]
    request = Request(kind="evaluation", inputs=found, settings={"num_candidates": k} if k else {})
    with building(locate(folder), request) as work:
        with work.writing("evaluation", ".json") as stream:
            stream.write(json.dumps(content).encode())
        with work.writing("hits", ".parquet") as stream:
            pq.write_table(pa.Table.from_pylist(rows), stream)


def write_training(
    folder: Path, best_epoch: int, norms: Sequence[float] = (), seconds: float = 60.0, retriever: str = ""
) -> None:
    """A run as train leaves it, without its model; as rank distil does, if it started from a retriever."""
    settings = {"optimiser": {"epochs": 2, "warmup": 0.25}, "max_mentions": 100}
    inputs = {"vectors": Input("vectors", retriever)} if retriever else {}
    request = Request(kind="run", inputs=inputs, settings=settings | {"folder": str(folder)})
    lines: list[dict[str, Any]] = [{"epoch": epoch, "validation": {"recall@1": 0.5}} for epoch in (0, 2)]
    for number, norm in enumerate(norms):
        values = {"loss": 1 / (number + 1), "gradient_norm": norm, "lr": 0.1}
        lines.append({"step": number + 1, "epoch": 2 * (number + 1) / len(norms), **values})
    with building(locate(folder), request) as work:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        work.seconds = seconds
        counts = {"best epoch": best_epoch, "steps": len(norms), "training seconds": 30.0}
        work.counts |= counts | {"encoding seconds, since the last start": 10.0}


def error_of(*arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        results.main([str(argument) for argument in arguments])
    assert "\n" not in str(stop.value.code)
    return str(stop.value.code)


def collect(runs: Path) -> Path:
    results.main(["collect", str(runs), "--docs", str(runs.parent)])
    return runs.parent / "results" / "records"


def page_of(runs: Path) -> Callable[[str], str]:
    """Finds the first line of the page that begins so: the longer runs come before the short ones."""
    results.main(["--docs", str(runs.parent)])
    lines = (runs.parent / "results.md").read_text().splitlines()

    def line(start: str) -> str:
        return next(line for line in lines if line.startswith(start))

    return line


def in_short(runs: Path) -> list[str]:
    """The list of the paper's orderings."""
    return [text for text in (runs.parent / "results.md").read_text().splitlines() if text.startswith("  - ")]


def test_a_known_difference_is_found_and_a_null_one_is_not(runs: Path) -> None:
    for seed in (1, 2):
        for row, right in (("pb-random", ALL), ("ce-random", HALF), ("pb-mixed", HALF), ("ce-mixed", OTHER_HALF)):
            write_test(runs / "longer" / row / f"seed-{seed}" / "test", right, 0.7111)
    collect(runs)
    line = page_of(runs)
    above = line("| Pb above CE with random negatives |")
    assert "| +0.500 [+0.3" in above and "| 1: +0.500, 2: +0.500 | +0.076 | holds |" in above
    assert line("| mixed above random negatives, Pb |").endswith("| reversed |")
    # As often right, but on other mentions.
    null = line("| mixed above random negatives, CE |")
    assert "| +0.000 [-0.3" in null and null.endswith("| not shown: zero is in the interval |")
    assert line("| FGSM does not hurt, Pb mixed |").endswith("| +0.008 | not run: without pb-mixed-fgsm |")
    assert line("- **Appear** (1)") and line("  - Retrieval: Pb above CE with random negatives, +0.500")
    # To lose nothing where Pb loses is no gain.
    assert line("| mixed gains more for CE than for Pb | +0.500 [").endswith("| not shown: neither gains |")


def test_a_row_with_another_step_of_fgsm_is_compared_without_counting_among_the_papers_orderings(runs: Path) -> None:
    for row, right in (("pb-mixed", HALF), ("pb-mixed-fgsm-0.003", ALL)):
        write_test(runs / "retrieval" / row / "seed-1" / "test", right, 0.7111)
    collect(runs)
    line = page_of(runs)
    assert line("| Pb mixed + FGSM 0.003 |").endswith("| - | - |")
    ours = line("| FGSM in steps of 0.003 does not hurt, Pb mixed |")
    assert "| +0.500 [" in ours and ours.endswith("| - | holds: helps; one run of each |")
    assert not any("steps of 0.003" in text for text in in_short(runs))


def test_a_seed_stays_in_its_column_and_only_common_seeds_are_compared(runs: Path) -> None:
    write_test(runs / "longer" / "pb-random" / "seed-2" / "test", ALL, 0.7111)
    write_test(runs / "longer" / "ce-random" / "seed-1" / "test", HALF, 0.6)
    write_test(runs / "longer" / "ce-random" / "seed-2" / "test", MOST, 0.6)
    write_test(runs / "longer" / "pb-mixed" / "seed-1" / "test", MOST, 0.6)
    write_test(runs / "longer" / "untrained" / "test", HALF, 0.4)
    collect(runs)
    line = page_of(runs)
    assert line("| Pb random |").startswith("| Pb random | not run | 0.711 [0.700, 0.723] | - | 0.711 | 0.950 |")
    assert line("| Pb mixed + FGSM |") == "| Pb mixed + FGSM | not run | not run | - | - | - | - | - | 0.724 | 0.937 |"
    assert "| +0.250 [" in line("| Pb above CE with random negatives |")
    assert "| 2: +0.250 |" in line("| Pb above CE with random negatives |")
    assert line("| mixed above random negatives, Pb |").endswith("| not run: no seed that all rows have |")
    assert line("| untrained encoder |").startswith("| untrained encoder |  |  | - | 0.400 [0.389, 0.412] |")
    assert line("| tf-idf |").startswith("| tf-idf |  |  | - | 0.697 [")


def test_the_page_is_built_of_records_alone_and_collecting_again_keeps_those_of_deleted_runs(runs: Path) -> None:
    for table in (results.FIGURE, "longer"):
        row = runs / table / "pb-random" / "seed-1"
        write_training(row, best_epoch=0, norms=[9.0, 2.0, 4.0, 3.0])
        write_test(row / "test", ALL, 0.7111)
    records = collect(runs)
    page_of(runs)
    page = (runs.parent / "results.md").read_bytes()
    assert (runs.parent / "results" / "gradients.png").is_file()
    record = json.loads((records / "longer-pb-random-seed-1.json").read_text())
    assert record["training"]["gradient_norm"] == [9.0, 2.0, 4.0, 3.0] and record["validation"]["epoch"] == [0, 2]
    shutil.rmtree(row)
    write_test(runs / "longer" / "ce-random" / "seed-1" / "test", HALF)
    assert len(list(collect(runs).glob("longer-*"))) == 2
    (records / "longer-ce-random-seed-1.json").unlink()
    shutil.rmtree(runs)
    (runs.parent / "results.md").unlink()
    subprocess.run([sys.executable, DOCS / "results.py", "--docs", runs.parent], check=True, capture_output=True)
    assert (runs.parent / "results.md").read_bytes() == page
    line = page_of(runs)
    assert "| 0 (untrained: training did not help) |" in line("| Pb random | 0.711")
    assert line("| Pb random | 3 | 0.816 | 0.272 | not run |")


def test_a_record_of_other_data_is_refused(runs: Path) -> None:
    other = {"mentions": Input("mentions", "0123456789abcdef")}
    write_test(runs / "longer" / "pb-random" / "seed-1" / "test", ALL)
    records = collect(runs)
    write_test(runs / "longer" / "ce-random" / "seed-1" / "test", ALL, inputs=other)
    error = error_of("collect", runs, "--docs", runs.parent)
    assert "longer-ce-random-seed-1.json was tested on other mentions (01234567) than data-medm" in error
    assert not (records / "longer-ce-random-seed-1.json").exists()
    data = json.loads((records / "data-medmentions.json").read_text())
    (records / "data-medmentions.json").write_text(json.dumps(data | {"kb": "another"}))
    assert "pb-random-seed-1.json was tested on other kb" in error_of("--docs", runs.parent)


def test_nil_rows_are_compared_by_auPR_on_the_same_documents(runs: Path) -> None:
    is_nil = np.arange(NUM_DOCUMENTS) % 5 == 0
    noise = np.random.default_rng(3).random(NUM_DOCUMENTS)
    for row, scores in (("pb-0", 1 + noise - 2 * is_nil), ("pb-001", 1 + noise - 2 * is_nil), ("ce", noise)):
        write_test(runs / "nil" / row / "test", ALL, scores=scores.tolist())
    records = collect(runs)
    line = page_of(runs)
    found = line("| Pb, margin 0, above CE |")
    expected = 1 - average_precision_score(is_nil, -noise)
    assert f"| {expected:+.3f} [+" in found and found.endswith("| +0.514 | holds: one run of each |")
    assert line("| Pb, margin 0.01, above Pb, margin 0 |").endswith("zero is in the interval; one run of each |")
    assert line("| Pb, margin 0.1, above Pb, margin 0 |").endswith("| not run: without pb-01 |")
    assert line("| Pb, margin 0 |").endswith(" 0.837 | 0.701 | 0.812 | 0.602 | 0.710 | 0.777 | 0.726 | 0.900 | 0.904 |")
    assert line("By chance auPR would be 0.200 (8 of 40 test mentions are NIL)")
    assert (runs.parent / "results" / "nil.png").is_file() and (records / "data-nil.json").is_file()


def test_a_ranker_is_compared_with_the_retriever_that_found_its_candidates(runs: Path) -> None:
    write_test(runs / "longer" / "pb-mixed" / "seed-1" / "test", HALF, 0.5, vectors="other vectors")
    write_test(runs / "longer" / "pb-mixed" / "seed-2" / "test", MOST, 0.75, vectors="its vectors")
    write_test(runs / "ranker" / "pb-mixed" / "test", ALL, 0.8, vectors="its vectors", k=4)
    write_test(runs / "ranker" / "pb-mixed-prior" / "test", ALL, 0.8, vectors="lost vectors", k=4)
    write_training(runs / "ranker" / "distil", 1, retriever="other vectors")
    write_test(runs / "ranker" / "distil" / "test", MOST, 0.77)
    collect(runs)
    line = page_of(runs)
    assert line("| Pb mixed | - | 4 |").startswith("| Pb mixed | - | 4 | 0.697 [0.686, 0.709] | 0.800 [0.789, 0.812] |")
    assert "| +0.250 [+0.1" in line("| Pb mixed: above the retriever alone |")
    prior = line("| Pb mixed from the retriever's score: above")
    assert prior.endswith("| not run: without the retriever of pb-mixed-prior |")
    assert "| 1 | - | 0.500 [0.489, 0.512] | 0.770 [" in line("| retriever after distilling |")
    assert "| +0.250 [" in line("| retriever after distilling: above")
    assert line("| Pb mixed + FGSM | - |  |  | not run |")


@pytest.mark.parametrize("table", ZERO_SHOTS)
def test_worlds_weigh_the_same_in_the_zero_shot_tables(runs: Path, table: str) -> None:
    write_test(runs / table / "pb-random" / "seed-1" / "test", ALL, 0.7111)
    write_test(runs / table / "ce-random" / "seed-1" / "test", [number >= 10 for number in range(NUM_DOCUMENTS)])
    collect(runs)
    results.main(["--docs", str(runs.parent)])
    (zero_shot,) = re.findall("## Zero-shot.*?## NIL", (runs.parent / "results.md").read_text(), re.DOTALL)
    (claim,) = re.findall(r".*Pb above CE with random negatives \| \+0.500 \[\+0.500, \+0.500\] .*", zero_shot)
    # Of all mentions alike a quarter.
    assert re.search(r"\| \+0\.250 \[\+0\.1.*\] holds: one run of each \|$", claim)
    assert "| Pb random | 0.681 [0.670, 0.693] | not run | - | 0.681 | 0.950 | 0.711 | 0.950 | 0.489 |" in zero_shot


def test_refreshing_shows_no_seconds_of_a_run_that_was_resumed(runs: Path) -> None:
    for row, seconds in (("full", 60.0), ("pool", 20.0), ("frozen", 60.0)):
        write_training(runs / "refresh" / row, 2, seconds=seconds)
        write_test(runs / "refresh" / row / "test", ALL, 0.8)
        part = locate(runs / "refresh" / row / "state-0" / "validation-000")
        with building(part, Request(kind="hits", inputs={}, settings={})):
            pass
    # Made before the run was last started.
    older = replace(read_manifest(part), finished_at="2020-01-01T00:00:00+00:00").to_json()
    (part / "manifest.json").write_bytes(json.dumps(older).encode())
    collect(runs)
    line = page_of(runs)
    assert line("| full |").endswith("| 10 | 60 |")
    for row in ("pool", "frozen"):
        assert line(f"| {row} |").endswith("| resumed: not measured | resumed: not measured |")
    assert line("| pool does not cost").endswith("| holds: does not hurt by 0.01; one run of each |")


def test_nothing_collected_and_nothing_run_are_errors(tmp_path: Path) -> None:
    assert "run the pipelines in jobs/paper/open first" in error_of("collect", tmp_path / "none")
    assert "collect some first" in error_of("--docs", tmp_path)


@pytest.mark.parametrize(
    ("kind", "by_seed", "outcome"),
    [
        ("above", {1: (0.2, 0.1), 2: (0.1, 0.1)}, "holds"),
        ("above", {1: (0.2, 0.1), 2: (-0.02, 0.05)}, "not shown: seeds disagree"),
        ("above", {1: (0.2, 0.5), 2: (0.1, 0.5)}, "not shown: zero is in the interval"),
        ("no harm", {1: (0.2, 0.1), 2: (0.1, 0.1)}, "holds: helps"),
        ("no harm", {1: (-0.001, 0.005), 2: (0.001, 0.005)}, "holds: does not hurt by 0.01"),
        ("no harm", {1: (-0.001, 0.05), 2: (0.001, 0.05)}, "not shown: a loss of 0.01 is in the interval"),
        ("no harm", {1: (-0.1, 0.05), 2: (-0.1, 0.05)}, "reversed: hurts"),
    ],
)
def test_a_verdict_needs_the_interval_and_every_seed(
    kind: differences.Kind, by_seed: Mapping[int, tuple[float, float]], outcome: str
) -> None:
    zero = differences.Sampled(0.0, np.zeros(101))
    first = {
        seed: differences.Sampled(value, np.linspace(value - width, value + width, 101))
        for seed, (value, width) in by_seed.items()
    }
    claim = differences.Claim.above("a claim", "first", "second", kind=kind)
    found = differences.judge(claim, {"first": first, "second": dict.fromkeys((1, 2, 3), zero)})
    assert found.cells[-1] == outcome


def test_weighted_average_precision_equals_that_of_scikit_learn() -> None:
    random = np.random.default_rng(5)
    scores, is_nil = random.integers(0, 12, 80), random.random(80) < 0.3
    weights = random.integers(0, 4, (20, 80)).astype(float)
    expected = [average_precision_score(is_nil, -scores, sample_weight=row) for row in weights]
    np.testing.assert_allclose(differences.average_precision(scores, is_nil, weights), expected)


def test_resampled_shares_are_those_of_mentions_drawn_with_their_documents() -> None:
    documents = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    is_right = np.array([1, 1, 0, 0, 1, 1, 0, 0], bool)
    masks = [np.arange(8) < 5, np.arange(8) >= 5]
    resamples = differences.Resamples(documents, 50)
    found = resamples.share(is_right, masks)
    for weights, sample in zip(resamples._weights_BD[:, documents], found.samples_B, strict=True):
        shares = [np.average(is_right[mask], weights=weights[mask]) for mask in masks if weights[mask].any()]
        assert sample == pytest.approx(np.mean(shares))


def test_packed_numbers_and_bits_come_back_and_are_small() -> None:
    random = np.random.default_rng(7)
    order, documents = random.permutation(5000), np.repeat(np.arange(500), 10)
    for numbers, most in ((order, 16_000), (documents, 1000), (np.zeros(0, np.int64), 20)):
        text = kept.pack_numbers(numbers)
        assert kept.unpack_numbers(text).tolist() == numbers.tolist() and len(text) < most
    bits = random.random(4871) < 0.5
    assert kept.unpack_bits(kept.pack_bits(bits), 4871).tolist() == bits.tolist()
