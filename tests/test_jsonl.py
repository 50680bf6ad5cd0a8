"""import jsonl and import blink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.formats.blink_labels import BlinkLabels
from pel_ray.formats.jsonl import BLINK, PLAIN, Reader, read_entities, read_texts
from pel_ray.formats.lines import Lines
from pel_ray.formats.texts import spooled_texts
from pel_ray.storage import locate
from pel_ray.tally import Tally
from tests.conftest import Result, RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import KB_ROWS, MENTION_ROWS, write_jsonl, write_jsonl_set


def test_documents_mentions_and_kb_come_together(pel_ray: RunCommand, tmp_path: Path) -> None:
    result = pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "set")
    assert result.code == 0 and "golds not in the KB: 1 of 5" in result.out
    rows = by_id("set", "mentions")
    assert rows["1"]["context_left"] == "The " and rows["1"]["context_right"] == " has a scanner."
    assert rows["2"]["entity_ids"] == ["E4", "E1"]
    assert rows["4"]["entity_ids"] == []
    assert [row["split"] for row in rows.values()] == ["train", "train", "validation", "validation", "validation"]
    assert by_id("set", "kb")["E1"]["synonyms"] == ["pyrexia"]


def test_contexts_may_be_given_in_place_of_documents(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "m.jsonl",
        [
            {"id": 1, "left": "a ", "mention": "b", "right": " c", "label": "E1", "world": "w"},
            {"id": 2, "context": "x fever y", "start": 2, "end": 7, "text": "fever", "label": "NIL", "odd": 1},
            {"id": 3, "mention": "alone", "label": ["E1", "E1"]},
        ],
    )
    assert pel_ray("import", "jsonl", "--mentions", "dev=m.jsonl", "--out", "set").code == 0
    rows = by_id("set", "mentions")
    assert rows["1"]["world"] == "w" and rows["1"]["split"] == "validation"
    assert rows["2"]["context_left"] == "x " and rows["2"]["entity_ids"] == []
    assert rows["3"]["entity_ids"] == ["E1"]
    assert sources_of("set", "mentions")["mentions"]["notes"] == {"field odd not used": 1, "NIL": 1}


def test_long_contexts_are_cut_at_words(pel_ray: RunCommand, tmp_path: Path) -> None:
    row = {"id": 1, "left": "one two three ", "mention": "x", "right": " four five six", "label": "E"}
    write_jsonl(tmp_path / "m.jsonl", [row])
    pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set", "--context", "8")
    (mention,) = rows_of("set", "mentions")
    assert (mention["context_left"], mention["context_right"]) == (" three ", " four ")


def test_training_documents_can_be_held_out_for_validation(pel_ray: RunCommand, tmp_path: Path) -> None:
    rows = [
        {"id": f"{split}{name}", "doc_id": name, "mention": "x", "label": "E", "split": split}
        for split in ("train", "test")
        for name in ("20", "21", "b", "c")
    ]
    write_jsonl(tmp_path / "m.jsonl", rows)
    assert pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set", "--validate-every", "10").code == 0
    held_out = {name for name, row in by_id("set", "mentions").items() if row["split"] == "validation"}
    # The CRC-32 of "b" is 1908338681, of "c" 112844655.
    assert held_out == {"train20"}
    pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "odd", "--validate-every", "5")
    held_out = {name for name, row in by_id("odd", "mentions").items() if row["split"] == "validation"}
    assert held_out == {"train20", "trainc"}


def test_document_ids_of_any_length_can_be_held_out(pel_ray: RunCommand, tmp_path: Path) -> None:
    rows = [{"doc_id": "1" * 5000, "mention": "x", "label": "E", "split": "train"}]
    write_jsonl(tmp_path / "m.jsonl", rows)
    assert pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set", "--validate-every", "5").code == 0


def test_holding_out_of_a_corpus_without_training_documents_is_refused(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "m.jsonl", [{"mention": "x", "label": "E"}])
    given = ["import", "jsonl", "--mentions", "test=m.jsonl", "--out", "set", "--validate-every", "5"]
    error = pel_ray(*given).error
    assert "all mentions are test" in error and "train=FILE" in error
    assert not Path("set").exists()


def test_offsets_of_null_are_none(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "m.jsonl", [{"doc_id": "D", "mention": "x", "label": "E", "start": None, "end": None}])
    assert pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set").code == 0
    (row,) = rows_of("set", "mentions")
    assert (row["context_left"], row["mention"], row["context_right"]) == ("", "x", "")


def test_nils_that_are_dropped_are_not_counted_as_nil(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "m.jsonl", [{"id": 1, "mention": "x", "label": None}] * 3)
    pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set", "--on-error", "skip")
    assert sources_of("set", "mentions")["mentions"]["notes"] == {"NIL": 1}


@pytest.mark.parametrize("name", ["kb", "world"])
def test_a_file_with_a_comma_in_its_name_is_one_file(pel_ray: RunCommand, tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / "a,b.jsonl", KB_ROWS)
    given = "a,b.jsonl" if name == "kb" else "w=a,b.jsonl"
    assert pel_ray("import", "jsonl", "--kb", given, "--out", "set").code == 0
    assert {row["world"] for row in rows_of("set", "kb")} == {"" if name == "kb" else "w"}


def test_blink_entities_without_an_id_are_known_by_their_row(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "entity.jsonl", [{"title": "zero", "text": "nil"}, {"title": "one", "text": "unit"}])
    row = {"context_left": "the", "mention": "unit", "context_right": "", "label_id": 1, "label_title": "one"}
    write_jsonl(tmp_path / "train.jsonl", [row | {"world": "numbers"}])
    assert (
        pel_ray("import", "blink", "--kb", "entity.jsonl", "--mentions", "train=train.jsonl", "--out", "set").code == 0
    )
    assert by_id("set", "kb")["1"]["title"] == "one"
    (mention,) = rows_of("set", "mentions")
    assert (mention["entity_ids"], mention["world"], mention["split"]) == (["1"], "numbers", "train")


def _blink(pel_ray: RunCommand, kb: str, *more: str, code: int = 0) -> Result:
    result = pel_ray("import", "blink", "--kb", kb, "--mentions", "train=m.jsonl", "--out", "set", *more)
    assert result.code == code, result
    return result


def _golds() -> list[list[str]]:
    return [row["entity_ids"] for row in rows_of("set", "mentions")]


def test_a_skipped_entity_of_blink_keeps_its_row(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "kb.jsonl").write_text('{"title": "zero"}\n{"title":\n{"text": "no title"}\n{"title": "three"}\n')
    write_jsonl(tmp_path / "m.jsonl", [{"mention": "x", "label_id": 3, "label_title": "three"}])
    _blink(pel_ray, "kb.jsonl", "--on-error", "skip")
    assert {name: row["title"] for name, row in by_id("set", "kb").items()} == {"0": "zero", "3": "three"}
    assert _golds() == [["3"]]


@pytest.mark.parametrize("is_one_file", [True, False])
def test_labels_of_blink_count_within_the_world_of_the_mention(
    pel_ray: RunCommand, tmp_path: Path, is_one_file: bool
) -> None:
    worlds = {world: [{"document_id": f"{world}{n}", "title": f"{world} {n}"} for n in range(3)] for world in "ab"}
    for world, rows in worlds.items():
        write_jsonl(tmp_path / f"{world}.json", rows)
    both = [
        row | {"world": world}
        for rows in zip(*worlds.values(), strict=True)
        for world, row in zip("ab", rows, strict=True)
    ]
    write_jsonl(tmp_path / "both.json", both)
    labels = [("a", 0), ("b", 0), ("b", 2), ("a", 1)]
    mentions = [
        {"mention": "x", "world": world, "label_id": row, "label_title": f"{world} {row}"} for world, row in labels
    ]
    write_jsonl(tmp_path / "m.jsonl", mentions)
    _blink(pel_ray, "both.json" if is_one_file else "a=a.json,b=b.json")
    assert _golds() == [[f"{world}{row}"] for world, row in labels]
    assert {row["world"] for row in rows_of("set", "kb")} == {"a", "b"}


def test_a_damaged_row_of_a_world_moves_no_label_of_it_or_of_another(pel_ray: RunCommand, tmp_path: Path) -> None:
    for world in "ab":
        (tmp_path / f"{world}.json").write_text(f'{{\n{{"title": "{world} one"}}\n{{\n')
    write_jsonl(
        tmp_path / "m.jsonl", [{"mention": "x", "world": w, "label_id": 1, "label_title": f"{w} one"} for w in "ab"]
    )
    _blink(pel_ray, "a=a.json,b=b.json", "--on-error", "skip")
    assert _golds() == [["1"], ["4"]] and set(by_id("set", "kb")) == {"1", "4"}


def test_a_page_of_wikipedia_is_known_by_its_number(pel_ray: RunCommand, tmp_path: Path) -> None:
    pages = {12: "Anarchism", 25: "Autism"}
    url = "https://en.wikipedia.org/wiki?curid="
    write_jsonl(tmp_path / "kb.jsonl", [{"idx": f"{url}{n}", "title": title} for n, title in pages.items()])
    write_jsonl(tmp_path / "m.jsonl", [{"mention": "x", "label_id": n, "label_title": t} for n, t in pages.items()])
    _blink(pel_ray, "kb.jsonl")
    assert list(by_id("set", "kb")) == ["12", "25"]
    assert _golds() == [["12"], ["25"]]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.text("xyz", min_size=1, max_size=3)), min_size=1))
def test_labels_written_as_blink_does_read_back_as_the_entities(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("blink")
    entities, mentions = [], []
    for number, (world, title) in enumerate(written):
        row = sum(other == world for other, _ in written[:number])
        entities.append({"document_id": f"E{number}", "title": title, "world": world})
        mentions.append({"mention": "m", "label_id": row, "label_title": title, "world": world})
    labels = BlinkLabels()
    labels.read(Lines([locate(write_jsonl(folder / "kb.jsonl", entities))]), "")
    source = Lines([locate(write_jsonl(folder / "m.jsonl", mentions))])
    with spooled_texts() as texts:
        reader = Reader(dialect=BLINK, texts=texts, splits={}, context=10, golds=labels.golds)
        read = list(reader.read(source, "train", Tally()))
    assert [row.entity_ids for row in read] == [(f"E{number}",) for number in range(len(written))]


@pytest.mark.parametrize(
    ("kb", "fields", "expected"),
    [
        ("kb.jsonl", {"label_title": "zero"}, "label_id 1 is 'one' in the KB given, label_title says 'zero'"),
        ("w=kb.jsonl", {"world": "w", "label_id": 2}, "names no entity of world 'w', which has 2 rows"),
        ("w=kb.jsonl", {"world": "v"}, "names no entity of world 'v', of which the KB has none"),
    ],
)
def test_labels_that_name_no_entity_or_another_are_refused_or_counted(
    pel_ray: RunCommand, tmp_path: Path, kb: str, fields: dict[str, Any], expected: str
) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [{"title": "zero"}, {"title": "one"}])
    row = {"mention": "x", "label_id": 1, "label_title": "One ", "world": "w"}
    write_jsonl(tmp_path / "m.jsonl", [row, row | fields])
    error = _blink(pel_ray, kb, code=1).error
    assert expected in error and "m.jsonl:2" in error and "--kb WORLD=FILE" in error
    _blink(pel_ray, kb, "--on-error", "skip")
    assert sum(sources_of("set", "mentions")["mentions"]["dropped"].values()) == 1
    assert _golds() == [["1"]]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "E9"}, "has no title. Expected title or name; found id"),
        ({"id": "E9", "name": "  "}, "E9 has no title. Give it one, or pass --on-error skip"),
        ({"id": "", "name": "x"}, "has an empty id. Give it one, or pass --on-error skip"),
        ({"id": "E1", "name": "x"}, "the id E1 occurs twice. Ids must be unique: remove one; --on-error skip keeps"),
        ({"id": "E9", "name": ["x"]}, 'name is ["x"], expected text'),
        ({"id": "E9", "name": "x", "synonyms": {"a": 1}}, "synonyms is"),
        ({"id": "E9", "name": "x", "synonyms": ["a", " "], "types": [1.5]}, "types is [1.5]"),
        (["E9"], 'is ["E9"], expected a JSON object'),
        ({"id": "E9", "name": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_entities_that_cannot_be_are_refused(pel_ray: RunCommand, tmp_path: Path, row: Any, expected: str) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [*KB_ROWS, row])
    error = pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--out", "set").error
    assert expected in error and "kb.jsonl:5" in error
    assert not Path("set").exists()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"start": 5}, "the text at 5-12 is 'ospital', the record says 'hospital'"),
        ({"end": 999}, "start 4 and end 999 are no span of the text, which has 27 characters"),
        ({"doc_id": "D7"}, "document 'D7' is not among the 2 documents given"),
        ({"start": -1}, "expected a whole number from 0"),
        ({"start": 4, "end": 4, "text": ""}, "start 4 and end 4 are no span"),
        ({"mention_id": "2"}, "the id 2 occurs twice"),
    ],
)
def test_mentions_that_cannot_be_are_refused(
    pel_ray: RunCommand, tmp_path: Path, fields: dict[str, Any], expected: str
) -> None:
    arguments = write_jsonl_set(tmp_path / "in")
    write_jsonl(tmp_path / "in" / "mentions.jsonl", [*MENTION_ROWS[1:], MENTION_ROWS[0] | fields])
    error = pel_ray(*arguments, "--out", "set").error
    assert expected in error and "mentions.jsonl:5" in error
    assert not Path("set").exists()


def test_a_missing_label_is_an_error_and_a_null_one_is_nil(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "m.jsonl", [{"id": 1, "mention": "x"}])
    assert "has no label" in pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set").error


def test_names_are_stripped_and_blank_ones_are_none(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [{"id": " A ", "title": " x ", "synonyms": ["", " y", "y ", " "]}])
    write_jsonl(tmp_path / "m.jsonl", [{"mention": "x", "label": " A "}, {"mention": "x", "label": "  "}])
    pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "m.jsonl", "--out", "set")
    (entity,) = rows_of("set", "kb")
    assert (entity["entity_id"], entity["title"], entity["synonyms"]) == ("A", "x", ["y"])
    assert [row["entity_ids"] for row in rows_of("set", "mentions")] == [["A"], []]


def test_mentions_without_an_id_are_numbered_over_all_files(pel_ray: RunCommand, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"mention": "x", "label": "E1"}] * 2)
    assert pel_ray("import", "jsonl", "--mentions", "dev=a.jsonl,val=b.jsonl", "--out", "set").code == 0
    assert len(by_id("set", "mentions")) == 4


def test_bad_records_of_every_kind_can_be_skipped_and_are_counted(pel_ray: RunCommand, tmp_path: Path) -> None:
    bad = ["{", "[]", '{"id": 1}', '{"id": 2, "title": 1.5}', '{"id": 3, "title": "a", "title": "b"}']
    bad += ['{"id": 4, "title": "\\ud800"}', '{"id": 5, "title": " "}', '{"id": "E1", "title": "again"}']
    good = [json.dumps(row) for row in KB_ROWS]
    (tmp_path / "kb.jsonl").write_text("\n".join([*good, *bad]))
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--out", "set", "--on-error", "skip").code == 0
    counts = sources_of("set", "kb")["entities"]
    assert counts["kept"] == len(good) and sum(counts["dropped"].values()) == len(bad)


def test_a_dropped_entity_does_not_take_its_id_along(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "kb.jsonl", [{"id": "E1", "title": " "}, {"id": "E1", "title": "x"}, {"id": "E1", "title": "y"}]
    )
    assert pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--out", "set", "--on-error", "skip").code == 0
    assert [row["title"] for row in rows_of("set", "kb")] == ["x"]


def test_options_that_would_do_nothing_are_refused(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "kb.jsonl", KB_ROWS)
    given = ["import", "jsonl", "--kb", "kb.jsonl", "--out", "set"]
    assert "only read for mentions" in pel_ray(*given, "--documents", "kb.jsonl").error


def test_pretty_printed_json_gets_a_hint(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "kb.json").write_text(json.dumps(KB_ROWS, indent=1))
    assert "one whole object a line" in pel_ray("import", "jsonl", "--kb", "kb.json", "--out", "set").error


def test_nothing_to_import_is_said(pel_ray: RunCommand) -> None:
    assert "pass --kb FILE" in pel_ray("import", "jsonl", "--out", "set").error


any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.lists(st.tuples(any_text, st.lists(any_text, max_size=3), any_text), min_size=1, max_size=5))
def test_a_written_kb_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, list[str], str]]
) -> None:
    rows = [
        {"id": str(number), "title": f"x{title}y", "synonyms": synonyms, "description": description}
        for number, (title, synonyms, description) in enumerate(written)
    ]
    path = write_jsonl(tmp_path_factory.mktemp("kb") / "kb.jsonl", rows)
    read = list(read_entities(Lines([locate(path)]), PLAIN, Tally()))
    assert [(e.entity_id, e.title, e.description) for e in read] == [
        (row["id"], row["title"], row["description"]) for row in rows
    ]
    for entity, (_, synonyms, _) in zip(read, written, strict=True):
        assert list(entity.synonyms) == list(dict.fromkeys(name.strip() for name in synonyms if name.strip()))


@given(st.lists(st.tuples(any_text, any_text, any_text), min_size=1, max_size=5))
def test_written_mentions_read_back_the_same_with_contexts_and_with_offsets(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("mentions")
    parts = [(left, f"x{mention}y", right) for left, mention, right in written]
    contexts = [
        {"context_left": left, "mention": mention, "context_right": right, "label_id": number}
        for number, (left, mention, right) in enumerate(parts)
    ]
    documents = [{"id": number, "text": left + mention + right} for number, (left, mention, right) in enumerate(parts)]
    offsets = [
        {"document_id": number, "start": len(left), "end": len(left + mention), "label": number}
        for number, (left, mention, _) in enumerate(parts)
    ]
    for dialect, rows in ((BLINK, contexts), (PLAIN, offsets)):
        source = Lines([locate(write_jsonl(folder / "m.jsonl", rows))])
        with spooled_texts() as texts:
            reader = Reader(dialect=dialect, texts=texts, splits={}, context=10**6)
            read_texts(Lines([locate(write_jsonl(folder / "d.jsonl", documents))]), texts, reader.splits, Tally())
            read = list(reader.read(source, "train", Tally()))
        assert [(row.context_left, row.mention, row.context_right) for row in read] == parts
        assert [row.entity_ids for row in read] == [(str(number),) for number in range(len(parts))]
