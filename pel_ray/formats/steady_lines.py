"""Lines of a file or a pipe that go on after a bad one, and the bad ones, told and counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pel_ray.errors import BadRecord, InputError
from pel_ray.formats.lines import NO_TEXT, CheckedLine, Lines
from pel_ray.storage import Location
from pel_ray.tally import Built, Tally

MAX_LINE_BYTES = 10_000_000
MAX_UNREADABLE = 20
"""A file that begins with so many lines that cannot be read is no text."""
MAX_TOLD = 20
MAX_MESSAGE = 300


class Problems(Tally):
    """Bad records: the first are told as they come, all are counted, and reading goes on."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        super().__init__("skip")
        self.count = 0
        self.first: list[str] = []
        self._tell = tell

    def add(self, message: str) -> None:
        self.count += 1
        if self.count <= MAX_TOLD:
            short = message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."
            self.first.append(short)
            self._tell(short)

    def problem(self, subject: str, reason: str, where: str, detail: str) -> None:
        self.add(f"{where}: {detail}")

    def attempt(self, subject: str, build: Callable[[], Built]) -> Built | None:
        try:
            return build()
        except BadRecord as error:
            self.add(str(error))
            return None


class StandardInput(Location):
    """What is piped in, or the copy of it at `path` where it is read more than once."""

    def __str__(self) -> str:
        return "stdin"

    def open_input(self) -> BinaryIO:
        if self.path:
            return open(self.path, "rb")
        if sys.stdin is None:
            raise InputError("stdin", "is closed. Name a file, or pipe text in")
        # Unbuffered: a pipe gives what it has, and does not wait until a block is full.
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


class SteadyLines(Lines):
    """Lines of one file, read once; those that cannot be read are told and left out."""

    def __init__(self, file: Location, problems: Problems) -> None:
        super().__init__([file])
        self._problems = problems
        self._rest = self.checked(MAX_LINE_BYTES)
        self._ahead: list[CheckedLine] = []

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for line in self.all():
            if line.fault:
                self._problems.add(line.fault)
            else:
                yield line.number, line.text

    def all(self) -> Iterator[CheckedLine]:
        """Also those that cannot be read."""
        yield from self._ahead
        yield from self._rest

    def first(self) -> str:
        """The first line that is not blank, which `all` gives again; a file without one is no text."""
        for line in self._rest:
            if line.text.strip():
                self._ahead.append(line)
                if not line.fault:
                    return line.text
            if len(self._ahead) == MAX_UNREADABLE:
                break
        if not self._ahead:
            raise InputError(self.name, f"holds blank lines only. {NO_TEXT}")
        problem = self._ahead[0].fault.removeprefix(f"{self.name}:")
        raise InputError(self.name, f"none of its first lines is text: line {problem}")
