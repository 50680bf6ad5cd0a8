"""How a benchmark prints: one line per figure, and exit code 1 if one falls short."""

from __future__ import annotations

import sys


class Figures:
    def __init__(self) -> None:
        self._all_ok = True

    def at_most(self, name: str, value: float, bar: float) -> None:
        self._print(name, value, bar, value <= bar)

    def at_least(self, name: str, value: float, bar: float) -> None:
        self._print(name, value, bar, value >= bar)

    def equals(self, name: str, value: int, bar: int) -> None:
        self._print(name, value, bar, value == bar)

    def _print(self, name: str, value: float, bar: float, is_ok: bool) -> None:
        self._all_ok &= is_ok
        shown = [f"{number:.2f}" if isinstance(number, float) else str(number) for number in (value, bar)]
        print(f"{name} {shown[0]} (bar {shown[1]}) {'ok' if is_ok else 'SHORT'}", flush=True)

    def finish(self) -> None:
        sys.exit(0 if self._all_ok else 1)
