"""The work of linking a corpus: groups of documents become lines of links, in one process or by many workers."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pel_ray.formats.linking import LinkDocument
from pel_ray.formats.links import OutputFormat, linked_text
from pel_ray.link_source import LinkSource
from pel_ray.linker import Linker
from pel_ray.memory import peak_bytes
from pel_ray.shard_work import ShardJob, ShardWorker
from pel_ray.storage import Location
from pel_ray.threads import set_threads
from pel_ray.vectors import Shard


def link_group(linker: Linker, group: Sequence[LinkDocument], form: OutputFormat) -> tuple[bytes, int]:
    """The links of some documents as text, and how many of them are NIL."""
    links = linker.link(mention for document in group for mention in document.mentions())
    lines: list[str] = []
    num_nil = 0
    for document in group:
        found = list(itertools.islice(links, len(document.spans)))
        num_nil += sum(link.is_nil is True for link in found)
        lines.append(linked_text(document, found, form))
    return "".join(lines).encode(), num_nil


@dataclass(frozen=True, kw_only=True)
class LinkJob(ShardJob):
    """What is linked, and how; a shard is a file of groups that the driver has written."""

    phase = "links-"
    unit = "mentions"
    remedy = "Try fewer workers on a node, or look at these mentions"

    source: LinkSource
    k: int
    threshold: float | None
    form: OutputFormat

    def result_names(self, shard: Shard) -> tuple[str, ...]:
        return (f"links-{shard.stem}-{self.tag}.{self.form}",)


def input_name(number: int, tag: str) -> str:
    return f"input-{number:05d}-{tag}.jsonl"


def write_groups(file: Location, groups: Sequence[Sequence[LinkDocument]]) -> None:
    """A group a line: together they are linked, whoever does it."""
    with file.writing() as stream:
        for group in groups:
            stream.write(json.dumps([document.to_json() for document in group]).encode() + b"\n")


def read_groups(file: Location) -> Iterator[list[LinkDocument]]:
    with file.open_input() as stream:
        for line in stream:
            yield [LinkDocument(*document) for document in json.loads(line)]


class ShardLinker(ShardWorker):
    """Loads the mention tower and the KB's names once, then links one file of groups after the other."""

    job: LinkJob

    def start(self) -> None:
        if self.job.threads:
            set_threads(self.job.threads)
        self._linker = Linker(self.job.source, self.job.k, self.job.threshold)

    def do(self, shard: Shard) -> dict[str, Any]:
        began = time.monotonic()
        total_nil = 0
        with (self.job.folder / self.job.result_names(shard)[0]).writing() as stream:
            for group in read_groups(self.job.folder / input_name(shard.number, self.job.tag)):
                content, num_nil = link_group(self._linker, group, self.job.form)
                stream.write(content)
                total_nil += num_nil
        return {
            "mentions": shard.stop - shard.start,
            "nil": total_nil,
            "seconds": time.monotonic() - began,
            "peak_memory_bytes": peak_bytes(),
        }
