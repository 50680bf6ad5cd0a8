"""import zeshel."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.formats.lines import Lines
from pel_ray.formats.texts import spooled_texts
from pel_ray.formats.zeshel import read_mentions
from pel_ray.storage import locate
from pel_ray.tally import Tally
from tests.conftest import RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import write_jsonl, write_zeshel, zeshel_mention


def test_worlds_and_splits_are_kept(pel_ray: RunCommand, tmp_path: Path) -> None:
    mentions = {
        "train": [zeshel_mention()],
        "heldout_train_unseen": [zeshel_mention(mention_id="M2")],
        "val": [zeshel_mention(mention_id="M3", label_document_id="GONE")],
        "debug": [zeshel_mention(mention_id="M4")],
    }
    result = pel_ray("import", "zeshel", write_zeshel(tmp_path / "z", mentions), "--out", "set")
    assert result.code == 0 and "golds not in the KB: 1 of 3" in result.out
    assert {row["entity_id"]: row["world"] for row in rows_of("set", "kb")} == {
        "C1": "castles",
        "C2": "castles",
        "S1": "ships",
    }
    rows = by_id("set", "mentions")
    assert {name: row["split"] for name, row in rows.items()} == {
        "M1": "train",
        "M2": "heldout_train_unseen",
        "M3": "validation",
    }
    first = rows["M1"]
    # Inclusive token positions 4 to 5 of "Tower A tower guards the gate ."
    assert (first["context_left"], first["mention"], first["context_right"]) == (
        "Tower A tower guards ",
        "the gate",
        " .",
    )
    assert first["world"] == "castles" and first["entity_ids"] == ["C2"]
    assert sources_of("set", "mentions")["mention files"]["dropped"] == {
        "mentions/debug.json: not one of the five splits": 1
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"end_index": 99}, "tokens 4 to 99 (inclusive) of document C1, which has 7 tokens"),
        ({"start_index": 6, "end_index": 5}, "tokens 6 to 5"),
        ({"text": "the moat"}, "are 'the gate', the record says 'the moat'"),
        ({"context_document_id": "NO"}, "document NO is in no file of documents/"),
        ({"start_index": "4"}, 'start_index is "4", expected a whole number'),
        ({"label_document_id": None}, "has no label"),
        ({"label_document_id": ""}, "has an empty label_document_id"),
    ],
)
def test_mentions_that_cannot_be_are_refused(
    pel_ray: RunCommand, tmp_path: Path, fields: dict[str, object], expected: str
) -> None:
    folder = write_zeshel(tmp_path / "z", {"train": [zeshel_mention(), zeshel_mention(mention_id="M2", **fields)]})
    error = pel_ray("import", "zeshel", folder, "--out", "set").error
    assert expected in error and "train.json:2" in error
    assert not Path("set").exists()


def test_another_layout_is_refused(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "original ZESHEL layout" in pel_ray("import", "zeshel", "empty", "--out", "set").error
    folder = write_zeshel(tmp_path / "z", {"debug": [zeshel_mention()]})
    assert "has none of train.json" in pel_ray("import", "zeshel", folder, "--out", "set").error


words = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=5)


@given(st.lists(words, min_size=1, max_size=12), st.data())
def test_inclusive_token_positions_read_back_as_the_words_they_cover(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    end = data.draw(st.integers(start, len(tokens) - 1))
    row = zeshel_mention(start_index=start, end_index=end, text=" ".join(tokens[start : end + 1]))
    path = write_jsonl(tmp_path_factory.mktemp("zeshel") / "train.json", [row])
    with spooled_texts() as texts:
        texts.add("C1", "  ".join(tokens), "here")
        (mention,) = read_mentions(Lines([locate(path)]), "train", texts, Tally(), context=10**6)
    assert (mention.context_left + mention.mention + mention.context_right).split() == tokens
    assert mention.mention.split() == tokens[start : end + 1]
    assert mention.context_left.split() == tokens[:start]
