"""link: mentions in text become links to the KB, as a stream or as a folder that workers fill."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import Field

from pel_ray.artifacts import UNFINISHED, Request, Work, building, finished, read_manifest
from pel_ray.environment import variable
from pel_ray.errors import InputError, SettingsError
from pel_ray.formats.lines import BUFFER_BYTES
from pel_ray.formats.linking import InputFormat, LinkDocument, grouped, read_files
from pel_ray.formats.links import OutputFormat
from pel_ray.formats.steady_lines import Problems, StandardInput
from pel_ray.link_source import LinkSource
from pel_ray.linker import Linker
from pel_ray.progress import RateProgress
from pel_ray.runtime import Resources, Workers, gpus_of_worker
from pel_ray.shard_link import LinkJob, ShardLinker, input_name, link_group, write_groups
from pel_ray.spec import Settings
from pel_ray.steps.importing import Outcome, Path, file_input
from pel_ray.steps.sharded import at_work, finish_shards
from pel_ray.storage import Location, locate, locate_file, storage_errors
from pel_ray.threads import set_threads
from pel_ray.vectors import Shard

GROUPS_PER_SHARD = 8


class LinkSettings(Settings):
    """What is linked, with what, and what comes out."""

    folder: Path
    """Vectors, a training run or an index, to find entities with."""
    files: list[Path] = []
    """Files (or URIs) to link, plain or gzipped; `-` or none: what is piped in."""
    out: Path | None = None
    """Folder (or URI) for the links, made by workers and resumable; by default they go to standard output."""
    input: InputFormat = "auto"
    """pubtator: its annotations; jsonl: text and spans, or mentions; marked: [[mention]], a line a document."""
    output: OutputFormat = "jsonl"
    """jsonl: a line for each mention, with its candidates; pubtator: documents with annotations."""
    candidates: int = Field(default=16, ge=1)
    """Entities to give for each mention."""
    nil: bool | None = None
    """Say which mentions are NIL; by default where the model has a threshold."""
    threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Score of the best entity below which a mention is NIL; by default the one stored with the model."""
    ranker: Path | None = None
    """A ranker of `rank train`, which orders the candidates."""
    model: str | None = None
    """Where the model is, if it has moved since the vectors were made."""
    kb: Path | None = None
    """Where the KB (or its data set) is, if it has moved."""
    resources: Resources = Resources()
    """With what it runs; more than one worker needs --out."""
    overwrite: bool = False
    """Replace finished links of other inputs or settings."""


def link_stream(settings: LinkSettings, write: Callable[[bytes], None], tell: Callable[[str], None]) -> int:
    """Writes links as the input comes, in this process; returns the number of bad records, of which it tells some."""
    if settings.resources.workers not in ("auto", 1):
        raise SettingsError(
            f"workers is {settings.resources.workers}, but without --out links are made in one process. Pass --out"
        )
    with _gpus_as_asked(settings.resources):
        return _stream(settings, write, Problems(tell))


def _stream(settings: LinkSettings, write: Callable[[bytes], None], problems: Problems) -> int:
    files = _sources(settings)
    source = LinkSource.open(settings.folder, settings.model, settings.kb, settings.ranker)
    threshold = source.threshold(settings.nil, settings.threshold)
    groups = grouped(read_files(files, settings.input, problems))
    # The first group is read before the weights: a file that is no text is told at once.
    first = list(itertools.islice(groups, 1))
    if settings.resources.cpus != "auto":
        set_threads(settings.resources.cpus)
    linker = Linker(source, settings.candidates, threshold)
    for group in itertools.chain(first, groups):
        write(link_group(linker, group, settings.output)[0])
    return problems.count


@contextmanager
def _gpus_as_asked(resources: Resources) -> Iterator[None]:
    """As Ray does it for workers: GPUs that are not there are refused, and who asks for none sees none."""
    if not resources.cpu and resources.gpus != 0:
        gpus_of_worker(resources, [{"GPU": float(torch.cuda.is_available())}])
        yield
        return
    # In time if nobody in this process has asked torch about GPUs: it looks once.
    with variable("CUDA_VISIBLE_DEVICES", ""):
        yield


def _sources(settings: LinkSettings) -> list[Location]:
    return [StandardInput(None, "") if name == "-" else locate_file(name) for name in settings.files or ["-"]]


def link_files(settings: LinkSettings, within: Workers | None = None) -> Outcome:
    """Links what is not linked yet and finishes the folder."""
    if settings.out is None:
        raise SettingsError("out is missing: name a folder for the links")
    out = locate(settings.out)
    with _readable_twice(_sources(settings)) as files:
        source = LinkSource.open(settings.folder, settings.model, settings.kb, settings.ranker)
        threshold = source.threshold(settings.nil, settings.threshold)
        request = _request(settings, files, source, threshold)
        done = finished(out, request, overwrite=settings.overwrite)
        if done is not None:
            return Outcome(out, done, is_new=False)
        with building(out, request, resumable=True) as work:
            contents = _contents(work, files, settings.input)
            _link(work, contents, settings, source, threshold, within)
    return Outcome(out, read_manifest(out), is_new=True)


@contextmanager
def _readable_twice(files: Sequence[Location]) -> Iterator[list[Location]]:
    """Copies what is piped in: its content is a part of the request, before any of it is linked."""
    with tempfile.TemporaryDirectory(prefix="pel-ray-") as folder:
        found = list(files)
        for number, file in enumerate(files):
            if isinstance(file, StandardInput):
                found[number] = StandardInput(None, f"{folder}/{number}")
                with storage_errors(file, "read"), file.open_input() as stream, open(found[number].path, "wb") as copy:
                    shutil.copyfileobj(stream, copy, BUFFER_BYTES)
        yield found


def _request(settings: LinkSettings, files: Sequence[Location], source: LinkSource, threshold: float | None) -> Request:
    return Request(
        kind="links",
        inputs=source.inputs | {f"file {number}": file_input([file]) for number, file in enumerate(files, start=1)},
        settings=settings.model_dump(mode="json", include={"input", "output", "candidates"})
        | {"threshold": threshold, "mention_length": source.parts.settings.text.mention_length},
    )


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the input holds, once it is cut into files for workers."""

    stops: list[int]
    """For each file of groups the number of mentions up to its end."""
    documents: int
    bad_records: int
    first_bad: list[str]

    @property
    def shards(self) -> list[Shard]:
        pairs = itertools.pairwise([0, *self.stops])
        return [Shard(number, start, stop) for number, (start, stop) in enumerate(pairs)]


def _contents(work: Work, files: Sequence[Location], form: InputFormat) -> Contents:
    """As an earlier try has left them, or read now; input that cannot be read leaves nothing behind."""
    file = work.folder / work.name("contents", ".json")
    if file.is_file():
        found = Contents(**json.loads(file.read_bytes()))
        if {input_name(shard.number, work.tag) for shard in found.shards} <= set(work.folder.names()):
            return found
    try:
        contents = _read(work, files, form)
    except InputError:
        for name in work.folder.names():
            if name.startswith("input-") or name == UNFINISHED:
                (work.folder / name).delete_file()
        raise
    file.write_bytes(json.dumps(asdict(contents)).encode())
    return contents


def _read(work: Work, files: Sequence[Location], form: InputFormat) -> Contents:
    problems = Problems()
    groups = grouped(read_files(files, form, problems))
    stops: list[int] = []
    num_documents = num_mentions = 0
    while some := list(itertools.islice(groups, GROUPS_PER_SHARD)):
        write_groups(work.folder / input_name(len(stops), work.tag), some)
        num_documents += sum(map(len, some))
        num_mentions += _num_mentions(some)
        stops.append(num_mentions)
    return Contents(stops=stops, documents=num_documents, bad_records=problems.count, first_bad=problems.first)


def _num_mentions(groups: Sequence[Sequence[LinkDocument]]) -> int:
    return sum(len(document.spans) for group in groups for document in group)


def _link(
    work: Work,
    contents: Contents,
    settings: LinkSettings,
    source: LinkSource,
    threshold: float | None,
    within: Workers | None,
) -> None:
    shards = contents.shards
    num_mentions = shards[-1].stop
    with at_work(settings.resources, within) as (carrier, ask):
        job = LinkJob(
            folder=work.folder,
            tag=work.tag,
            threads=ask.cpus,
            source=source,
            k=settings.candidates,
            threshold=threshold,
            form=settings.output,
        )
        with RateProgress("linking", num_mentions) as progress:

            def seen(shard: Shard, receipt: dict[str, Any]) -> None:
                if receipt["mentions"]:
                    progress.add(receipt["mentions"])

            receipts = finish_shards(carrier, ShardLinker, job, shards, seen)
    for shard in shards:
        work.count(job.result_names(shard)[0])
    work.counts |= {
        "rows": num_mentions,
        "documents": contents.documents,
        "NIL": sum(receipt["nil"] for receipt in receipts) if threshold is not None else None,
        "bad records": contents.bad_records,
        "first bad records": contents.first_bad,
        "workers": str(ask),
        "linking seconds": round(sum(receipt["seconds"] for receipt in receipts), 2),
    }
