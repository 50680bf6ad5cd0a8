"""wordnet_el in worlds: no world is in two splits, and the same source gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import RunCommand
from tests.reading import rows_of
from tests.samples import write_jsonl
from tests.scripts import script_at

WORLDS = [f"noun.{letter}" for letter in "abcdefg"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_at("jobs/paper/open/worlds.py")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sense in each world, with a mention in each of the files, whose splits share all worlds."""
    folder = tmp_path / "wordnet_el"
    folder.mkdir()
    kb = [{"id": f"S{world}", "title": f"word {world}", "types": [world]} for world in reversed(WORLDS)]
    mentions = [{"mention_id": f"M{world}", "text": "word", "label": f"S{world}", "world": world} for world in WORLDS]
    files = {"kb": kb} | {
        f"mentions.{split}": mentions[number::3] for number, split in enumerate(("train", "dev", "test"))
    }
    for name, rows in files.items():
        write_jsonl(folder / f"{name}.jsonl.gz", rows)
    return tmp_path


def test_every_mention_is_in_the_split_of_its_world_and_beside_the_senses_of_it(
    script: ModuleType, source: Path, pel_ray: RunCommand
) -> None:
    out = source / "worlds"
    script.main(["--data", str(source), "--out", str(out)])
    given = [f"{split}={out / f'mentions.{split}.jsonl.gz'}" for split in ("train", "validation", "test")]
    flags = [word for one in given for word in ("--mentions", one)]
    done = pel_ray("import", "jsonl", "--kb", out / "kb.jsonl.gz", *flags, "--out", source / "data")
    assert done.code == 0, done
    mentions = rows_of(source / "data", "mentions")
    found = {split: sorted(row["world"] for row in mentions if row["split"] == split) for split in script.SPLITS}
    a, b, c, d, e, f, g = WORLDS
    assert found == {"train": [a, b, e, f], "validation": [c, g], "test": [d]}
    world_of = {row["entity_id"]: row["world"] for row in rows_of(source / "data", "kb")}
    assert all(world_of[row["entity_ids"][0]] == row["world"] for row in mentions)


def test_the_same_source_gives_the_same_bytes(script: ModuleType, source: Path) -> None:
    made = []
    for out in (source / "one", source / "other"):
        script.main(["--data", str(source), "--out", str(out)])
        made.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert made[0] == made[1] and len(made[0]) == 4


def test_a_folder_without_wordnet_is_one_line(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert str(stop.value.code).startswith("worlds: error: ") and not (tmp_path / "out").exists()
