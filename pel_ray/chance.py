"""Chance that depends on a seed and a name alone: never on the order of rows or the number of workers."""

from __future__ import annotations

import hashlib


def position(seed: int, name: str) -> float:
    """A number in [0, 1), uniform over names."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big") / 2**64
