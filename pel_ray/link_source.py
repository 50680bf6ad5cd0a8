"""What links are made from: vectors or an index, and the KB and model they belong to, found again and checked."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.artifacts import MANIFEST, Input, read_manifest
from pel_ray.encoder import Parts
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.index_files import IndexFolder
from pel_ray.nil import read_threshold
from pel_ray.provenance import check_same_kb, mention_model
from pel_ray.ranker import RankerParts, open_ranker
from pel_ray.storage import Location, locate
from pel_ray.tables import TableFolder
from pel_ray.vectors import VectorFolder


@dataclass(frozen=True)
class LinkSource:
    """What links are made from, opened and checked: vectors or an index, with the KB and the model they belong to."""

    searched: VectorFolder | IndexFolder
    kb: TableFolder
    parts: Parts
    ranker: RankerParts | None = None
    """Orders the candidates, by scores of its own."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        kb: str | os.PathLike[str] | None = None,
        ranker: str | os.PathLike[str] | None = None,
    ) -> LinkSource:
        """Vectors, a training run or an index; the KB and the model that its manifest names may have moved."""
        searched = _open_searched(locate(folder))
        table = _open_kb(searched, kb)
        parts = mention_model(searched, None if model is None else os.fspath(model), None)
        if ranker is None:
            return cls(searched, table, parts)
        found = open_ranker(os.fspath(ranker))
        found.check_retriever(parts)
        return cls(searched, table, parts, found)

    @property
    def inputs(self) -> dict[str, Input]:
        """How a step that links names what it has used."""
        request = self.searched.manifest.request
        ranker = {"ranker": Input(path=self.ranker.folder.address, digest=self.ranker.digest)} if self.ranker else {}
        return ranker | {
            request.kind: Input(path=str(self.searched.folder), digest=request.fingerprint),
            "kb": self.kb.as_input,
            "model": Input(path=self.parts.folder.address, digest=self.parts.digest("mention")),
        }

    def threshold(self, nil: bool | None, given: float | None = None) -> float | None:
        """The score below which a mention is NIL: the one given, else the one stored; None where no NILs are told."""
        if nil is False and given is not None:
            raise SettingsError(f"threshold is {given}, but no NILs are asked for. Leave one of both out")
        if nil is False or given is not None:
            return given
        # A ranker's scores are none of the retriever's.
        folder = self.ranker.folder if self.ranker else self.parts.folder
        stored = read_threshold(folder)
        if stored is None and nil:
            if not self.ranker and not self.parts.is_saved:
                raise SettingsError(
                    f"{folder} was not saved by pel-ray and keeps no NIL threshold. Give one with --threshold"
                )
            command = f"rank evaluate DATA --ranker {folder}" if self.ranker else "evaluate DATA"
            raise SettingsError(
                f"{folder} has no NIL threshold. Choose one with `pel-ray {command} --vectors "
                f"{self.searched.folder} --split validation --tune-nil --out ...`, or give one with --threshold"
            )
        return stored.threshold if stored else None


def _open_searched(folder: Location) -> VectorFolder | IndexFolder:
    kind = read_manifest(folder).request.kind
    if kind not in ("vectors", "run", "index"):
        raise ArtifactError(f"{folder} holds {kind}, expected vectors, a training run or an index")
    return IndexFolder.open(folder) if kind == "index" else VectorFolder.open(folder)


def _open_kb(searched: VectorFolder | IndexFolder, given: str | os.PathLike[str] | None) -> TableFolder:
    vectors = searched if isinstance(searched, VectorFolder) else _vectors_of(searched)
    if given is None and vectors is None:
        gone = searched.manifest.request.inputs["vectors"].path
        raise ArtifactError(
            f"{searched.folder} was built from {gone}, which is gone or has changed, and so is its KB. "
            "Name the KB (kb, --kb)"
        )
    named = vectors.manifest.request.inputs["kb"].path if vectors is not None else ""
    folder = locate(given or named)
    folder = folder if (folder / MANIFEST).is_file() else folder / "kb"
    if given is None and not (folder / MANIFEST).is_file():
        raise ArtifactError(f"{searched.folder} belongs to the KB {named}, which is not there. Name the KB (kb, --kb)")
    kb = TableFolder.open(folder, "kb")
    if vectors is not None:
        _check_kb(searched, vectors, kb)
    elif isinstance(searched, IndexFolder):
        _check_ids(searched, kb)
    return kb


def _vectors_of(index: IndexFolder) -> VectorFolder | None:
    """The vectors that an index was built from, where they are still there as they were."""
    named = index.manifest.request.inputs["vectors"]
    try:
        vectors = VectorFolder.open(locate(named.path))
    except ArtifactError:
        return None
    return vectors if vectors.manifest.request.fingerprint == named.digest else None


def _check_kb(searched: VectorFolder | IndexFolder, vectors: VectorFolder, kb: TableFolder) -> None:
    if isinstance(searched, VectorFolder):
        check_same_kb(vectors, kb)
    elif vectors.manifest.request.inputs["kb"].digest != kb.manifest.request.fingerprint:
        raise _other_kb(searched, kb)


def _check_ids(index: IndexFolder, kb: TableFolder) -> None:
    """Without its vectors, an index knows its KB by the ids of the entities."""
    slots = index.slots()
    rows = slots["entity_row"]
    if slots.num_rows and pc.max(rows).as_py() >= kb.num_rows:
        raise _other_kb(index, kb)
    if not text_column(kb, "entity_id").take(rows.combine_chunks()).equals(whole_text(slots["entity_id"])):
        raise _other_kb(index, kb)


def _other_kb(index: IndexFolder, kb: TableFolder) -> ArtifactError:
    return ArtifactError(
        f"{index.folder} was not built from the KB {kb.folder}, or from another state of it. Encode this KB and build "
        "an index from its vectors (encode-kb --reuse, index --update), or name the KB of this index"
    )


def text_column(kb: TableFolder, name: str) -> pa.Array:
    """A column of text of the whole KB."""
    chunks = [chunk for table in kb.tables([name]) for chunk in table[name].chunks]
    return whole_text(pa.chunked_array(chunks, pa.string()))


def whole_text(column: pa.ChunkedArray) -> pa.Array:
    # Offsets of 32 bits end at 2 GiB of text.
    return pa.concat_arrays([pa.array([], pa.large_string()), *column.cast(pa.large_string()).chunks])
