"""A small data set with a retriever over it, for the tests of rankers; it finds some golds, and others not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pel_ray import ModelSettings, load_model
from pel_ray.encoder import save_whole
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from tests.models import WORDS, write_encoder
from tests.samples import write_jsonl

NUM_ENTITIES, NUM_MENTIONS = 90, 72
ONE_WORKER = {"workers": 1, "cpus": 1}
TEXT = {"mention_length": 24, "entity_length": 24}


def entity(number: int) -> dict[str, Any]:
    words = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 5))
    return {"id": f"E{number}", "title": f"{WORDS[number % 13]} {number}", "description": words, "types": ["Finding"]}


def mention(number: int) -> dict[str, Any]:
    gold = number * 7 % NUM_ENTITIES
    labels = [f"E{gold}"] if number % 5 else []
    if number % 17 == 0:
        labels = [f"E{gold}", f"E{(gold + 13) % NUM_ENTITIES}"]
    return {
        "mention_id": f"m{number}",
        "document_id": f"d{number // 3}",
        "context_left": "has the ",
        # A third of them do not say which of their word's entities they mean.
        "mention": f"{WORDS[gold % 13]} {gold if number % 3 else 'of'}",
        "context_right": " with fever" * (number % 3),
        "label": labels,
        "split": ("train", "train", "validation", "test")[number % 4],
        "world": "",
    }


def write_ranking_set(home: Path) -> Path:
    return write_retriever_set(
        home,
        [entity(number) for number in range(NUM_ENTITIES)],
        [mention(number) for number in range(NUM_MENTIONS)],
    )


def write_retriever_set(home: Path, entities: list[dict[str, Any]], mentions: list[dict[str, Any]]) -> Path:
    """A folder with an encoder `tiny`, a retriever `model`, a data set `set` and the KB's vectors `vectors`."""
    write_encoder(home / "tiny")
    save_whole(load_model(ModelSettings(encoder=str(home / "tiny"), pooling="mention")), home / "model")
    write_jsonl(home / "kb.jsonl", entities)
    write_jsonl(home / "mentions.jsonl", mentions)
    files = {"kb": [str(home / "kb.jsonl")], "mentions": [str(home / "mentions.jsonl")]}
    import_jsonl(JsonlSettings(out=str(home / "set"), **files))
    given = {"kb": str(home / "set"), "out": str(home / "vectors"), "model": {"encoder": str(home / "model")}}
    encode_kb(EncodeSettings.model_validate(given | {"resources": ONE_WORKER}))
    return home


def lines(run: Path) -> list[dict[str, Any]]:
    """Of metrics.jsonl, as far as it has come."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text
