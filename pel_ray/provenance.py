"""What vectors were made from: their KB and their model, found again and checked."""

from __future__ import annotations

from pathlib import Path

from pel_ray.encoder import ModelSettings, Parts, is_saved_model, load_parts
from pel_ray.errors import ArtifactError, StorageError
from pel_ray.index_files import IndexFolder
from pel_ray.storage import is_uri, locate
from pel_ray.tables import TableFolder
from pel_ray.vectors import VectorFolder


def check_same_kb(vectors: VectorFolder, kb: TableFolder) -> None:
    found = vectors.manifest.request.inputs["kb"]
    if found.digest != kb.manifest.request.fingerprint:
        raise ArtifactError(
            f"{vectors.folder} holds vectors of another KB ({found.path}), or of an older state of {kb.folder}. "
            "Encode this one with encode-kb (--reuse keeps what has not changed)"
        )


def mention_model(vectors: VectorFolder | IndexFolder, encoder: str | None, mention_length: int | None) -> Parts:
    """The model whose mention tower goes with the vectors; another entity tower is refused."""
    parts = load_parts(model_of(vectors, encoder, mention_length))
    found = vectors.manifest.request.inputs["model"]
    if parts.digest("entity") != found.digest:
        raise ArtifactError(
            f"{vectors.folder} was encoded with another model than {parts.folder}: vectors of two models do not "
            "compare. Encode the KB with this one (encode-kb --encoder), or name the model that made them"
        )
    return parts


def model_of(
    vectors: VectorFolder | IndexFolder, encoder: str | None = None, mention_length: int | None = None
) -> ModelSettings:
    """The settings of the model that made the vectors, which may have moved to another folder since."""
    manifest = vectors.manifest.request
    settings = dict(manifest.settings["model"]) | {"encoder": encoder or _where_the_model_is(vectors)}
    if mention_length is not None:
        settings["text"] = settings["text"] | {"mention_length": mention_length}
    elif is_saved_model(settings["encoder"]):
        # A saved model knows its own mention length.
        return ModelSettings(encoder=settings["encoder"])
    return ModelSettings.model_validate(settings)


def _where_the_model_is(vectors: VectorFolder | IndexFolder) -> str:
    """The model that the manifest names; a training run that was moved has it beside its vectors."""
    named = vectors.manifest.request.inputs["model"].path
    beside = vectors.folder.parent / "model"
    if named != beside.address and not _is_gone(named):
        return named
    if not beside.is_folder():
        raise ArtifactError(
            f"{vectors.folder} was made by the model {named}, which is not there. Name the model "
            "(--encoder, --model or --retriever)"
        )
    return beside.uri


def _is_gone(named: str) -> bool:
    # A name that is no path is the hub's, or that of the default encoder.
    if not is_uri(named) and not Path(named).is_absolute():
        return False
    try:
        return not locate(named).is_folder()
    except StorageError:
        # A run that was copied here from a bucket is of use without the bucket.
        return True
