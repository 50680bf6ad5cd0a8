"""The files of an index/ folder: FAISS indexes over slots, and the table that says whose vectors the slots are.

A slot is the number a vector has in the index, and keeps from one update to the next while entity rows move.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pel_ray.artifacts import Manifest, Work, read_manifest
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.index_kinds import load_faiss
from pel_ray.storage import Location, storage_errors

SLOTS_SCHEMA = pa.schema(
    [
        ("slot", pa.int64()),
        ("shard", pa.int32()),
        ("entity_row", pa.int64()),
        ("entity_id", pa.string()),
        ("text_hash", pa.uint64()),
    ]
)
FILE_BLOCK = 4 << 20


@dataclass(frozen=True)
class IndexFolder:
    """The files of a finished index, each checked against its checksum when it is read."""

    folder: Location
    manifest: Manifest

    @classmethod
    def open(cls, folder: Location) -> IndexFolder:
        return cls(folder, read_manifest(folder, "index"))

    def check_model(self, digest: str, similarity: str) -> None:
        """Refuses queries or vectors that do not compare with those in the index."""
        found = self.manifest.request
        if found.settings["model"]["similarity"] != similarity:
            raise ArtifactError(
                f"{self.folder} is a {found.settings['model']['similarity']} index, these are {similarity} vectors. "
                "Build an index from these vectors"
            )
        if found.inputs["model"].digest != digest:
            raise ArtifactError(
                f"{self.folder} holds vectors of another model ({found.inputs['model'].path}). "
                "Vectors of two models do not compare: build an index from vectors of this one"
            )

    @property
    def shard_names(self) -> list[str]:
        return sorted(name for name in self.manifest.files if name.endswith(".faiss"))

    def shard(self, number: int) -> Any:
        """The FAISS index, told to search as it was when its recall was measured."""
        names = self.shard_names
        if not 0 <= number < len(names):
            raise SettingsError(f"{self.folder} has {len(names)} shards, numbered from 0; asked for {number}")
        index = read_faiss(self.folder / names[number], self._checksum(names[number]))
        set_parameters(index, self.manifest.counts["search parameters"])
        return index

    def slots(self) -> pa.Table:
        name = next(name for name in self.manifest.files if name.endswith(".arrow"))
        file = self.folder / name
        content = file.read_bytes()
        if hashlib.blake2b(content, digest_size=8).hexdigest() != self._checksum(name):
            raise _damaged(file, "its checksum does not fit")
        with pa.ipc.open_file(pa.BufferReader(content)) as reader:
            return reader.read_all()

    def _checksum(self, name: str) -> str:
        return dict(zip(sorted(self.manifest.files), self.manifest.counts["checksums"], strict=True))[name]


def set_parameters(index: Any, parameters: str) -> None:
    """`nprobe=16,k_factor_rf=4` and the like; nothing for an index that has none."""
    if parameters:
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)


def write_faiss(work: Work, number: int, index: Any) -> tuple[str, str]:
    """Streams an index into the folder, to a bucket as well as to a disk; returns its name and checksum."""
    faiss = load_faiss()
    digest = hashlib.blake2b(digest_size=8)
    stem = f"index-{number:05d}"
    with work.writing(stem, ".faiss") as stream:

        def write(block: bytes) -> None:
            digest.update(block)
            stream.write(block)

        faiss.write_index(index, faiss.PyCallbackIOWriter(write, FILE_BLOCK))
    return work.name(stem, ".faiss"), digest.hexdigest()


def write_slots(work: Work, slots: pa.Table) -> tuple[str, str]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SLOTS_SCHEMA) as writer:
        writer.write_table(slots)
    content = sink.getvalue()
    with work.writing("slots", ".arrow") as stream:
        stream.write(content)
    return work.name("slots", ".arrow"), hashlib.blake2b(content, digest_size=8).hexdigest()


def read_faiss(file: Location, checksum: str) -> Any:
    """Only once its checksum fits: FAISS trusts the lengths that it reads, whatever they are."""
    faiss = load_faiss()
    with _local_copy(file, checksum) as path:
        try:
            return faiss.read_index(path)
        except RuntimeError as error:
            raise _damaged(file, f"FAISS {faiss.__version__} cannot read it: {error}") from error


@contextmanager
def _local_copy(file: Location, checksum: str) -> Iterator[str]:
    """The path of a file whose content is what it was when written; a remote one is fetched."""
    digest = hashlib.blake2b(digest_size=8)
    with tempfile.NamedTemporaryFile(suffix=".faiss") as copy:
        with file.open_input() as stream, storage_errors(file, "read"):
            while block := stream.read(FILE_BLOCK):
                digest.update(block)
                if not file.is_local:
                    copy.write(block)
        if digest.hexdigest() != checksum:
            raise _damaged(file, "its checksum does not fit")
        copy.flush()
        yield file.path if file.is_local else os.fspath(copy.name)


def _damaged(file: Location, problem: str) -> ArtifactError:
    return ArtifactError(f"{file} is damaged ({' '.join(problem.split())}). Build the index again with --overwrite")
