"""Document texts by id, kept in a file: mentions name documents in any order, and a corpus may outgrow the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class Texts:
    """Put texts in, get them out by id; only the ids and positions are held in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, document_id: str, text: str) -> None:
        content = text.encode()
        self._spans[document_id] = (self._file.seek(0, 2), len(content))
        self._file.write(content)

    def get(self, document_id: str) -> str | None:
        span = self._spans.get(document_id)
        if span is None:
            return None
        self._file.seek(span[0])
        return self._file.read(span[1]).decode()

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._spans

    def __len__(self) -> int:
        return len(self._spans)


@contextmanager
def spooled_texts() -> Iterator[Texts]:
    with tempfile.TemporaryFile(prefix="pel-ray-") as file:
        yield Texts(file)
