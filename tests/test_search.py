"""Exact search: the same as sorting everything, however the vectors are cut up and whoever multiplies them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pel_ray import search
from pel_ray.errors import ArtifactError, ResourceError, SettingsError
from pel_ray.search import Hits, PoolFilter, exact_top_k, merged, torch_scan
from pel_ray.storage import locate
from pel_ray.vectors import VectorFolder
from tests.vector_folders import write_vector_folder


def sorting_everything(vectors: np.ndarray, entity_rows: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """What a search should find, by sorting all entities for each query."""
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    hits = Hits.none(len(queries), k)
    for number, row in enumerate(scores):
        best: dict[int, float] = {}
        for entity, score in zip(entity_rows.tolist(), row.tolist(), strict=True):
            best[entity] = max(score, best.get(entity, -np.inf))
        ranked = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        hits.rows_QK[number, : len(ranked)] = [entity for entity, _ in ranked]
        hits.scores_QK[number, : len(ranked)] = [score for _, score in ranked]
    return hits


def assert_equal(found: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(found.rows_QK, expected.rows_QK)
    np.testing.assert_array_equal(found.scores_QK, expected.scores_QK)


def generated(seed: int, num_entities: int, num_values: int, max_views: int) -> tuple[np.ndarray, np.ndarray]:
    """Few distinct values make many ties; these sums are exact in any order."""
    chance = np.random.default_rng(seed)
    rows = np.repeat(np.arange(num_entities), chance.integers(1, max_views + 1, num_entities))
    return chance.integers(-num_values, num_values + 1, (len(rows), 6)).astype(np.float16), rows


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_entities=st.integers(1, 300),
    num_values=st.integers(0, 3),
    max_views=st.integers(1, 4),
    shard_rows=st.integers(1, 120),
    k=st.integers(1, 80),
    block_rows=st.integers(1, 90),
)
def test_streamed_search_equals_sorting_everything(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    num_entities: int,
    num_values: int,
    max_views: int,
    shard_rows: int,
    k: int,
    block_rows: int,
) -> None:
    vectors, rows = generated(seed, num_entities, num_values, max_views)
    folder = write_vector_folder(tmp_path_factory.mktemp("vectors"), vectors, rows, shard_rows=shard_rows)
    queries = np.random.default_rng(seed + 1).integers(-2, 3, (7, 6)).astype(np.float32)
    expected = sorting_everything(vectors, rows, queries, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BLOCK_ROWS", block_rows)
        patch.setattr(search, "SLACK", 2)
        assert_equal(exact_top_k(folder, queries, k), expected)
        cut = len(folder.stems) // 2
        parts = [exact_top_k(folder, queries, k, stems=stems) for stems in (folder.stems[cut:], folder.stems[:cut])]
        assert_equal(merged(parts, k), expected)


def test_real_numbers_score_the_same_in_any_block_and_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(5)
    vectors = chance.normal(size=(3000, 96)).astype(np.float32)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    vectors[1500:1900] = vectors[7]
    folder = write_vector_folder(tmp_path / "vectors", vectors, shard_rows=700, similarity="cosine")
    queries = np.concatenate([vectors[:20].astype(np.float32), chance.normal(size=(30, 96)).astype(np.float32)])
    found = exact_top_k(folder, queries, 20)
    assert found.rows_QK[7].tolist() == [7, *range(1500, 1519)]
    for block_rows in (1, 33, 500):
        monkeypatch.setattr(search, "BLOCK_ROWS", block_rows)
        assert_equal(exact_top_k(folder, queries[:25] if block_rows == 1 else queries, 20), Hits(
            *(array[: 25 if block_rows == 1 else 50] for array in (found.scores_QK, found.rows_QK))
        ))  # fmt: skip
    monkeypatch.setattr(search, "choose_scan", lambda device: torch_scan("cpu"))
    assert_equal(exact_top_k(folder, queries, 20), found)


def test_a_query_sees_only_its_own_pool(tmp_path: Path) -> None:
    vectors, rows = generated(3, 200, 2, 2)
    folder = write_vector_folder(tmp_path / "vectors", vectors, rows, shard_rows=31)
    pools = PoolFilter(np.arange(200) * 7 % 3, np.array([0, 1, 2, 1, 9]))
    queries = np.random.default_rng(3).normal(size=(5, 6)).astype(np.float16).astype(np.float32)
    found = exact_top_k(folder, queries, 12, pools=pools)
    for number, pool in enumerate(pools.of_query):
        mine = pools.of_entity[rows] == pool
        expected = sorting_everything(vectors[mine], rows[mine], queries[number : number + 1], 12)
        np.testing.assert_array_equal(found.rows_QK[number], expected.rows_QK[0])


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    folder = write_vector_folder(tmp_path / "vectors", generated(1, 50, 2, 1)[0])
    with pytest.raises(SettingsError, match="queries have 5 dimensions"):
        exact_top_k(folder, np.zeros((1, 5), np.float32), 3)
    with pytest.raises(SettingsError, match="expected at least 1"):
        exact_top_k(folder, np.zeros((1, 6), np.float32), 0)
    with pytest.raises(ResourceError, match="torch sees none"):
        exact_top_k(folder, np.zeros((1, 6), np.float32), 3, device="gpu")


@pytest.mark.parametrize("kind", ["vectors", "rows"])
def test_a_damaged_or_cut_off_shard_is_named(tmp_path: Path, kind: str) -> None:
    write_vector_folder(tmp_path / "vectors", generated(1, 50, 2, 1)[0])
    (file,) = (tmp_path / "vectors").glob(f"{kind}-*")
    content = file.read_bytes()
    file.write_bytes(b"\0" * 60 + content[60:-60] + b"\0" * 60)
    with pytest.raises(ArtifactError, match=file.name):
        exact_top_k(VectorFolder.open(locate(tmp_path / "vectors")), np.zeros((1, 6), np.float32), 3)
    file.write_bytes(content[:-40])
    with pytest.raises(ArtifactError, match=f"{file.name} has"):
        VectorFolder.open(locate(tmp_path / "vectors"))
