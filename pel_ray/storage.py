"""Where files live: a local path or a pyarrow.fs URI (s3://, gs://, file://), behind one small class.

A file appears under its final name only when whole: it is written under a temporary name and renamed. That
holds for buckets too, where closing a stream after an error would otherwise publish a cut-off object.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyarrow import ArrowException, fs

from pel_ray.errors import InputError, StorageError

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://")
TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True)
class Location:
    """A file or folder; `str()` gives what a user would type to name it."""

    filesystem: Any
    path: str
    scheme: str = ""
    """`s3://` and the like; empty for a local path."""

    def __str__(self) -> str:
        return f"{self.scheme}{self.path}" if self.scheme else _shortest(self.path)

    def __truediv__(self, name: str) -> Location:
        return Location(self.filesystem, f"{self.path.rstrip('/')}/{name}", self.scheme)

    @property
    def is_local(self) -> bool:
        return not self.scheme

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> Location:
        return Location(self.filesystem, self.path.rstrip("/").rsplit("/", 1)[0] or "/", self.scheme)

    def info(self) -> Any:
        with storage_errors(self, "read"):
            return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        return self.info().type != fs.FileType.NotFound

    def is_file(self) -> bool:
        return self.info().type == fs.FileType.File

    def is_folder(self) -> bool:
        return self.info().type == fs.FileType.Directory

    def size(self) -> int:
        return int(self.info().size or 0)

    def names(self) -> list[str]:
        """The names directly below this folder, sorted; empty where there is no such folder."""
        with storage_errors(self, "list"):
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.base_name)

    def open_input(self) -> BinaryIO:
        with storage_errors(self, "read"):
            if self.is_local:
                return open(self.path, "rb")
            return self.filesystem.open_input_stream(self.path)

    def read_bytes(self) -> bytes:
        with self.open_input() as stream, storage_errors(self, "read"):
            return stream.read()

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A binary stream; the file appears when the block ends well, and not at all when it fails."""
        temporary = self.parent / f".{self.name}.{uuid.uuid4().hex[:8]}{TEMPORARY_SUFFIX}"
        with storage_errors(self, "write"):
            self.parent.make_folder()
            try:
                with self.filesystem.open_output_stream(temporary.path) as stream:
                    yield stream
                temporary._flush_to_disk()
                self.filesystem.move(temporary.path, self.path)
            except BaseException:
                temporary.delete_file()
                raise

    def write_bytes(self, content: bytes) -> None:
        with self.writing() as stream:
            stream.write(content)

    def make_folder(self) -> None:
        # A bucket has no folders: asking for one would only create an empty object.
        if self.is_local:
            os.makedirs(self.path, exist_ok=True)

    def delete_file(self) -> None:
        with suppress(OSError):
            self.filesystem.delete_file(self.path)

    def delete_folder_if_empty(self) -> None:
        if self.is_local:
            with suppress(OSError):
                os.rmdir(self.path)

    def _flush_to_disk(self) -> None:
        # Without this a power cut after the rename can leave an empty file under the final name.
        if self.is_local:
            with open(self.path, "rb") as written:
                os.fsync(written.fileno())


def locate(where: str | os.PathLike[str]) -> Location:
    """The location a user named; a local path becomes absolute, because workers run elsewhere."""
    text = os.fspath(where)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if not _SCHEME.match(text):
        return Location(fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text)))
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except (ArrowException, OSError) as error:
        raise StorageError(
            f"{text}: {_one_line(error)}. Expected a path, s3://bucket/key or gs://bucket/key"
        ) from error
    return Location(filesystem, path.rstrip("/"), text.split("://", 1)[0] + "://")


def locate_file(where: str | os.PathLike[str]) -> Location:
    """The location of a source file that must be there."""
    location = locate(where)
    if location.is_folder():
        raise InputError(str(location), "is a folder, expected a file")
    if not location.exists():
        raise InputError(str(location), f"no such file{_nearest_name(location)}")
    return location


def _nearest_name(location: Location) -> str:
    near = difflib.get_close_matches(location.name, location.parent.names(), n=1)
    return f"; did you mean {near[0]}?" if near else ""


@contextmanager
def storage_errors(location: Location, action: str) -> Iterator[None]:
    """Turns what the operating system or the bucket says into one line with a remedy."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{location}: cannot {action}: {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk is full. Free some space or choose another folder, then run the same command again"
    if error.errno == errno.EROFS:
        return "the file system is read-only. Choose a folder you can write to"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission denied. Choose a folder you may use, or change its permissions"
    if error.errno == errno.ENOTDIR:
        return "a part of the path is a file, not a folder"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _shortest(path: str) -> str:
    """Relative to the working directory where that is shorter: what the user typed, most of the time."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else path
