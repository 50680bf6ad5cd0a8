"""Programs of this project that are no part of the package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parent.parent


def script_at(path: str) -> ModuleType:
    """Of the file at this path below the top of the project."""
    file = HOME / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    # Where a dataclass looks for the names in its annotations.
    sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
