"""Prints the sizing table of cluster/README.md: computed from the figures below, not measured on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from pel_ray.console import human_bytes
from pel_ray.index_kinds import estimate

ENTITIES = 2_360_000  # UMLS 2017AA as MedMentions uses it
MENTIONS = 120_000  # of MedMentions' training split
PIECES = 21.5  # word pieces of an entity on average, as benchmarks/encode.py has them
MENTION_PIECES = 128
SHARD_ROWS = 8192
LAYERS, WIDTH = 12, 768  # BERT-base
VECTOR_BYTES = WIDTH * 2  # fp16
TOWER_WEIGHTS = 109_500_000  # of which the layers, where the work is:
LAYER_WEIGHTS = 12 * LAYERS * WIDTH**2
NEGATIVES, BATCH = 64, 32
ACTIVATIONS_GIB = 4.40  # simulated by benchmarks/train.py: 64 negatives and FGSM
CORE_SECONDS = 0.112  # of one CPU core for an entity, measured on AVX2

# Assumed, of a V100 with 16 GB: its peaks, and the share of them that such work reaches.
HALF_FLOPS, SINGLE_FLOPS, SHARE = 125e12, 15.7e12, 0.30
NETWORK_BYTES = 1.25e9  # 10 Gbit/s
STORAGE_BYTES = 1e9  # a second, of one NFS server for all workers


def text_flops(pieces: float) -> float:
    """One text through one tower: two for each weight and piece, and attention."""
    return pieces * (2 * LAYER_WEIGHTS + 4 * LAYERS * WIDTH * pieces)


def encode_rate() -> float:
    """Entities a second of one GPU; benchmarks/scale.py simulates a cluster with it."""
    return HALF_FLOPS * SHARE / text_flops(PIECES)


def encode_seconds(workers: int) -> float:
    """The last worker to finish has the most shards."""
    shards = ceil(ENTITIES / SHARD_ROWS)
    return ceil(shards / workers) * SHARD_ROWS / encode_rate()


def step_seconds(workers: int) -> tuple[float, float]:
    """Of one step of training: computing, and exchanging gradients between machines with one GPU each."""
    entities = BATCH * (NEGATIVES + 1)
    # Forward, again for the checkpoints, and backward, which costs two.
    flops = 4 * (entities * text_flops(PIECES) + BATCH * text_flops(MENTION_PIECES))
    gradients = 2 * TOWER_WEIGHTS * 4
    return flops / workers / (HALF_FLOPS * SHARE), 2 * (workers - 1) / workers * gradients / NETWORK_BYTES


def rows() -> Iterator[tuple[str, str, str]]:
    vectors = ENTITIES * VECTOR_BYTES
    yield "vectors on disk, fp16", "2.36M x 768 x 2 B", human_bytes(vectors)
    yield "word pieces on disk", "2.36M x (21.5 x 4 + 40) B", human_bytes(ENTITIES * (PIECES * 4 + 40))
    yield "shards", "2.36M / 8,192", f"{ceil(ENTITIES / SHARD_ROWS):,}"
    yield "encode: work", f"2.36M x {text_flops(PIECES) / 1e9:.2f} GFLOP", f"{ENTITIES * text_flops(PIECES):.2e} FLOP"
    core_hours = ENTITIES * CORE_SECONDS / 3600
    yield "encode: CPU cores", "2.36M x 0.112 s of a core", f"{core_hours:.0f} core hours"
    for workers in (1, 8, 64):
        each = ceil(ceil(ENTITIES / SHARD_ROWS) / workers)
        name = f"encode: {workers} GPU{'s' if workers > 1 else ''}"
        yield name, f"{each} shards each at 30% of 125 TFLOP/s", _duration(encode_seconds(workers))
    search = 2 * ENTITIES * WIDTH * MENTIONS / (SINGLE_FLOPS * SHARE)
    yield "mine: exact search, 1 GPU", "2 x 2.36M x 768 x 120K at 30% of 15.7 TFLOP/s", _duration(search)
    for kind in ("flat", "hnsw", "pq"):
        yield (
            f"index: {kind}, in memory",
            "`pel-ray index --plan`",
            human_bytes(estimate(kind, ENTITIES, WIDTH).index_bytes),
        )
    weights = 2 * TOWER_WEIGHTS * 16
    yield "train: weights, gradients, AdamW", "2 x 109.5M x (4 + 4 + 8) B", human_bytes(weights)
    total = weights + ACTIVATIONS_GIB * (1 << 30)
    yield "train: GPU memory, with FGSM", "the above + 4.40 GiB of activations (simulated)", human_bytes(total)
    for workers in (1, 8):
        computing, exchanging = step_seconds(workers)
        steps = MENTIONS / BATCH
        name = f"train: an epoch without FGSM, {workers} GPU{'s, one a machine' if workers > 1 else ''}"
        how = f"3,750 steps x ({computing:.2f} s + {exchanging:.2f} s of 10 Gbit/s network)"
        yield name, how, _duration(steps * (computing + exchanging))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def table() -> str:
    lines = ["| what | arithmetic | result |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {how} | {result} |" for what, how, result in rows())])


if __name__ == "__main__":
    print(table())
