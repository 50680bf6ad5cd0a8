"""Looking into finished folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.vectors import VectorFolder


def rows_of(folder: Path | str, kind: str) -> list[dict[str, Any]]:
    table = TableFolder.open(locate(folder) / kind, kind)
    return [row for group in table.tables() for row in group.to_pylist()]


def by_id(folder: Path | str, kind: str) -> dict[str, dict[str, Any]]:
    key = "entity_id" if kind == "kb" else "mention_id"
    return {row[key]: row for row in rows_of(folder, kind)}


def sources_of(folder: Path | str, kind: str) -> dict[str, Any]:
    """What the closing table says."""
    return dict(TableFolder.open(locate(folder) / kind, kind).manifest.counts["sources"])


def vectors_in(folder: Path) -> np.ndarray:
    found = VectorFolder.open(locate(folder))
    return np.concatenate([found.vectors(stem) for stem in found.stems]).astype(np.float32)


def blocks(guide: str) -> list[tuple[str, str]]:
    """What a guide in docs/guides tells its reader to run, each with its language: sh or python."""
    text = (Path(__file__).parent.parent / "docs" / "guides" / f"{guide}.md").read_text()
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def sh_blocks(guide: str) -> list[str]:
    return [block for language, block in blocks(guide) if language == "sh"]
