"""Kinds of FAISS index: what each one needs, which one fits a KB and its memory, and what a search can be told."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pel_ray.console import human_bytes
from pel_ray.errors import MissingPackage, SettingsError

KINDS = ("flat", "hnsw", "pq", "ivf", "ivf_fp16", "ivf_sq8")
FLAT_BELOW = 50_000
"""Vectors that exact search gets through quickly enough for a linker that answers one mention at a time."""
BLOCK_ROWS = 16_384
HNSW_EFFORT = 200
"""efConstruction. On 65K WordNet entities a search must look twice as far (efSearch) for the same recall with 80."""
SAMPLE_PER_LIST = 64
LEAST_PER_LIST = 39
"""With fewer training vectors to a list FAISS warns."""
LIST_GROWTH = 1.5
"""Inverted lists grow by doubling: while they are filled, they take half as much again (measured on 200K x 384)."""
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_MAX_EF, _MAX_REFINED = 4096, 64


def load_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingPackage(
            "an index needs FAISS. Run: pip install 'pel-ray[cpu]', or 'pel-ray[gpu]' with a CUDA GPU"
        ) from error
    return faiss


def parse_memory(text: str) -> int:
    """Bytes of `4G`, `512M`, `1.5GiB`, `800000`."""
    found = _MEMORY.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise ValueError("expected a number of bytes with K, M, G or T, as in 4G or 512M")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def available_memory() -> int:
    """What this machine, or the container this runs in, has left."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").is_file() else ():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _container_memory())
    return _container_memory()


def _container_memory() -> int:
    try:
        folder = Path("/sys/fs/cgroup")
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62


def factory_of(kind: str, num_vectors: int, dimension: int) -> str:
    """FAISS' factory string for a named kind; any other text is taken for such a string itself."""
    lists = max(1, min(round(4 * math.sqrt(num_vectors)), num_vectors // LEAST_PER_LIST))
    pieces = dimension // 2 if dimension % 2 == 0 else dimension
    named = {
        "flat": "Flat",
        # Vectors are fp16 on disk: to keep them so costs nothing, halves the memory and is quicker to search.
        "hnsw": "HNSW32,SQfp16",
        # Four bits for two dimensions find candidates, the whole vectors put them in order.
        "pq": f"IVF{lists},PQ{pieces}x4fs,Refine(SQfp16)",
        "ivf": f"IVF{lists},Flat",
        "ivf_fp16": f"IVF{lists},SQfp16",
        "ivf_sq8": f"IVF{lists},SQ8",
    }
    return named.get(kind, kind)


def new_index(factory: str, dimension: int, seed: int = 0) -> Any:
    """An empty index by inner product that takes ids."""
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        if not any(isinstance(part, (faiss.IndexIVF, faiss.IndexIDMap)) for part in _outer_parts(index)):
            index = faiss.index_factory(dimension, f"IDMap,{factory}", faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise SettingsError(
            f"--kind {factory}: FAISS cannot make it for inner product of {dimension} dimensions "
            f"({reason(error)}). Expected auto, {', '.join(KINDS)} or a factory string such as IVF1024,SQ8"
        ) from error
    for part in parts_of(index):
        if isinstance(part, faiss.IndexIVF):
            part.cp.seed = seed
        if hasattr(part, "hnsw"):
            part.hnsw.efConstruction = HNSW_EFFORT
    return index


def parts_of(index: Any) -> Iterator[Any]:
    """The index and those that it is made of."""
    index = load_faiss().downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage"):
        inner = getattr(index, name, None)
        if inner is not None:
            yield from parts_of(inner)


def _outer_parts(index: Any) -> Iterator[Any]:
    """The index itself, and what is under transformations of its vectors: those that see the ids."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    yield index
    if isinstance(index, faiss.IndexPreTransform):
        yield from _outer_parts(index.index)


def flat_part(index: Any) -> Any:
    """The plain vectors of an exact index; None where the index is another."""
    faiss = load_faiss()
    inner = faiss.downcast_index(getattr(faiss.downcast_index(index), "index", index))
    return inner if isinstance(inner, faiss.IndexFlat) else None


def num_lists(index: Any) -> int:
    return max((part.nlist for part in parts_of(index) if hasattr(part, "nlist")), default=0)


def sample_rows(index: Any) -> int:
    """How many vectors to train on; 0 where there is nothing to learn."""
    return 0 if index.is_trained else max(SAMPLE_PER_LIST * num_lists(index), 20_000)


def search_parameters(index: Any) -> dict[str, tuple[int, int]]:
    """What a search can be told, with the least and the most of it that make sense."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts_of(index):
        if hasattr(part, "nprobe"):
            found["nprobe"] = (1, part.nlist)
        if hasattr(part, "hnsw"):
            found["efSearch"] = (16, _MAX_EF)
        if hasattr(part, "k_factor"):
            found["k_factor_rf"] = (1, _MAX_REFINED)
    return found


@dataclass(frozen=True)
class Estimate:
    """What a kind needs for one shard, known before it is built."""

    kind: str
    factory: str
    index_bytes: int
    """Of the finished index, in memory as on disk."""
    build_bytes: int
    """At the most while it is built."""

    def __str__(self) -> str:
        return f"{self.kind} {human_bytes(self.build_bytes)}"


def estimate(kind: str, num_vectors: int, dimension: int) -> Estimate:
    """Read off an empty index of that kind, so it holds for any factory string."""
    factory = factory_of(kind, num_vectors, dimension)
    index = new_index(factory, dimension)
    each = growing = 0
    for part in parts_of(index):
        if hasattr(part, "nlist"):
            growing += part.code_size + 8
        elif hasattr(part, "hnsw"):
            growing += 4 * part.hnsw.nb_neighbors(0) + 16
        else:
            each += getattr(part, "code_size", 8 if hasattr(part, "id_map") else 0)
    lists = 4 * dimension * num_lists(index)
    sample = 4 * dimension * min(sample_rows(index), num_vectors)
    blocks = 4 * dimension * min(BLOCK_ROWS, num_vectors)
    # In any kind, beside the index: the slot of a vector, and its entity row.
    filled = num_vectors * (each + LIST_GROWTH * growing + 16) + blocks
    return Estimate(
        kind,
        factory,
        index_bytes=round(num_vectors * (each + growing) + lists),
        build_bytes=round(lists + max(filled, sample)),
    )


def choose(kind: str, num_vectors: int, dimension: int, similarity: str, memory: int) -> Estimate:
    """The kind to build for so many vectors: the one asked for, or with `auto` the first that suits and fits."""
    if kind != "auto":
        asked = estimate(kind, num_vectors, dimension)
        if asked.build_bytes <= memory:
            return asked
        raise SettingsError(
            _does_not_fit(f"{kind} needs {human_bytes(asked.build_bytes)}", num_vectors, dimension, memory)
        )
    # HNSW finds its way by distance, which inner products of vectors of any length are not.
    order = ["flat"] if num_vectors < FLAT_BELOW else ["hnsw"] if similarity == "cosine" else []
    for candidate in (*order, "pq", "ivf_sq8"):
        found = estimate(candidate, num_vectors, dimension)
        if found.build_bytes <= memory:
            return found
    raise SettingsError(_does_not_fit("no kind does", num_vectors, dimension, memory))


def _does_not_fit(problem: str, num_vectors: int, dimension: int, memory: int) -> str:
    estimates = [estimate(kind, num_vectors, dimension) for kind in KINDS]
    fitting = [str(each) for each in estimates if each.build_bytes <= memory]
    what = f"{num_vectors:,} vectors of {dimension} dimensions do not fit --memory of {human_bytes(memory)}: {problem}"
    if fitting:
        return f"{what}. These would: {', '.join(fitting)}"
    num_shards = math.ceil(min(each.build_bytes for each in estimates) / memory)
    return (
        f"{what}. Needed: {', '.join(map(str, estimates))}. Give it more, or cut it into "
        f"{num_shards} or more --shards, one for each machine"
    )


def reason(error: RuntimeError) -> str:
    """What FAISS says, without where in its source it says so."""
    return " ".join(str(error).rsplit("Error: ", 1)[-1].split())[-120:]
