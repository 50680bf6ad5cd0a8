"""Small files in a model folder that are chosen after training: they change no weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeVar

from pel_ray.errors import ArtifactError
from pel_ray.storage import Where, locate

Chosen = TypeVar("Chosen")


def read_chosen(model: Where, name: str, kind: type[Chosen], remedy: str) -> Chosen | None:
    """The dataclass that was stored under this name, or nothing."""
    file = locate(model) / name
    if not file.is_file():
        return None
    try:
        return kind(**json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ArtifactError(f"{file} is damaged ({error}). {remedy}") from error


def store_chosen(model: Where, name: str, chosen: Any) -> None:
    (locate(model) / name).write_bytes((json.dumps(asdict(chosen), indent=2) + "\n").encode())
