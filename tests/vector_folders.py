"""Vectors folders as encode-kb leaves them, from arrays that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pel_ray.artifacts import Input, Request, building
from pel_ray.storage import locate
from pel_ray.vectors import ROWS_SCHEMA, Shard, VectorFolder, vector_names


def write_vector_folder(
    folder: Path,
    vectors: np.ndarray,
    entity_rows: Sequence[int] | None = None,
    *,
    shard_rows: int = 64,
    similarity: str = "dot",
    model_digest: str = "model",
) -> VectorFolder:
    """Vectors in shards of `shard_rows` entities; by default one vector for each entity."""
    rows = np.arange(len(vectors)) if entity_rows is None else np.asarray(entity_rows, np.int64)
    request = Request(
        kind="vectors",
        inputs={"kb": Input("kb", "kb"), "model": Input("model", model_digest)},
        settings={"model": {"similarity": similarity}, "data": float(vectors.sum()), "shard_rows": shard_rows},
    )
    with building(locate(folder), request) as work:
        for number, start in enumerate(range(0, int(rows.max()) + 1, shard_rows)):
            here = (rows >= start) & (rows < start + shard_rows)
            vectors_name, rows_name = vector_names(Shard(number, start, start + shard_rows), work.tag)
            ids, hashes = [f"E{row}" for row in rows[here]], np.arange(len(rows), dtype=np.uint64)[here]
            with (work.folder / rows_name).writing() as stream, pa.ipc.new_file(stream, ROWS_SCHEMA) as writer:
                writer.write_table(pa.table([rows[here], ids, hashes], schema=ROWS_SCHEMA))
            with (work.folder / vectors_name).writing() as stream:
                np.lib.format.write_array(stream, vectors[here])
            work.count(vectors_name)
            work.count(rows_name)
        work.counts["rows"] = len(vectors)
    return VectorFolder.open(locate(folder))
