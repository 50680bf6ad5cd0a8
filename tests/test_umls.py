"""import umls."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.formats.lines import Lines
from pel_ray.formats.semantic_types import ST21PV_SOURCES, ST21PV_TYPES, type_names, with_descendants
from pel_ray.formats.umls import Rules, read_entities
from pel_ray.storage import locate
from pel_ray.tally import Tally
from tests.conftest import RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import CONSO, DEF, STY, conso, write_umls


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    return write_umls(tmp_path / "META")


def test_names_types_and_definitions_follow_the_rules(pel_ray: RunCommand, meta: Path) -> None:
    assert pel_ray("import", "umls", meta, "--out", "set").code == 0
    entities = by_id("set", "kb")
    fever = entities["C0000001"]
    # Preferred by TS, STT and ISPREF; suppressed and German names and the second spelling are gone; MSH before CSP.
    assert (fever["title"], fever["synonyms"], fever["description"]) == ("Fever", ["Pyrexia"], "Body too hot.")
    assert fever["types"] == ["Sign or Symptom", "Finding"]
    assert entities["C0000005"]["description"] == "A virus."
    # Sign or Symptom and Regulation or Law lie below two of the 21 types; Qualitative Concept does not.
    assert list(entities) == ["C0000001", "C0000002", "C0000005"]


def test_every_concept_and_name_is_accounted_for(pel_ray: RunCommand, meta: Path) -> None:
    pel_ray("import", "umls", meta, "--out", "set")
    counts = sources_of("set", "kb")
    assert counts["concepts"]["dropped"] == {
        "without an unsuppressed name in ENG": 1,
        "of another type": 1,
        "without a row in MRSTY": 1,
    }
    assert counts["names"] == {
        "read": 10,
        "kept": 4,
        "dropped": {
            "suppressed": 1,
            "not in ENG": 1,
            "blank, or said before but for case": 1,
            "of a concept that was dropped": 3,
        },
        "notes": {},
        "examples": [],
    }
    assert (counts["types"]["read"], counts["types"]["dropped"]) == (6, {"of a concept that was dropped": 2})
    assert counts["definitions"]["dropped"] == {"suppressed, or another is preferred": 2}
    assert sum("preferred name" in note for note in counts["concepts"]["notes"]) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--types", "all"], ["C0000001", "C0000002", "C0000004", "C0000005", "C0000006"]),
        (["--types", "t170", "--no-descendants"], None),
        (["--types", "Intellectual Product"], ["C0000002"]),
        (["--types", "T170,virus"], ["C0000002", "C0000005"]),
        (["--types", "all", "--sources", "NCI,LNC"], ["C0000002", "C0000004"]),
        (["--sources", "st21pv"], ["C0000001", "C0000005"]),
        (["--types", "all", "--language", "GER"], ["C0000001", "C0000003"]),
    ],
)
def test_filters_choose_concepts(pel_ray: RunCommand, meta: Path, options: list[str], expected: list[str]) -> None:
    result = pel_ray("import", "umls", meta, "--out", "set", *options)
    if expected is None:
        assert "nothing to keep" in result.error and "5 of another type" in result.error
    else:
        assert [row["entity_id"] for row in rows_of("set", "kb")] == expected


def test_an_unknown_type_gets_the_nearest_names(pel_ray: RunCommand, meta: Path) -> None:
    assert "Disease or Syndrome" in pel_ray("import", "umls", meta, "--out", "set", "--types", "Disease").error
    assert "T099 Family Group" in pel_ray("import", "umls", meta, "--out", "set", "--types", "T999").error


def _split(content: bytes) -> list[bytes]:
    half = len(content) // 2
    return [content[:half], content[half:]]


def test_gzipped_and_split_releases_read_like_whole_ones(pel_ray: RunCommand, meta: Path, tmp_path: Path) -> None:
    pel_ray("import", "umls", meta, "--out", "whole")
    pieces = {
        "gzipped": {".gz": gzip.compress(CONSO.encode())},
        # Cut in mid-line, and then gzipped piece by piece, as NLM does.
        "pieces-gzipped": dict(zip((".aa.gz", ".ab.gz"), map(gzip.compress, _split(CONSO.encode())), strict=True)),
        "gzip-in-pieces": dict(zip((".gz.aa", ".gz.ab"), _split(gzip.compress(CONSO.encode())), strict=True)),
    }
    for name, files in pieces.items():
        folder = write_umls(tmp_path / name)
        (folder / "MRCONSO.RRF").unlink()
        for suffix, content in files.items():
            (folder / f"MRCONSO.RRF{suffix}").write_bytes(content)
        assert pel_ray("import", "umls", folder, "--out", f"out-{name}").code == 0
        assert rows_of(f"out-{name}", "kb") == rows_of("whole", "kb")


def test_definitions_are_optional_but_names_and_types_are_not(pel_ray: RunCommand, meta: Path) -> None:
    (meta / "MRDEF.RRF").unlink()
    assert pel_ray("import", "umls", meta, "--out", "set").code == 0
    (meta / "MRSTY.RRF").unlink()
    assert "has no MRSTY.RRF" in pel_ray("import", "umls", meta, "--out", "other").error


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CONSO + "C0000009|ENG|P\n", "MRCONSO.RRF:11: has 2 pipes, expected 18"),
        (CONSO[:-2], "MRCONSO.RRF:10: has 17 pipes"),
        (CONSO + conso("C0000001", "Late"), "C0000001 comes after C0000006, expected the rows sorted by concept"),
        (CONSO.replace("Influenza virus", " "), "C0000005 has no title"),
        ("", "is empty"),
    ],
)
def test_malformed_tables_are_refused(pel_ray: RunCommand, meta: Path, content: str, expected: str) -> None:
    (meta / "MRCONSO.RRF").write_text(content)
    assert expected in pel_ray("import", "umls", meta, "--out", "set").error
    assert not Path("set").exists()


def test_rows_that_are_no_rows_can_be_skipped_and_are_counted(pel_ray: RunCommand, meta: Path) -> None:
    pel_ray("import", "umls", meta, "--out", "whole")
    bad = {"MRCONSO": ("names", CONSO), "MRSTY": ("types", STY), "MRDEF": ("definitions", DEF)}
    for table, (_, content) in bad.items():
        first = content.splitlines(keepends=True)[0]
        (meta / f"{table}.RRF").write_text(f"C0000001|cut\n{first[8:]}{content}C0000009|T0")
    assert "--on-error skip" in pel_ray("import", "umls", meta, "--out", "set").error
    assert pel_ray("import", "umls", meta, "--out", "set", "--on-error", "skip").code == 0
    assert rows_of("set", "kb") == rows_of("whole", "kb")
    counts = sources_of("set", "kb")
    for subject, _ in bad.values():
        dropped = counts[subject]["dropped"]
        assert (dropped["wrong number of fields"], dropped["without a concept"]) == (2, 1)


def test_damage_after_the_last_concept_that_is_asked_for_is_noticed(pel_ray: RunCommand, meta: Path) -> None:
    (meta / "MRSTY.RRF").write_text(STY + "C0000008|T047|B|Disease or Syndrome|AT|256|\nC0000009|T0")
    assert "MRSTY.RRF:8" in pel_ray("import", "umls", meta, "--out", "set").error


def test_rows_of_concepts_without_names_are_counted(pel_ray: RunCommand, meta: Path) -> None:
    (meta / "MRDEF.RRF").write_text("C0000000|A|AT||MSH|No names.|N|256|\nC9999999|A|AT||MSH|Nor here.|N|256|\n")
    pel_ray("import", "umls", meta, "--out", "set")
    assert sources_of("set", "kb")["definitions"]["dropped"] == {"of a concept without names": 2}


def test_a_missing_part_is_noticed_and_other_files_are_no_parts(pel_ray: RunCommand, meta: Path) -> None:
    (meta / "MRCONSO.RRF").rename(meta / "MRCONSO.RRF.aa")
    (meta / "MRCONSO.RRF.md5").write_text("no part")
    assert pel_ray("import", "umls", meta, "--out", "set").code == 0
    (meta / "MRCONSO.RRF.ac").touch()
    assert "part ab of MRCONSO.RRF is missing" in pel_ray("import", "umls", meta, "--out", "other").error
    (meta / "MRCONSO.RRF.aa").unlink()
    assert "the first are missing" in pel_ray("import", "umls", meta, "--out", "other").error


def test_parts_are_taken_in_the_order_of_their_numbers(pel_ray: RunCommand, meta: Path) -> None:
    pel_ray("import", "umls", meta, "--out", "whole")
    lines = (meta / "MRCONSO.RRF").read_text().splitlines(keepends=True)
    (meta / "MRCONSO.RRF").unlink()
    for number, line in enumerate(lines, start=1):
        (meta / f"MRCONSO.RRF.{number}").write_text(line)
    assert len(lines) == 10
    assert pel_ray("import", "umls", meta, "--out", "set").code == 0
    assert rows_of("set", "kb") == rows_of("whole", "kb")
    for number in range(1, 10):
        (meta / f"MRCONSO.RRF.{number}").unlink()
    assert "begin with 10: the first are missing" in pel_ray("import", "umls", meta, "--out", "other").error


def test_a_vocabulary_that_no_name_is_of_is_told(pel_ray: RunCommand, meta: Path) -> None:
    pel_ray("import", "umls", meta, "--out", "set", "--sources", "MSH,NCBI,SNOMED")
    counts = sources_of("set", "kb")["vocabularies"]
    assert counts["kept"] == 1
    assert counts["dropped"] == {"NCBI: no name is of it": 1, "SNOMED: no name is of it": 1}


def test_type_names_may_hold_commas(pel_ray: RunCommand, meta: Path) -> None:
    types = "Element, Ion, or Isotope,Virus"
    pel_ray("import", "umls", meta, "--out", "set", "--types", types)
    assert [row["entity_id"] for row in rows_of("set", "kb")] == ["C0000005"]


def test_an_empty_filter_is_wrong_usage(pel_ray: RunCommand, meta: Path) -> None:
    for option in ("--types", "--sources"):
        assert pel_ray("import", "umls", meta, "--out", "set", option, ",").code == 2
    assert pel_ray("import", "umls", meta, "--out", "").code == 2


def test_the_semantic_tree_is_whole() -> None:
    assert len(type_names()) == 127
    assert with_descendants(["T051", "T071"]) == type_names().keys()
    assert with_descendants(["T033"]) == {"T033", "T034", "T184"}
    assert len(ST21PV_TYPES) == 21 and len(ST21PV_SOURCES) == 18


# Pipes and line ends separate fields and rows, so no field holds them; names are read without white space around them.
fields = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="|"), max_size=20)
names = fields.map(str.strip).filter(bool)


@given(st.lists(st.tuples(st.lists(names, min_size=1, max_size=4), st.sets(fields, max_size=3), fields), min_size=1))
def test_written_concepts_read_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[list[str], set[str], str]]
) -> None:
    folder = tmp_path_factory.mktemp("umls")
    concepts = {f"C{number:07d}": entry for number, entry in enumerate(written)}
    rows = {
        "CONSO": [conso(cui, name) for cui, (texts, _, _) in concepts.items() for name in texts],
        "STY": [f"{cui}|T000|A|{kind}|AT||\n" for cui, (_, types, _) in concepts.items() for kind in types],
        "DEF": [f"{cui}|A|AT||MSH|{text}|N||\n" for cui, (_, _, text) in concepts.items()],
    }
    # A table has rows: that of a concept which the names do not have counts for nothing.
    rows["STY"].append("C9999999|T000|A|None|AT||\n")
    for table, lines in rows.items():
        (folder / table).write_bytes("".join(lines).encode())
    sources = (Lines([locate(folder / table)]) for table in ("CONSO", "STY", "DEF"))
    rules = Rules(types=(), sources=(), language="ENG", definition_sources=())
    read = {entity.entity_id: entity for entity in read_entities(*sources, rules, Tally())}
    assert list(read) == list(concepts)
    for cui, (texts, types, text) in concepts.items():
        distinct = {name.casefold(): name for name in reversed(texts)}
        expected = sorted(distinct.values(), key=texts.index)
        assert [read[cui].title, *read[cui].synonyms] == expected
        assert set(read[cui].types) == types and read[cui].description == text.strip()
