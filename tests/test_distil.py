"""A retriever that learns from a ranker: the loss by hand, a run that survives kills, and what it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pel_ray import ModelSettings, load_model
from pel_ray.artifacts import Input, Request, building, read_manifest
from pel_ray.chunks import Pieces
from pel_ray.encoder import save_whole
from pel_ray.errors import PelRayError
from pel_ray.negatives import Pools
from pel_ray.objective import Objective, ObjectiveSettings, TrainingBatch
from pel_ray.ragged import Ragged
from pel_ray.rank_candidates import Examples
from pel_ray.ranker import RankerSettings, load_ranker
from pel_ray.reranker import Reranker
from pel_ray.spec import merged
from pel_ray.steps.distil_plan import DistilSettings
from pel_ray.steps.evaluate import EvaluateSettings, evaluate
from pel_ray.steps.rank_distil import rank_distil
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.taught import Taught, scored_entities
from pel_ray.teaching import TeachingSettings, taught_loss
from pel_ray.training_data import NegativeSettings, TrainingData
from tests.conftest import RunCommand
from tests.killing import run_and_kill
from tests.models import write_encoder
from tests.ranking_set import ONE_WORKER, TEXT, assert_matches, lines, write_ranking_set
from tests.reading import rows_of

K, EPOCHS = 4, 2


@pytest.mark.parametrize("gold_weight", [0.0, 0.3, 1.0])
def test_the_loss_is_the_divergence_from_the_ranker_and_the_cross_entropy_of_the_gold(gold_weight: float) -> None:
    rng = np.random.default_rng(0)
    similarities, teacher = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)) * 3
    mask = np.ones((3, 5), bool)
    mask[1, 3:] = False
    # A candidate that is not there, and a random one that the ranker has not seen.
    teacher[1, 3:], teacher[2, 4] = -np.inf, -np.inf
    scale, temperature, total, divergences = 2.0, 1.5, 0.0, []
    for row in range(3):
        student = np.exp(scale * similarities[row]) * mask[row]
        taught = np.exp(teacher[row] / temperature)
        q, p = student / student.sum(), taught / taught.sum()
        divergences.append(sum(p[c] * math.log(p[c] / q[c]) for c in range(5) if p[c] > 0))
        total += ((1 - gold_weight) * divergences[-1] - gold_weight * math.log(q[0])) / 3
    scores = torch.tensor(similarities, requires_grad=True)
    options = {"scale": scale, "temperature": temperature, "gold_weight": gold_weight}
    loss, statistics = taught_loss(scores, torch.tensor(teacher), torch.tensor(mask), **options)
    loss.backward()
    assert loss.item() == pytest.approx(total, rel=1e-9)
    assert statistics["divergence"].item() == pytest.approx(np.mean(divergences), rel=1e-9)
    assert scores.grad is not None and torch.isfinite(scores.grad).all() and scores.grad[0].any()
    assert not scores.grad[1, 3:].any()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("chunk_tokens", [40, 10_000])
def test_the_objective_of_a_batch_is_that_of_its_similarities(
    tmp_path: Path, similarity: str, chunk_tokens: int
) -> None:
    write_encoder(tmp_path / "tiny")
    model = load_model(ModelSettings.model_validate({"encoder": str(tmp_path / "tiny"), "similarity": similarity}))
    rng = np.random.default_rng(1)
    texts = [[2, *rng.integers(10, 80, rng.integers(1, 9)), 3] for _ in range(7)]
    columns = np.array([[0, 1, 2, 4], [3, 0, -1, 4]])
    teacher = np.array([[1.0, 2.0, 0.5, -np.inf], [0.1, 0.2, -np.inf, -np.inf]], np.float32)
    batch = TrainingBatch(Pieces.of(texts[:2]), Pieces.of(texts[2:]), columns, teacher_BC=teacher)
    teaching = TeachingSettings(temperature=2.0)
    model.mention_tower.eval(), model.entity_tower.eval()
    objective = Objective(model, ObjectiveSettings(chunk_tokens=chunk_tokens), teaching=teaching)
    loss, statistics = objective(batch)
    mentions, entities = (model.encode(some, side) for some, side in ((texts[:2], "mention"), (texts[2:], "entity")))  # type: ignore[arg-type]
    similarities = torch.from_numpy(np.einsum("bd,bcd->bc", mentions, entities[columns]))
    scale = {"cosine": 32.0, "dot": 1.0}[similarity]
    options = {"scale": scale, "temperature": 2.0, "gold_weight": 0.5}
    expected, _ = taught_loss(similarities, torch.from_numpy(teacher), torch.from_numpy(columns >= 0), **options)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert {"divergence", "agreement", "positive_score", "pieces"} <= statistics.keys()


class Numbers:
    """Entities whose text is their number."""

    def take(self, rows: np.ndarray) -> Pieces:
        return Pieces.of([[row] for row in rows.tolist()])


def taught_data() -> TrainingData:
    """Three mentions, the second with two golds and the third with few candidates."""
    golds = Ragged.of([[5], [7, 9], [30]])
    negatives = np.array([[1, 2, 3], [4, 5, 6], [1, -1, -1]])
    examples = Examples(np.array([10, 20, 31]), golds, negatives, np.zeros(3, bool))
    scores = np.where(scored_entities(examples) < 0, -np.inf, scored_entities(examples) / 10).astype(np.float32)
    return TrainingData(
        rows_M=examples.rows_M,
        texts=Pieces.of([[1], [2], [3]]),
        golds=golds,
        excluded=golds,
        pool_M=np.zeros(3, np.int64),
        pools=Pools.whole(40),
        entities=Numbers(),  # type: ignore[arg-type]
        hard=None,
        taught=Taught.of(examples, scores),
    )


@pytest.mark.parametrize("num_random", [0, 2, 31])
def test_a_mention_has_its_candidates_with_their_scores_and_random_entities_without(num_random: int) -> None:
    data, settings = taught_data(), NegativeSettings(num_negatives=3 + num_random)
    turns = set()
    for epoch in range(4):
        batch, _ = data.batch(np.arange(3), 13, epoch, settings)
        assert batch.teacher_BC is not None
        rows = np.where(batch.columns_BC < 0, -1, batch.entities.flat[batch.columns_BC])
        turns.add(int(rows[1, 0]))
        assert rows[0, :4].tolist() == [5, 1, 2, 3] and rows[1, 1:4].tolist() == [4, 5, 6]
        assert rows[2, :4].tolist() == [30, 1, -1, -1]
        expected = np.where(rows[:, :4] < 0, -np.inf, rows[:, :4] / 10)
        np.testing.assert_allclose(batch.teacher_BC[:, :4], expected, rtol=1e-6)
        assert np.isneginf(batch.teacher_BC[:, 4:]).all() and batch.teacher_BC.shape == rows.shape
        for own, golds in zip(rows, ([5], [7, 9], [30]), strict=True):
            drawn = own[4:].tolist()
            assert len(set(drawn)) == num_random and not set(drawn) & {*own[:4].tolist(), *golds}
        # Whoever else is in the micro-batch changes nothing.
        alone, _ = data.batch(np.array([1]), 13, epoch, settings)
        assert alone.entities.flat[alone.columns_BC][0].tolist() == rows[1].tolist()
    assert turns == {7, 9}


@pytest.mark.parametrize("by_world", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_in_batch_negatives_are_of_the_pool_and_neither_gold_nor_namesake(by_world: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    worlds = ["castles", "ships"] * 10
    golds = [rng.choice(20, size, replace=False).tolist() for size in (1, 2, 1, 2, 1)]
    namesakes = [rng.choice(20, size).tolist() for size in (3, 0, 1, 2, 5)]
    world_of = [worlds[mention_golds[0]] for mention_golds in golds]
    pools = Pools.by_world(worlds) if by_world else Pools.whole(len(worlds))
    data = TrainingData(
        rows_M=np.arange(5),
        texts=Pieces.of([[1]] * 5),
        golds=Ragged.of(golds),
        excluded=Ragged.of(golds).joined(Ragged.of(namesakes)),
        pool_M=pools.of_worlds(world_of),
        pools=pools,
        entities=Numbers(),  # type: ignore[arg-type]
        hard=None,
    )
    numbers = rng.permutation(5)[:4].tolist()
    batch, _ = data.batch(np.array(numbers), 13, seed, NegativeSettings(num_negatives=2, in_batch=True))
    expected = []
    for number in numbers:
        bad = {*golds[number], *namesakes[number]}
        pool = {row for row in range(20) if not by_world or worlds[row] == world_of[number]}
        expected.append([row in pool and row not in bad for row in batch.entities.flat.tolist()])
    assert batch.allowed_BU is not None and batch.allowed_BU.tolist() == expected


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    """The ranking set, and a `ranker` that has learnt nothing but is sure."""
    home = write_ranking_set(tmp_path_factory.mktemp("distil"))
    ranker = load_ranker(RankerSettings.model_validate({"encoder": str(home / "tiny"), "text": TEXT}))
    ranker.module.score.weight.data *= 200
    save_whole(ranker, home / "ranker")
    return home


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model only waits for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings(home: Path, out: Path, **more: Any) -> DistilSettings:
    given: dict[str, Any] = {
        "data": str(home / "set"),
        "vectors": str(home / "vectors"),
        "ranker": str(home / "ranker"),
        "out": str(out),
        "candidates": {"num_candidates": K},
        "optimiser": {"epochs": EPOCHS, "batch_size": 4, "micro_batch": 2, "lr": 1e-3},
        "checkpoint_steps": 2,
        "log_steps": 1,
        "resources": ONE_WORKER,
    }
    return DistilSettings.model_validate(merged(given, more))


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    rank_distil(settings(home, home / "distilled"))
    return home / "distilled"


def last_model(run: Path) -> Path:
    """Of the last epoch, which need not be the best one."""
    return max(next(run.glob("state-*")).glob("model-???-????????"))


def weights(run: Path) -> dict[str, np.ndarray]:
    return {
        f"{side}.{name}": value
        for side in ("mention", "entity")
        for name, value in load_file(last_model(run) / f"{side}_encoder" / "model.safetensors").items()
    }


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in lines(run) if "loss" in line]


def test_a_run_is_one_of_train_that_can_be_evaluated(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    manifest = read_manifest(locate(undisturbed), "run")
    train = [row for row in rows_of(home / "set", "mentions") if row["split"] == "train"]
    golden = [row for row in train if row["entity_ids"]]
    counts = manifest.counts
    assert counts["rows"] == len(golden) and counts["mentions left out: NIL"] == len(train) - len(golden)
    assert counts["gold not among the candidates: append"] > 0
    assert len(losses(undisturbed)) == -(-len(golden) // 4) * EPOCHS
    assert [line["epoch"] for line in lines(undisturbed) if "validation" in line] == [0, 1, 2]
    assert (undisturbed / "training.png").stat().st_size > 10_000
    given = {"data": str(home / "set"), "vectors": str(undisturbed), "out": str(tmp_path / "test"), "resamples": 10}
    assert evaluate(EvaluateSettings.model_validate(given | {"resources": ONE_WORKER})).manifest.counts["recall@1"] >= 0
    assert not rank_distil(settings(home, undisturbed)).is_new


def agreement(home: Path, run: Path, model: Path) -> float:
    """How often a retriever's favourite of the candidates is the ranker's, over the training mentions."""
    (folder,) = run.glob("state-*/teacher")
    examples = Taught.read(locate(folder)).examples
    kb = rows_of(home / "set", "kb")
    mentions = [rows_of(home / "set", "mentions")[row] for row in examples.rows_M.tolist()]
    rows_MK = examples.candidates(np.arange(len(mentions)), 0)
    scores_MK = Reranker.load(home / "ranker", TableFolder.open(locate(home / "set" / "kb"), "kb")).scores(
        mentions, rows_MK
    )
    retriever = load_model(ModelSettings(encoder=str(model)))
    similarities_MN = retriever.encode_mentions(mentions) @ retriever.encode_entities(kb).T
    ours_MK = np.where(rows_MK < 0, -np.inf, np.take_along_axis(similarities_MN, np.maximum(rows_MK, 0), 1))
    return float((ours_MK.argmax(1) == scores_MK.argmax(1)).mean())


def test_the_retriever_comes_to_order_candidates_as_the_ranker_does(home: Path, tmp_path: Path) -> None:
    optimiser = {"epochs": 10, "lr": 3e-3, "dropout": 0.0, "warmup": 0.1}
    more = {"optimiser": optimiser, "teaching": {"gold_weight": 0.0}, "validation": {"validate_every": 10}}
    rank_distil(settings(home, tmp_path / "out", **more))
    found = [line for line in lines(tmp_path / "out") if "loss" in line]
    assert np.mean([line["divergence"] for line in found[-7:]]) < 0.7 * np.mean([line["loss"] for line in found[:7]])
    assert np.mean([line["agreement"] for line in found[-7:]]) > np.mean([line["agreement"] for line in found[:7]])
    before, after = (
        agreement(home, tmp_path / "out", model) for model in (home / "model", last_model(tmp_path / "out"))
    )
    assert after > before + 0.1, (before, after)


def check_same(run: Path, expected: Path, tolerance: float = 0) -> None:
    np.testing.assert_allclose(losses(run), losses(expected), rtol=tolerance)
    found = weights(run)
    for name, value in weights(expected).items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=10 * tolerance, err_msg=name)


@pytest.mark.workers
def test_a_killed_worker_goes_on_from_its_checkpoint_to_the_same_weights(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    asked = settings(home, tmp_path / "out")
    run_and_kill(lambda: rank_distil(asked), lambda: len(lines(tmp_path / "out")) >= 5)
    check_same(tmp_path / "out", undisturbed)


@pytest.mark.workers
def test_two_workers_take_the_steps_of_one(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    rank_distil(settings(home, tmp_path / "out", resources={"workers": 2, "cpus": 1}))
    check_same(tmp_path / "out", undisturbed, tolerance=1e-5)


def test_mentions_whose_gold_is_no_candidate_can_be_left_out(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    more = {"candidates": {"missing_gold": "drop"}, "optimiser": {"epochs": 1}, "teaching": {"random_negatives": 0}}
    outcome = rank_distil(settings(home, tmp_path / "out", **more))
    counts = read_manifest(locate(undisturbed)).counts
    num_missing = counts["gold not among the candidates: append"]
    assert outcome.manifest.counts["rows"] == counts["rows"] - num_missing
    assert outcome.manifest.counts["gold not among the candidates: drop"] == num_missing


def test_what_cannot_teach_or_learn_is_refused_in_one_line(
    home: Path, undisturbed: Path, tmp_path: Path, pel_ray: RunCommand
) -> None:
    request = Request(kind="ranker", inputs={"kb": Input("elsewhere/kb", "another")}, settings={})
    with building(locate(tmp_path / "foreign"), request):
        pass
    (tmp_path / "foreign" / "model").symlink_to(home / "ranker")
    data, usual = home / "set", ["--vectors", home / "vectors", "--ranker", home / "ranker"]
    for arguments, expected in (
        (["--vectors", home / "vectors", "--ranker", home / "model"], "model holds no ranker"),
        (["--vectors", home / "vectors", "--ranker", "foreign"], r"foreign was trained on another KB \(elsewhere/kb\)"),
        (["--vectors", home / "set" / "kb", "--ranker", home / "ranker"], "holds kb, expected vectors"),
        ([*usual, "--retriever", home / "tiny"], "was encoded with another model than"),
        ([*usual, "--split", "dev"], "has no split 'dev', only train, validation, test"),
        ([*usual, "--batch-size", 4, "--micro-batch", 4, "--workers", 2], "2 workers share the micro-batches"),
        ([*usual, "--num-candidates", 64, "--random-negatives", 30], "has only 88 entities .* Lower --num-candidates"),
    ):
        said = pel_ray("rank", "distil", data, *arguments, "--out", "out", "--cpus", 1)
        assert_matches(expected, said.error)
    (home / "model").rename(home / "gone")
    said = pel_ray("rank", "distil", data, *usual, "--out", "out", "--cpus", 1)
    (home / "gone").rename(home / "model")
    assert_matches("was made by the model .*/model, which is not there. Name", said.error)
    with pytest.raises(PelRayError, match="teaching.temperature is 1.0 there and 2.0 here"):
        rank_distil(settings(home, undisturbed, teaching={"temperature": 2.0}))


def test_a_plan_says_what_distilling_will_take(home: Path, pel_ray: RunCommand) -> None:
    given = [home / "set", "--vectors", home / "vectors", "--ranker", home / "ranker", "--out", "out"]
    said = pel_ray("rank", "distil", *given, "--num-candidates", K, "--plan")
    assert said.code == 0, said.err
    num_golden = sum(row["split"] == "train" and bool(row["entity_ids"]) for row in rows_of(home / "set", "mentions"))
    assert_matches(rf"of at most {32 * (K + 2)} entities", said.out)
    assert_matches(rf"scores {num_golden * K} pairs", said.out)
    for line in ("scoring candidates once", "encoding the KB 2 times", "time +about 0:0", "activations +[0-9]", "disk"):
        assert_matches(line, said.out)
