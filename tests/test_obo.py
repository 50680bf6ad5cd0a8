"""import obo."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.formats.lines import Lines
from pel_ray.formats.obo import Hierarchy, Term, read_terms
from pel_ray.storage import locate
from pel_ray.tally import Tally
from tests.conftest import RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import OBO


@pytest.fixture
def ontology(tmp_path: Path) -> Path:
    path = tmp_path / "toy.obo.gz"
    path.write_bytes(gzip.compress(OBO.encode()))
    return path


def test_terms_become_entities_with_all_that_is_known_of_them(pel_ray: RunCommand, ontology: Path) -> None:
    assert pel_ray("import", "obo", ontology, "--out", "set").code == 0
    entities = by_id("set", "kb")
    assert entities["TOY:3"] == {
        "entity_id": "TOY:3",
        "title": "influenza",
        "types": ["toy disease", "influenza"],
        "description": 'An infection with a "flu" virus.',
        "synonyms": ["flu", "the grippe"],
        "alternative_ids": ["TOY:30", "TOY:4"],
        "xrefs": ["UMLS:C0021400", "MESH:D007251"],
        "world": "",
    }
    assert entities["TOY:5"]["title"] == "cold" and entities["TOY:5"]["synonyms"] == ["head cold"]
    assert "TOY:4" not in entities and "part_of" not in entities
    assert not Path("set/mentions").exists()


def test_what_is_dropped_is_counted_by_reason(pel_ray: RunCommand, ontology: Path) -> None:
    pel_ray("import", "obo", ontology, "--out", "set", "--prefixes", "TOY:3,TOY:4")
    counts = sources_of("set", "kb")
    assert counts["terms"]["dropped"] == {"id with another prefix": 3, "obsolete": 1}
    assert counts["synonyms"]["dropped"] == {
        "of scope related": 1,
        "equal to the name or to another": 1,
        "of a term that was dropped": 1,
    }


def test_wider_scopes_keep_more_synonyms(pel_ray: RunCommand, ontology: Path) -> None:
    pel_ray("import", "obo", ontology, "--out", "set", "--scopes", "exact,related")
    assert by_id("set", "kb")["TOY:3"]["synonyms"] == ["flu", "the grippe", "flu season"]


def _many_terms(path: Path, count: int) -> Path:
    stanzas = [f'[Term]\nid: X:{n}\nname: term {n}\nsynonym: "name {n}" EXACT []\n' for n in range(count)]
    path.write_text("format-version: 1.2\n\n" + "\n".join(stanzas))
    return path


def test_synonym_mentions_split_by_entity_and_held_out_names_leave_the_kb(pel_ray: RunCommand, tmp_path: Path) -> None:
    ontology = _many_terms(tmp_path / "many.obo", 400)
    assert pel_ray("import", "obo", ontology, "--out", "set", "--mentions", "synonyms").code == 0
    mentions = rows_of("set", "mentions")
    entities_of = {split: {row["entity_ids"][0] for row in mentions if row["split"] == split} for split in
                   ("train", "validation", "test")}  # fmt: skip
    assert sum(map(len, entities_of.values())) == 400
    assert not entities_of["train"] & (entities_of["validation"] | entities_of["test"])
    assert all(20 <= len(entities_of[split]) <= 60 for split in ("validation", "test"))
    for entity in rows_of("set", "kb"):
        assert bool(entity["synonyms"]) == (entity["entity_id"] in entities_of["train"])


def test_the_seed_alone_decides_the_split(pel_ray: RunCommand, tmp_path: Path) -> None:
    few, many = _many_terms(tmp_path / "few.obo", 50), _many_terms(tmp_path / "many.obo", 100)
    pel_ray("import", "obo", few, "--out", "few", "--mentions", "synonyms")
    pel_ray("import", "obo", many, "--out", "many", "--mentions", "synonyms")
    pel_ray("import", "obo", many, "--out", "other", "--mentions", "synonyms", "--seed", "14")
    splits = {name: {row["mention_id"]: row["split"] for row in rows_of(name, "mentions")} for name in
              ("few", "many", "other")}  # fmt: skip
    assert splits["few"].items() <= splits["many"].items()
    assert splits["many"] != splits["other"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("id: TOY:2\n", "", "toy.obo.gz:8: a [Term] stanza without `id:`"),
        ("name: infection\n", "", "TOY:2 has no title"),
        ("id: TOY:5", "id: TOY:3", "the id TOY:3 occurs twice"),
        ('"flu" EXACT', '"flu EXACT', 'does not start with a whole "quoted text"'),
        ("[Term]\nid: TOY:2", "\nid: TOY:2", "a second `id:` in the stanza of TOY:1"),
        ("[Term]", "[Term", "does not end in ]"),
        ("alt_id: TOY:30", "alt_id TOY 30", "is not a `tag: value` line"),
        ("[Term]\nid: TOY:1", "Term]\nid: TOY:1", "is not a `tag: value` line"),
        ("name: cold", "name: cold\nname: flu", "a second `name:` in the stanza of TOY:5"),
    ],
)
def test_malformed_stanzas_name_their_line(
    pel_ray: RunCommand, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = tmp_path / "toy.obo.gz"
    path.write_bytes(gzip.compress(OBO.replace(old, new, 1).encode()))
    assert expected in pel_ray("import", "obo", path, "--out", "set").error
    assert not Path("set").exists()


@pytest.mark.parametrize("content", ["<rdf:RDF/>\n", "a,b\n1,2\n", "format-version: 1.2\n"])
def test_a_file_that_is_not_obo_is_refused(pel_ray: RunCommand, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.obo").write_text(content)
    error = pel_ray("import", "obo", "x.obo", "--out", "set").error
    assert "x.obo" in error and "OBO" in error


def test_a_skipped_term_leaves_no_mentions_behind(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO.replace("name: cold", "comment: cold").replace("id: TOY:1\n", "id: TOY:2\n"))
    options = ["--mentions", "synonyms", "--on-error", "skip", "--keep-held-out"]
    result = pel_ray("import", "obo", "x.obo", "--out", "set", *options)
    assert "golds not in the KB: 0" in result.out
    counts = sources_of("set", "kb")
    assert counts["terms"]["dropped"] == {"id occurs twice": 1, "obsolete": 1, "without a title": 1}
    assert counts["synonyms"]["kept"] == sum(len(row["synonyms"]) for row in rows_of("set", "kb"))


def test_a_stanza_without_an_id_can_be_skipped_and_is_counted(pel_ray: RunCommand, tmp_path: Path) -> None:
    nameless = '[Term]\nname: lost\nsynonym: "gone" EXACT []\n\n[Term]\nis_obsolete: true\nreplaced_by: TOY:3\n\n'
    (tmp_path / "x.obo").write_text(OBO.replace("[Term]\nid: TOY:2", f"{nameless}[Term]\nid: TOY:2"))
    assert "--on-error skip" in pel_ray("import", "obo", "x.obo", "--out", "set").error
    assert pel_ray("import", "obo", "x.obo", "--out", "set", "--on-error", "skip").code == 0
    counts = sources_of("set", "kb")
    assert counts["terms"]["dropped"] == {"without an id": 2, "obsolete": 1}
    assert counts["synonyms"]["dropped"]["of a term that was dropped"] == 1
    (tmp_path / "whole.obo").write_text(OBO)
    pel_ray("import", "obo", "whole.obo", "--out", "whole")
    assert rows_of("set", "kb") == rows_of("whole", "kb")


def test_a_skipped_term_gives_its_children_no_blank_type(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO.replace("name: infection\n", ""))
    pel_ray("import", "obo", "x.obo", "--out", "set", "--on-error", "skip", "--branch-depth", "1")
    assert {name: row["types"] for name, row in by_id("set", "kb").items()} == {
        "TOY:1": [],
        "TOY:3": ["toy disease"],
        "TOY:5": [],
    }


def test_the_second_of_two_equal_ids_changes_no_type(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO + "\n[Term]\nid: TOY:2\nname: double\n")
    assert "the id TOY:2 occurs twice, first at x.obo:8" in pel_ray("import", "obo", "x.obo", "--out", "set").error
    pel_ray("import", "obo", "x.obo", "--out", "set", "--on-error", "skip", "--branch-depth", "1")
    entities = by_id("set", "kb")
    assert entities["TOY:2"]["types"] == ["infection"] == entities["TOY:5"]["types"]


def test_braces_in_a_name_are_part_of_it(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.obo").write_text(OBO.replace("name: disease", "name: bis {2,4} methyl"))
    pel_ray("import", "obo", "x.obo", "--out", "set", "--branch-depth", "99999999999")
    assert by_id("set", "kb")["TOY:1"]["title"] == "bis {2,4} methyl"


def test_branches_are_the_ancestors_at_the_depth_even_in_a_graph_with_cycles() -> None:
    parents = {"root": [], "a": ["root"], "b": ["root"], "leaf": ["a", "b"], "x": ["y"], "y": ["x"]}
    terms = [Term("", id=name, name=name.upper(), parents=list(above)) for name, above in parents.items()]
    assert Hierarchy.of(terms).branches(1) == {"a": ("A",), "b": ("B",), "leaf": ("A", "B")}


quoted = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=30)


@given(quoted, st.lists(st.tuples(quoted, st.sampled_from(["EXACT", "NARROW", "BROAD", "RELATED"])), max_size=4))
def test_a_written_term_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, definition: str, synonyms: list[tuple[str, str]]
) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    path = tmp_path_factory.mktemp("obo") / "one.obo"
    lines = ["format-version: 1.4", "", "[Term]", "id: X:1", "name: x", f'def: "{escaped(definition)}" [A:1 "x"]']
    lines += [f'synonym: "{escaped(text)}" {scope} [A:1]' for text, scope in synonyms]
    path.write_bytes("\n".join(lines).encode())
    (term,) = read_terms(Lines([locate(path)]), Tally())
    assert term.definition == definition
    assert term.synonyms == [(text, scope.lower()) for text, scope in synonyms]
