"""mine on a real Ray: negatives that a plain sort would give, never a gold, the same whoever did the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pel_ray import ModelSettings, load_model
from pel_ray.errors import PelRayError
from pel_ray.names import normalised
from pel_ray.negative_folder import NegativeFolder
from pel_ray.shard_search import ShardSearcher
from pel_ray.steps import searching
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.mine import MineSettings, mine
from pel_ray.storage import locate
from pel_ray.vectors import Shard
from tests.conftest import RunCommand
from tests.models import WORDS, write_encoder
from tests.reading import rows_of
from tests.samples import write_jsonl

NUM_ENTITIES, NUM_MENTIONS, K = 240, 90, 12
ONE_WORKER = {"workers": 1, "cpus": 1}


def entity(number: int) -> dict[str, Any]:
    # Every tenth entity has a namesake, in another spelling or among the synonyms.
    name = f"{WORDS[number % 13]} {number if number % 10 else number + 1}"
    synonyms = [f"{WORDS[(number + 1) % 13].upper()}-{number + 1}"] if number % 20 == 10 else []
    words = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 7))
    return {"id": f"E{number}", "title": name, "description": words, "synonyms": synonyms, "world": "ab"[number % 2]}


def mention(number: int) -> dict[str, Any]:
    golds = [f"E{number * 7 % NUM_ENTITIES}"]
    if number % 9 == 0:
        golds.append(f"E{(number * 7 + 2) % NUM_ENTITIES}")
    return {
        "mention_id": f"m{number}",
        "context_left": "has the ",
        "mention": f"{WORDS[number % 11]} {number * 7 % NUM_ENTITIES}",
        "context_right": " with name",
        "label": golds if number % 29 else (["E9999"] if number else []),
        "split": "train" if number % 3 else "test",
        "world": "ab"[number * 7 % 2],
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    """A folder with a tiny encoder `tiny`, a data set `set` and the KB's vectors `vectors`."""
    home = tmp_path_factory.mktemp("mine")
    write_encoder(home / "tiny")
    write_jsonl(home / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(home / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    files = ["--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set"]
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=home)
    encode(home, home / "vectors")
    return home


def encode(home: Path, out: Path, **more: Any) -> None:
    given = {"kb": str(home / "set"), "out": str(out), "model": {"encoder": str(home / "tiny")}, "shard_rows": 16}
    encode_kb(EncodeSettings.model_validate(given | {"resources": ONE_WORKER} | more))


def settings(home: Path, out: Path, **more: Any) -> MineSettings:
    given = {"data": str(home / "set"), "vectors": str(home / "vectors"), "out": str(out), "num_negatives": K}
    return MineSettings.model_validate(given | {"resources": ONE_WORKER, "pool": "all"} | more)


def mined(folder: Path) -> list[dict[str, Any]]:
    return [row for table in NegativeFolder.open(locate(folder)).tables() for row in table.to_pylist()]


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> list[dict[str, Any]]:
    mine(settings(home, home / "undisturbed"))
    return mined(home / "undisturbed")


@pytest.fixture(scope="module")
def scores(home: Path) -> np.ndarray:
    """Of all mentions against all entities."""
    model = load_model(ModelSettings(encoder=str(home / "tiny")))
    entities = model.encode_entities(rows_of(home / "set", "kb")).astype(np.float16).astype(np.float32)
    return model.encode_mentions(rows_of(home / "set", "mentions")) @ entities.T


def names_of(row: dict[str, Any]) -> set[str]:
    return {normalised(name) for name in (row["title"], *row["synonyms"])}


def forbidden(home: Path, golds: set[int]) -> set[int]:
    """The golds, and whatever shares a name with one of them."""
    kb = rows_of(home / "set", "kb")
    names = set().union(*(names_of(kb[gold]) for gold in golds))
    return golds | {number for number, row in enumerate(kb) if names & names_of(row)}


def test_negatives_are_the_best_scored_without_golds_and_namesakes(
    home: Path, undisturbed: list[dict[str, Any]], scores: np.ndarray
) -> None:
    mentions = rows_of(home / "set", "mentions")
    wanted = [
        number
        for number, row in enumerate(mentions)
        if row["split"] == "train" and row["entity_ids"] and row["entity_ids"] != ["E9999"]
    ]
    assert [row["mention_row"] for row in undisturbed] == wanted
    num_with_namesakes = 0
    for row in undisturbed:
        golds = {int(name[1:]) for name in mentions[row["mention_row"]]["entity_ids"]}
        bad = forbidden(home, golds)
        num_with_namesakes += len(bad) > len(golds)
        ranked = [entity for entity in np.argsort(-scores[row["mention_row"]]).tolist() if entity not in bad]
        np.testing.assert_allclose(row["scores"], scores[row["mention_row"]][ranked[:K]], atol=2e-3)
        assert not bad & set(row["entity_rows"]) and len(set(row["entity_rows"])) == K
        assert row["gold_score"] == pytest.approx(scores[row["mention_row"]][list(golds)].max(), abs=2e-3)
        if row["gold_rank"]:
            better = (scores[row["mention_row"]] > row["gold_score"] + 2e-3).sum()
            assert row["gold_rank"] > better
    assert num_with_namesakes > 5


def test_the_report_says_what_was_dropped_and_shows_examples(home: Path, undisturbed: list[dict[str, Any]]) -> None:
    folder = NegativeFolder.open(locate(home / "undisturbed"))
    counts = folder.manifest.counts
    assert counts["mentions left out: gold not in the KB"] == 2 and counts["mentions left out: NIL"] == 0
    assert counts["dropped"]["gold"]["of mentions"] == sum(row["gold_rank"] is not None for row in undisturbed)
    assert counts["dropped"]["shares a name with the gold"]["hits"] > 0
    (report,) = (home / "undisturbed").glob("report-*.json")
    examples = json.loads(report.read_text())["examples"]
    assert len(examples) == 10 and all("[[" in example["mention"] for example in examples)


@pytest.mark.workers
def test_four_workers_give_the_negatives_of_one(
    home: Path, undisturbed: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "ENTITIES_PER_GROUP", 32)
    monkeypatch.setattr(searching, "MENTIONS_PER_SHARD", 16)
    mine(settings(home, tmp_path / "out", resources={"workers": 4, "cpus": 1}))
    assert mined(tmp_path / "out") == undisturbed


class DyingSearcher(ShardSearcher):
    """Is killed in the middle of a group, once."""

    def do(self, shard: Shard) -> dict[str, Any]:
        marker = Path(self.job.folder.path).parent / "killed"
        if shard.number == 3 and not marker.exists():
            marker.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().do(shard)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.workers)])
def test_a_worker_killed_in_the_middle_of_a_search_changes_nothing(
    home: Path, undisturbed: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(searching, "ENTITIES_PER_GROUP", 32)
    monkeypatch.setattr(searching, "ShardSearcher", DyingSearcher)
    mine(settings(home, tmp_path / "out", resources={"workers": workers, "cpus": 1}))
    assert (tmp_path / "killed").exists()
    assert mined(tmp_path / "out") == undisturbed


def test_margins_ranks_and_scores_narrow_the_choice(
    home: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    mine(settings(home, tmp_path / "skip", filter={"skip_ranks": 3}))
    for row, full in zip(mined(tmp_path / "skip"), undisturbed, strict=True):
        assert row["entity_rows"][: K - 3] == full["entity_rows"][3:]
    mine(settings(home, tmp_path / "margin", filter={"absolute_margin": 0.05}))
    rows = mined(tmp_path / "margin")
    assert all(score <= row["gold_score"] - 0.05 + 1e-6 for row in rows for score in row["scores"])
    counts = NegativeFolder.open(locate(tmp_path / "margin")).manifest.counts
    assert counts["dropped"]["within the margin"]["hits"] > 0
    short = sum(len(row["entity_rows"]) < K for row in rows)
    assert counts["mentions with fewer negatives than asked for"] == short > 0


def test_a_mention_competes_within_its_world(home: Path, tmp_path: Path) -> None:
    mine(settings(home, tmp_path / "out", pool="auto"))
    for row in mined(tmp_path / "out"):
        assert {entity % 2 for entity in row["entity_rows"]} == {row["mention_row"] * 7 % 2}
    assert NegativeFolder.open(locate(tmp_path / "out")).manifest.counts["pool"] == "2 worlds of 120 to 120 entities"


def test_a_pool_refresh_encodes_the_candidates_only_and_can_be_audited(
    home: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    encode(home, tmp_path / "pool", only=str(home / "undisturbed"))
    wanted = {entity for row in undisturbed for entity in (*row["gold_rows"], *row["entity_rows"])}
    outcome = mine(settings(home, tmp_path / "out", vectors=str(tmp_path / "pool"), audit=str(home / "vectors")))
    assert outcome.manifest.counts["pool"] == f"{len(wanted)} entities" and len(wanted) < NUM_ENTITIES
    # With the same model, the pool holds all that a full refresh would find.
    assert [row["entity_rows"] for row in mined(tmp_path / "out")] == [row["entity_rows"] for row in undisturbed]
    (report,) = (tmp_path / "out").glob("report-*.json")
    assert json.loads(report.read_text())["audit"]["overlap of the hard negatives"] == 1.0


def test_a_second_run_does_nothing_and_other_settings_are_refused(
    home: Path, undisturbed: list[dict[str, Any]], pel_ray: RunCommand
) -> None:
    flags = ["--vectors", home / "vectors", "--out", home / "undisturbed", "--pool", "all"]
    again = pel_ray("mine", home / "set", *flags, "--num-negatives", K)
    assert again.code == 0 and "already done" in again.out and "[[" in again.out
    assert "num_negatives is 12 there and 64 here" in pel_ray("mine", home / "set", *flags).error
    assert "negatives, 58 rows" in pel_ray("show", home / "undisturbed").out


def test_what_cannot_be_mined_is_refused(home: Path, undisturbed: list[dict[str, Any]], tmp_path: Path) -> None:
    write_encoder(tmp_path / "other", with_unused=False)
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) for number in range(30)])
    write_jsonl(tmp_path / "mentions.jsonl", [mention(number) for number in range(4)])
    files = ["--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set"]
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    for more, expected in (
        ({"encoder": str(tmp_path / "other")}, "was encoded with another model"),
        ({"data": str(tmp_path / "set")}, "holds vectors of another KB"),
        ({"num_negatives": NUM_ENTITIES}, "but the KB has only 240 entities"),
        ({"split": "dev"}, "has no mention of split 'dev'.*Its splits are train, test"),
        ({"vectors": str(home / "undisturbed")}, "holds negatives, expected vectors"),
        ({"data": str(home)}, "has no kb/"),
        ({"device": "gpu"}, "torch sees none here"),
    ):
        with pytest.raises(PelRayError, match=expected):
            mine(settings(home, tmp_path / "out", **more))
        assert "device" in more or not (tmp_path / "out").exists()
