"""import zeshel: the worlds of ZESHEL become one KB, its splits one table of mentions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pel_ray.errors import InputError
from pel_ray.formats import zeshel
from pel_ray.formats.texts import spooled_texts
from pel_ray.schema import Entity, Mention
from pel_ray.steps.importing import MentionImportSettings, Outcome, Path, Reading, Table, import_tables
from pel_ray.storage import Location, locate_folder


class ZeshelSettings(MentionImportSettings):
    """ZESHEL in its original layout."""

    folder: Path
    """Folder with documents/<world>.json and mentions/<split>.json."""

    elsewhere: ClassVar[frozenset[str]] = MentionImportSettings.elsewhere | {"folder"}


def import_zeshel(settings: ZeshelSettings) -> list[Outcome]:
    folder = locate_folder(settings.folder)
    worlds = _files(folder / "documents")
    files = _files(folder / "mentions")
    splits = {f"mentions/{name}": files[f"mentions/{name}"] for name in _split_files(files)}
    if not splits:
        raise InputError(str(folder / "mentions"), f"has none of {', '.join(f'{name}.json' for name in zeshel.SPLITS)}")

    def entities(reading: Reading) -> Iterator[Entity]:
        for role in worlds:
            yield from zeshel.read_entities(reading.lines(role), _stem(role), reading.tally)

    def mentions(reading: Reading) -> Iterator[Mention]:
        for role in files.keys() - splits.keys():
            reading.tally.read("mention files")
            reading.tally.drop("mention files", f"{role}: not one of the five splits")
        reading.tally.read("mention files", len(splits))
        with spooled_texts() as texts:
            for role in worlds:
                zeshel.read_texts(reading.lines(role), texts, reading.tally)
            for role in splits:
                yield from zeshel.read_mentions(
                    reading.lines(role), _stem(role), texts, reading.tally, context=settings.context
                )

    return import_tables(
        settings,
        [
            Table(
                kind="kb",
                sources=worlds,
                settings=settings.what_counts_for_kb(),
                rows=entities,
                subject="entities",
            ),
            Table(
                kind="mentions",
                sources={**worlds, **splits},
                settings=settings.what_counts(),
                rows=mentions,
                subject="mentions",
            ),
        ],
    )


def _files(folder: Location) -> dict[str, list[Location]]:
    """The JSON files of a folder by role, such as `documents/military.json`."""
    names = [name for name in folder.names() if _stem(name) != name and not name.startswith(".")]
    if not names:
        raise InputError(
            str(folder), "has no .json files. Expected the original ZESHEL layout: documents/ and mentions/"
        )
    return {f"{folder.name}/{name}": [folder / name] for name in names}


def _split_files(files: dict[str, list[Location]]) -> list[str]:
    names = [role.removeprefix("mentions/") for role in files]
    return [name for split in zeshel.SPLITS for name in names if _stem(name) == split]


def _stem(name: str) -> str:
    return name.rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".json")
