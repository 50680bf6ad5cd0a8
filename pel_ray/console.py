"""How results look in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pel_ray.artifacts import Manifest

MIN_WIDTH = 110
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_console = Console(highlight=False, markup=False, emoji=False)
if not _console.is_terminal:
    # A log has no width of its own, and tables wrapped at 80 columns are hard to read.
    _console = Console(highlight=False, markup=False, emoji=False, width=MIN_WIDTH)


def say(text: str = "", style: str | None = None) -> None:
    _console.print(_shown(text), soft_wrap=True, style=style)


def heading(text: str) -> None:
    say()
    say(text, style="bold")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, num_text_columns: int = 1) -> None:
    """A table whose first columns are text and the others figures."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for number, name in enumerate(columns):
        is_text = number < num_text_columns
        table.add_column(name, justify="left" if is_text else "right", overflow="fold" if is_text else "ellipsis")
    for row in rows:
        table.add_row(*(_shown(figure(value)) for value in row))
    _console.print(table)


def figure(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _shown(text: str) -> str:
    """Without control characters: a text from somewhere must not steer the terminal."""
    return _CONTROL.sub("\ufffd", text)


def show_sources(counts: Mapping[str, Any]) -> None:
    """What was read, kept, dropped and why."""
    rows: list[tuple[Any, ...]] = []
    for subject, count in counts.items():
        rows.append((subject, count["read"], count["kept"], count["read"] - count["kept"]))
        rows += [(f"  dropped: {reason}", "", "", number) for reason, number in count["dropped"].items()]
        rows += [(f"  of these: {remark}", "", number, "") for remark, number in count["notes"].items()]
    show_table(("", "read", "kept", "dropped"), rows)
    for subject, count in counts.items():
        for example in count["examples"]:
            say(f"  dropped from {subject}, for example: {example}")


def show_splits(splits: Mapping[str, Mapping[str, Any]]) -> None:
    """The table of a data set's statistics that papers print."""
    names = list(next(iter(splits.values()))) if splits else []
    show_table(("", *((split or "(no split)") for split in splits)), [
        (name, *(splits[split].get(name) for split in splits)) for name in names
    ])  # fmt: skip


def show_manifest(manifest: Manifest) -> None:
    size = sum(manifest.files.values())
    show_table(
        ("", ""),
        [
            ("kind", manifest.request.kind),
            ("rows", figure(manifest.counts.get("rows"))),
            ("files", f"{len(manifest.files)}, {human_bytes(size)}"),
            ("fingerprint", manifest.request.fingerprint[:16]),
            ("made by", manifest.command),
            ("finished", f"{manifest.finished_at}, in {manifest.seconds:.1f} s"),
            ("peak memory", human_bytes(manifest.peak_memory_bytes)),
            ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
        ]
        + [(f"input {role}", source.path) for role, source in manifest.request.inputs.items()]
        + [(f"setting {name}", str(value)) for name, value in manifest.request.settings.items()],
        num_text_columns=2,
    )


def show_counts(counts: Mapping[str, Any]) -> None:
    """The counts of a manifest, one a line."""
    show_table(("", ""), _count_rows(counts))


def _count_rows(counts: Mapping[str, Any], indent: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in counts.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}", ""
            yield from _count_rows(value, f"{indent}  ")
        elif name.endswith("bytes"):
            yield f"{indent}{name}", human_bytes(value)
        else:
            yield f"{indent}{name}", ", ".join(map(str, value)) if isinstance(value, list) else value


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
