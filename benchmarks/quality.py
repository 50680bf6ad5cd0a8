"""What training brings on real mentions: test recall of a retriever before and after, over the whole KB.

The data are medmentions_open, with its protocol: mentions of training documents whose PMID is divisible by 10 validate,
the others train, and the official test documents test. It needs PEL_RAY_DATA (default ../shared/data), and takes as
long as the job spec trains (jobs/medmentions-open.yaml: about 40 minutes on two cores), so `make bench` leaves it out;
--quick trains an epoch on a tenth.

    python benchmarks/quality.py [--quick] [SPEC]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

from _figures import Figures

from pel_ray.encoder import ModelSettings
from pel_ray.runtime import Resources
from pel_ray.spec import read_spec
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.sharded import at_work
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.steps.validate import validate
from pel_ray.storage import locate
from pel_ray.tables import DataSet
from pel_ray.vectors import VectorFolder

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("PEL_RAY_DATA", ROOT.parent / "shared" / "data"))
KEPT = ROOT / "runs" / "quality"
TFIDF_RECALL_AT_1 = 0.697
"""Character 3-grams over titles and synonyms, as the data's own README states."""


def prepare(folder: Path, share: int) -> None:
    """The data set by its protocol; every `share`-th training mention."""
    source = DATA / "medmentions_open"
    if not source.is_dir():
        sys.exit(f"{source} is not there: name the folder of medmentions_open with PEL_RAY_DATA")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(source / "mentions.train.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    splits: dict[str, list[Any]] = {"train": [], "validation": []}
    for row in rows:
        splits["train" if int(row["doc_id"]) % 10 else "validation"].append(row)
    splits["train"] = splits["train"][::share]
    mentions = [f"test={source / 'mentions.test.jsonl.gz'}"]
    for split, some in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        mentions.append(f"{split}={folder / split}.jsonl")
    documents = [str(DATA / "medmentions" / "docs.jsonl.gz")]
    kb = [str(source / "kb.jsonl.gz")]
    import_jsonl(JsonlSettings(kb=kb, documents=documents, mentions=mentions, out=str(folder / "data")))


def test_recall(data: Path, model: Path, out: Path) -> dict[str, float]:
    """Recall on the test split of a model folder."""
    settings = EncodeSettings(kb=str(data), out=str(out / "vectors"), model=ModelSettings(encoder=str(model)))
    with at_work(Resources()) as (carrier, _):
        vectors = VectorFolder.open(encode_kb(settings, carrier).folder)
        outcome = validate(
            DataSet.open(locate(data)),
            vectors,
            str(model),
            locate(out / "test"),
            split="test",
            num_mentions=None,
            pool="all",
            within=carrier,
        )
    counts = outcome.manifest.counts
    print(f"{out.name}: {counts['rows']:,} test mentions, {counts['pool']}", flush=True)
    return {name: value for name, value in counts.items() if name.startswith("recall@")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one epoch on a tenth of the mentions, no bars")
    parser.add_argument("spec", nargs="?", default=str(ROOT / "jobs" / "medmentions-open.yaml"))
    arguments = parser.parse_args()
    folder = KEPT / ("quick" if arguments.quick else "full")
    prepare(folder, 10 if arguments.quick else 1)
    given = read_spec(arguments.spec) | {"data": str(folder / "data")}
    given["out"] = str(folder / Path(arguments.spec).stem)
    if arguments.quick:
        given["optimiser"] = given.get("optimiser", {}) | {"epochs": 1}
    settings = TrainSettings.model_validate(given)
    run = Path(train(settings).folder.path)
    (untrained,) = run.glob("state-*/model-000-*")
    before = test_recall(folder / "data", untrained, run / "untrained")
    after = test_recall(folder / "data", run / "model", run / "trained")
    for name in before:
        print(f"test {name}: {before[name]:.4f} untrained, {after[name]:.4f} trained", flush=True)
    figures = Figures()
    figures.at_least("train_test_recall_at_1_gain", after["recall@1"] - before["recall@1"], 0.0)
    if not arguments.quick:
        figures.at_least("train_test_recall_at_1_over_tfidf", after["recall@1"], TFIDF_RECALL_AT_1)
    figures.finish()


if __name__ == "__main__":
    main()
