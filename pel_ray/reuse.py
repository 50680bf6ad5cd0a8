"""Vectors of an older version of a KB, found again by entity and text.

Shapes: T texts of the new shard, O texts of the old folder.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pel_ray.tokens import TokenShard
from pel_ray.vectors import VectorFolder


@dataclass(frozen=True)
class Reuse:
    """Where each old text's vector lies, sorted by a key of entity id and text hash: 24 bytes a text."""

    folder: VectorFolder
    keys_O: np.ndarray
    shards_O: np.ndarray
    places_O: np.ndarray
    entities: np.ndarray
    """The hashes of the old entity ids, sorted."""

    @classmethod
    def of(cls, folder: VectorFolder) -> Reuse:
        keys, shards, places, ids = [], [], [], []
        for number, stem in enumerate(folder.stems):
            rows = folder.rows(stem)
            hashed = hash_ids(rows["entity_id"])
            keys.append(_keys(hashed, rows["text_hash"].to_numpy()))
            shards.append(np.full(len(hashed), number, np.int32))
            places.append(np.arange(len(hashed), dtype=np.int32))
            ids.append(hashed)
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind="stable")
        return cls(
            folder,
            all_keys[order],
            np.concatenate(shards)[order],
            np.concatenate(places)[order],
            np.unique(np.concatenate(ids)),
        )

    def take(self, tokens: TokenShard, stored: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        """Copies the vectors of unchanged texts into `stored`, byte for byte.

        Returns which texts those are, and how many entities are kept (all their texts are), changed and added.
        """
        hashed_T = hash_ids(tokens.entity_ids)
        keys_T = _keys(hashed_T, tokens.hashes)
        found_T = np.minimum(np.searchsorted(self.keys_O, keys_T), len(self.keys_O) - 1)
        is_old_T = self.keys_O[found_T] == keys_T
        for number in np.unique(self.shards_O[found_T[is_old_T]]):
            here = is_old_T & (self.shards_O[found_T] == number)
            stored[here] = self.folder.vectors(self.folder.stems[number])[self.places_O[found_T[here]]]
        first_T = np.unique(tokens.entity_rows, return_index=True)[1]
        num_unchanged = np.minimum.reduceat(is_old_T, first_T) if len(first_T) else np.zeros(0, bool)
        is_known = np.isin(hashed_T[first_T], self.entities)
        return is_old_T, {
            "kept": int((num_unchanged & is_known).sum()),
            "changed": int((~num_unchanged & is_known).sum()),
            "added": int((~is_known).sum()),
        }


def hash_ids(ids: pa.ChunkedArray) -> np.ndarray:
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids.to_pylist())
    return np.frombuffer(b"".join(digests), np.uint64)


def _keys(ids: np.ndarray, texts: np.ndarray) -> np.ndarray:
    # Rotated, so that the key of (a, b) is not that of (b, a).
    return ids ^ ((texts << np.uint64(17)) | (texts >> np.uint64(47)))
