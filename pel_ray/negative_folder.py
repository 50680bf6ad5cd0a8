"""Hard negatives on disk, as `mine` leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pel_ray.arrays import damaged
from pel_ray.artifacts import Input, Manifest, read_manifest
from pel_ray.storage import Location


@dataclass(frozen=True)
class NegativeFolder:
    """A finished negatives/ folder."""

    folder: Location
    manifest: Manifest

    @classmethod
    def open(cls, folder: Location) -> NegativeFolder:
        return cls(folder, read_manifest(folder, "negatives"))

    @property
    def as_input(self) -> Input:
        return Input(path=str(self.folder), digest=self.manifest.request.fingerprint)

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        for name in sorted(name for name in self.manifest.files if name.endswith(".parquet")):
            file = self.folder / name
            try:
                with self.folder.filesystem.open_input_file(file.path) as stream:
                    parquet = pq.ParquetFile(stream)
                    for group in range(parquet.num_row_groups):
                        yield parquet.read_row_group(group, columns=columns)
            except (pa.ArrowException, OSError) as error:
                raise damaged(file, error) from error

    def pool(self) -> np.ndarray:
        """Rows of all entities that are a negative or a gold here, ascending."""
        rows = [np.zeros(0, np.int64)]
        for table in self.tables(["gold_rows", "entity_rows"]):
            rows += [pc.list_flatten(table[name]).to_numpy() for name in table.column_names]
        return np.unique(np.concatenate(rows))
