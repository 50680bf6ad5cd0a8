"""Indexes: the entities of exact search, within the memory and with the recall that was asked for, or a clear no."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest

from pel_ray.artifacts import Input, Request, building
from pel_ray.errors import ArtifactError, MissingPackage, SettingsError
from pel_ray.index import Index
from pel_ray.index_kinds import KINDS, choose, estimate, parse_memory
from pel_ray.search import Hits, exact_top_k
from pel_ray.steps.index import IndexSettings, build_index
from pel_ray.storage import locate
from pel_ray.vectors import ROWS_SCHEMA, Shard, VectorFolder, vector_names
from tests.conftest import RunCommand
from tests.models import write_encoder
from tests.samples import write_jsonl_set

DIMENSION = 16
NUM_VECTORS = 3000


def write_kb(
    folder: Path,
    vectors: np.ndarray,
    ids: Sequence[str] | None = None,
    hashes: Sequence[int] | None = None,
    *,
    similarity: str = "dot",
    model: Input | None = None,
    shard_rows: int = 700,
) -> VectorFolder:
    """Vectors as encode-kb leaves them; vectors with one id, which stand together, are views of one entity."""
    names = [f"E{number}" for number in range(len(vectors))] if ids is None else list(ids)
    rows = np.cumsum([number > 0 and names[number] != names[number - 1] for number in range(len(names))])
    table = pa.table([rows, names, list(range(len(names)) if hashes is None else hashes)], schema=ROWS_SCHEMA)
    request = Request(
        kind="vectors",
        inputs={"kb": Input("kb", str(folder)), "model": model or Input("model", "digest")},
        settings={"model": {"similarity": similarity}, "store": "fp16"},
    )
    with building(locate(folder), request) as work:
        for number, start in enumerate(range(0, len(names), shard_rows)):
            stop = min(start + shard_rows, len(names))
            vectors_name, rows_name = vector_names(Shard(number, start, stop), work.tag)
            with (work.folder / rows_name).writing() as stream, pa.ipc.new_file(stream, ROWS_SCHEMA) as writer:
                writer.write_table(table.slice(start, stop - start))
            with (work.folder / vectors_name).writing() as stream:
                np.lib.format.write_array(stream, vectors[start:stop].astype(np.float16))
            work.count(vectors_name)
            work.count(rows_name)
        work.counts["rows"] = len(names)
    return VectorFolder.open(locate(folder))


def clustered(num_vectors: int = NUM_VECTORS, seed: int = 0) -> np.ndarray:
    """Vectors of length 1 around a few centres, as those of a KB are."""
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(60, DIMENSION))
    vectors = centres[chance.integers(0, 60, num_vectors)] + 0.4 * chance.normal(size=(num_vectors, DIMENSION))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def tied(num_vectors: int, seed: int) -> np.ndarray:
    """Few distinct values make many ties; these sums are exact in any order."""
    return np.random.default_rng(seed).integers(-1, 2, (num_vectors, 6)).astype(np.float16)


def queries_like(vectors: np.ndarray, num_queries: int = 40, seed: int = 5) -> np.ndarray:
    chance = np.random.default_rng(seed)
    chosen = vectors[chance.integers(0, len(vectors), num_queries)]
    return (chosen + 0.05 * chance.normal(size=chosen.shape)).astype(np.float32)


def assert_same(found: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(found.rows_QK, expected.rows_QK)
    np.testing.assert_array_equal(found.scores_QK, expected.scores_QK)


def build(vectors: VectorFolder, out: Path, **more: Any) -> Index:
    given: dict[str, Any] = {"vectors": vectors.folder.path, "out": str(out), "num_queries": 100}
    build_index(IndexSettings.model_validate(given | more))
    return Index.open(locate(out))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take longer than these small indexes."""
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(num_threads)


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> VectorFolder:
    return write_kb(tmp_path_factory.mktemp("index") / "vectors", clustered(), similarity="cosine")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_flat_equals_exact_search_with_ties_and_views(tmp_path: Path, seed: int, shards: int) -> None:
    chance = np.random.default_rng(seed)
    views = chance.integers(1, 5, 150)
    ids = [f"E{number}" for number in np.repeat(np.arange(150), views)]
    vectors = tied(len(ids), seed)
    folder = write_kb(tmp_path / "vectors", vectors, ids, shard_rows=90)
    index = build(folder, tmp_path / "index", kind="flat", shards=shards)
    queries = np.concatenate([tied(30, seed + 100).astype(np.float32), np.zeros((1, 6), np.float32)])
    for k in (1, 16, 150):
        assert_same(index.search(queries, k), exact_top_k(folder, queries, k))
        assert_same(index.search(queries[:1], k), exact_top_k(folder, queries[:1], k))


def test_flat_equals_exact_search_on_real_numbers(kb: VectorFolder, tmp_path: Path) -> None:
    queries = queries_like(clustered())
    expected = exact_top_k(kb, queries, 64)
    for shards in (1, 2, 5):
        index = build(kb, tmp_path / f"index-{shards}", kind="flat", shards=shards)
        assert_same(index.search(queries, 64), expected)
        assert index.manifest.counts["recall@64"] == 1.0


@pytest.mark.parametrize("kind", ["ivf", "ivf_fp16", "ivf_sq8", "hnsw", "pq", "PCA8,IVF20,Flat", "PQ4x4fs", "SQfp16"])
@pytest.mark.parametrize("shards", [1, 2])
def test_every_kind_reaches_its_recall_or_says_that_it_cannot(
    kb: VectorFolder, tmp_path: Path, kind: str, shards: int
) -> None:
    queries = queries_like(clustered())
    try:
        index = build(kb, tmp_path / "out" / "index", kind=kind, shards=shards, min_recall=0.97)
    except SettingsError as error:
        assert kind in ("PCA8,IVF20,Flat", "PQ4x4fs"), "only these lose more than that"
        assert "of the true 64 best at most" in str(error)
        assert not (tmp_path / "out").exists()
        return
    assert kind not in ("PCA8,IVF20,Flat", "PQ4x4fs")
    counts = index.manifest.counts
    assert counts["recall@64"] >= 0.97 and counts["rows"] == NUM_VECTORS and counts["queries/s in a batch"] > 0
    found, truth = index.search(queries, 64), exact_top_k(kb, queries, 64)
    shared = [len(set(a) & set(b)) for a, b in zip(found.rows_QK.tolist(), truth.rows_QK.tolist(), strict=True)]
    assert np.mean(shared) / 64 > 0.95


def test_a_higher_recall_makes_a_search_look_further(kb: VectorFolder, tmp_path: Path) -> None:
    found = [
        build(kb, tmp_path / str(recall), kind="ivf", min_recall=recall).manifest.counts for recall in (0.5, 0.999)
    ]
    probes = [int(counts["search parameters"].removeprefix("nprobe=")) for counts in found]
    assert probes[0] < probes[1] and found[1]["recall@64"] >= 0.999


def test_views_of_one_entity_do_not_crowd_out_others(tmp_path: Path) -> None:
    vectors = clustered(600)
    vectors[:200] = vectors[0] + 0.001 * np.random.default_rng(1).normal(size=(200, DIMENSION))
    ids = ["E0"] * 200 + [f"E{number}" for number in range(200, 600)]
    folder = write_kb(tmp_path / "vectors", vectors, ids, similarity="cosine")
    query = vectors[:1].astype(np.float32)
    for kind in ("flat", "hnsw", "SQfp16"):
        rows = build(folder, tmp_path / kind, kind=kind, min_recall=0).search(query, 20).rows_QK[0]
        assert rows[0] == 0 and len(set(rows.tolist())) == 20 and -1 not in rows


def test_the_same_seed_gives_the_same_bytes(kb: VectorFolder, tmp_path: Path) -> None:
    for kind in ("ivf_fp16", "pq"):
        files = []
        for name in ("a", "b"):
            build(kb, tmp_path / f"{kind}-{name}", kind=kind, min_recall=0)
            files.append({file.name: file.read_bytes() for file in (tmp_path / f"{kind}-{name}").glob("*-*")})
        assert files[0] == files[1]


def test_auto_goes_by_size_memory_and_similarity() -> None:
    plenty, few, many = 1 << 40, 10_000, 1_000_000
    assert choose("auto", few, 384, "cosine", plenty).kind == "flat"
    assert choose("auto", many, 384, "cosine", plenty).kind == "hnsw"
    assert choose("auto", many, 384, "dot", plenty).factory == "IVF4000,PQ192x4fs,Refine(SQfp16)"
    needs = {kind: estimate(kind, many, 384).build_bytes for kind in ("hnsw", "pq", "ivf_sq8")}
    assert choose("auto", many, 384, "cosine", needs["hnsw"] - 1).kind == "pq"
    assert choose("auto", many, 384, "cosine", needs["pq"] - 1).kind == "ivf_sq8"
    with pytest.raises(SettingsError, match="no kind does. Needed: flat 1.* GiB, .* or cut it into 2 or more --shards"):
        choose("auto", many, 384, "cosine", needs["ivf_sq8"] - 1)


def test_estimates_are_what_indexes_take(kb: VectorFolder, tmp_path: Path) -> None:
    for kind in KINDS:
        build(kb, tmp_path / kind, kind=kind, min_recall=0)
        size = next((tmp_path / kind).glob("*.faiss")).stat().st_size
        assert 0.9 < estimate(kind, NUM_VECTORS, DIMENSION).index_bytes / size < 1.2, kind


def test_what_does_not_fit_is_refused_with_what_would(kb: VectorFolder, pel_ray: RunCommand) -> None:
    given = ["index", kb.folder.path, "--out", "index"]
    error = pel_ray(*given, "--kind", "hnsw", "--memory", "500K").error
    assert "hnsw needs" in error and "These would: flat " in error and "hnsw 1" not in error
    assert "no kind does. Needed: flat" in pel_ray(*given, "--memory", "20K").error
    assert not Path("index").exists()


def test_sizes_are_read_as_people_write_them(kb: VectorFolder, pel_ray: RunCommand) -> None:
    assert parse_memory("4G") == parse_memory("4GiB") == parse_memory(" 4096 MB ") == 4 << 30
    assert parse_memory("1.5k") == 1536 and parse_memory("77") == 77
    for text in ("", "much", "4X", "-1G", "0", "G"):
        result = pel_ray("index", kb.folder.path, "--out", "index", "--memory", text)
        assert result.code == 2 and "as in 4G or 512M" in result.err, text


def test_a_kind_that_faiss_does_not_know_is_one_line(kb: VectorFolder, pel_ray: RunCommand) -> None:
    for kind in ("ivff", "LSH", "PQ7"):
        error = pel_ray("index", kb.folder.path, "--out", "index", "--kind", kind).error
        assert f"--kind {kind}: FAISS cannot make it" in error and "or a factory string such as" in error


def test_too_few_vectors_to_learn_from_are_one_line(kb: VectorFolder, tmp_path: Path, pel_ray: RunCommand) -> None:
    assert "cannot train" in pel_ray("index", kb.folder.path, "--out", "index", "--kind", "IVF3001,Flat").error
    write_kb(tmp_path / "few", clustered(3), similarity="cosine")
    assert "cannot train" in pel_ray("index", "few", "--out", "index", "--kind", "pq").error
    for kind in ("auto", "hnsw", "ivf", "ivf_fp16", "ivf_sq8"):
        assert pel_ray("index", "few", "--out", kind, "--kind", kind).code == 0, kind
    assert not Path("index").exists()


@pytest.fixture
def versions(tmp_path: Path) -> tuple[VectorFolder, VectorFolder]:
    """A KB, and the same a month later: entities gone, new, with another text, and all others in other rows."""
    old, new = clustered(2000), clustered(2300, seed=9)
    ids = [f"E{number // 2}" for number in range(2000)]
    hashes = [number if number % 10 else number // 2 for number in range(2000)]
    kept = [number for number in range(200, 2000) if number % 50]
    rest = list(range(100)) + [number for number in range(200, 2000) if number % 50 == 0]
    vectors = np.concatenate([new[:100], old[kept], new[100 : 100 + len(rest) - 100]])
    new_ids = [f"N{number}" for number in range(100)] + [ids[number] for number in kept]
    new_ids += [f"E{number}x" for number in range(len(rest) - 100)]
    new_hashes = [*range(100), *(hashes[number] for number in kept), *range(len(rest) - 100)]
    return (
        write_kb(tmp_path / "old", old, ids, hashes, similarity="cosine"),
        write_kb(tmp_path / "new", vectors, new_ids, new_hashes, similarity="cosine"),
    )


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["flat", "ivf", "ivf_fp16", "hnsw", "pq"])
def test_an_updated_index_finds_what_a_new_one_finds(
    versions: tuple[VectorFolder, VectorFolder], tmp_path: Path, kind: str, shards: int
) -> None:
    old, new = versions
    build(old, tmp_path / "before", kind=kind, shards=shards, min_recall=0.9)
    before = {file.name: file.read_bytes() for file in (tmp_path / "before").iterdir()}
    updated = build(new, tmp_path / "after", update=str(tmp_path / "before"), min_recall=0.9)
    assert {file.name: file.read_bytes() for file in (tmp_path / "before").iterdir()} == before
    counts = updated.manifest.counts
    assert (counts["added"], counts["removed"], counts["kept"]) == (136, 236, 1764)
    assert ("built anew" in counts["update"]) == (kind in ("hnsw", "pq"))
    assert sum(shard.index.ntotal for shard in updated.shards) == counts["rows"] == 1900
    queries = queries_like(clustered(2000))
    if kind == "flat":
        fresh = build(new, tmp_path / "fresh", kind=kind, shards=shards)
        assert_same(updated.search(queries, 64), fresh.search(queries, 64))
    # Whatever its search parameter, an index that looks everywhere holds every entity once.
    for shard in updated.shards:
        for part in (shard.index, getattr(shard.index, "index", None)):
            if hasattr(part, "nprobe"):
                part.nprobe = part.nlist
    num_entities = updated.entities.num_entities
    if kind in ("flat", "ivf", "ivf_fp16"):
        assert set(updated.search(queries[:1], num_entities).rows_QK[0].tolist()) == set(range(num_entities))
    assert (updated.search(queries, 1).rows_QK == exact_top_k(new, queries, 1).rows_QK).mean() > 0.9


def test_updates_can_follow_each_other_and_may_only_add(
    versions: tuple[VectorFolder, VectorFolder], tmp_path: Path
) -> None:
    old, new = versions
    queries = queries_like(clustered(2000))
    build(old, tmp_path / "1", kind="flat")
    build(new, tmp_path / "2", update=str(tmp_path / "1"))
    third = build(old, tmp_path / "3", update=str(tmp_path / "2"))
    assert_same(third.search(queries, 30), exact_top_k(old, queries, 30))
    more = write_kb(tmp_path / "more", np.concatenate([clustered(), clustered(50, seed=3)]), similarity="cosine")
    part = write_kb(tmp_path / "part", clustered(), similarity="cosine")
    build(part, tmp_path / "hnsw", kind="hnsw", min_recall=0.9)
    counts = build(more, tmp_path / "hnsw-2", update=str(tmp_path / "hnsw"), min_recall=0.9).manifest.counts
    assert (counts["added"], counts["removed"], counts["kept"]) == (50, 0, NUM_VECTORS)
    assert counts["update"] == "the older index, changed"


def test_an_index_of_another_model_or_similarity_is_not_updated(kb: VectorFolder, tmp_path: Path) -> None:
    index = build(kb, tmp_path / "index", kind="flat")
    dot = write_kb(tmp_path / "dot", clustered(), similarity="dot")
    other = write_kb(tmp_path / "other", clustered(), similarity="cosine", model=Input("model", "another"))
    old = str(tmp_path / "index")
    for vectors, more, expected in (
        (dot, {}, "is a cosine index, these are dot vectors"),
        (other, {}, "holds vectors of another model"),
        (kb, {"kind": "ivf"}, "is flat, and an update keeps the kind"),
        (kb, {"shards": 2}, "has 1, and an update keeps them"),
        (kb, {"update": str(tmp_path / "new")}, "new does not exist"),
    ):
        with pytest.raises((ArtifactError, SettingsError), match=expected):
            build(vectors, tmp_path / "new", **({"update": old} | more))
    with pytest.raises(SettingsError, match="is --out too"):
        build(kb, tmp_path / "index", update=old)
    with pytest.raises(ArtifactError, match="another model"):
        index.check_model("another", "cosine")


def test_asking_for_more_than_there_is_is_refused(kb: VectorFolder, tmp_path: Path) -> None:
    index = build(kb, tmp_path / "index", kind="flat")
    with pytest.raises(SettingsError, match="k is 3,001, but .*index has 3,000 entities"):
        index.search(np.zeros((1, DIMENSION), np.float32), NUM_VECTORS + 1)
    with pytest.raises(SettingsError, match="queries have 4 dimensions, .* 16"):
        index.search(np.zeros((1, 4), np.float32), 1)


@pytest.mark.parametrize("suffix", ["faiss", "arrow"])
def test_a_damaged_index_is_named(kb: VectorFolder, tmp_path: Path, suffix: str) -> None:
    build(kb, tmp_path / "index", kind="ivf", min_recall=0.5)
    file = next((tmp_path / "index").glob(f"*.{suffix}"))
    whole = file.read_bytes()
    for place in range(0, len(whole), len(whole) // 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match=rf"{file.name} is damaged \(its checksum does not fit\)"):
            Index.open(locate(tmp_path / "index"))
    file.write_bytes(whole[:-100])
    with pytest.raises(ArtifactError, match=f"{file.name} has .* bytes, its manifest says"):
        Index.open(locate(tmp_path / "index"))
    file.unlink()
    with pytest.raises(ArtifactError, match=f"{file.name} is missing"):
        Index.open(locate(tmp_path / "index"))


def test_a_shard_of_vectors_that_is_damaged_is_named(tmp_path: Path) -> None:
    vectors = clustered(300)
    vectors[7, 3] = np.nan
    folder = write_kb(tmp_path / "vectors", vectors)
    with pytest.raises(ArtifactError, match=r"vectors-00000-.*npy holds vectors that are not finite numbers"):
        build(folder, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_rerun_does_nothing_and_other_settings_are_refused(kb: VectorFolder, pel_ray: RunCommand) -> None:
    given = ["index", kb.folder.path, "--out", "index", "--num-queries", 50]
    first = pel_ray(*given)
    assert first.code == 0 and "index: index, 3,000 rows, done" in first.out and "recall@64" in first.out
    assert "50 entities of the KB itself; mentions (--queries DATA) would say more" in first.out
    assert "already done" in pel_ray(*given).out
    assert "kind is 'auto' there and 'ivf' here" in pel_ray(*given, "--kind", "ivf").error
    assert pel_ray(*given, "--kind", "ivf", "--overwrite", "--min-recall", "0.9").code == 0
    assert "recall@16" in pel_ray("show", "index").out
    assert "holds index, expected vectors" in pel_ray("index", "index", "--out", "other").error


def test_the_plan_says_what_each_kind_would_take(kb: VectorFolder, pel_ray: RunCommand) -> None:
    result = pel_ray("index", kb.folder.path, "--out", "index", "--plan", "--shards", 2)
    assert result.code == 0 and "ivf_fp16" in result.out and "flat (Flat)" in result.out
    assert not Path("index").exists()


def test_mentions_are_encoded_with_the_model_of_the_vectors(tmp_path: Path, pel_ray: RunCommand) -> None:
    from pel_ray.encoder import ModelSettings, load_parts

    write_encoder(tmp_path / "tiny")
    assert pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "set").code == 0
    model = ModelSettings(encoder=str(tmp_path / "tiny"))
    vectors = np.random.default_rng(0).normal(size=(300, 32))
    digest = load_parts(model).digest("entity")
    write_kb(tmp_path / "vectors", vectors, similarity="cosine", model=Input(model.encoder, digest))
    given = ["index", "vectors", "--queries", "set"]
    assert "Its splits are: " in pel_ray(*given, "--out", "index", "--split", "nowhere").error
    done = pel_ray(*given, "--out", "index", "--split", "train")
    assert done.code == 0 and "mentions of train in set/mentions" in done.out, done
    write_kb(tmp_path / "others", vectors, similarity="cosine", model=Input(model.encoder, "another"))
    error = pel_ray("index", "others", "--queries", "set", "--out", "index-2", "--split", "train").error
    assert "others was encoded with another model than" in error


def test_without_faiss_it_says_what_to_install(
    kb: VectorFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackage, match=r"pip install 'pel-ray\[cpu\]'"):
        build(kb, tmp_path / "index")


def test_a_shard_can_be_opened_alone(kb: VectorFolder, tmp_path: Path) -> None:
    from pel_ray.search import merged

    index = build(kb, tmp_path / "index", kind="flat", shards=3)
    queries = queries_like(clustered())
    parts = [Index.open(index.folder, only=[number]).search(queries, 10) for number in range(3)]
    assert_same(merged(parts, 10), index.search(queries, 10))
