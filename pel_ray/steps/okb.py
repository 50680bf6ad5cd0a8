"""okb: a data set with NILs, made from one without by taking entities out of its KB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from pel_ray.artifacts import Request, building, finished, read_manifest
from pel_ray.chance import position
from pel_ray.errors import SettingsError
from pel_ray.formats.semantic_types import OKB_TYPES, find_types, type_name
from pel_ray.schema import STRINGS
from pel_ray.spec import Settings
from pel_ray.statistics import MentionStatistics
from pel_ray.steps.importing import Outcome, Path
from pel_ray.storage import locate
from pel_ray.tables import TableFolder, write_tables
from pel_ray.tally import Tally

IsRemoved = Callable[[dict[str, Any]], bool]
RULE_COLUMNS = ["entity_id", "types", "alternative_ids"]


class OkbSettings(Settings):
    """Out-of-KB data sets."""

    data: Path
    """Data set folder with kb/ and mentions/."""
    out: Path
    """Data set folder (or URI) to write."""
    by: Literal["types", "share", "version"] = "types"
    """What decides which entities leave the KB: their types, chance, or an older version of the KB that lacks them."""
    types: Annotated[list[str], Field(min_length=1)] = ["okb"]
    """With --by types: type names or UMLS type ids, without their descendants; okb: the 11 of the paper."""
    share: float = Field(default=0.1, gt=0, lt=1)
    """With --by share: the share of the entities that leave."""
    older: Path | None = None
    """With --by version: the older KB folder; what it lacks is what it could not have linked."""
    seed: int = 13
    """With --by share: decides which entities leave."""
    overwrite: bool = False
    """Replace a finished folder that was made from other data or settings."""

    @model_validator(mode="after")
    def _names_the_older_kb(self) -> OkbSettings:
        if (self.by == "version") != (self.older is not None):
            raise ValueError("--by version and --older KB go together")
        return self

    def what_counts(self) -> dict[str, Any]:
        used = {"types": ("types",), "share": ("share", "seed"), "version": ()}[self.by]
        return self.model_dump(mode="json", include={"by", *used})


def make_okb(settings: OkbSettings) -> list[Outcome]:
    """Writes OUT/kb without the removed entities and OUT/mentions with their golds emptied."""
    data, out = locate(settings.data), locate(settings.out)
    if out in (data, locate(settings.older).parent if settings.older else data):
        raise SettingsError(f"--out {out} holds what okb reads. Choose another folder")
    kb, mentions = TableFolder.open(data / "kb", "kb"), TableFolder.open(data / "mentions", "mentions")
    older = TableFolder.open(locate(settings.older), "kb") if settings.older else None
    inputs = {"kb": kb.as_input, "mentions": mentions.as_input} | ({"older": older.as_input} if older else {})
    requests = {kind: Request(kind=kind, inputs=inputs, settings=settings.what_counts()) for kind in ("kb", "mentions")}
    done = {kind: finished(out / kind, request, overwrite=settings.overwrite) for kind, request in requests.items()}
    if None in done.values():
        is_removed = _rule(settings, kb, older)
        with ExitStack() as stack:
            kb_work, mention_work = (stack.enter_context(building(out / kind, requests[kind])) for kind in requests)
            num_removed = kb.num_rows - write_tables(kb_work, _kept_entities(kb, is_removed))
            if num_removed in (0, kb.num_rows):
                found = f"{num_removed:,} of {kb.num_rows:,} entities would leave the KB"
                raise SettingsError(f"{kb.folder}: {found}. Choose other types or another share")
            tally, nil = Tally(), MentionStatistics()
            tally.read("entities", kb.num_rows)
            tally.drop("entities", f"left the KB by {settings.by}", num_removed)
            kb_work.counts |= {"sources": tally.to_json(), "removed": num_removed}
            tally = Tally()
            write_tables(mention_work, _emptied_mentions(mentions, _lost_ids(kb, is_removed), nil, tally))
            mention_work.counts |= {"sources": tally.to_json(), "okb": nil.to_json()["splits"]}
    return [Outcome(out / kind, read_manifest(out / kind), done[kind] is None) for kind in requests]


def _rule(settings: OkbSettings, kb: TableFolder, older: TableFolder | None) -> IsRemoved:
    if older is not None:
        known = _all_ids(older)
        return lambda entity: known.isdisjoint((entity["entity_id"], *entity["alternative_ids"]))
    if settings.by == "share":
        # Not the name alone: `import obo` chooses its test terms by that, and they would all leave.
        return lambda entity: position(settings.seed, f"okb {entity['entity_id']}") < settings.share
    present = _all_types(kb)
    names = set(find_types([word for word in settings.types if word != "okb"], present, "--types"))
    if "okb" in settings.types:
        paper = {type_name(type_id) for type_id in OKB_TYPES}
        if paper.isdisjoint(present):
            some = ", ".join(sorted(present)[:5]) or "none"
            raise SettingsError(f"--types: {kb.folder} has none of the paper's 11 types. Its own are: {some}")
        names |= paper
    return lambda entity: not names.isdisjoint(entity["types"])


def _all_ids(kb: TableFolder) -> set[str]:
    ids: set[str] = set()
    for table in kb.tables(["entity_id", "alternative_ids"]):
        ids.update(table["entity_id"].to_pylist(), pc.list_flatten(table["alternative_ids"]).to_pylist())
    return ids


def _all_types(kb: TableFolder) -> set[str]:
    types: set[str] = set()
    for table in kb.tables(["types"]):
        types.update(pc.unique(pc.list_flatten(table["types"])).to_pylist())
    return types


def _kept_entities(kb: TableFolder, is_removed: IsRemoved) -> Iterator[pa.Table]:
    for table in kb.tables():
        keep = [not is_removed(row) for row in table.select(RULE_COLUMNS).to_pylist()]
        yield table.filter(pa.array(keep, pa.bool_()))


def _lost_ids(kb: TableFolder, is_removed: IsRemoved) -> set[str]:
    """The ids that name nothing any more; an alternative id may name an entity that stays, too."""
    lost: set[str] = set()
    for are_removed in (True, False):
        change = lost.update if are_removed else lost.difference_update
        for table in kb.tables(RULE_COLUMNS):
            for row in table.to_pylist():
                if is_removed(row) == are_removed:
                    change((row["entity_id"], *row["alternative_ids"]))
    return lost


def _emptied_mentions(
    mentions: TableFolder, lost_ids: set[str], nil: MentionStatistics, tally: Tally
) -> Iterator[pa.Table]:
    """The mentions without golds that are lost; `nil` gets those that lost their last one, with the golds they had."""
    for table in mentions.tables():
        before = table["entity_ids"].to_pylist()
        after = [[name for name in ids if name not in lost_ids] for ids in before]
        lost = [bool(old) and not new for old, new in zip(before, after, strict=True)]
        num_changed = sum(len(old) != len(new) for old, new in zip(before, after, strict=True))
        tally.read("mentions", len(before))
        tally.note("mentions", "became NIL", sum(lost))
        tally.note("mentions", "lost some of their golds", num_changed - sum(lost))
        tally.read("golds", sum(map(len, before)))
        tally.drop("golds", "of an entity that left the KB", sum(map(len, before)) - sum(map(len, after)))
        nil.add(table.filter(pa.array(lost, pa.bool_())))
        position = table.schema.get_field_index("entity_ids")
        yield table.set_column(position, "entity_ids", pa.array(after, STRINGS))
