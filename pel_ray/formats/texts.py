"""Document texts by id, kept in a file: mentions name documents in any order, and a corpus may outgrow the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from pel_ray.errors import BadRecord, StorageError


class Texts:
    """Put texts in, get them out by id; only the ids and positions are held in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, document_id: str, text: str, where: str) -> None:
        if document_id in self._spans:
            problem = f"document {document_id} stands twice. Ids must be unique"
            raise BadRecord(where, "document stands twice", problem)
        content = text.encode()
        try:
            self._spans[document_id] = (self._file.seek(0, 2), len(content))
            self._file.write(content)
        except OSError as error:
            raise StorageError(
                f"{tempfile.gettempdir()}: cannot write the texts of the documents there: {error.strerror}. "
                "Name a folder with more room in the environment variable TMPDIR"
            ) from error

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
    with tempfile.TemporaryFile(prefix="pel-ray-") as file:
        yield Texts(file)
