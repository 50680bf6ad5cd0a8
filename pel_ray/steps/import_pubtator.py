"""import pubtator, import medmentions: annotated abstracts become mentions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Literal

from pel_ray.errors import InputError, SettingsError
from pel_ray.formats import semantic_types
from pel_ray.formats.pubtator import mentions_of, read_documents
from pel_ray.formats.spans import split_name
from pel_ray.schema import Mention
from pel_ray.steps.importing import (
    MentionImportSettings,
    Outcome,
    PathList,
    Reading,
    Table,
    import_tables,
    split_files,
)
from pel_ray.storage import Location, locate


class PubtatorSettings(MentionImportSettings):
    """PubTator files: MedMentions, BC5CDR, the NCBI disease corpus, PubTator exports."""

    files: PathList
    """PubTator files, plain or gzipped; SPLIT=FILE puts all of a file's mentions into that split."""
    pmids: list[str] = []
    """SPLIT=FILE with one document id a line: the documents of that split; others are dropped and counted."""
    strip_prefixes: list[str] = []
    """Prefixes to remove from ids, such as UMLS: or MESH:, so that they match the KB's."""
    composites: Literal["keep", "drop"] = "keep"
    """Mentions of several entities at once (`A+B`): keep with all of them as golds, or drop."""

    elsewhere: ClassVar[frozenset[str]] = MentionImportSettings.elsewhere | {"files", "pmids"}


class MedMentionsSettings(MentionImportSettings):
    """MedMentions as its authors publish it: a PubTator corpus and three lists of PMIDs."""

    files: PathList
    """corpus_pubtator.txt.gz, of the full corpus or of ST21pv."""
    splits: str | None = None
    """Folder of corpus_pubtator_pmids_{trng,dev,test}.txt; by default that of the corpus."""
    subset: Literal["st21pv", "full"] = "st21pv"
    """Whose published counts to compare with."""

    elsewhere: ClassVar[frozenset[str]] = MentionImportSettings.elsewhere | {"files", "splits", "subset"}


# Mohan & Li 2019 (arXiv:1902.09476) and the corpus' own README: documents, mentions and distinct concepts by split.
PUBLISHED: dict[str, dict[str, dict[str, int]]] = {
    "st21pv": {
        "train": {"documents": 2635, "mentions": 122241, "entities": 18520},
        "validation": {"documents": 878, "mentions": 40884, "entities": 8643},
        "test": {"documents": 879, "mentions": 40157, "entities": 8457},
    },
    "full": {
        "train": {"documents": 2635, "mentions": 211029, "entities": 25640},
        "validation": {"documents": 878, "mentions": 71062, "entities": 12586},
        "test": {"documents": 879, "mentions": 70405, "entities": 12402},
    },
}


def import_pubtator(settings: PubtatorSettings) -> list[Outcome]:
    corpus = split_files(settings.files, "file")
    lists = {split: [file] for split, file in split_files(settings.pmids, "pmids").values()}
    if lists:
        _refuse_splits(corpus, "--pmids")
    if "" in lists or len(lists) < len(settings.pmids):
        raise SettingsError(f"--pmids {' '.join(settings.pmids)}: expected SPLIT=FILE, each split once")
    return _import(settings, corpus, lists, settings.strip_prefixes, settings.composites == "keep")


def import_medmentions(settings: MedMentionsSettings) -> list[Outcome]:
    corpus = split_files(settings.files, "file")
    _refuse_splits(corpus, "import medmentions")
    first = next(iter(corpus.values()))[1]
    folder = locate(settings.splits) if settings.splits else first.parent
    lists = {split_name(name): _pmid_list(folder, name) for name in ("trng", "dev", "test")}
    return _import(settings, corpus, lists, ("UMLS:",), True, semantic_types.type_name)


def _refuse_splits(corpus: Mapping[str, tuple[str, Location]], lists: str) -> None:
    for split, file in corpus.values():
        if split:
            raise SettingsError(f"{split}={file}: {lists} takes the splits from lists of ids. Name the file alone")


def published_differences(outcome: Outcome, subset: str) -> list[tuple[str, str, int, int]]:
    """(split, what, published, here) for every published count."""
    here = outcome.manifest.counts["splits"]
    return [
        (split, what, count, here.get(split, {}).get(what, 0))
        for split, counts in PUBLISHED[subset].items()
        for what, count in counts.items()
    ]


def _pmid_list(folder: Location, name: str) -> list[Location]:
    file = folder / f"corpus_pubtator_pmids_{name}.txt"
    if not file.is_file():
        raise InputError(str(file), "no such file. Pass the folder of the PMID lists with --splits")
    return [file]


def _import(
    settings: MentionImportSettings,
    corpus: Mapping[str, tuple[str, Location]],
    lists: Mapping[str, list[Location]],
    strip_prefixes: Iterable[str],
    keep_composites: bool,
    type_name: Callable[[str], str] = str,
) -> list[Outcome]:
    def rows(reading: Reading) -> Iterator[Mention]:
        split_of = _read_pmids(reading, lists)
        seen: dict[str, str] = {}
        for role, (split_of_file, _) in corpus.items():
            lines = reading.lines(role)
            for document in read_documents(lines, reading.tally, seen):
                split = split_of.get(document.document_id) if lists else split_of_file
                if split is None:
                    reading.tally.drop("documents", "id in no split list")
                    reading.tally.drop("mentions", "of a document in no split list", len(document.annotations))
                    continue
                yield from mentions_of(
                    document,
                    lines.where,
                    reading.tally,
                    context=settings.context,
                    split=split,
                    strip_prefixes=strip_prefixes,
                    keep_composites=keep_composites,
                    type_name=type_name,
                )
        if lists:
            reading.tally.read("listed ids", len(split_of))
            reading.tally.drop("listed ids", "not in the corpus", len(split_of.keys() - seen.keys()))

    sources: dict[str, list[Location]] = {role: [file] for role, (_, file) in corpus.items()}
    sources |= {f"pmids {split}": parts for split, parts in lists.items()}
    table = Table(
        kind="mentions",
        sources=sources,
        settings=settings.what_counts() | {"splits": [split for split, _ in corpus.values()]},
        rows=rows,
        subject="mentions",
        # Mutations were once cut into pieces; MedMentions has none.
        version=1 if isinstance(settings, MedMentionsSettings) else 2,
    )
    return import_tables(settings, [table])


def _read_pmids(reading: Reading, lists: Mapping[str, list[Location]]) -> dict[str, str]:
    split_of: dict[str, str] = {}
    for split in lists:
        lines = reading.lines(f"pmids {split}")
        for number, line in lines:
            document_id = line.strip()
            if document_id and split_of.setdefault(document_id, split) != split:
                raise InputError(
                    lines.where(number),
                    f"{document_id} is in the list of {split_of[document_id]} too. Splits must not meet",
                )
    return split_of
