"""Reading and writing the Parquet tables of an artefact folder, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pel_ray.arrays import damaged
from pel_ray.artifacts import MANIFEST, Input, Manifest, Work, read_manifest
from pel_ray.errors import ArtifactError, StorageError
from pel_ray.schema import SCHEMAS, Entity, Mention, num_characters, table_of
from pel_ray.statistics import statistics_of
from pel_ray.storage import Location, storage_errors

ROWS_PER_FILE = 500_000
ROWS_PER_GROUP = 16_384
CHARACTERS_PER_GROUP = 32 << 20


def grouped(kind: str, rows: Iterable[Entity | Mention]) -> Iterator[pa.Table]:
    """Rows as tables that are small enough to hold."""
    group: list[Entity | Mention] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += num_characters(row)
        if len(group) == ROWS_PER_GROUP or characters > CHARACTERS_PER_GROUP:
            yield table_of(kind, group)
            group, characters = [], 0
    if group:
        yield table_of(kind, group)


def write_tables(work: Work, tables: Iterable[pa.Table]) -> int:
    """Writes all tables into the folder and its counts into the manifest; returns the number of rows."""
    kind = work.request.kind
    statistics = statistics_of(kind)
    num_rows = num_files = 0
    remaining = iter(tables)
    table = next(remaining, None)
    while table is not None:
        with work.writing(f"part-{num_files:05d}", ".parquet") as stream:
            with pq.ParquetWriter(stream, SCHEMAS[kind], compression="zstd", write_page_checksum=True) as writer:
                num_in_file = 0
                while table is not None and num_in_file < ROWS_PER_FILE:
                    writer.write_table(table)
                    statistics.add(table)
                    num_in_file += table.num_rows
                    table = next(remaining, None)
        num_rows += num_in_file
        num_files += 1
    work.counts |= {"rows": num_rows} | statistics.to_json()
    return num_rows


@dataclass(frozen=True)
class TableFolder:
    """A finished kb/ or mentions/ folder."""

    folder: Location
    manifest: Manifest

    @classmethod
    def open(cls, folder: Location, kind: str) -> TableFolder:
        return cls(folder, read_manifest(folder, kind))

    @property
    def as_input(self) -> Input:
        """How a step that reads this folder names it in its own manifest."""
        return Input(path=self.folder.address, digest=self.manifest.request.fingerprint)

    @property
    def num_rows(self) -> int:
        return int(self.manifest.counts["rows"])

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The row groups in order."""
        for name in sorted(self.manifest.files):
            with self._parquet(name) as parquet:
                for group in range(parquet.num_row_groups):
                    yield parquet.read_row_group(group, columns=columns)

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
        """The rows from `start` up to `stop`, reading only the row groups that hold them."""
        found = []
        for name, group, first, num_rows in self._groups:
            if first < stop and start < first + num_rows:
                with self._parquet(name) as parquet:
                    table = parquet.read_row_group(group, columns=columns)
                begin = max(start - first, 0)
                found.append(table.slice(begin, min(stop - first, num_rows) - begin))
        return pa.concat_tables(found) if found else SCHEMAS[self.manifest.request.kind].empty_table().select(columns)

    @contextmanager
    def _parquet(self, name: str) -> Iterator[pq.ParquetFile]:
        file = self.folder / name
        with storage_errors(file, "read"):
            stream = self.folder.filesystem.open_input_file(file.path)
        try:
            with stream:
                yield pq.ParquetFile(stream, page_checksum_verification=True)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise damaged(file, error) from error
        except OSError as error:
            # Arrow says the same of a page that is damaged and of a bucket that does not answer.
            if error.errno is not None or not file.is_local:
                raise StorageError(f"{file}: cannot read: {error}. If that stays so, make its folder again") from error
            raise damaged(file, error) from error

    @cached_property
    def _groups(self) -> list[tuple[str, int, int, int]]:
        """File, number in the file, first row and number of rows of every row group."""
        groups = []
        first = 0
        for name in sorted(self.manifest.files):
            with self._parquet(name) as parquet:
                metadata = parquet.metadata
                for group in range(metadata.num_row_groups):
                    num_rows = metadata.row_group(group).num_rows
                    groups.append((name, group, first, num_rows))
                    first += num_rows
        return groups

    def head(self, num_rows: int) -> list[dict[str, Any]]:
        for table in self.tables():
            return table.slice(0, num_rows).to_pylist()
        return []


@dataclass(frozen=True)
class DataSet:
    """A KB and mentions that name its entities."""

    kb: TableFolder
    mentions: TableFolder

    @classmethod
    def open(cls, folder: Location) -> DataSet:
        for kind in ("kb", "mentions"):
            if not (folder / kind / MANIFEST).is_file():
                raise ArtifactError(
                    f"{folder} has no {kind}/. Expected a data set folder, as `pel-ray import` makes it"
                )
        return cls(TableFolder.open(folder / "kb", "kb"), TableFolder.open(folder / "mentions", "mentions"))
