"""Files and folders of any storage for libraries that know the local disk alone."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pel_ray.storage import BLOCK_BYTES, Location, locate, storage_errors

SCRATCH = "pel-ray-"


@contextmanager
def on_disk(source: Location, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """A path to read a file or folder from; a remote one is fetched, and its copy gone when the block ends.

    Of a remote folder only the files whose names are `wanted` are fetched.
    """
    if source.is_local:
        yield Path(source.path)
        return
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        copy = Path(scratch) / source.name
        if source.is_file():
            _fetch(source, copy)
        else:
            for name in filter(wanted, source.files()):
                _fetch(source / name, copy / name)
        yield copy


def _fetch(file: Location, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with file.open_input() as stream, storage_errors(file, f"fetch to {copy.parent}"), open(copy, "wb") as written:
        shutil.copyfileobj(stream, written, BLOCK_BYTES)


@contextmanager
def from_disk(target: Location, last: str = "") -> Iterator[Path]:
    """A path to write a file or folder to, which takes the place of the target when the block ends well.

    A bucket renames no folders: there a folder is whole once it has the file `last`.
    """
    _sweep(target)
    with storage_errors(target, "write"):
        yield from _renamed(target) if target.is_local else _copied(target, last)


def _copied(target: Location, last: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        made = Path(scratch) / target.name
        yield made
        if made.is_file():
            target.copy_from(locate(made))
            return
        (target / last).delete_file()
        target.delete_folder()
        for name in sorted(locate(made).files(), key=lambda name: name == last):
            (target / name).copy_from(locate(made) / name)


def _renamed(target: Location) -> Iterator[Path]:
    target.parent.make_folder()
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    made = Path(temporary.path)
    try:
        yield made
        if made.is_file():
            temporary.flush_to_disk()
        else:
            target.delete_folder()
        made.rename(target.path)
    except BaseException:
        _delete(temporary)
        raise


def _sweep(target: Location) -> None:
    """Takes away what a killed process has left of the same file or folder."""
    for name in target.parent.names():
        if name.startswith(f".{target.name}.") and name.endswith(".tmp"):
            _delete(target.parent / name)


def _delete(location: Location) -> None:
    if location.is_folder():
        location.delete_folder()
    else:
        location.delete_file()
