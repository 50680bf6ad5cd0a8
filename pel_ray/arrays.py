"""Arrays as `.npy` files, mapped into memory where they are local."""

from __future__ import annotations

import io

import numpy as np

from pel_ray.errors import ArtifactError
from pel_ray.storage import Location


def write_array(file: Location, array: np.ndarray) -> None:
    with file.writing() as stream:
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        stream.write(content.getbuffer())


def read_array(file: Location) -> np.ndarray:
    try:
        if file.is_local:
            # Private pages and not read-only ones, which torch would warn of; nothing writes to them.
            return np.load(file.path, mmap_mode="c", allow_pickle=False)
        return np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    except ValueError as error:
        raise damaged(file, error) from error


def damaged(file: Location, error: Exception) -> ArtifactError:
    return ArtifactError(f"{file} is damaged ({error}). Make its folder again with --overwrite")
