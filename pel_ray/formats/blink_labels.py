"""What a `label_id` of BLINK names: an entity by its own number, or by its row among the entities of its world."""

from __future__ import annotations

from collections import Counter
from functools import partial

from pel_ray.errors import BadRecord
from pel_ray.formats.jsonl import BLINK, entity_of, labels_of, page_number
from pel_ray.formats.lines import Lines
from pel_ray.formats.records import Record, read_records
from pel_ray.tally import Tally


class BlinkLabels:
    """Read a KB in, then ask for the golds of mentions; ids and titles of the entities are held in memory."""

    def __init__(self) -> None:
        # What is wrong with the KB is said when it becomes a table; here its rows only need to be counted.
        self._tally = Tally("skip")
        self._num_rows: Counter[str] = Counter()
        self._worlds: dict[str, dict[str, tuple[str, str]]] = {}
        """World -> label -> id and title."""

    def read(self, lines: Lines, world: str) -> None:
        """Adds the entities of a file, of `world` where they name none."""
        num_before = self._tally.num_read("entities")
        for record in read_records(lines, BLINK.kb, self._tally, "entities"):
            num_read = self._tally.num_read("entities")
            entity = self._tally.attempt("entities", partial(entity_of, record, BLINK, num_read - 1, world))
            if entity is None:
                continue
            # A line that cannot be used does not tell its world: it is taken to be of that of the next.
            self._num_rows[entity.world] += num_read - num_before
            num_before = num_read
            label = page_number(record.name("number", str(self._num_rows[entity.world] - 1)))
            self._worlds.setdefault(entity.world, {}).setdefault(label, (entity.entity_id, entity.title))

    def golds(self, record: Record) -> tuple[str, ...]:
        """The ids of the entities that a mention names."""
        return tuple(self._entity_id(record, label) for label in labels_of(record))

    def _entity_id(self, record: Record, label: str) -> str:
        world = record.name("world", "")
        found = (self._worlds.get(world) or self._worlds.get("", {})).get(label)
        if found is None:
            if self._worlds.keys() - {""}:
                raise BadRecord(record.where, "label_id names no entity", self._no_entity(world, label))
            # As with other golds that the KB lacks.
            return label
        entity_id, title = found
        said = record.name("label_title", title)
        if said.casefold() != title.casefold():
            problem = (
                f"label_id {label} is {title!r} in the KB given, label_title says {said!r}. Is it the KB of these "
                "mentions, in its order? Where labels count within worlds, pass --kb WORLD=FILE for each; "
                "--on-error skip leaves such mentions out"
            )
            raise BadRecord(record.where, "label_id and label_title disagree", problem)
        return entity_id

    def _no_entity(self, world: str, label: str) -> str:
        of_world = f"which has {self._num_rows[world]:,} rows" if world in self._worlds else "of which the KB has none"
        return (
            f"label_id {label} names no entity of world {world!r}, {of_world}. Expected a row of the mention's world, "
            "counted from 0: pass --kb WORLD=FILE for each world, or --on-error skip to leave such mentions out"
        )
