"""Speed and memory of encoding, both sides in one run, with the same weights and the same real texts.

Texts: wordnet_el where PEL_RAY_DATA (default ../shared/data) has it, whose entities are about as short as those of
UMLS, most of which have no definition; else the Human Phenotype Ontology. Weights: MiniLM; for the utilisation also the
shape of BERT-base with random weights, since speed does not depend on them.

    python benchmarks/encode.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from _figures import Figures

from pel_ray.batches import PASS_TOKENS, plan_batches, ragged
from pel_ray.encoder import Encoding, ModelSettings, Parts, load_parts, load_tower
from pel_ray.runtime_session import ray_session
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.quickstart import hpo_file
from pel_ray.storage import locate
from pel_ray.tables import TableFolder

DATA = Path(os.environ.get("PEL_RAY_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
SHARD_ROWS = 2048
RAY_SECONDS = 66
"""Of work that goes through Ray, whatever the machine does in it."""
FEW_ROWS, NUM_BEFORE = 512, 4
"""Of a shard that takes a few seconds, and how many of them are done before any counts."""
NUM_TURNS, TURN_SECONDS = 5, 4
"""Of two actors, and as many of one."""
NUM_PARTS = 8
"""In which utilisation is measured, each beside a peak of its own."""


def import_kb(folder: Path, num_entities: int) -> TableFolder:
    """A KB of real entities, shuffled, as a data set in `folder`."""
    source = DATA / "wordnet_el" / "kb.jsonl.gz"
    if source.is_file():
        with gzip.open(source, "rt") as lines:
            rows = [json.loads(line) for line in lines]
    else:
        import_obo(OboSettings(file=str(hpo_file()), out=str(folder / "hpo")))
        hpo = TableFolder.open(locate(folder / "hpo" / "kb"), "kb")
        rows = [row | {"id": row["entity_id"]} for table in hpo.tables() for row in table.to_pylist()]
    random.Random(13).shuffle(rows)
    return write_kb(folder, rows[:num_entities])


def write_kb(folder: Path, rows: list[dict[str, Any]]) -> TableFolder:
    folder.mkdir(exist_ok=True, parents=True)
    with open(folder / "kb.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    import_jsonl(JsonlSettings(kb=[str(folder / "kb.jsonl")], out=str(folder)))
    return TableFolder.open(locate(folder / "kb"), "kb")


def plain_encoding(parts: Parts) -> Encoding:
    return Encoding(load_tower(parts, "entity"), parts.settings, parts.markers.pad, "fp32")


def against_others(parts: Parts, rows: list[dict[str, Any]], figures: Figures) -> float:
    """Ours, sentence-transformers and the pad-to-128 loop, in turns over slices of the same texts; our texts/s."""
    from sentence_transformers import SentenceTransformer

    pieces = parts.texts.entities(rows)
    # The same text for a tokenizer that puts [CLS] and [SEP] itself.
    texts = parts.tokenizer.batch_decode([ids[1:-1] for ids in pieces])
    ours, tower = plain_encoding(parts), load_tower(parts, "entity").eval()
    with contextlib.redirect_stderr(io.StringIO()):
        theirs = SentenceTransformer(parts.folder.path, device="cpu")
    theirs.max_seq_length = 128
    seconds: dict[str, list[float]] = {"ours": [], "sentence-transformers": [], "pad to 128": []}
    cosines = []
    ours.run(*ragged(pieces[:64]))
    theirs.encode(texts[:64])
    for part in np.array_split(np.arange(len(pieces)), 8):
        with timed(seconds["ours"]):
            mine = ours.run(*ragged([pieces[row] for row in part]))
        with timed(seconds["sentence-transformers"]):
            theirs.encode([texts[row] for row in part], batch_size=32, normalize_embeddings=True)
        few = part[: len(part) // 8]
        with timed(seconds["pad to 128"], times=8):
            padded = pad_to_128(tower, [pieces[row] for row in few], parts.markers.pad)
        cosines.append((padded * mine[: len(few)]).sum(1).min())
    print(f"texts of {np.mean([len(ids) for ids in pieces]):.1f} pieces on average", flush=True)
    for name, taken in seconds.items():
        print(f"{name}: {len(pieces) / sum(taken):.0f} texts/s", flush=True)
    ratio = median_ratio(seconds["sentence-transformers"], seconds["ours"])
    figures.at_least("encode_over_sentence_transformers", ratio, 1.15)
    figures.at_least("encode_over_pad_to_128", median_ratio(seconds["pad to 128"], seconds["ours"]), 3.0)
    figures.at_least("encode_min_cosine_to_pad_to_128_x10000", float(min(cosines)) * 10000, 9999.0)
    return len(pieces) / sum(seconds["ours"])


@contextlib.contextmanager
def timed(seconds: list[float], times: int = 1) -> Iterator[None]:
    """Appends what the block takes, `times` over where it does only a part of the work."""
    began = time.perf_counter()
    yield
    seconds.append((time.perf_counter() - began) * times)


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Of pairs that were measured one right after the other: a disturbance of the machine spoils one pair, not all."""
    return float(np.median(np.asarray(slow) / np.asarray(fast)))


def pad_to_128(tower: Any, pieces: list[list[int]], pad: int) -> np.ndarray:
    """The loop of peers: every text padded to 128, 32 at a time, in the order of the KB."""
    vectors = []
    with torch.inference_mode():
        for start in range(0, len(pieces), 32):
            batch = pieces[start : start + 32]
            ids = torch.tensor([row + [pad] * (128 - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (128 - len(row)) for row in batch])
            vectors.append(torch.nn.functional.normalize(tower(ids, mask), dim=1))
    return torch.cat(vectors).numpy()


def peak_flops() -> float:
    """Of this machine's matrix multiply, best of three shapes, now."""
    best = 0.0
    for rows, inner, columns in ((2048, 384, 1536), (2048, 1536, 384), (2048, 2048, 2048)):
        left, right = torch.randn(rows, inner), torch.randn(inner, columns)
        left @ right
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < 0.15:
            left @ right
            count += 1
        best = max(best, 2 * rows * inner * columns * count / (time.perf_counter() - began))
    return best


def utilisation(tower: Any, settings: ModelSettings, pieces: list[list[int]]) -> float:
    """How long real tokens would take at the peak measured right before them, over how long they took."""
    encoding = Encoding(tower, settings, 0, "fp32")
    config = tower.transformer.config
    flat, offsets = ragged(pieces)
    lengths = np.diff(offsets).astype(float)
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    flops = layers * (2 * lengths * (4 * width**2 + 2 * width * inner) + 4 * lengths**2 * width)
    batches = plan_batches(np.diff(offsets), PASS_TOKENS["cpu"])
    random.Random(13).shuffle(batches)
    vectors = np.empty((len(lengths), width), np.float32)
    # In its first seconds the allocator still learns to keep the large blocks, instead of asking the system for each.
    encoding.fill(vectors, flat, offsets, batches)
    at_peak: list[float] = []
    seconds: list[float] = []
    for part in (batches[start::NUM_PARTS] for start in range(NUM_PARTS)):
        at_peak.append(sum(flops[rows].sum() for rows in part) / peak_flops())
        with timed(seconds):
            encoding.fill(vectors, flat, offsets, part)
    return median_ratio(at_peak, seconds)


def bert_base_tower(parts: Parts, num_layers: int) -> Any:
    from transformers import BertConfig, BertModel

    tower = load_tower(parts, "entity")
    tower.transformer = BertModel(BertConfig(num_hidden_layers=num_layers), add_pooling_layer=False)
    return tower


def encode(folder: Path, out: Path, parts: Parts, shard_rows: int, **resources: Any) -> dict[str, Any]:
    given = {"kb": str(folder), "out": str(out), "model": parts.settings, "shard_rows": shard_rows}
    # As all sides here: a CPU that has bf16 would otherwise compute in that.
    given |= {"precision": "fp32", "resources": resources}
    settings = EncodeSettings.model_validate(given)
    with contextlib.redirect_stderr(io.StringIO()):
        return dict(encode_kb(settings).manifest.counts)


@contextlib.contextmanager
def at_work(rows: list[dict[str, Any]], home: Path, parts: Parts, shard_rows: int, **ask: int) -> Iterator[Path]:
    """`encode-kb` of a KB of these rows through Ray, in another thread; where its vectors appear."""
    write_kb(home, rows)
    with ray_session(), ThreadPoolExecutor(1) as thread:
        job = thread.submit(encode, home, home / "vectors", parts, shard_rows, **ask)
        yield home / "vectors"
        job.result()


def times_of(vectors: Path) -> list[float]:
    """When each shard was finished."""
    return sorted(path.stat().st_mtime for path in vectors.glob("vectors-*.npy"))


def wait_for(vectors: Path, num_shards: int) -> None:
    # Looked for seldom: the time is that of the file, and looking takes time of the workers.
    while len(times_of(vectors)) < num_shards:
        time.sleep(0.05)


def worker_pids() -> list[int]:
    """This process's Ray workers that encode."""
    import psutil  # Ray's own, which it puts on the path

    return sorted(child.pid for child in psutil.Process().children(recursive=True) if is_at_work(child))


def is_at_work(process: Any) -> bool:
    title = "".join(process.cmdline())
    return title.startswith("ray::") and ("_Host" in title or "PooledWork" in title)


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """A worker stands still, and what is measured meanwhile has its place."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def through_ray(rows: list[dict[str, Any]], home: Path, parts: Parts, figures: Figures) -> None:
    """In turns: two shards through Ray, then every second text of them in this process while Ray's worker is held."""
    encoding, texts = plain_encoding(parts), parts.texts
    with_ray: list[float] = []
    without: list[float] = []
    began = time.time()
    with at_work(rows, home / "through-ray", parts, SHARD_ROWS, workers=1, cpus=2) as vectors:
        wait_for(vectors, 1)
        first = times_of(vectors)[0] - began
        (worker,) = worker_pids()
        for start in range(SHARD_ROWS, len(rows) - 2 * SHARD_ROWS + 1, 2 * SHARD_ROWS):
            done = times_of(vectors)
            with held(worker):
                before = time.time() - done[-1]
                with timed(without):
                    encoding.run(*ragged(texts.entities(rows[start : start + 2 * SHARD_ROWS : 2])))
                resumed = time.time()
            wait_for(vectors, len(done) + 2)
            with_ray.append((before + times_of(vectors)[len(done) + 1] - resumed) / 2)
    print(f"through Ray: {first:.1f} s until the first shard was done, not counted", flush=True)
    print(f"{SHARD_ROWS:,} texts: {mean(with_ray):.2f} s through Ray, {mean(without):.2f} s without", flush=True)
    print(f"{2 * sum(with_ray):.0f} s of work through Ray", flush=True)
    figures.at_least("encode_through_ray_over_without", median_ratio(without, with_ray), 0.93)


def two_actors(rows: list[dict[str, Any]], home: Path, parts: Parts, figures: Figures) -> None:
    """Two one-thread actors, and one of them while the other is held, in turns: the machine's pace drifts."""
    alone: dict[int, list[tuple[float, float]]] = {}
    with at_work(rows, home / "two-actors", parts, FEW_ROWS, workers=2, cpus=1) as vectors:
        # Actors start seconds apart: by now both are surely at work.
        wait_for(vectors, NUM_BEFORE)
        first, second = worker_pids()
        began = time.time()
        for number in range(NUM_TURNS):
            time.sleep(TURN_SECONDS)
            working, waiting = (first, second) if number % 2 else (second, first)
            since = time.time()
            with held(waiting):
                time.sleep(TURN_SECONDS)
            alone.setdefault(working, []).append((since, time.time()))
        # Receipts are there until the last shard is done.
        shards = sorted(shards_of(vectors))
        if len(times_of(vectors)) >= len(rows) // FEW_ROWS:
            raise RuntimeError("the actors ran out of work before the last turn was over: give them more texts")
    figures.at_least("encode_two_actors_over_one", 2 * pace_beside_over_alone(shards, alone, began), 1.8)


def pace_beside_over_alone(
    shards: Sequence[tuple[float, int, int]], alone: dict[int, list[tuple[float, float]]], began: float
) -> float:
    """How many pieces an actor does in a second beside the other, over how many alone.

    A shard may be begun beside the other and ended alone. So both paces are what fits best to all shards of both
    actors: the pieces of a shard are one pace times its seconds beside the other, and the other times those alone.
    To cut the shards at the turns instead would give part of one pace to the other.
    """
    seconds, pieces = [], []
    last: dict[int, float] = {}
    for finished, worker, count in shards:
        since = last.get(worker, finished)
        last[worker] = finished
        if began <= since < finished:
            times_alone = overlap(alone[worker], since, finished)
            times_held = sum(overlap(turns, since, finished) for other, turns in alone.items() if other != worker)
            seconds.append((finished - since - times_alone - times_held, times_alone))
            pieces.append(count)
    beside, by_itself = np.linalg.lstsq(np.array(seconds), np.array(pieces, float), rcond=None)[0]
    print(f"one-thread actors: {beside:.0f} pieces/s each of two, {by_itself:.0f} alone", flush=True)
    return float(beside / by_itself)


def shards_of(vectors: Path) -> Iterator[tuple[float, int, int]]:
    """When each shard was finished, by which process, and how many pieces were computed for it."""
    for path in vectors.glob("receipt-*.json"):
        receipt = json.loads(path.read_bytes())
        yield path.stat().st_mtime, receipt["worker"]["pid"], receipt["computed"]


def overlap(turns: Sequence[tuple[float, float]], since: float, until: float) -> float:
    return sum(max(min(stop, until) - max(start, since), 0.0) for start, stop in turns)


def memory(home: Path, sizes: tuple[int, int], figures: Figures) -> None:
    """Memory of driver, object store and worker for a small and a large KB, with a tiny encoder."""
    tiny = home / "tiny"
    parts = load_parts(ModelSettings())
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(parts.tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
        max_position_embeddings=128,
    )
    parts.tokenizer.save_pretrained(tiny)
    BertModel(config).save_pretrained(tiny)
    peaks = []
    for size in sizes:
        folder, out = home / f"kb-{size}", home / f"vectors-{size}"
        write_kb(folder, [{"id": f"E{n}", "title": f"entity number {n}"} for n in range(size)])
        flags = ["--encoder", str(tiny), "--entity-length", "16", "--workers", "1", "--cpus", "2"]
        flags += ["--batch-tokens", "8192"]  # so narrow an encoder takes longer to call than to compute
        command = [sys.executable, "-m", "pel_ray", "encode-kb", str(folder), "--out", str(out), *flags]
        before, store = shared_memory_bytes(), 0.0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            store = max(store, shared_memory_bytes() - before)
            time.sleep(0.2)
        manifest = json.loads((out / "manifest.json").read_bytes())
        peaks.append({"driver": manifest["peak_memory_bytes"], "object_store": store})
        shown = ", ".join(f"{name} {value / 2**20:.0f} MiB" for name, value in peaks[-1].items())
        worker = manifest["counts"]["worker peak memory bytes"] / 2**30
        print(f"{size:,} entities: {shown}, worker {worker * 1024:.0f} MiB, all at their peak", flush=True)
    # Torch itself, and a shard.
    figures.at_most(f"encode_worker_gib_at_{sizes[1] // 1000}K_entities", worker, 1.0)
    for name in peaks[0]:
        # Below a megabyte a ratio means nothing.
        few, many = (max(peak[name], 2**20) for peak in peaks)
        figures.at_most(f"encode_{name}_memory_growth_for_{sizes[1] // sizes[0]}x_entities", many / few, 1.10)


def shared_memory_bytes() -> float:
    """Shared memory in use on this machine: the object store lives in it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return float(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no Shmem line")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer texts, and no run of a minute")
    quick = parser.parse_args().quick
    figures = Figures()
    parts = load_parts(ModelSettings())
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        kb = import_kb(home / "some", 4000 if quick else 40_000)
        rows = [row for table in kb.tables() for row in table.to_pylist()]
        rate = against_others(parts, rows[:2000], figures)
        pieces = parts.texts.entities(rows[:1000])
        base = utilisation(bert_base_tower(parts, 2), parts.settings, pieces)
        figures.at_least("encode_utilisation_bert_base_shape", base, 0.75)
        minilm = utilisation(load_tower(parts, "entity"), parts.settings, pieces)
        # Half as wide: bias, GELU, attention and residuals weigh twice as much against the multiplications.
        print(f"utilisation with MiniLM, 384 wide: {minilm:.2f}", flush=True)
        if not quick:
            num_pairs = math.ceil(rate * RAY_SECONDS / (2 * SHARD_ROWS))
            through_ray(rows[: SHARD_ROWS * (1 + 2 * num_pairs)], home, parts, figures)
            memory(home, (20_000, 400_000), figures)
            # For half of the turns one actor stands still; a quarter more, as the pace may rise.
            num_rows = NUM_BEFORE * FEW_ROWS + int(rate * TURN_SECONDS * NUM_TURNS * 1.5 * 1.25)
            two_actors(rows[:num_rows], home, parts, figures)
    figures.finish()


if __name__ == "__main__":
    main()
