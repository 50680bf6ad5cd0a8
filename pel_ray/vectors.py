"""Vectors of a KB on disk: a shard of the plan is one `.npy` file of vectors and one table that says whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.arrays import damaged, read_array, write_array
from pel_ray.artifacts import Input, Manifest, read_manifest
from pel_ray.storage import Location
from pel_ray.tokens import TokenShard

ROWS_SCHEMA = pa.schema([("entity_row", pa.int64()), ("entity_id", pa.string()), ("text_hash", pa.uint64())])


@dataclass(frozen=True)
class Shard:
    """A range of entities of the plan, `start` up to `stop`."""

    number: int
    start: int
    stop: int

    @property
    def stem(self) -> str:
        return f"{self.number:05d}"

    def said(self, unit: str) -> str:
        return f"shard {self.stem} ({unit} {self.start:,} to {self.stop - 1:,})"


def plan_shards(num_rows: int, shard_rows: int) -> list[Shard]:
    """Fixed ranges, whatever the number of workers: a rerun finds what an earlier run has finished."""
    starts = range(0, num_rows, shard_rows)
    return [Shard(number, start, min(start + shard_rows, num_rows)) for number, start in enumerate(starts)]


def vector_names(shard: Shard, tag: str) -> tuple[str, str]:
    """The files of a shard: its vectors, and the table that says whose they are."""
    return f"vectors-{shard.stem}-{tag}.npy", f"rows-{shard.stem}-{tag}.arrow"


def write_vectors(folder: Location, shard: Shard, tag: str, tokens: TokenShard, vectors: np.ndarray) -> None:
    """Writes the table first: a shard counts as there when its vectors are."""
    vectors_name, rows_name = vector_names(shard, tag)
    table = pa.table([tokens.entity_rows, tokens.entity_ids, tokens.hashes], schema=ROWS_SCHEMA)
    with (
        (folder / rows_name).writing() as stream,
        pa.ipc.new_file(stream, ROWS_SCHEMA) as writer,
    ):
        writer.write_table(table)
    write_array(folder / vectors_name, vectors)


@dataclass(frozen=True)
class VectorFolder:
    """A finished vectors/ folder."""

    folder: Location
    manifest: Manifest

    @classmethod
    def open(cls, folder: Location) -> VectorFolder:
        """Opens a vectors folder, or the one that a training run has left for its model."""
        if read_manifest(folder).request.kind == "run":
            folder = folder / "vectors"
        return cls(folder, read_manifest(folder, "vectors"))

    @property
    def as_input(self) -> Input:
        return Input(path=self.folder.address, digest=self.manifest.request.fingerprint)

    @property
    def similarity(self) -> str:
        return str(self.manifest.request.settings["model"]["similarity"])

    @property
    def dimension(self) -> int:
        return int(self.vectors(self.stems[0]).shape[1])

    @property
    def stems(self) -> list[str]:
        """`00000-1a2b3c4d` and so on, in the order of the plan."""
        return sorted(name[len("vectors-") : -len(".npy")] for name in self.manifest.files if name.endswith(".npy"))

    def vectors(self, stem: str) -> np.ndarray:
        """The vectors of a shard, mapped into memory where the file is local."""
        return read_array(self.folder / f"vectors-{stem}.npy")

    def rows(self, stem: str) -> pa.Table:
        """`entity_row`, `entity_id` and `text_hash` of every vector of a shard."""
        file = self.folder / f"rows-{stem}.arrow"
        source: Any = pa.memory_map(file.path) if file.is_local else pa.BufferReader(file.read_bytes())
        try:
            with pa.ipc.open_file(source) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise damaged(file, error) from error

    def shards(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        for stem in self.stems:
            yield self.rows(stem), self.vectors(stem)
