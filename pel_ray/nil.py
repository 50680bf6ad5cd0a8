"""NIL: mentions of what the KB does not hold, told by a threshold on the score of the best entity.

Shapes: Q mentions, K entities found for each, best first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pel_ray.beside_weights import read_chosen, store_chosen
from pel_ray.errors import InputError
from pel_ray.storage import Where

NIL_FILE = "nil.json"
"""In the model folder, beside what training made: choosing another threshold changes no weights and no digest."""


@dataclass(frozen=True, kw_only=True)
class NilThreshold:
    """A mention whose best entity scores below `threshold` is NIL."""

    threshold: float
    precision: float
    recall: float
    f1: float
    mentions: int
    nil_mentions: int
    data: str
    """What it was chosen on."""
    split: str
    vectors: str
    """Fingerprint of the vectors whose scores it is a threshold of."""


def read_threshold(model: Where) -> NilThreshold | None:
    """The threshold that `evaluate --tune-nil` has stored in a model folder, or nothing."""
    return read_chosen(model, NIL_FILE, NilThreshold, "Choose the threshold again with evaluate --tune-nil")


def store_threshold(model: Where, chosen: NilThreshold) -> None:
    store_chosen(model, NIL_FILE, chosen)


def best_threshold(scores_Q: np.ndarray, is_nil_Q: np.ndarray) -> float:
    """The score below which mentions are NIL, with the highest F1 of NIL; of equal ones the lowest."""
    if not is_nil_Q.any() or is_nil_Q.all():
        raise InputError("NIL threshold", "needs mentions that are NIL and mentions that are not")
    order = np.argsort(scores_Q, kind="stable")
    scores, is_nil = scores_Q[order].astype(np.float64), is_nil_Q[order]
    num_below = np.arange(1, len(scores) + 1)
    f1 = 2 * np.cumsum(is_nil) / (num_below + is_nil.sum())
    # Equal scores fall on the same side.
    f1[:-1][scores[:-1] == scores[1:]] = -1
    best = int(np.argmax(f1))
    if best + 1 == len(scores):
        return float(np.nextafter(scores[-1], np.inf))
    return float((scores[best] + scores[best + 1]) / 2)


def is_below(scores: np.ndarray, threshold: float) -> np.ndarray:
    """In float64: a threshold may lie between two fp32 scores that have nothing between them in fp32."""
    below: np.ndarray = scores.astype(np.float64) < threshold
    return below


def nil_figures(scores_Q: np.ndarray, is_nil_Q: np.ndarray, threshold: float) -> dict[str, float]:
    """Precision, recall and F1 of the NIL verdicts."""
    said = is_below(scores_Q, threshold)
    num_right = int((said & is_nil_Q).sum())
    precision = num_right / max(int(said.sum()), 1)
    recall = num_right / max(int(is_nil_Q.sum()), 1)
    f1 = 2 * num_right / max(int(said.sum() + is_nil_Q.sum()), 1)
    return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4)}


def recall_with_nil(
    scores_QK: np.ndarray, ranks_Q: np.ndarray, is_nil_Q: np.ndarray, threshold: float, at: int
) -> float:
    """Recall@k over all classes with NIL as one: it takes its place among the entities, at the threshold's score."""
    num_above_Q = (~is_below(scores_QK, threshold)).sum(1)
    # An entity that scores less than the threshold stands behind NIL, one place further down.
    entity_rank_Q = ranks_Q + (ranks_Q > num_above_Q)
    is_found_Q = np.where(is_nil_Q, num_above_Q + 1 <= at, (ranks_Q > 0) & (entity_rank_Q <= at))
    return float(is_found_Q.mean())


def average_precision(scores_Q: np.ndarray, is_nil_Q: np.ndarray, weights_Q: np.ndarray | None = None) -> float:
    """auPR of NIL: low scores are its evidence. NaN where no mention that weighs anything is NIL."""
    from sklearn.metrics import average_precision_score

    if not is_nil_Q.any() or (weights_Q is not None and not weights_Q[is_nil_Q].any()):
        return float("nan")
    return float(average_precision_score(is_nil_Q, -scores_Q, sample_weight=weights_Q))


def precision_recall_curve(scores_Q: np.ndarray, is_nil_Q: np.ndarray, num_points: int = 200) -> dict[str, list[float]]:
    """The curve of all thresholds, thinned to what a figure shows."""
    from sklearn.metrics import precision_recall_curve as curve

    precision, recall, evidence = curve(is_nil_Q, -scores_Q)
    keep = np.unique(np.linspace(0, len(evidence) - 1, num_points).astype(int))
    return {
        "recall": np.round(recall[keep], 4).tolist(),
        "precision": np.round(precision[keep], 4).tolist(),
        "threshold": np.round(-evidence[keep], 6).tolist(),
    }
