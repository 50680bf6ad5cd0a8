"""What became of everything that was read: kept, or dropped for a reason. Nothing leaves without being counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pel_ray.errors import BadRecord

Built = TypeVar("Built")
OnError = Literal["stop", "skip"]
EXAMPLES_KEPT = 3


class Tally:
    """Counts per subject (`mentions`, `terms`); what was read and not dropped was kept."""

    def __init__(self, on_error: OnError = "stop") -> None:
        self._on_error = on_error
        self._read: Counter[str] = Counter()
        self._dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._notes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._examples: dict[str, list[str]] = {}

    def read(self, subject: str, count: int = 1) -> None:
        self._read[subject] += count

    def drop(self, subject: str, reason: str, count: int = 1) -> None:
        if count:
            self._dropped[subject][reason] += count

    def note(self, subject: str, remark: str, count: int = 1) -> None:
        """Counts something worth knowing about what was kept."""
        self._notes[subject][remark] += count

    def problem(self, subject: str, reason: str, where: str, detail: str) -> None:
        """Stops at bad input, or drops and counts it where the user asked for that with --on-error skip."""
        self._skip_or_raise(subject, BadRecord(where, reason, detail))

    def attempt(self, subject: str, build: Callable[[], Built]) -> Built | None:
        """What `build` makes of a record; nothing where it is bad and bad ones are left out."""
        try:
            return build()
        except BadRecord as error:
            self._skip_or_raise(subject, error)
            return None

    def _skip_or_raise(self, subject: str, error: BadRecord) -> None:
        if self._on_error == "stop":
            raise error
        self.drop(subject, error.reason)
        examples = self._examples.setdefault(subject, [])
        if len(examples) < EXAMPLES_KEPT:
            examples.append(str(error))

    def num_read(self, subject: str) -> int:
        return self._read[subject]

    def kept(self, subject: str) -> int:
        return self._read[subject] - sum(self._dropped[subject].values())

    def to_json(self) -> dict[str, Any]:
        return {
            subject: {
                "read": count,
                "kept": self.kept(subject),
                "dropped": dict(self._dropped[subject]),
                "notes": dict(self._notes[subject]),
                "examples": self._examples.get(subject, []),
            }
            for subject, count in self._read.items()
        }
