"""show: what a folder holds, readable in a terminal."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from pel_ray import console
from pel_ray.artifacts import MANIFEST, UNFINISHED, read_manifest
from pel_ray.storage import Location, locate
from pel_ray.tables import TableFolder

TABLE_KINDS = ("kb", "mentions")
CELL_WIDTH = 300
CONTEXT_WIDTH = 120


def show_folder(where: str, num_rows: int, *, manifest: bool = True) -> None:
    """Prints an artefact folder, or all artefacts directly below a folder."""
    folder = locate(where)
    if (folder / MANIFEST).is_file():
        found = [folder]
    else:
        found = [folder / name for name in folder.names() if (folder / name / MANIFEST).is_file()]
    unfinished = [name for name in folder.names() if (folder / name / UNFINISHED).is_file()]
    if not found:
        read_manifest(folder / unfinished[0] if unfinished else folder)
    for location in found:
        _show_one(location, num_rows, manifest)
    for name in unfinished:
        console.heading(f"{folder / name} is unfinished: run the command that was making it again")
    show_coverage(folder)


def _show_one(folder: Location, num_rows: int, with_manifest: bool) -> None:
    manifest = read_manifest(folder)
    kind = manifest.request.kind
    console.heading(f"{folder} ({kind}, {manifest.counts.get('rows', 0):,} rows)")
    if with_manifest:
        console.show_manifest(manifest)
        console.say()
    if kind == "kb":
        console.show_table(("", ""), manifest.counts["kb"].items())
    elif kind == "mentions":
        console.show_splits(manifest.counts["splits"])
    else:
        console.show_counts(manifest.counts)
    if kind in TABLE_KINDS:
        for row in TableFolder(folder, manifest).head(num_rows):
            console.say()
            console.show_table(("", ""), _readable(row, kind), num_text_columns=2)


def _readable(row: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    if kind == "mentions":
        left, mention, right = (row.pop(name) for name in ("context_left", "mention", "context_right"))
        before = f"...{left[-CONTEXT_WIDTH:]}" if len(left) > CONTEXT_WIDTH else left
        after = f"{right[:CONTEXT_WIDTH]}..." if len(right) > CONTEXT_WIDTH else right
        row = {"mention": f"{before}[[{mention}]]{after}", **row, "entity_ids": row["entity_ids"] or "NIL"}
    return [(name, _cell(value)) for name, value in row.items() if value]


def _cell(value: Any) -> str:
    text = " | ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= CELL_WIDTH else f"{text[:CELL_WIDTH]}... ({len(text):,} characters)"


def show_coverage(data: Location) -> None:
    """Says how many golds the KB beside the mentions lacks: they stay, and count as wrong in evaluation."""
    if not all((data / kind / MANIFEST).is_file() for kind in TABLE_KINDS):
        return
    golds: dict[str, int] = {}
    for table in TableFolder.open(data / "mentions", "mentions").tables(["entity_ids"]):
        for pair in pc.value_counts(pc.list_flatten(table["entity_ids"])).to_pylist():
            golds[pair["values"]] = golds.get(pair["values"], 0) + pair["counts"]
    num_golds, num_entities = sum(golds.values()), len(golds)
    for table in TableFolder.open(data / "kb", "kb").tables(["entity_id", "alternative_ids"]):
        for name in table["entity_id"].to_pylist() + pc.list_flatten(table["alternative_ids"]).to_pylist():
            golds.pop(name, None)
    console.say()
    console.say(
        f"golds not in the KB: {sum(golds.values()):,} of {num_golds:,} "
        f"({len(golds):,} of {num_entities:,} distinct entities)"
    )
