"""Entity linking for biomedical text, on a laptop, one GPU or a Ray cluster."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["BiEncoder", "Linker", "ModelSettings", "TextSettings", "load_model"]


def __getattr__(name: str) -> Any:
    """The library's names, imported when first used: they bring torch, and `pel-ray --help` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'pel_ray' has no attribute {name!r}")
    return getattr(importlib.import_module("pel_ray.linker" if name == "Linker" else "pel_ray.encoder"), name)
