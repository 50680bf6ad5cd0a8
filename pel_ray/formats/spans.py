"""Cutting text around a mention, and naming mentions."""

from __future__ import annotations

_SPLIT_NAMES = {
    "trng": "train",
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
}


def cut_left(text: str, limit: int) -> str:
    """The last `limit` characters, less a word that the cut goes through."""
    # text[-0:] would be the whole text.
    tail = text[max(len(text) - limit, 0) :]
    if len(text) <= limit or not tail or text[len(text) - limit - 1].isspace() or tail[0].isspace():
        return tail
    return tail[len(tail.split(maxsplit=1)[0]) :] or tail


def cut_right(text: str, limit: int) -> str:
    """The first `limit` characters, less a word that the cut goes through."""
    head = text[:limit]
    if len(text) <= limit or not head or text[limit].isspace() or head[-1].isspace():
        return head
    return head[: -len(head.rsplit(maxsplit=1)[-1])] or head


def unique_id(wanted: str, used: set[str]) -> str:
    """The wanted id, numbered where it is taken: two annotations may cover one span."""
    name, number = wanted, 1
    while name in used:
        number += 1
        name = f"{wanted}#{number}"
    used.add(name)
    return name


def split_name(name: str) -> str:
    """One name per split whatever the corpus calls it: train, validation, test; others stay as they are."""
    return _SPLIT_NAMES.get(name, name)
