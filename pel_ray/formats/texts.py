"""Document texts by id, kept in a file: mentions name documents in any order, and a corpus may outgrow the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from pel_ray.errors import BadRecord, StorageError


class Texts:
    """Put texts in, get them out by id; only the ids and positions are held in memory."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, document_id: str, text: str, where: str) -> None:
        if document_id in self._spans:
            problem = (
                f"document {document_id} occurs twice. Ids must be unique: remove one; --on-error skip keeps the first"
            )
            raise BadRecord(where, "document occurs twice", problem)
        content = memoryview(text.encode())
        try:
            self._spans[document_id] = (self._file.seek(0, 2), len(content))
            while content:
                # On a full disk a part is written before the error.
                content = content[self._file.write(content) :]
        except OSError as error:
            raise _cannot_write(tempfile.gettempdir(), error) from error

    def get(self, document_id: str) -> str | None:
        span = self._spans.get(document_id)
        if span is None:
            return None
        self._file.seek(span[0])
        return self._file.read(span[1]).decode()

    def __len__(self) -> int:
        return len(self._spans)


@contextmanager
def spooled_texts() -> Iterator[Texts]:
    try:
        # Unbuffered: what a full disk refuses is an error when it is added, not when the file is closed.
        file = tempfile.TemporaryFile(prefix="pel-ray-", buffering=0)
    except OSError as error:
        raise _cannot_write("temporary files", error) from error
    with file:
        yield Texts(file)


def _cannot_write(where: str, error: OSError) -> StorageError:
    return StorageError(
        f"{where}: cannot write the texts of the documents there: {error.strerror}. "
        "Name a folder with more room in the environment variable TMPDIR"
    )
