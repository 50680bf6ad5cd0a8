"""wordnet_el as ZESHEL is: every sense is in a world, and training, validation and test have worlds of their own.

A world is a lexicographer file (noun.animal, verb.motion, ...). Of four neighbours in the order of their names the
first two are to train on, the third is for validation and the fourth for the test. The files are those that
jobs/paper/open/zero-shot-worlds.yaml imports:

    python jobs/paper/open/worlds.py [--data ../shared/data] [--out runs/paper/open/worlds]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SPLITS = ("train", "train", "validation", "test")
"""Of the worlds in turn."""
FILES = ("train", "dev", "test")
"""Of the mentions, whose splits share no sense but all worlds."""


def read(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt") as lines:
        yield from map(json.loads, lines)


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    # Without a name and a time, the same rows are the same bytes.
    with open(file, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)


def split_of_worlds(worlds: Iterable[str]) -> dict[str, str]:
    return {world: SPLITS[number % len(SPLITS)] for number, world in enumerate(sorted(set(worlds)))}


def make(source: Path, out: Path) -> None:
    entities = [entity | {"world": entity["types"][0]} for entity in read(source / "kb.jsonl.gz")]
    splits = split_of_worlds(entity["world"] for entity in entities)
    mentions = [mention for name in FILES for mention in read(source / f"mentions.{name}.jsonl.gz")]
    out.mkdir(parents=True, exist_ok=True)
    write(out / "kb.jsonl.gz", entities)
    for split in sorted(set(SPLITS)):
        write(out / f"mentions.{split}.jsonl.gz", (each for each in mentions if splits[each["world"]] == split))
    num_worlds, num_mentions = Counter(splits.values()), Counter(splits[mention["world"]] for mention in mentions)
    for split in sorted(num_worlds):
        print(f"{out}: {split}, {num_worlds[split]} worlds, {num_mentions[split]:,} mentions")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder that holds wordnet_el")
    parser.add_argument("--out", type=Path, default=Path("runs/paper/open/worlds"))
    given = parser.parse_args(arguments)
    source = given.data / "wordnet_el"
    if not (source / "kb.jsonl.gz").is_file():
        sys.exit(f"worlds: error: {source} has no kb.jsonl.gz. Name the folder that holds wordnet_el with --data")
    make(source, given.out)


if __name__ == "__main__":
    main()
