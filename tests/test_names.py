"""Names made comparable, and who shares them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pel_ray import tables
from pel_ray.artifacts import Request, building
from pel_ray.names import Namesakes, normalised
from pel_ray.schema import Entity
from pel_ray.storage import locate
from pel_ray.tables import TableFolder, grouped, write_tables

Names = tuple[str, Sequence[str]]


def write_kb(folder: Path, entities: Sequence[Names]) -> TableFolder:
    """A KB folder of titles and synonyms."""
    rows = [
        Entity(entity_id=f"E{row}", title=title, synonyms=tuple(synonyms))
        for row, (title, synonyms) in enumerate(entities)
    ]
    with building(locate(folder), Request(kind="kb", inputs={}, settings={})) as work:
        write_tables(work, grouped("kb", rows))
    return TableFolder.open(locate(folder), "kb")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Alpha-2B  (Human)", "alpha 2b human"),
        (" fever_of unknown origin. ", "fever of unknown origin"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("ＦＥＶＥＲ\u00a0①", "fever 1"),
        ("e\u0301tat", "état"),
        ("β-Catenin", "β catenin"),
        ("+", "+"),
        (" -- ", "--"),
        ("…", "…"),
        ("", ""),
    ],
)
def test_names_that_differ_in_case_width_or_punctuation_are_one(name: str, expected: str) -> None:
    assert normalised(name) == expected


@given(st.text() | st.text(st.characters(max_codepoint=127)))
def test_a_normalised_name_equals_one_made_character_by_character(name: str) -> None:
    folded = unicodedata.normalize("NFKC", name).casefold()
    words = "".join(character if character.isalnum() else " " for character in folded).split()
    assert normalised(name) == (" ".join(words) or name.casefold().strip())


NAME = st.sampled_from(["fever", "Fever", "FEVER!", "flu", "the flu", "cold", "+", "-", "", "Straße", "strasse"])


# Each example writes a folder, which takes a while at times.
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(NAME, st.lists(NAME, max_size=3)), min_size=1, max_size=9), st.data())
def test_namesakes_equal_those_found_by_comparing_every_pair(
    tmp_path_factory: pytest.TempPathFactory, entities: list[Names], data: st.DataObject
) -> None:
    golds = data.draw(st.sets(st.integers(0, len(entities) - 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ROWS_PER_GROUP", 2)
        patch.setattr(tables, "ROWS_PER_FILE", 4)
        namesakes = Namesakes.of(write_kb(tmp_path_factory.mktemp("set") / "kb", entities), golds)
    names = [{normalised(name) for name in (title, *synonyms)} - {""} for title, synonyms in entities]
    for gold in golds:
        expected = [row for row in range(len(entities)) if row != gold and names[row] & names[gold]]
        found = namesakes.of_gold(gold)
        assert found.dtype == "int64" and found.tolist() == expected


def test_a_gold_is_not_its_own_namesake(tmp_path: Path) -> None:
    kb = write_kb(tmp_path / "kb", [("Fever", ["fever", "pyrexia"]), ("Heat", ["PYREXIA"]), ("Cold", [])])
    namesakes = Namesakes.of(kb, [0, 2])
    assert namesakes.of_gold(0).tolist() == [1]
    assert namesakes.of_gold(2).tolist() == []
