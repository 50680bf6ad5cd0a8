"""Mentions as benchmarks take them."""

from __future__ import annotations

from typing import Any


def in_its_sentence(mention: dict[str, Any]) -> dict[str, Any]:
    """The same mention without the sentences before and after its own."""
    left, right = mention["context_left"], mention["context_right"]
    end = right.find(". ")
    return mention | {
        "context_left": left[left.rfind(". ") + 2 if ". " in left else 0 :],
        "context_right": right[: end + 1 or None],
    }
