"""The baselines: a dictionary by hand, and TF-IDF equal to comparing every name with every mention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from pel_ray.baselines import dictionary_hits, tfidf_hits
from pel_ray.search import PoolFilter
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from tests.conftest import RunCommand
from tests.samples import write_jsonl

ENTITIES: list[dict[str, Any]] = [
    {"id": "A", "title": "Fever", "synonyms": ["pyrexia", "high temperature"], "world": "x"},
    {"id": "B", "title": "Pyrexia of unknown origin", "synonyms": [], "world": "x"},
    {"id": "C", "title": "Hay fever", "synonyms": ["fever"], "world": "y"},
    {"id": "D", "title": "fever", "synonyms": [], "world": "y"},
    {"id": "E", "title": "Aspirin", "synonyms": ["acetylsalicylic acid"], "world": "y"},
]


@pytest.fixture
def kb(tmp_path: Path, pel_ray: RunCommand) -> TableFolder:
    write_jsonl(tmp_path / "kb.jsonl", ENTITIES)
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--out", "set").code == 0
    return TableFolder.open(locate(tmp_path / "set" / "kb"), "kb")


def rows(found: np.ndarray) -> list[int]:
    return [row for row in found.tolist() if row >= 0]


def test_dictionary_finds_titles_before_synonyms_in_any_spelling(kb: TableFolder) -> None:
    found = dictionary_hits(kb, ["FEVER", "Pyrexia!", "nothing", "acetylsalicylic-acid"], 3, None)
    assert [rows(row) for row in found.rows_QK] == [[0, 3, 2], [0], [], [4]]


def test_dictionary_keeps_to_the_pool_of_a_mention(kb: TableFolder) -> None:
    pools = PoolFilter(np.array([0, 0, 1, 1, 1]), np.array([0, 1]))
    found = dictionary_hits(kb, ["fever", "fever"], 3, pools)
    assert [rows(row) for row in found.rows_QK] == [[0], [3, 2]]


@pytest.mark.parametrize("pools", [None, PoolFilter(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 1]))])
def test_tfidf_equals_comparing_all_names(kb: TableFolder, pools: PoolFilter | None) -> None:
    mentions = ["pyrexia unknown", "hay fevers", "temperature", "aspirin acid", "hay fevers"]
    names = [(row, name) for row, entity in enumerate(ENTITIES) for name in (entity["title"], *entity["synonyms"])]
    vectoriser = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3)).fit(name for _, name in names)
    scores = (vectoriser.transform(mentions) @ vectoriser.transform([name for _, name in names]).T).toarray()
    found = tfidf_hits(kb, mentions, 4, pools)
    for number in range(len(mentions)):
        best = np.zeros(len(ENTITIES))
        for (row, _), score in zip(names, scores[number], strict=True):
            if pools is None or pools.of_entity[row] == pools.of_query[number]:
                best[row] = max(best[row], score)
        expected = [row for row in np.lexsort((np.arange(5), -best)) if best[row] > 0][:4]
        assert rows(found.rows_QK[number]) == expected
        np.testing.assert_allclose(found.scores_QK[number, : len(expected)], best[expected], atol=1e-5)
