"""evaluate on a real Ray: the figures of a plain sort, NIL from a threshold in the model, refusals in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from pel_ray import ModelSettings, load_model
from pel_ray.errors import PelRayError
from pel_ray.nil import read_threshold
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.evaluate import EvaluateSettings, evaluate, read_evaluation
from tests.conftest import RunCommand
from tests.models import WORDS
from tests.ranking_set import write_retriever_set
from tests.reading import rows_of
from tests.samples import write_jsonl

NUM_ENTITIES, NUM_MENTIONS = 120, 90
ONE_WORKER = {"workers": 1, "cpus": 1}


def entity(number: int) -> dict[str, Any]:
    return {
        "id": f"E{number}",
        "title": f"{WORDS[number % 13]} {number}",
        "description": " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 7)),
        "synonyms": [f"{WORDS[number % 7]} number {number}"],
        "types": [["Finding", "Disease"][number % 2]],
        "world": "ab"[number % 2],
    }


def mention(number: int) -> dict[str, Any]:
    gold = number * 7 % NUM_ENTITIES
    labels = [f"E{gold}"] + ([f"E{(gold + 2) % NUM_ENTITIES}"] if number % 8 == 0 else [])
    if number % 5 == 0:
        labels = []
    elif number % 29 == 0:
        labels = ["E9999"]
    return {
        "mention_id": f"m{number}",
        "document_id": f"d{number // 3}",
        "context_left": "has the ",
        "mention": f"{WORDS[gold % 13]} {gold}" if labels else f"{WORDS[number % 11]} of the",
        "context_right": " with name",
        "label": labels,
        "split": ("train", "validation", "test")[number % 3],
        "world": "ab"[gold % 2],
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    """A folder with a saved model `model`, a data set `set` and the KB's vectors `vectors`."""
    return write_retriever_set(
        tmp_path_factory.mktemp("evaluate"),
        [entity(number) for number in range(NUM_ENTITIES)],
        [mention(number) for number in range(NUM_MENTIONS)],
    )


def settings(home: Path, out: Path, **more: Any) -> EvaluateSettings:
    given = {"data": str(home / "set"), "vectors": str(home / "vectors"), "out": str(out), "resamples": 50}
    return EvaluateSettings.model_validate(given | {"resources": ONE_WORKER, "pool": "all"} | more)


def evaluated(home: Path, out: Path, **more: Any) -> dict[str, Any]:
    return read_evaluation(evaluate(settings(home, out, **more)))


def row_of(found: dict[str, Any], name: str, system: str = "retriever") -> dict[str, Any]:
    (row,) = (row for row in found["systems"][system] if row["name"] == name)
    return row


@pytest.fixture(scope="module")
def test_rows(home: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(home / "set", "mentions") if row["split"] == "test"]


@pytest.fixture(scope="module")
def scores(home: Path, test_rows: list[dict[str, Any]]) -> np.ndarray:
    """Of the test mentions against all entities."""
    model = load_model(ModelSettings(encoder=str(home / "model")))
    entities = model.encode_entities(rows_of(home / "set", "kb")).astype(np.float16).astype(np.float32)
    return model.encode_mentions(test_rows) @ entities.T


def ranks_by_sorting(scores: np.ndarray, rows: list[dict[str, Any]], allowed: Any = None) -> list[int]:
    """The rank of the best gold of each mention, 0 where the KB lacks it."""
    ranks = []
    for number, row in enumerate(rows):
        pool = [entity for entity in range(NUM_ENTITIES) if allowed is None or allowed(row, entity)]
        order = sorted(pool, key=lambda entity: (-scores[number, entity], entity))[:64]
        places = [order.index(int(name[1:])) + 1 for name in row["entity_ids"] if int(name[1:]) in order]
        ranks.append(min(places, default=0))
    return ranks


def test_figures_equal_a_plain_sort(
    home: Path, tmp_path: Path, test_rows: list[dict[str, Any]], scores: np.ndarray
) -> None:
    found = evaluated(home, tmp_path / "out")
    ranks = [
        rank for rank, row in zip(ranks_by_sorting(scores, test_rows), test_rows, strict=True) if row["entity_ids"]
    ]
    micro = row_of(found, "micro")
    assert micro["mentions"] == len(ranks)
    for at in (1, 4, 64):
        assert micro[f"recall@{at}"]["value"] == pytest.approx(np.mean([0 < rank <= at for rank in ranks]), abs=1e-4)
    assert found["NIL mentions"] == sum(not row["entity_ids"] for row in test_rows)
    assert found["gold not in the KB"] == sum(row["entity_ids"] == ["E9999"] for row in test_rows)
    (file,) = (tmp_path / "out").glob("hits-*.parquet")
    hits = pq.read_table(file).to_pylist()
    assert [hit["gold_rank"] for hit in hits if not hit["is_nil"]] == ranks
    assert row_of(found, "seen in training")["mentions"] + row_of(found, "unseen in training")["mentions"] == len(ranks)
    assert row_of(found, "Disease")["mentions"] + row_of(found, "Finding")["mentions"] + 1 == len(ranks)


def test_each_world_is_its_own_pool_and_macro_their_mean(
    home: Path, tmp_path: Path, test_rows: list[dict[str, Any]], scores: np.ndarray
) -> None:
    found = evaluated(home, tmp_path / "out", pool="world")
    ranks = ranks_by_sorting(scores, test_rows, lambda row, entity: row["world"] == "ab"[entity % 2])
    golden = [(row["world"], rank) for row, rank in zip(test_rows, ranks, strict=True) if row["entity_ids"]]
    means = {world: np.mean([rank == 1 for other, rank in golden if other == world]) for world in "ab"}
    for world, mean in means.items():
        assert row_of(found, world)["recall@1"]["value"] == pytest.approx(mean, abs=1e-4)
    assert row_of(found, "macro over worlds")["recall@1"]["value"] == pytest.approx(
        np.mean(list(means.values())), abs=1e-4
    )
    assert found["policy"]["pool"] == "2 worlds of 60 to 60 entities"


def test_all_golds_must_be_found_where_that_is_the_policy(home: Path, tmp_path: Path) -> None:
    any_of, all_of = (evaluated(home, tmp_path / golds, golds=golds) for golds in ("any", "all"))
    assert row_of(all_of, "micro")["MRR"]["value"] < row_of(any_of, "micro")["MRR"]["value"]
    assert all_of["policy"]["golds"] == "all"


def test_names_equal_to_titles_are_what_the_baselines_find(home: Path, tmp_path: Path) -> None:
    found = evaluated(home, tmp_path / "out")
    for system in ("dictionary", "tf-idf"):
        row = row_of(found, "micro", system)
        # All mentions but the one whose gold the KB lacks have the title of their gold.
        assert row["recall@1"]["value"] == pytest.approx(1 - 1 / row["mentions"], abs=1e-4)
    without = evaluated(home, tmp_path / "without", baselines=["none"])
    assert list(without["systems"]) == ["retriever"]


def test_nil_threshold_is_tuned_stored_and_used(
    home: Path, tmp_path: Path, test_rows: list[dict[str, Any]], scores: np.ndarray, pel_ray: RunCommand
) -> None:
    where = [home / "set", "--vectors", home / "vectors", "--pool", "all", "--workers", 1, "--cpus", 1]
    assert "has no NIL threshold" in pel_ray("evaluate", *where, "--nil", "--out", "none").error
    tuned = pel_ray("evaluate", *where, "--split", "validation", "--tune-nil", "--out", "tuned")
    assert tuned.code == 0 and "stored in" in tuned.out
    chosen = read_threshold(home / "model")
    assert chosen is not None and chosen.split == "validation"
    (home / "model" / "nil.json").unlink()
    # Already done, and yet the threshold is in the model again.
    assert pel_ray("evaluate", *where, "--split", "validation", "--tune-nil", "--out", "tuned").code == 0
    assert read_threshold(home / "model") == chosen
    found = evaluated(home, tmp_path / "out", nil=True)
    is_nil = np.array([not row["entity_ids"] for row in test_rows])
    best = scores.max(1).astype(np.float32)
    assert found["nil"]["auPR"]["value"] == pytest.approx(average_precision_score(is_nil, -best), abs=1e-3)
    said = best < chosen.threshold
    at = found["nil"]["threshold"]
    assert at["precision"] == pytest.approx((said & is_nil).sum() / max(said.sum(), 1), abs=1e-4)
    assert at["recall"] == pytest.approx((said & is_nil).sum() / is_nil.sum(), abs=1e-4)
    (home / "model" / "nil.json").unlink()


def test_an_index_gives_the_hits_of_an_exact_search_and_another_kb_is_refused(
    home: Path, tmp_path: Path, pel_ray: RunCommand
) -> None:
    exact = evaluated(home, tmp_path / "exact")
    assert pel_ray("index", home / "vectors", "--kind", "flat", "--out", "index").code == 0
    indexed = evaluated(home, tmp_path / "indexed", index=str(tmp_path / "index"))
    assert indexed["systems"] == exact["systems"]
    assert indexed["policy"]["search"] == "flat"
    with pytest.raises(PelRayError, match="not by world"):
        evaluate(settings(home, tmp_path / "x", index=str(tmp_path / "index"), pool="world"))
    encode_kb(
        EncodeSettings.model_validate(
            {"kb": str(home / "set"), "out": str(tmp_path / "other"), "model": {"encoder": str(home / "model")},
             "store": "fp32", "resources": ONE_WORKER}
        )
    )  # fmt: skip
    with pytest.raises(PelRayError, match="was built from other vectors"):
        evaluate(settings(home, tmp_path / "x", vectors=str(tmp_path / "other"), index=str(tmp_path / "index")))


def test_confusions_name_what_was_taken_for_the_gold(home: Path, tmp_path: Path) -> None:
    found = evaluated(home, tmp_path / "out")
    num_wrong = sum(pair["times"] for pair in found["confusions"])
    micro = row_of(found, "micro")
    # The gold that the KB lacks cannot be confused with anything.
    assert num_wrong == round((1 - micro["recall@1"]["value"]) * micro["mentions"]) - found["gold not in the KB"]
    for pair in found["confusions"]:
        assert pair["gold"]["id"] != pair["predicted"]["id"]
        assert pair["gold"]["score"] is None or pair["gold"]["score"] <= pair["predicted"]["score"]


def test_bad_asks_are_refused_in_one_line(home: Path, tmp_path: Path, pel_ray: RunCommand) -> None:
    where = [home / "set", "--vectors", home / "vectors", "--out", "x"]
    assert "has no mention of split 'tset'. Its splits are" in pel_ray("evaluate", *where, "--split", "tset").error
    write_jsonl(tmp_path / "m.jsonl", [mention(1) | {"label": ["E1"], "split": "test"}])
    assert pel_ray("import", "jsonl", "--kb", home / "kb.jsonl", "--mentions", "m.jsonl", "--out", "few").code == 0
    assert "0 of 1 mentions of split 'test' are NIL" in pel_ray("evaluate", "few", *where[1:], "--tune-nil").error
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) for number in range(5)])
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "m.jsonl", "--out", "other").code == 0
    assert "holds vectors of another KB" in pel_ray("evaluate", "other", *where[1:]).error


def test_a_refused_pool_leaves_no_folder_behind(home: Path, tmp_path: Path, pel_ray: RunCommand) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) | {"world": ""} for number in range(NUM_ENTITIES)])
    files = ["--kb", "kb.jsonl", "--mentions", home / "mentions.jsonl", "--out", "flat"]
    assert pel_ray("import", "jsonl", *files).code == 0
    encode = ["flat", "--encoder", home / "model", "--out", "vectors", "--workers", 1, "--cpus", 1]
    assert pel_ray("encode-kb", *encode).code == 0
    where = ["flat", "--vectors", "vectors", "--out", "out"]
    assert "Use pool all" in pel_ray("evaluate", *where, "--pool", "world").error
    assert not (tmp_path / "out").exists()


def test_a_rerun_does_nothing_and_another_policy_is_refused(home: Path, tmp_path: Path) -> None:
    assert evaluate(settings(home, tmp_path / "out")).is_new
    assert not evaluate(settings(home, tmp_path / "out")).is_new
    with pytest.raises(PelRayError, match="golds is 'any' there and 'all' here"):
        evaluate(settings(home, tmp_path / "out", golds="all"))
