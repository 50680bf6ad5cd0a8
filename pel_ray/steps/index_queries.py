"""The mentions that measure an index: a seeded sample of a split, encoded by the model that made the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pel_ray.artifacts import MANIFEST
from pel_ray.encoder import Encoding, load_tower
from pel_ray.errors import SettingsError
from pel_ray.provenance import mention_model
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.vectors import VectorFolder

COLUMNS = ("context_left", "mention", "context_right")


def open_mentions(folder: Location) -> TableFolder:
    """Mentions by their own folder or by that of their data set."""
    return TableFolder.open(folder if (folder / MANIFEST).is_file() else folder / "mentions", "mentions")


def encoded_mentions(
    vectors: VectorFolder, mentions: TableFolder, split: str, num_mentions: int, seed: int
) -> np.ndarray:
    """Vectors (mentions, D) of some mentions of the split, or of all where there are fewer."""
    parts = mention_model(vectors, None, None)
    pieces = parts.texts.mentions(_sampled(mentions, split, num_mentions, seed))
    encoding = Encoding(load_tower(parts, "mention"), parts.settings, parts.markers.pad, "auto")
    return encoding.run_lists(pieces)


def _sampled(mentions: TableFolder, split: str, num_mentions: int, seed: int) -> list[dict[str, Any]]:
    splits = [name for table in mentions.tables(["split"]) for name in table["split"].to_pylist()]
    places = np.flatnonzero(np.array(splits, object) == split)
    if len(places) == 0:
        known = ", ".join(sorted(set(splits))) or "none"
        raise SettingsError(f"--split {split}: {mentions.folder} has no mentions of it. Its splits are: {known}")
    chosen = np.random.default_rng(seed).choice(places, min(num_mentions, len(places)), replace=False)
    chosen.sort()
    rows, first = [], 0
    for table in mentions.tables(COLUMNS):
        here = chosen[(chosen >= first) & (chosen < first + table.num_rows)] - first
        rows += table.take(pa.array(here)).to_pylist()
        first += table.num_rows
    return rows
