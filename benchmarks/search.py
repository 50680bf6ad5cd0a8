"""Speed and memory of search, indexes and sampling; both sides of a ratio in one run.

Exact search runs over generated vectors (clustered, 384 wide), since no KB here has millions of entities. The index is
measured on real embeddings: wordnet_el where PEL_RAY_DATA (default ../shared/data) has it, else the Human Phenotype
Ontology, by two layers of MiniLM; they are made once, in runs/bench, and kept for the next run.

    python benchmarks/search.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
from _figures import Figures

from pel_ray.artifacts import Input, Request, building
from pel_ray.index import Index
from pel_ray.negatives import Pools, sample_negatives
from pel_ray.provenance import mention_model
from pel_ray.ragged import Ragged
from pel_ray.search import exact_top_k
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.index import IndexSettings, build_index
from pel_ray.steps.quickstart import hpo_file
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.tokens import TokenShard
from pel_ray.vectors import VectorFolder, plan_shards, vector_names, write_vectors

DATA = Path(os.environ.get("PEL_RAY_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
KEPT = Path(__file__).parent.parent / "runs" / "bench"
WIDTH, SHARD_ROWS = 384, 8192


def generate(folder: Path, num_vectors: int) -> VectorFolder:
    """Vectors around a thousand centres, on the sphere, in shards as encode-kb writes them."""
    import pyarrow as pa

    chance = np.random.default_rng(13)
    centres = chance.standard_normal((1000, WIDTH), np.float32)
    noise = chance.standard_normal((SHARD_ROWS, WIDTH), np.float32)
    request = Request(
        kind="vectors",
        inputs={"kb": Input("generated", "generated"), "model": Input("generated", "generated")},
        settings={"model": {"similarity": "cosine"}, "shard_rows": SHARD_ROWS, "vectors": num_vectors},
    )
    with building(locate(folder), request) as work:
        for shard in plan_shards(num_vectors, SHARD_ROWS):
            rows = np.arange(shard.start, shard.stop)
            vectors = centres[chance.integers(0, len(centres), len(rows))]
            vectors += 0.7 * noise[chance.permutation(SHARD_ROWS)[: len(rows)]]
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            ids = pa.array([""] * len(rows), pa.string())
            tokens = TokenShard(rows, ids, rows.astype(np.uint64), np.zeros(0, np.int32), np.zeros(1, np.int64))
            write_vectors(work.folder, shard, work.tag, tokens, vectors.astype(np.float16))
            for name in vector_names(shard, work.tag):
                work.count(name)
        work.counts["rows"] = work.counts["entities"] = num_vectors
    return VectorFolder.open(locate(folder))


def make_queries(vectors: VectorFolder, count: int) -> np.ndarray:
    chance = np.random.default_rng(17)
    some = vectors.vectors(vectors.stems[0])[chance.integers(0, SHARD_ROWS, count)].astype(np.float32)
    return some + 0.02 * chance.standard_normal(some.shape, np.float32)


def status_bytes(*names: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) * 1024 for name in names)


@contextlib.contextmanager
def watching(*names: str) -> Iterator[Callable[[], int]]:
    """Yields a function that tells the most that these lines of /proc/self/status have summed to."""
    most = status_bytes(*names)
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            most = max(most, status_bytes(*names))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most
    finally:
        over.set()
        thread.join()


def flat_index(vectors: VectorFolder, stems: list[str]) -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(WIDTH)
    for stem in stems:
        index.add(vectors.vectors(stem).astype(np.float32))
    return index


def in_process(side: str, folder: Path, num_stems: int) -> None:
    """What a child process does: search, and print bytes of memory that it took beyond what it began with."""
    vectors = VectorFolder.open(locate(folder))
    stems, queries = vectors.stems[:num_stems], make_queries(vectors, 1000)
    exact_top_k(vectors, queries[:8], 64, stems=stems[:1])
    if side == "resident":
        with watching("VmRSS") as most:
            exact_top_k(vectors, queries, 64, stems=stems)
        print(most())
        return
    before = status_bytes("RssAnon")
    with watching("RssAnon") as most:
        if side == "flat":
            flat_index(vectors, stems).search(queries[:64], 64)
        else:
            exact_top_k(vectors, queries, 64, stems=stems)
    print(most() - before)


def in_child(side: str, folder: Path, num_stems: int) -> int:
    command = [sys.executable, __file__, "--child", side, str(folder), str(num_stems)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def exact_search(vectors: VectorFolder, folder: Path, num_stems: int, figures: Figures) -> None:
    """Against an index that has everything in memory, in turns over the same queries."""
    stems, queries = vectors.stems[:num_stems], make_queries(vectors, 600)
    index = flat_index(vectors, stems)
    print(f"{index.ntotal:,} x {WIDTH} generated vectors, k 64", flush=True)
    ratios = []
    for part in np.array_split(np.arange(len(queries)), 3):
        began = time.perf_counter()
        index.search(queries[part], 64)
        middle = time.perf_counter()
        exact_top_k(vectors, queries[part], 64, stems=stems)
        ratios.append((middle - began) / (time.perf_counter() - middle))
        print(f"flat in memory {len(part) / (middle - began):.0f} queries/s, times {ratios[-1]:.2f}", flush=True)
    figures.at_least("search_exact_over_flat_in_memory", float(np.median(ratios)), 0.8)
    del index
    private = {side: in_child(side, folder, num_stems) for side in ("flat", "streamed")}
    for side, taken in private.items():
        print(f"private memory, mapped files not counted, {side}: {taken / 2**20:.0f} MiB", flush=True)
    figures.at_most("search_private_memory_over_flat", private["streamed"] / private["flat"], 1 / 3)


def real_vectors(quick: bool) -> tuple[Path, Path]:
    """Data set and vectors of real entities, made once."""
    source = DATA / "wordnet_el"
    name = "wordnet_el" if source.is_dir() and not quick else "hpo"
    data, vectors = KEPT / name, KEPT / f"{name}-vectors"
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if name == "hpo":
            import_obo(OboSettings(file=str(hpo_file()), out=str(data), mentions="synonyms"))
        else:
            mentions = [f"test={source / 'mentions.test.jsonl.gz'}"]
            import_jsonl(JsonlSettings(kb=[str(source / "kb.jsonl.gz")], mentions=mentions, out=str(data)))
        model = {"layers": 1 if quick else 2, "pooling": "mention", "text": {"entity_length": 32}}
        encode_kb(EncodeSettings.model_validate({"kb": str(data), "out": str(vectors), "model": model}))
    return data, vectors


def index_search(quick: bool, figures: Figures) -> None:
    """The index that `auto` chooses, and exact flat search, one query at a time."""
    data, folder = real_vectors(quick)
    out = KEPT / f"{folder.name}-index"
    with contextlib.redirect_stderr(io.StringIO()):
        outcome = build_index(IndexSettings(vectors=str(folder), out=str(out), queries=str(data), split="test"))
    counts = outcome.manifest.counts
    vectors = VectorFolder.open(locate(folder))
    mentions = TableFolder.open(locate(data / "mentions"), "mentions").head(300)
    parts = mention_model(vectors, None, 64)
    from pel_ray import load_model

    queries = load_model(parts.settings).encode_mentions(mentions)
    flat = faiss.IndexFlatIP(WIDTH)
    for stem in vectors.stems:
        flat.add(vectors.vectors(stem).astype(np.float32))
    index = Index.open(locate(out))
    print(
        f"{flat.ntotal:,} real vectors ({folder.name}): {counts['kind']}, recall@64 {counts['recall@64']}", flush=True
    )
    ratios = []
    for some in np.array_split(queries[:, None], 5):
        # In turns of many: a flat search in between would leave the processor's cache empty for the index.
        taken = []
        for searched in (flat, index):
            began = time.perf_counter()
            for query in some:
                searched.search(query, 64)
            taken.append(time.perf_counter() - began)
        ratios.append(taken[0] / taken[1])
    figures.at_least("index_recall_at_64", float(counts["recall@64"]), 0.99)
    if not quick:
        figures.at_least("index_over_flat_one_query_at_a_time", float(np.median(ratios)), 8.0)


def sampling(num_mentions: int, figures: Figures) -> None:
    """Random negatives, 64 for each mention, over a large and a small KB in turns."""
    seconds: dict[int, list[float]] = {2_360_000: [], 100_000: []}
    golds = Ragged.of([[number * 17 % 100_000] for number in range(num_mentions)])
    for epoch in range(3):
        for num_entities, taken in seconds.items():
            began = time.perf_counter()
            sample_negatives(
                seed=13,
                epoch=epoch,
                mention_rows_M=np.arange(num_mentions),
                pool_M=np.zeros(num_mentions, np.int64),
                pools=Pools.whole(num_entities),
                golds=golds,
                num_negatives=64,
            )
            taken.append(time.perf_counter() - began)
    large, small = (float(np.median(taken)) for taken in seconds.values())
    figures.at_most(f"negatives_seconds_for_{num_mentions // 1000}K_mentions_x_64", large, 5.0)
    figures.at_most("negatives_2360K_over_100K_entities", large / small, 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer vectors, and the ontology in place of WordNet")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        in_process(arguments.child[0], Path(arguments.child[1]), int(arguments.child[2]))
        return
    quick, figures = arguments.quick, Figures()
    sampling(30_000 if quick else 120_000, figures)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "vectors"
        vectors = generate(folder, 200_000 if quick else 2_360_000)
        exact_search(vectors, folder, len(vectors.stems) if quick else 123, figures)
        if not quick:
            gib = in_child("resident", folder, len(vectors.stems)) / 2**30
            figures.at_most("search_2360K_resident_gib_with_mapped_files", gib, 6.0)
    index_search(quick, figures)
    figures.finish()


if __name__ == "__main__":
    main()
