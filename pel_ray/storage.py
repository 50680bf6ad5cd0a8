"""Where files live: a local path or a pyarrow.fs URI (s3://, gs://, file://), behind one small class.

A file appears under its final name only when whole: it is written under a temporary name and renamed. That
holds for buckets too, where closing a stream after an error would otherwise publish a cut-off object.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from pyarrow import ArrowException, fs

from pel_ray.errors import InputError, StorageError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_BUCKETS = ("s3://", "gs://", "gcs://")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_PLAIN = "/:@!$&'()*+,;=~"
"""Characters of a path that stand for themselves in a URI."""
BLOCK_BYTES = 8 << 20
LARGEST_COPY = 5 << 30
"""Bytes that S3 copies or renames by itself."""


@dataclass(frozen=True)
class Location:
    """A file or folder; `str()` gives what a user would type to name it."""

    filesystem: Any = field(hash=False)
    path: str
    scheme: str = ""
    """`s3://` and the like; empty for a local path."""
    query: str = ""
    """`?region=...&endpoint_override=...` as it was given; empty where there was none."""
    credentials: str = field(default="", repr=False)
    """`key:secret@` as it was given."""

    def __str__(self) -> str:
        return self.address if self.scheme else _shortest(self.path)

    def __truediv__(self, name: str) -> Location:
        return replace(self, path=f"{self.path.rstrip('/')}/{name}")

    @property
    def is_local(self) -> bool:
        return not self.scheme

    @property
    def address(self) -> str:
        """What names it from any directory, for manifests; `str()` is for people."""
        return f"{self.scheme}{quote(self.path, _PLAIN)}{self.query}" if self.scheme else self.path

    @property
    def uri(self) -> str:
        """The address with the credentials that it was given with, for settings that go to other processes."""
        return self.address.replace("://", f"://{self.credentials}", 1) if self.scheme else self.path

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> Location:
        return replace(self, path=self.path.rstrip("/").rsplit("/", 1)[0] or "/")

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
            if self.is_local:
                found = os.listdir(self.path) if os.path.isdir(self.path) else []
                # A name that is no text cannot be one that pel-ray wrote or reads.
                return sorted(name for name in found if not _has_surrogates(name))
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.base_name)

    def files(self) -> dict[str, Any]:
        """All files below this folder in order, by their path from here, with size and time of their last change."""
        with storage_errors(self, "list"):
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True, recursive=True))
        start = len(self.path.rstrip("/")) + 1
        found = {info.path[start:]: info for info in infos if info.type == fs.FileType.File}
        return dict(sorted(found.items(), key=lambda item: item[0].split("/")))

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Of those files below this folder that are there."""
        if self.is_local:
            found = {name: (self / name).info() for name in names}
            return {name: info.size for name, info in found.items() if info.type == fs.FileType.File}
        # A bucket lists a thousand files in the time in which it tells the size of one.
        listed = self.files()
        return {name: listed[name].size for name in names if name in listed}

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
        temporary = self.parent / f".{self.name}.{uuid.uuid4().hex[:8]}.tmp"
        with storage_errors(self, "write"):
            self.parent.make_folder()
            try:
                with self.filesystem.open_output_stream(temporary.path) as stream:
                    yield stream
                    is_large = not self.is_local and stream.tell() > LARGEST_COPY
                temporary.flush_to_disk()
                if is_large:
                    self._stream_from(temporary)
                    temporary.delete_file()
                else:
                    self.filesystem.move(temporary.path, self.path)
            except BaseException:
                temporary.delete_file()
                raise

    def write_bytes(self, content: bytes) -> None:
        with self.writing() as stream:
            stream.write(content)

    def copy_from(self, source: Location) -> None:
        """The bytes of another file, from this storage or another one; whole or not at all."""
        if not self.is_local and source.filesystem == self.filesystem and source.size() <= LARGEST_COPY:
            with storage_errors(self, "write"):
                self.filesystem.copy_file(source.path, self.path)
            return
        with source.open_input() as stream, self.writing() as copy:
            shutil.copyfileobj(stream, copy, BLOCK_BYTES)

    def _stream_from(self, source: Location) -> None:
        """A copy of what the storage would not copy by itself."""
        try:
            with source.open_input() as stream, self.filesystem.open_output_stream(self.path) as copy:
                shutil.copyfileobj(stream, copy, BLOCK_BYTES)
        except BaseException:
            # Closing the stream has published what came before the error.
            self.delete_file()
            raise

    def make_folder(self) -> None:
        # A bucket has no folders: asking for one would only create an empty object.
        if self.is_local:
            os.makedirs(self.path, exist_ok=True)

    def delete_file(self) -> None:
        with suppress(OSError):
            self.filesystem.delete_file(self.path)

    def delete_folder(self) -> None:
        """With all that is in it; nothing where there is no such folder."""
        with storage_errors(self, "delete"), suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path)

    def delete_folder_if_empty(self) -> None:
        if self.is_local:
            with suppress(OSError):
                os.rmdir(self.path)

    def flush_to_disk(self) -> None:
        # Without this a power cut after the rename can leave an empty file under the final name.
        if self.is_local:
            with open(self.path, "rb") as written:
                os.fsync(written.fileno())


Where = str | os.PathLike[str] | Location


def locate(where: Where) -> Location:
    """The location a user named; a local path becomes absolute, because workers run elsewhere."""
    if isinstance(where, Location):
        return where
    text = os.fspath(where)
    if "\0" in text or _has_surrogates(text):
        raise StorageError(f"{text!r} is no path: expected UTF-8 text without NUL")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _locate_local(os.path.expanduser(text))
    name = scheme[0].lower()
    if name == "file://":
        host, _, path = text[len(name) :].partition("/")
        if host not in ("", "localhost"):
            raise StorageError(f"{text}: expected file:///path; {host!r} is another host")
        return _locate_local(f"/{unquote(path)}")
    if name in _BUCKETS and not re.split("[/?]", text[len(name) :])[0].rpartition("@")[2]:
        raise StorageError(f"{without_credentials(text)}: names no bucket, expected {name}bucket/key. Put its name in")
    try:
        filesystem, path = fs.FileSystem.from_uri(_with_time_limit(name + text[len(name) :]))
    except (ArrowException, OSError, ValueError) as error:
        raise StorageError(
            f"{without_credentials(text)}: cannot be opened: {_one_line(error)}. "
            "Check the name (s3://bucket/key, gs://bucket/key), credentials, region and network"
        ) from error
    credentials, at, _ = text[len(name) :].partition("/")[0].rpartition("@")
    _, question, query = text.partition("?")
    return Location(filesystem, path.rstrip("/"), name, question + query, credentials + at)


def is_uri(text: str) -> bool:
    """Whether it is `s3://...` and the like, and no path."""
    return _SCHEME.match(text) is not None


def join(where: str, name: str) -> str:
    """What a user would type for `name` below `where`, which may be a URI with a query."""
    head, question, query = where.partition("?") if is_uri(where) else (where, "", "")
    return f"{head.rstrip('/')}/{name}{question}{query}"


def without_credentials(text: str) -> str:
    """Hides `key:secret@` in URIs."""
    return _CREDENTIALS.sub("://***@", text)


def _with_time_limit(uri: str) -> str:
    """Google's client tries for 15 minutes by default, in silence."""
    if not uri.startswith(("gs://", "gcs://")) or "retry_limit_seconds" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}retry_limit_seconds=20"


def _locate_local(path: str) -> Location:
    try:
        return Location(fs.LocalFileSystem(), os.path.abspath(path))
    except FileNotFoundError as error:
        raise StorageError(f"{path}: the working directory is gone. Change to another one") from error


def locate_file(where: str | os.PathLike[str]) -> Location:
    """The location of a source file that must be there."""
    location = locate(where)
    kind = location.info().type
    if kind == fs.FileType.NotFound:
        raise InputError(str(location), f"no such file{_nearest_name(location)}")
    if kind != fs.FileType.File:
        what = "a folder" if kind == fs.FileType.Directory else "a pipe or device, which cannot be read twice"
        raise InputError(str(location), f"is {what}. Expected a file")
    return location


def locate_folder(where: str | os.PathLike[str]) -> Location:
    """The location of a folder of sources that must be there."""
    location = locate(where)
    if not location.is_folder():
        problem = "is a file, expected a folder" if location.exists() else f"no such folder{_nearest_name(location)}"
        raise InputError(str(location), problem)
    return location


def _has_surrogates(text: str) -> bool:
    """Bytes of a file name that are not UTF-8 reach Python as lone surrogates."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


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
    except ArrowException as error:
        # While writing, an Arrow error is about our own rows: a bug, which keeps its traceback.
        if action == "write":
            raise
        raise StorageError(f"{location}: cannot {action}: {_one_line(error)}") from error


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
    try:
        relative = os.path.relpath(path)
    except FileNotFoundError:
        return path
    return relative if not relative.startswith("..") else path
