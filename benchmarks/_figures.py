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

    def _print(self, name: str, value: float, bar: float, is_ok: bool) -> None:
        self._all_ok &= is_ok
        print(f"{name} {value:.2f} (bar {bar:.2f}) {'ok' if is_ok else 'SHORT'}", flush=True)

    def finish(self) -> None:
        sys.exit(0 if self._all_ok else 1)
