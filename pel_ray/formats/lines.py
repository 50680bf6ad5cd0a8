"""Lines of a source file, plain or gzipped, whole or split into parts, local or in a bucket.

A line number and a clear error for everything that makes a file unreadable: empty, cut short, binary, not UTF-8.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from pel_ray.errors import InputError
from pel_ray.storage import Location, storage_errors

BUFFER_BYTES = 1 << 20
START_BYTES = 200
"""Of a line that cannot be read, what is looked at to tell what it was."""
NO_TEXT = "Expected lines of text: name another file, or write or download this one again"
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"\x28\xb5\x2f\xfd": "a zstandard archive",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x7fELF": "a program",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True, slots=True)
class CheckedLine:
    """A line, or the beginning of one that cannot be read, as far as that can be told."""

    number: int
    text: str
    fault: str
    """Where it stands and what is wrong with it; empty for a line that can be read."""


class Lines:
    """Iterates over `(line number, text)`, without line ends; `where(n)` names a line in an error."""

    def __init__(self, parts: Sequence[Location], on_bytes: Callable[[int], None] | None = None) -> None:
        self.name = str(parts[0]) if len(parts) == 1 else f"{parts[0]}..{parts[-1].name}"
        self._parts = parts
        self._on_bytes = on_bytes

    def where(self, number: int) -> str:
        return f"{self.name}:{number}"

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number = 0
        is_blank = True
        with _Parts(self._parts, self._on_bytes) as raw:
            stream = self._text_stream(io.BufferedReader(raw, BUFFER_BYTES))
            try:
                for number, line in enumerate(stream, start=1):
                    text = self._decoded(line, number).rstrip("\r\n")
                    is_blank = is_blank and not text.strip()
                    yield number, text if number > 1 else text.removeprefix("\ufeff")
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise self._broken(number + 1, error) from error
        if is_blank:
            raise InputError(self.name, f"{'holds blank lines only' if number else 'is empty'}. {NO_TEXT}")

    def checked(self, max_bytes: int) -> Iterator[CheckedLine]:
        """Every line, also those that cannot be read or are longer than `max_bytes`, which say so."""
        number = 0
        with _Parts(self._parts, self._on_bytes) as raw:
            stream = self._text_stream(io.BufferedReader(raw, BUFFER_BYTES))
            try:
                while line := stream.readline(max_bytes + 1):
                    number += 1
                    is_cut = len(line) > max_bytes and not line.endswith(b"\n")
                    if is_cut:
                        _skip_line(stream)
                    yield self._checked(line, number, is_cut, max_bytes)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise self._broken(number + 1, error) from error

    def _checked(self, line: bytes, number: int, is_cut: bool, max_bytes: int) -> CheckedLine:
        try:
            if is_cut:
                raise InputError(self.where(number), f"is longer than {max_bytes:,} bytes. Cut it into several")
            text, fault = self._decoded(line, number), ""
        except InputError as error:
            text, fault = line[:START_BYTES].decode(errors="replace"), str(error)
        text = text.rstrip("\r\n")
        return CheckedLine(number, text if number > 1 else text.removeprefix("\ufeff"), fault)

    def _broken(self, number: int, error: Exception) -> InputError:
        state = "cut short" if isinstance(error, EOFError) else f"damaged ({error})"
        return InputError(self.where(number), f"the gzip file is {state}. Download or copy it again")

    def _text_stream(self, buffered: io.BufferedReader[Any]) -> BinaryIO:
        start = buffered.peek(8)[:8]
        if not start:
            raise InputError(self.name, f"is empty. {NO_TEXT}")
        for magic, kind in _FOREIGN.items():
            if start.startswith(magic):
                raise InputError(self.name, f"is {kind}, expected UTF-8 text, plain or gzipped. Convert it first")
        if start.startswith(_GZIP):
            return io.BufferedReader(gzip.GzipFile(fileobj=buffered), BUFFER_BYTES)
        return buffered

    def _decoded(self, line: bytes, number: int) -> str:
        if b"\0" in line:
            problem = "holds a NUL byte: it is binary, expected UTF-8 text, plain or gzipped. Convert it first"
            raise InputError(self.where(number), problem)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                self.where(number),
                f"byte 0x{line[error.start]:02x} at column {error.start + 1} is not UTF-8. "
                "Convert the file first, for example with: iconv -f LATIN1 -t UTF-8",
            ) from error


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(BUFFER_BYTES)) and not rest.endswith(b"\n"):
        pass


class _Parts(io.RawIOBase):
    """The bytes of several files as one stream.

    Joined before decompression, which serves both ways of splitting: a gzip file cut into pieces, and pieces
    gzipped one by one (a gzip stream may have several members).
    """

    def __init__(self, parts: Sequence[Location], on_bytes: Callable[[int], None] | None) -> None:
        self._remaining = list(parts)
        self._stream: BinaryIO | None = None
        self._part = parts[0]
        self._on_bytes = on_bytes or (lambda _: None)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self._stream is None:
                if not self._remaining:
                    return 0
                self._part = self._remaining.pop(0)
                self._stream = self._part.open_input()
            with storage_errors(self._part, "read"):
                content = self._stream.read(len(buffer))
            if content:
                buffer[: len(content)] = content
                self._on_bytes(len(content))
                return len(content)
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        super().close()
