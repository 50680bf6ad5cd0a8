"""The mistakes of a retriever, with the texts that let a person see why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pel_ray.evaluation import Judged
from pel_ray.golds import GoldMentions, rows_at
from pel_ray.tables import DataSet
from pel_ray.text import MENTION_COLUMNS

NUM_SHOWN = 30
SHOWN_COLUMNS = ("entity_id", "title", "description", "synonyms")
CONTEXT = 80
"""Characters shown on each side of a mention."""


def confusions(data: DataSet, mentions: GoldMentions, judged: Judged) -> list[dict[str, Any]]:
    """Pairs of gold and predicted entity: the most frequent first, then those the retriever was surest of."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, golds in enumerate(mentions.golds):
        predicted = int(judged.hits.rows_QK[number, 0])
        if golds and predicted >= 0 and predicted not in golds:
            rank = int(judged.ranks_Q[number])
            pairs[int(judged.hits.rows_QK[number, rank - 1]) if rank else golds[0], predicted].append(number)
    # Of the mentions of a pair, the one with the highest score stands for it.
    example = {pair: max(numbers, key=lambda n: (float(judged.best_Q[n]), -n)) for pair, numbers in pairs.items()}
    ordered = sorted(pairs, key=lambda pair: (-len(pairs[pair]), -float(judged.best_Q[example[pair]]), pair))
    shown = ordered[:NUM_SHOWN]
    entities = rows_at(data.kb, {row for pair in shown for row in pair}, SHOWN_COLUMNS)
    return [_described(data, mentions, judged, entities, pair, example[pair], len(pairs[pair])) for pair in shown]


def _described(
    data: DataSet,
    mentions: GoldMentions,
    judged: Judged,
    entities: Mapping[int, Mapping[str, Any]],
    pair: tuple[int, int],
    number: int,
    times: int,
) -> dict[str, Any]:
    row, rank = mentions.rows[number], int(judged.ranks_Q[number])
    (text,) = data.mentions.rows(row, row + 1, MENTION_COLUMNS).to_pylist()
    gold_score = float(judged.hits.scores_QK[number, rank - 1]) if rank else None
    return {
        "times": times,
        **shown_mention(text),
        "rank": rank or None,
        "gold": shown_entity(entities[pair[0]], gold_score),
        "predicted": shown_entity(entities[pair[1]], float(judged.best_Q[number])),
    }


def shown_mention(text: Mapping[str, Any]) -> dict[str, Any]:
    """A mention with a little of what stands around it."""
    return {
        "mention": text["mention"],
        "left": text["context_left"][-CONTEXT:],
        "right": text["context_right"][:CONTEXT],
    }


def shown_entity(entity: Mapping[str, Any], score: float | None) -> dict[str, Any]:
    """What a person needs of an entity to judge a mistake."""
    return {
        "id": entity["entity_id"],
        "title": entity["title"],
        "description": entity["description"],
        "synonyms": entity["synonyms"][:5],
        "score": None if score is None else round(score, 4),
    }
