"""Figures and intervals of an evaluation: equal to plain loops, to scikit-learn, and to sums done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, precision_score, recall_score

from pel_ray.encoder import ModelSettings, load_parts
from pel_ray.errors import ArtifactError, InputError
from pel_ray.metrics import Bootstrap, Figures, gold_ranks
from pel_ray.nil import (
    NilThreshold,
    average_precision,
    best_threshold,
    nil_figures,
    read_threshold,
    recall_with_nil,
    store_threshold,
)
from tests.models import write_encoder

CHOSEN = NilThreshold(
    threshold=0.5, precision=1.0, recall=0.5, f1=0.667, mentions=4, nil_mentions=2, data="d", split="s", vectors="v"
)


def rank_by_hand(rows: list[int], golds: list[int], policy: str, num_golds: int) -> int:
    places = [place for place, row in enumerate(rows, start=1) if row in golds]
    if policy == "any":
        return places[0] if places else 0
    return places[-1] if places and len(places) == num_golds else 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_mentions=st.integers(1, 40),
    k=st.integers(1, 12),
    policy=st.sampled_from(["any", "all"]),
)
def test_ranks_and_figures_equal_a_plain_loop(seed: int, num_mentions: int, k: int, policy: str) -> None:
    chance = np.random.default_rng(seed)
    rows = np.stack([chance.permutation(15)[:k] for _ in range(num_mentions)])
    golds = [sorted(chance.choice(15, chance.integers(0, 4), replace=False).tolist()) for _ in range(num_mentions)]
    num_golds = [len(some) + int(chance.integers(0, 2)) for some in golds]
    ranks = gold_ranks(rows, golds, policy, num_golds)  # type: ignore[arg-type]
    expected = [rank_by_hand(rows[n].tolist(), golds[n], policy, num_golds[n]) for n in range(num_mentions)]
    assert ranks.tolist() == expected
    everyone = {"all": np.ones(num_mentions, bool)}
    row = Bootstrap([f"d{n}" for n in range(num_mentions)], 10).rows(Figures.of(ranks, k), everyone)["all"]
    for at in (1, 2, 4, 8):
        if at <= k:
            assert row[f"recall@{at}"]["value"] == pytest.approx(np.mean([0 < r <= at for r in expected]), abs=1e-4)
    assert row["MRR"]["value"] == pytest.approx(np.mean([1 / r if r else 0 for r in expected]), abs=1e-4)
    found = [rank for rank in expected if rank]
    assert row["normalised@1"]["value"] == (
        pytest.approx(np.mean([rank == 1 for rank in found]), abs=1e-4) if found else None
    )


def test_two_names_of_one_entity_are_one_gold(tmp_path: Path) -> None:
    # The second id is an alternative one of the first entity: one row to be found, and no other.
    rows = np.array([[3, 1], [0, 2]])
    assert gold_ranks(rows, [[1], [2]], "all", [1, 2]).tolist() == [2, 0]
    assert gold_ranks(rows, [[3, 1], [0]], "all").tolist() == [2, 1]


def test_macro_without_any_value_is_none() -> None:
    figures = Figures.of(np.zeros(4, np.int64), 2)
    worlds = {"a": np.array([1, 1, 0, 0], bool), "b": np.array([0, 0, 1, 1], bool)}
    assert Bootstrap(["w", "x", "y", "z"], 20).macro(figures, worlds)["normalised@1"]["value"] is None


def test_macro_weighs_worlds_equally_and_normalised_leaves_out_what_was_not_found() -> None:
    # World a: ranks 1, 1, 2, not found; world b: not found.
    ranks = np.array([1, 1, 2, 0, 0])
    worlds = {"a": np.array([1, 1, 1, 1, 0], bool), "b": np.array([0, 0, 0, 0, 1], bool)}
    bootstrap = Bootstrap(["p", "q", "r", "s", "t"], 50)
    figures = Figures.of(ranks, 2)
    rows = bootstrap.rows(figures, {"micro": np.ones(5, bool)} | worlds)
    assert rows["micro"]["recall@1"]["value"] == 0.4
    assert rows["micro"]["normalised@1"]["value"] == 0.6667
    assert rows["micro"]["MRR"]["value"] == 0.5
    assert rows["a"]["recall@1"]["value"] == 0.5
    assert rows["b"]["normalised@1"]["value"] is None
    macro = bootstrap.macro(figures, worlds)
    assert macro["recall@1"]["value"] == 0.25
    assert macro["recall@2"]["value"] == 0.375
    # Only world a has a normalised figure.
    assert macro["normalised@1"]["value"] == 0.6667
    assert macro["mentions"] == 5


def test_interval_of_a_recall_is_that_of_drawing_documents_again() -> None:
    chance = np.random.default_rng(3)
    ranks = (chance.random(400) < 0.7).astype(int)
    documents = [f"d{number // 4}" for number in range(400)]
    figure = Bootstrap(documents, 1000).rows(Figures.of(ranks, 1), {"all": np.ones(400, bool)})["all"]["recall@1"]
    by_document = ranks.reshape(100, 4).mean(1)
    draws = [by_document[chance.integers(0, 100, 100)].mean() for _ in range(1000)]
    low, high = np.percentile(draws, [2.5, 97.5])
    assert figure["low"] < figure["value"] < figure["high"]
    assert figure["low"] == pytest.approx(low, abs=0.012)
    assert figure["high"] == pytest.approx(high, abs=0.012)


def test_mentions_of_one_document_widen_the_interval() -> None:
    ranks = np.repeat(np.arange(40) % 2, 10)

    def width(documents: list[str]) -> float:
        figure = Bootstrap(documents, 500).rows(Figures.of(ranks, 1), {"all": np.ones(400, bool)})["all"]["recall@1"]
        return float(figure["high"] - figure["low"])

    # Mentions without a document stand each for itself.
    assert width([f"d{number // 10}" for number in range(400)]) > 2 * width([""] * 400)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), num_mentions=st.integers(2, 60), num_values=st.integers(1, 30))
def test_threshold_is_the_best_of_all_and_its_figures_are_scikit_learns(
    seed: int, num_mentions: int, num_values: int
) -> None:
    chance = np.random.default_rng(seed)
    # Few values make ties.
    scores = chance.integers(0, num_values, num_mentions).astype(np.float32) / 7
    is_nil = chance.random(num_mentions) < 0.4
    is_nil[:2] = True, False
    threshold = best_threshold(scores, is_nil)
    said = scores.astype(np.float64) < threshold
    figures = nil_figures(scores, is_nil, threshold)
    assert figures["precision"] == pytest.approx(precision_score(is_nil, said, zero_division=0), abs=1e-4)
    assert figures["recall"] == pytest.approx(recall_score(is_nil, said), abs=1e-4)
    assert figures["f1"] == pytest.approx(f1_score(is_nil, said), abs=1e-4)
    precision, recall, _ = precision_recall_curve(is_nil, -scores)
    best = max(2 * p * r / (p + r) for p, r in zip(precision, recall, strict=True) if p + r)
    assert figures["f1"] == pytest.approx(best, abs=1e-4)
    assert average_precision(scores, is_nil) == pytest.approx(average_precision_score(is_nil, -scores))


def test_threshold_needs_mentions_of_both_kinds() -> None:
    with pytest.raises(InputError):
        best_threshold(np.array([0.1, 0.2]), np.array([False, False]))


def test_recall_with_nil_equals_ranking_nil_among_the_entities() -> None:
    chance = np.random.default_rng(5)
    scores = -np.sort(-chance.random((200, 5)), axis=1)
    ranks, is_nil = chance.integers(0, 6, 200), chance.random(200) < 0.3
    ranks[is_nil] = 0
    for threshold in (0.0, 0.4, 0.8, 2.0):
        for at in (1, 3, 5):
            found = 0
            for row, rank, nil in zip(scores, ranks, is_nil, strict=True):
                labels = sorted([(-score, 0, place) for place, score in enumerate(row, 1)] + [(-threshold, 1, "NIL")])
                ranking = [label for _, _, label in labels][:at]
                found += ("NIL" if nil else int(rank)) in ranking
            assert recall_with_nil(scores, ranks, is_nil, threshold, at) == pytest.approx(found / 200)


def test_threshold_in_a_model_folder_changes_no_digest_and_damage_is_told(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "tiny")
    before = load_parts(ModelSettings(encoder=str(folder))).digest("mention")
    assert read_threshold(folder) is None
    store_threshold(folder, CHOSEN)
    assert read_threshold(folder) == CHOSEN
    assert load_parts(ModelSettings(encoder=str(folder))).digest("mention") == before
    (folder / "nil.json").write_text('{"threshold": 0.5}')
    with pytest.raises(ArtifactError, match="tune-nil"):
        read_threshold(folder)
