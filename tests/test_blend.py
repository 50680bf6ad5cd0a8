"""How much of the retriever's score a ranker takes: what a plain loop over the same weights would choose."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from pel_ray.blend import Blend, blended, choose_weight, golds_first, read_blend, store_blend
from pel_ray.errors import PelRayError

NUM_MENTIONS, K = 60, 5
NOTHING = -math.inf
Rows = list[list[float]]


def random_scores(seed: int, gold_is_better_by: float, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of mentions some of which have fewer candidates, one of them none; and where their golds are."""
    rng = np.random.default_rng(seed)
    is_gold_QK = np.zeros((NUM_MENTIONS, K), bool)
    # The last mentions have lost theirs.
    is_gold_QK[np.arange(NUM_MENTIONS - 5), rng.integers(0, 3, NUM_MENTIONS - 5)] = True
    scores_QK = scale * (rng.normal(size=is_gold_QK.shape) + gold_is_better_by * is_gold_QK)
    scores_QK[::7, 3:], scores_QK[-1] = NOTHING, NOTHING
    return scores_QK.astype(np.float32), is_gold_QK


def spread(rows: Rows) -> float:
    return statistics.mean(statistics.pstdev(found) for row in rows if (found := [one for one in row if one > NOTHING]))


def brute_force(ranker: Rows, retriever: Rows, golds: list[list[bool]]) -> tuple[float, float]:
    """Every weight, every mention, every candidate."""
    equal, best, most = spread(ranker) / spread(retriever), 0.0, -1
    for weight in [0.0, *(equal * 2.0**power for power in [-4, -3, -2, -1, 0, 1, 2, 3, 4, 20])]:
        num_right = 0
        for of_ranker, of_retriever, is_gold in zip(ranker, retriever, golds, strict=True):
            place, highest = 0, NOTHING
            for number in range(K):
                if of_ranker[number] > NOTHING and of_ranker[number] + weight * of_retriever[number] > highest:
                    place, highest = number, of_ranker[number] + weight * of_retriever[number]
            num_right += is_gold[place]
        if num_right > most:
            best, most = weight, num_right
    return best, most / len(golds)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strengths", [(0.5, 2.0), (2.0, 0.5), (1.0, 1.0)])
def test_the_chosen_weight_is_that_of_a_plain_loop(seed: int, strengths: tuple[float, float]) -> None:
    ranker, is_gold_QK = random_scores(seed, strengths[0], scale=30)
    retriever = (0.02 * (random_scores(seed + 100, 0)[0] + strengths[1] * is_gold_QK)).astype(np.float32)
    weight, share = choose_weight(ranker, retriever, is_gold_QK)
    assert (weight, share) == pytest.approx(brute_force(ranker.tolist(), retriever.tolist(), is_gold_QK.tolist()))
    assert share >= max(golds_first(ranker, is_gold_QK), golds_first(retriever, is_gold_QK))


def test_the_one_that_knows_decides() -> None:
    guesses, is_gold_QK = random_scores(0, 0, scale=100)
    knows = np.where(np.isfinite(guesses), 0.5 + 0.001 * is_gold_QK, NOTHING).astype(np.float32)
    possible = float((is_gold_QK & np.isfinite(guesses)).any(1).mean())
    assert choose_weight(knows, guesses, is_gold_QK) == (0, pytest.approx(possible))
    weight, share = choose_weight(guesses, knows, is_gold_QK)
    assert weight > 0 and golds_first(guesses, is_gold_QK) < possible == pytest.approx(share)


def test_scores_that_tell_nothing_get_no_weight() -> None:
    scores_QK, is_gold_QK = random_scores(0, 1)
    assert choose_weight(scores_QK, np.zeros_like(scores_QK), is_gold_QK)[0] == 0
    assert choose_weight(np.full_like(scores_QK, NOTHING), np.full_like(scores_QK, NOTHING), is_gold_QK)[0] == 0
    assert blended(scores_QK, np.full_like(scores_QK, NOTHING), 0.0) is scores_QK


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    made = Blend(weight=2.5, blended=0.7, accuracy=0.6, mentions=10, split="validation", retriever="model",
                 retriever_digest="1a2b", similarity="cosine")  # fmt: skip
    assert read_blend(tmp_path) is None
    store_blend(tmp_path, made)
    assert read_blend(tmp_path) == made
    content = json.loads((tmp_path / "blend.json").read_text())
    for text in ("{", "[]", json.dumps(content | {"weight": "2"}), json.dumps(content | {"weight": -1}), "{}"):
        (tmp_path / "blend.json").write_text(text)
        with pytest.raises(PelRayError, match="blend.json is damaged.*rank train --blend"):
            read_blend(tmp_path)
