"""train on a real Ray: the same weights whoever was killed, the same losses on one worker and two."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pel_ray.artifacts import read_manifest
from pel_ray.errors import PelRayError
from pel_ray.provenance import mention_model
from pel_ray.steps.rounds import Rounds
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.storage import locate
from pel_ray.vectors import VectorFolder
from tests.conftest import RunCommand
from tests.killing import run_and_kill, wait_for
from tests.models import WORDS, write_encoder
from tests.processes import started
from tests.samples import write_jsonl

NUM_ENTITIES, NUM_MENTIONS = 120, 96
EPOCHS, BATCH = 2, 8


def entity(number: int) -> dict[str, Any]:
    words = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 5))
    return {"id": f"E{number}", "title": f"{WORDS[number % 13]} {number}", "description": words}


def mention(number: int) -> dict[str, Any]:
    gold = number * 7 % NUM_ENTITIES
    return {
        "mention_id": f"m{number}",
        "context_left": "has the ",
        "mention": f"{WORDS[gold % 13]} {gold}",
        "context_right": " with fever",
        "label": [f"E{gold}"] if number % 31 else [f"E{gold}", f"E{(gold + 1) % NUM_ENTITIES}"],
        "split": "validation" if number % 4 == 0 else "train",
    }


def write_set(home: Path, mentions: list[dict[str, Any]]) -> None:
    home.mkdir(exist_ok=True)
    write_jsonl(home / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(home / "mentions.jsonl", mentions)
    files = ["--kb", "kb.jsonl", "--mentions", "mentions.jsonl", "--out", "set"]
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=home)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    """A folder with a tiny encoder `tiny` and a data set `set`."""
    home = tmp_path_factory.mktemp("train")
    write_encoder(home / "tiny")
    write_set(home, [mention(number) for number in range(NUM_MENTIONS)])
    return home


def settings(home: Path, out: Path, **more: Any) -> TrainSettings:
    given: dict[str, Any] = {
        "data": str(home / "set"),
        "out": str(out),
        "model": {"encoder": str(home / "tiny"), "pooling": "mention"},
        "objective": {"adversarial": {"fgsm": True}},
        "negatives": {"kind": "mixed", "num_negatives": 6},
        "optimiser": {"epochs": EPOCHS, "batch_size": BATCH, "micro_batch": 4, "lr": 1e-3},
        "checkpoint_steps": 2,
        "log_steps": 1,
        "resources": {"workers": 1, "cpus": 1},
    }
    for name, value in more.items():
        given[name] = given[name] | value if isinstance(value, dict) and name in given else value
    return TrainSettings.model_validate(given)


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Of the last epoch, which need not be the best one."""
    (model,) = (folder / next(folder.glob("state-*")).name).glob(f"model-{EPOCHS:03d}-*")
    return {
        f"{side}.{name}": value
        for side in ("mention", "entity")
        for name, value in load_file(model / f"{side}_encoder" / "model.safetensors").items()
    }


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    train(settings(home, home / "undisturbed"))
    return home / "undisturbed"


def test_training_lowers_the_loss_and_raises_recall(home: Path, tmp_path: Path) -> None:
    more = {
        "optimiser": {"epochs": 12, "batch_size": BATCH, "micro_batch": 8, "lr": 4e-3, "dropout": 0.0},
        "negatives": {"kind": "random", "in_batch": True},
        "model": {"pooling": "mean"},
        "objective": {"adversarial": {}},
    }
    outcome = train(settings(home, tmp_path / "out", **more))
    counts = outcome.manifest.counts
    assert np.mean(losses(tmp_path / "out")[-9:]) < np.mean(losses(tmp_path / "out")[:9])
    before, best = counts["validation before training"], counts["validation of the best epoch"]
    assert best["recall@4"] > before["recall@4"] and counts["best epoch"] > 0
    assert (tmp_path / "out" / "training.png").stat().st_size > 10_000


def test_a_run_leaves_a_model_that_encodes_and_a_line_for_every_step(undisturbed: Path) -> None:
    from pel_ray import ModelSettings, load_model

    model = load_model(ModelSettings(encoder=str(undisturbed / "model")))
    assert (
        model.settings.pooling == "mention" and model.encode_entities([entity(1) | {"types": [], "synonyms": []}]).any()
    )
    lines = [line for line in metrics(undisturbed) if "loss" in line]
    num_steps = -(-72 // BATCH) * EPOCHS
    assert [line["step"] for line in lines] == list(range(1, num_steps + 1))
    assert {"lr", "gradient_norm", "positive_score", "adversarial_loss", "pieces_per_second"} <= lines[0].keys()
    assert [line["epoch"] for line in metrics(undisturbed) if "validation" in line] == [0, 1, 2]
    assert max(line["lr"] for line in lines) == pytest.approx(1e-3, rel=0.1) and lines[-1]["lr"] < 2e-4


def test_a_run_of_no_epochs_is_where_others_start(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    started = train(settings(home, tmp_path / "start", optimiser={"epochs": 0})).manifest.counts
    (untrained,) = undisturbed.glob("state-*/model-000-*")
    for side in ("mention", "entity"):
        found, expected = (
            load_file(at / f"{side}_encoder/model.safetensors") for at in (tmp_path / "start/model", untrained)
        )
        assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)
    assert started["best epoch"] == started["steps"] == 0
    begun = {"model": {"encoder": str(tmp_path / "start" / "model")}, "vectors": str(tmp_path / "start")}
    counts = train(settings(home, tmp_path / "out", optimiser={"epochs": 0}, **begun)).manifest.counts
    assert counts["validation before training"] == started["validation before training"]


def num_lines(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines()) if (folder / "metrics.jsonl").exists() else 0


def test_a_killed_worker_goes_on_from_its_checkpoint_to_the_same_weights(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    asked = settings(home, tmp_path / "out")
    run_and_kill(lambda: train(asked), lambda: num_lines(tmp_path / "out") >= 6)
    assert losses(tmp_path / "out") == losses(undisturbed)
    for name, value in weights(undisturbed).items():
        np.testing.assert_array_equal(weights(tmp_path / "out")[name], value)


def test_a_killed_driver_is_run_again_to_the_same_weights(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    asked = settings(home, tmp_path / "out")
    (tmp_path / "spec.yaml").write_text(json.dumps(asked.model_dump(mode="json")))
    command = [sys.executable, "-m", "pel_ray", "train", "--spec", str(tmp_path / "spec.yaml")]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_for(lambda: num_lines(tmp_path / "out") >= 13 or driver.poll() is not None)
    assert not (tmp_path / "out" / "manifest.json").exists()
    train(asked)
    assert losses(tmp_path / "out") == losses(undisturbed)
    for name, value in weights(undisturbed).items():
        np.testing.assert_array_equal(weights(tmp_path / "out")[name], value)


@pytest.fixture(scope="module")
def of_two(home: Path) -> Path:
    train(settings(home, home / "of-two", resources={"workers": 2, "cpus": 1}))
    return home / "of-two"


@pytest.mark.workers
def test_two_workers_take_the_steps_of_one(undisturbed: Path, of_two: Path) -> None:
    np.testing.assert_allclose(losses(of_two), losses(undisturbed), rtol=1e-5)
    for name, value in weights(undisturbed).items():
        np.testing.assert_allclose(weights(of_two)[name], value, atol=1e-4)
    recalls = [
        [line["validation"] for line in metrics(folder) if "validation" in line] for folder in (undisturbed, of_two)
    ]
    assert recalls[0] == recalls[1]


@pytest.mark.workers
def test_one_of_two_workers_killed_changes_nothing(home: Path, of_two: Path, tmp_path: Path) -> None:
    asked = settings(home, tmp_path / "out", resources={"workers": 2, "cpus": 1})
    run_and_kill(lambda: train(asked), lambda: num_lines(tmp_path / "out") >= 6)
    np.testing.assert_allclose(losses(tmp_path / "out"), losses(of_two), rtol=1e-6)
    for name, value in weights(of_two).items():
        np.testing.assert_allclose(weights(tmp_path / "out")[name], value, atol=1e-5)


@pytest.mark.parametrize("refresh", ["pool", "frozen"])
def test_cheaper_refreshes_encode_less(home: Path, tmp_path: Path, refresh: str) -> None:
    more: dict[str, Any] = {"negatives": {"refresh": refresh}, "validation": {"validate_every": 2}}
    outcome = train(settings(home, tmp_path / "out", max_mentions=20, **more))
    (state,) = (tmp_path / "out").glob("state-*")
    rounds = [read_manifest(locate(state / f"negatives-{epoch:03d}")) for epoch in range(2)]
    searched = [int(manifest.counts["pool"].split()[0]) for manifest in rounds]
    used = [manifest.request.inputs["vectors"].digest for manifest in rounds]
    assert searched[0] == NUM_ENTITIES
    assert outcome.manifest.counts["rows"] == rounds[0].counts["rows"] == 20
    if refresh == "frozen":
        assert used[0] == used[1]
        first = load_file(next(state.glob("model-000-*")) / "entity_encoder" / "model.safetensors")
        last = load_file(next(state.glob("model-002-*")) / "entity_encoder" / "model.safetensors")
        assert all((first[name] == last[name]).all() for name in first)
    else:
        assert 0 < searched[1] < NUM_ENTITIES
    # What is left are the vectors of the model that was kept.
    assert not list(state.glob("vectors-???")) and not list(state.glob("pool-???"))
    kept = VectorFolder.open(locate(tmp_path / "out"))
    assert kept.manifest.counts["entities"] == NUM_ENTITIES
    assert mention_model(kept, None, None).folder == locate(tmp_path / "out" / "model")


def test_a_second_run_does_nothing_and_another_spec_is_refused(home: Path, undisturbed: Path) -> None:
    assert not train(settings(home, undisturbed)).is_new
    with pytest.raises(PelRayError, match="optimiser.lr is 0.001 there and 0.01 here"):
        train(settings(home, undisturbed, optimiser={"lr": 1e-2}))


def test_overwrite_replaces_a_run_of_other_texts(home: Path, tmp_path: Path) -> None:
    more = {"negatives": {"kind": "random"}, "optimiser": {"epochs": 1}}
    train(settings(home, tmp_path / "out", **more))
    train(settings(home, tmp_path / "out", overwrite=True, model={"text": {"entity_length": 16}}, **more))
    assert len(list((tmp_path / "out").glob("state-*"))) == 1
    assert [line["epoch"] for line in metrics(tmp_path / "out") if "validation" in line] == [0, 1]


def test_overwrite_replaces_a_run_whose_state_was_deleted(home: Path, tmp_path: Path) -> None:
    more = {"negatives": {"kind": "random"}, "optimiser": {"epochs": 1}}
    train(settings(home, tmp_path / "out", **more))
    (state,) = (tmp_path / "out").glob("state-*")
    shutil.rmtree(state)
    train(settings(home, tmp_path / "out", overwrite=True, seed=7, **more))
    assert mention_model(VectorFolder.open(locate(tmp_path / "out")), None, None).folder == locate(
        tmp_path / "out" / "model"
    )
    assert [line["epoch"] for line in metrics(tmp_path / "out") if "validation" in line] == [0, 1]


def test_a_rerun_keeps_the_vectors_of_a_later_epoch(home: Path, tmp_path: Path) -> None:
    asked = settings(home, tmp_path / "out", negatives={"kind": "random"}, optimiser={"epochs": 3})
    dropped: list[set[int]] = []
    original = Rounds._drop_vectors

    def stop_in_the_second_epoch(self: Rounds, keep: set[int]) -> None:
        dropped.append(keep)
        original(self, keep)
        if max(keep) in (1, 2):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "_drop_vectors", stop_in_the_second_epoch)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                train(asked)
    # The second try has not thrown away what the first had made for epoch 1 when it read the validation of epoch 0.
    assert dropped[0] == {0} and {0} not in dropped[1:]
    assert train(asked).is_new


def test_curves_of_several_runs_go_into_one_figure(undisturbed: Path, tmp_path: Path, pel_ray: RunCommand) -> None:
    other = shutil.copytree(undisturbed, tmp_path / "other")
    assert pel_ray("curves", undisturbed, other, "--out", "figures/both.png").code == 0
    assert Path("figures/both.png").read_bytes().startswith(b"\x89PNG")
    assert "holds kb, expected run" in pel_ray("curves", undisturbed.parent / "set" / "kb").error


def test_a_plan_says_what_training_will_take(home: Path, tmp_path: Path, pel_ray: RunCommand) -> None:
    said = pel_ray("train", home / "set", "--out", "out", "--encoder", home / "tiny", "--fgsm", "--epochs", 2, "--plan")
    assert said.code == 0, said.err
    for line in ("3 an epoch, 6 in all, of at most 2,080 entities", "encoding the KB 3 times", "activations", "disk"):
        assert line in said.out, said.out
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_no_number_stops_with_what_to_try(home: Path, tmp_path: Path) -> None:
    asked = settings(home, tmp_path / "out", optimiser={"lr": 1e30, "warmup": 0.0})
    with pytest.raises(PelRayError, match="the loss is .* at epoch 1, step .*Try a lower --lr"):
        train(asked)


def test_ce_scores_with_the_dot_product_unless_told_otherwise(home: Path, tmp_path: Path) -> None:
    assert settings(home, tmp_path, objective={"loss": {"kind": "ce"}}).model.similarity == "dot"
    assert settings(home, tmp_path).model.similarity == "cosine"


def test_what_cannot_be_trained_is_refused_before_it_starts(
    home: Path, undisturbed: Path, tmp_path: Path, pel_ray: RunCommand
) -> None:
    bad = [mention(number) | {"label": ["X1"] if number % 3 else [f"E{number}"]} for number in range(40)]
    write_set(tmp_path / "bad", bad)
    given = ["--encoder", home / "tiny", "--out", "out", "--cpus", 1]
    for arguments, expected in (
        ([tmp_path / "bad" / "set"], "the KB lacks the golds of 20 of 30 training mentions (67%)"),
        ([home / "set", "--split", "dev"], "has no split 'dev', only train, validation"),
        ([home / "set", "--workers", 3], "3 workers share the micro-batches of a step, but batch_size 32 has only 2"),
        ([home / "set", "--workers", 9], "9 workers of 1 CPUs and 0 GPUs each do not fit"),
        ([home / "set", "--num-negatives", 120], "has only 119 entities to draw negatives from"),
    ):
        assert expected in pel_ray("train", *arguments, *given).error
