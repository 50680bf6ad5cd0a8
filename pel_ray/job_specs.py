"""The spec files that go to a cluster with a command, which finds them there under the same names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pel_ray.errors import InputError
from pel_ray.spec import spec_files


def relative_to_here(name: str) -> str:
    """A spec below the working directory as a path from there, which holds on a cluster too; any other as it is."""
    if "://" in name:
        return name
    inside = os.path.relpath(name)
    return name if _is_outside(inside) else inside


def files_to_send(names: Sequence[str]) -> list[str]:
    """All files below the working directory that these specs are made of, each once.

    What is named by a URI or an absolute path is on storage of the cluster, with what it extends.
    """
    here = [name for name in names if "://" not in name and not os.path.isabs(name)]
    files = [os.path.relpath(file) for name in here for file in spec_files(name)]
    for file in files:
        if _is_outside(file):
            raise InputError(
                file,
                "is outside of the working directory, whose specs go to the cluster. Submit from a folder above it",
            )
    return list(dict.fromkeys(files))


def _is_outside(path: str) -> bool:
    return path.split(os.sep, 1)[0] == os.pardir
