"""What a ranker made of a retriever's answers: which it mended, which it spoilt, with texts to judge them by.

Shapes: Q mentions, K candidates of each, best first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pel_ray.confusions import SHOWN_COLUMNS, shown_entity, shown_mention
from pel_ray.evaluation import Judged
from pel_ray.golds import GoldMentions, rows_at
from pel_ray.search import Hits
from pel_ray.tables import DataSet
from pel_ray.text import MENTION_COLUMNS

NUM_SHOWN = 20
MENDED, SPOILT = "wrong->right", "right->wrong"


def changes(data: DataSet, mentions: GoldMentions, before: Judged, after: Judged) -> dict[str, Any]:
    """Counts over mentions that have a gold, and examples; the entity that a ranker is surest of comes first."""
    outcomes = _outcomes(mentions, before, after)
    numbers = {name: _surest(np.flatnonzero(outcomes == name), before, after) for name in (MENDED, SPOILT)}
    entities = rows_at(data.kb, _rows_of(mentions, numbers, before, after), SHOWN_COLUMNS)
    described = {
        name: [_described(data, mentions, before, after, entities, number) for number in some]
        for name, some in numbers.items()
    }
    names = (MENDED, SPOILT, "wrong->wrong", "right->right", "kept")
    return {"counts": {name: int((outcomes == name).sum()) for name in names}, "examples": described}


def _outcomes(mentions: GoldMentions, before: Judged, after: Judged) -> np.ndarray:
    """For each mention what became of it: nothing where it is NIL, `kept` where its best entity is the same."""
    words = np.array(["wrong", "right"], object)
    was, is_now = words[(before.ranks_Q == 1).astype(int)], words[(after.ranks_Q == 1).astype(int)]
    outcomes: np.ndarray = was + "->" + is_now
    outcomes[before.hits.rows_QK[:, 0] == after.hits.rows_QK[:, 0]] = "kept"
    outcomes[np.array(mentions.is_nil, bool)] = ""
    return outcomes


def _surest(numbers: np.ndarray, before: Judged, after: Judged) -> list[int]:
    """Those with the largest distance between the new favourite and the old one, as the ranker scores them."""
    margins = [after.best_Q[number] - _score_of(after.hits, number, _best(before, number)) for number in numbers]
    return [int(numbers[place]) for place in np.argsort(-np.array(margins), kind="stable")[:NUM_SHOWN]]


def _best(judged: Judged, number: int) -> int:
    return int(judged.hits.rows_QK[number, 0])


def _score_of(hits: Hits, number: int, row: int) -> float:
    """NaN where the entity is not among the hits."""
    places = np.flatnonzero(hits.rows_QK[number] == row)
    return float(hits.scores_QK[number, places[0]]) if len(places) else float("nan")


def _rows_of(mentions: GoldMentions, numbers: Mapping[str, Sequence[int]], before: Judged, after: Judged) -> set[int]:
    shown = [number for some in numbers.values() for number in some]
    found = {_best(judged, number) for number in shown for judged in (before, after)}
    return {row for row in found | {row for number in shown for row in mentions.golds[number][:1]} if row >= 0}


def _described(
    data: DataSet,
    mentions: GoldMentions,
    before: Judged,
    after: Judged,
    entities: Mapping[int, Mapping[str, Any]],
    number: int,
) -> dict[str, Any]:
    row = mentions.rows[number]
    (text,) = data.mentions.rows(row, row + 1, MENTION_COLUMNS).to_pylist()

    def shown(entity_row: int) -> dict[str, Any]:
        score = _score_of(after.hits, number, entity_row)
        return shown_entity(entities[entity_row], None if np.isnan(score) else score)

    return {
        **shown_mention(text),
        "gold": shown(mentions.golds[number][0]),
        "before": shown(_best(before, number)),
        "after": shown(_best(after, number)),
    }
