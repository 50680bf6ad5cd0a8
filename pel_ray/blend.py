"""How much a retriever's own score counts beside a ranker's: chosen on validation mentions, stored with the ranker.

Shapes: Q mentions, K candidates of each, in the retriever's order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pel_ray.beside_weights import read_chosen, store_chosen
from pel_ray.storage import Where

BLEND_FILE = "blend.json"
"""In the ranker's model folder; of it the weight alone is a part of the ranker's digest, as it alone changes scores."""
POWERS = (*range(-4, 5), 20)
"""Of two: weights beside the one that makes both scores differ as much. With the last the retriever decides."""


@dataclass(frozen=True, kw_only=True)
class Blend:
    """A candidate's score is the ranker's + `weight` * the retriever's."""

    weight: float
    blended: float
    """Share of the mentions whose gold then comes first."""
    accuracy: float
    """The same by the ranker's scores alone."""
    mentions: int
    split: str
    retriever: str
    """The model that found the candidates, and whose scores these are."""
    retriever_digest: str
    similarity: str

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"weight is {self.weight}, expected a number from 0")


def read_blend(model: Where) -> Blend | None:
    """What `rank train --blend` has stored in a ranker's model folder, or nothing."""
    remedy = "Copy it again from where it is whole, or train again with rank train --blend"
    return read_chosen(model, BLEND_FILE, Blend, remedy)


def store_blend(model: Where, chosen: Blend) -> None:
    store_chosen(model, BLEND_FILE, chosen)


def blended(scores_QK: np.ndarray, retriever_QK: np.ndarray, weight: float) -> np.ndarray:
    """The ranker's scores with so much of the retriever's; -inf where there is no entity."""
    if not weight:
        # Nothing of -inf would be no number.
        return scores_QK
    both_QK: np.ndarray = (scores_QK + weight * retriever_QK.astype(np.float64)).astype(np.float32)
    return both_QK


def choose_weight(scores_QK: np.ndarray, retriever_QK: np.ndarray, is_gold_QK: np.ndarray) -> tuple[float, float]:
    """The weight that puts most golds first, of equal ones the smallest; and the share of golds that are first then."""
    shares = {
        weight: golds_first(blended(scores_QK, retriever_QK, weight), is_gold_QK)
        for weight in weights(scores_QK, retriever_QK)
    }
    best = max(shares, key=lambda weight: (shares[weight], -weight))
    return best, shares[best]


def golds_first(scores_QK: np.ndarray, is_gold_QK: np.ndarray) -> float:
    """Share of the mentions whose best candidate is a gold; of equal ones the retriever's favourite is the best."""
    return float(is_gold_QK[np.arange(len(scores_QK)), scores_QK.argmax(1)].mean())


def weights(scores_QK: np.ndarray, retriever_QK: np.ndarray) -> list[float]:
    """Nothing, and from little to all: a grid around the weight that makes both scores differ as much."""
    ranker, retriever = _spread(scores_QK), _spread(retriever_QK)
    # Where one of them finds all candidates equal, the other decides already.
    if not ranker or not retriever:
        return [0.0]
    return [0.0, *(ranker / retriever * 2.0**power for power in POWERS)]


def _spread(scores_QK: np.ndarray) -> float:
    """The standard deviation within a mention, a mean over mentions."""
    within_Q = np.ma.masked_invalid(scores_QK.astype(np.float64)).std(axis=1)
    return float(np.ma.filled(within_Q.mean(), 0.0))
