"""okb: entities leave the KB and their mentions become NIL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import KB_ROWS, write_jsonl, write_jsonl_set


@pytest.fixture
def data(pel_ray: RunCommand, tmp_path: Path) -> str:
    assert pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "set").code == 0
    return "set"


def golds(folder: str) -> dict[str, list[str]]:
    return {name: row["entity_ids"] for name, row in by_id(folder, "mentions").items()}


def test_the_papers_types_leave_by_default(pel_ray: RunCommand, data: str) -> None:
    result = pel_ray("okb", data, "--out", "okb")
    assert result.code == 0 and "2 entities left the KB" in result.out
    assert list(by_id("okb", "kb")) == ["E1", "E2"]
    # 2 keeps its other gold; 4 was NIL before; 5 has a gold that no KB held, and keeps it.
    assert golds("okb") == {"1": [], "2": ["E1"], "3": ["E2"], "4": [], "5": ["E9"]}


def test_other_columns_and_rows_stay_as_they_were(pel_ray: RunCommand, data: str) -> None:
    pel_ray("okb", data, "--out", "okb")
    for before, after in zip(rows_of(data, "mentions"), rows_of("okb", "mentions"), strict=True):
        assert before | {"entity_ids": None} == after | {"entity_ids": None}
    kept = by_id("okb", "kb")
    assert kept == {name: row for name, row in by_id(data, "kb").items() if name in kept}


def test_types_can_be_named(pel_ray: RunCommand, data: str) -> None:
    pel_ray("okb", data, "--out", "okb", "--types", "finding")
    assert golds("okb")["2"] == ["E4"]
    error = pel_ray("okb", data, "--out", "other", "--types", "Findings").error
    assert "Nearest: Finding" in error and not Path("other").exists()


def test_a_share_leaves_by_chance_that_the_seed_decides(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [{"id": f"E{n}", "name": f"x{n}"} for n in range(1000)])
    write_jsonl(tmp_path / "m.jsonl", [{"id": n, "mention": "x", "label": f"E{n}"} for n in range(1000)])
    pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "train=m.jsonl", "--out", "set")
    pel_ray("okb", "set", "--out", "a", "--by", "share", "--share", "0.3")
    pel_ray("okb", "set", "--out", "b", "--by", "share", "--share", "0.3", "--seed", "14")
    a, b = set(by_id("a", "kb")), set(by_id("b", "kb"))
    assert 640 <= len(a) <= 760 and a != b
    assert {name for ids in golds("a").values() for name in ids} == a
    assert sum(not ids for ids in golds("a").values()) == 1000 - len(a)


def test_a_share_leaves_by_another_chance_than_terms_are_held_out(pel_ray: RunCommand, tmp_path: Path) -> None:
    stanzas = [f'[Term]\nid: X:{n}\nname: term {n}\nsynonym: "name {n}" EXACT []\n' for n in range(500)]
    (tmp_path / "x.obo").write_text("\n".join(stanzas))
    pel_ray("import", "obo", "x.obo", "--out", "set", "--mentions", "synonyms", "--test", "0.3", "--validation", "0.3")
    pel_ray("okb", "set", "--out", "okb", "--by", "share", "--share", "0.3")
    for split in ("train", "validation", "test"):
        is_nil = [not row["entity_ids"] for row in rows_of("okb", "mentions") if row["split"] == split]
        assert 0.15 < sum(is_nil) / len(is_nil) < 0.45, split


def test_an_id_that_names_an_entity_that_stays_is_not_lost(pel_ray: RunCommand, tmp_path: Path) -> None:
    kb = [
        {"id": "A", "name": "a", "types": ["out"], "alternative_ids": ["B", "OLD"]},
        {"id": "B", "name": "b", "types": ["in"], "alternative_ids": ["C"]},
        {"id": "C", "name": "c", "types": ["out"]},
    ]
    write_jsonl(tmp_path / "kb.jsonl", kb)
    labels = ["A", "B", "C", "OLD"]
    write_jsonl(tmp_path / "m.jsonl", [{"id": name, "mention": "x", "label": name} for name in labels])
    pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--mentions", "train=m.jsonl", "--out", "set")
    pel_ray("okb", "set", "--out", "okb", "--types", "out")
    assert golds("okb") == {"A": [], "B": ["B"], "C": ["C"], "OLD": []}


def test_what_an_older_version_lacks_leaves(pel_ray: RunCommand, data: str, tmp_path: Path) -> None:
    older = [KB_ROWS[0], KB_ROWS[1], {"id": "OLD", "name": "hospital", "alternative_ids": ["E3"]}]
    write_jsonl(tmp_path / "older.jsonl", older)
    pel_ray("import", "jsonl", "--kb", "older.jsonl", "--out", "older")
    assert pel_ray("okb", data, "--out", "okb", "--by", "version", "--older", "older/kb").code == 0
    assert list(by_id("okb", "kb")) == ["E1", "E2", "E3"]
    assert golds("okb")["2"] == ["E1"]


def test_the_statistics_are_those_of_the_mentions_that_became_nil(pel_ray: RunCommand, data: str) -> None:
    out = pel_ray("okb", data, "--out", "okb").out
    table = out[out.index("The out-of-KB subset") :].splitlines()
    assert table[1].split() == ["train"]
    assert ["mentions", "1"] in [line.split() for line in table]
    assert ["entities", "1"] in [line.split() for line in table]


def test_a_rerun_does_nothing_and_other_settings_are_refused(pel_ray: RunCommand, data: str) -> None:
    pel_ray("okb", data, "--out", "okb")
    assert pel_ray("okb", data, "--out", "okb").out.count("already done") == 2
    assert "by is 'types' there and 'share' here" in pel_ray("okb", data, "--out", "okb", "--by", "share").error


def test_lost_golds_are_counted(pel_ray: RunCommand, data: str) -> None:
    pel_ray("okb", data, "--out", "okb")
    counts = sources_of("okb", "mentions")
    assert counts["mentions"]["notes"] == {"became NIL": 1, "lost some of their golds": 1}
    assert counts["golds"]["dropped"] == {"of an entity that left the KB": 2}


def test_okb_never_writes_over_what_it_reads(pel_ray: RunCommand, data: str) -> None:
    assert "holds what okb reads" in pel_ray("okb", data, "--out", data, "--overwrite").error
    assert pel_ray("okb", data, "--out", "okb", "--by", "version", "--older", "").code == 2


def test_what_cannot_be_is_refused(pel_ray: RunCommand, data: str) -> None:
    assert "does not exist" in pel_ray("okb", "nowhere", "--out", "okb").error
    assert pel_ray("okb", data, "--out", "okb", "--by", "version").code == 2
    assert "0 of 4 entities" in pel_ray("okb", data, "--out", "okb", "--by", "share", "--share", "1e-9").error
    assert "holds mentions, expected kb" in pel_ray(
        "okb", data, "--out", "okb", "--by", "version", "--older", "set/mentions"
    ).error  # fmt: skip
    assert not Path("okb").exists()
