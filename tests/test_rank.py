"""The ranker: texts and scores of a plain loop, a training that survives kills, an evaluation that can be recounted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from pel_ray import ModelSettings, load_model
from pel_ray.adversarial import AdversarialSettings, clean_and_adversarial
from pel_ray.artifacts import read_manifest
from pel_ray.blend import Blend, read_blend, store_blend
from pel_ray.chunks import Passes, Pieces, cut
from pel_ray.encoder import load_parts, save_whole
from pel_ray.errors import PelRayError
from pel_ray.evaluation_file import read_evaluation as read_checked
from pel_ray.linker import Linker
from pel_ray.nil import best_threshold, read_threshold
from pel_ray.ragged import Ragged
from pel_ray.rank_candidates import Candidates, CandidateSettings, examples_of
from pel_ray.rank_objective import RankBatch, RankObjective, RankObjectiveSettings
from pel_ray.rank_pairs import pair_texts
from pel_ray.ranker import Ranker, RankerSettings, load_ranker, open_ranker
from pel_ray.reranker import Reranker
from pel_ray.spec import merged
from pel_ray.steps.evaluate import read_evaluation
from pel_ray.steps.rank_evaluate import RankEvaluateSettings, rank_evaluate
from pel_ray.steps.rank_plan import RankTrainSettings
from pel_ray.steps.rank_train import rank_train
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.text import TextSettings
from pel_ray.training_memory import LiveBytes, rank_step_memory
from tests.conftest import RunCommand
from tests.killing import run_and_kill
from tests.models import write_encoder
from tests.ranking_set import NUM_ENTITIES, ONE_WORKER, TEXT, assert_matches, lines, write_ranking_set
from tests.reading import rows_of
from tests.samples import write_jsonl

K, EPOCHS = 4, 2


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model only waits for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Path:
    return write_ranking_set(tmp_path_factory.mktemp("rank"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("encoder") / "tiny"))


def load(encoder: str, *, training: bool = False) -> Ranker:
    """In float64, with scores that differ."""
    ranker = load_ranker(RankerSettings.model_validate({"encoder": encoder, "text": TEXT}))
    torch.manual_seed(0)
    for weight in ranker.module.double().parameters():
        weight.data += torch.randn_like(weight) * 0.1
    ranker.module.train(training)
    return ranker


def batch_of(ranker: Ranker, is_pair: Any, longest: int = 12) -> RankBatch:
    marks, rng = ranker.parts.base.markers, np.random.default_rng(0)
    is_pair_BC = np.array(is_pair, bool)

    def words() -> list[int]:
        return rng.integers(10, 80, rng.integers(1, longest)).tolist()

    texts = [
        [marks.cls, *words(), marks.mention_start, *words(), marks.mention_end, marks.sep, *words(), marks.sep]
        for _ in range(int(is_pair_BC.sum()))
    ]
    return RankBatch(Pieces.of(texts), is_pair_BC)


IS_PAIR = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]


def objective_of(ranker: Ranker, chunk_tokens: int = 10_000, **adversarial: Any) -> RankObjective:
    settings = AdversarialSettings.model_validate(adversarial)
    return RankObjective(ranker, RankObjectiveSettings(adversarial=settings, chunk_tokens=chunk_tokens))


def learnt(objective: RankObjective, batch: RankBatch, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
    objective.zero_grad(set_to_none=True)
    loss, _ = objective(batch, seed)
    loss.backward()
    named = objective.named_parameters()
    return loss.item(), {name: weight.grad for name, weight in named if weight.grad is not None}


def text_of(pieces: Pieces, number: int) -> torch.Tensor:
    return torch.from_numpy(pieces.flat[pieces.offsets[number] : pieces.offsets[number + 1]].astype(np.int64))[None]


def one_pair_at_a_time(ranker: Ranker, objective: RankObjective, batch: RankBatch) -> torch.Tensor:
    """The plainest loop: a text at a time, no chunk, no padding, FGSM as the paper writes it."""
    adversarial, number, total = objective.settings.adversarial, 0, torch.zeros((), dtype=torch.float64)
    for is_pair in batch.is_pair_BC:
        clean, moved = [], []
        for place in range(int(is_pair.sum())):
            ids = text_of(batch.pairs, number)
            z = ranker.module.embed(ids)
            clean.append(ranker.module(ids, None, z)[0, 0])
            step = torch.autograd.grad(clean[-1], z, retain_graph=True)[0].sign() * adversarial.epsilon
            moved.append(ranker.module(ids, None, z - step if place == 0 else z + step)[0, 0])
            number += 1
        gold = torch.zeros(1, dtype=torch.int64)
        total = total + functional.cross_entropy(torch.stack(clean)[None], gold)
        if adversarial.fgsm:
            total = total + adversarial.weight * functional.cross_entropy(torch.stack(moved)[None], gold)
    return total / len(batch.is_pair_BC)


def test_a_text_is_the_mention_in_its_context_and_then_the_entity(tiny: str) -> None:
    ranker = load(tiny)
    mentions = Pieces.of(ranker.texts.mentions([{"context_left": "has", "mention": "fever", "context_right": "hot"}]))
    rows = [{"title": "aspirin", "types": ["chemical"], "description": "too hot", "synonyms": []}]
    entities = Pieces.of(ranker.texts.entities(rows))
    pairs = pair_texts(mentions, entities, np.array([0]), np.array([0]))
    read = ranker.parts.base.tokenizer.convert_ids_to_tokens(pairs.flat.tolist())
    mention_part = "[CLS] has [unused0] fever [unused1] hot [SEP]".split()
    entity_part = "aspirin [SEP] chemical [SEP] too hot [SEP]".split()
    assert read == mention_part + entity_part
    types = ranker.module.types(text_of(pairs, 0))[0].tolist()
    assert types == [0] * len(mention_part) + [1] * len(entity_part)


def test_a_ranker_starts_from_the_mention_tower_and_comes_back_from_its_folder(tiny: str, tmp_path: Path) -> None:
    model = load_model(ModelSettings(encoder=tiny))
    for weight in model.mention_tower.parameters():
        weight.data += 1
    save_whole(model, tmp_path / "retriever")
    ranker = load_ranker(RankerSettings.model_validate({"encoder": str(tmp_path / "retriever"), "text": TEXT}))
    for name, weight in model.mention_tower.transformer.named_parameters():
        assert torch.equal(ranker.module.transformer.get_parameter(name), weight), name
    ranker.module.score.weight.data += 1
    ranker.save(tmp_path / "ranker")
    again = load_ranker(RankerSettings(encoder=str(tmp_path / "ranker")))
    assert again.parts.settings.text == ranker.parts.settings.text
    for name, weight in ranker.module.named_parameters():
        assert torch.equal(again.module.get_parameter(name), weight), name
    (tmp_path / "ranker" / "score.safetensors").write_bytes(b"cut")
    with pytest.raises(PelRayError, match="score.safetensors is missing or damaged"):
        load_ranker(RankerSettings(encoder=str(tmp_path / "ranker")))


@pytest.mark.parametrize("chunk_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("fgsm", [False, True])
def test_loss_and_gradients_equal_those_of_one_pair_at_a_time(tiny: str, chunk_tokens: int, fgsm: bool) -> None:
    ranker = load(tiny)
    objective = objective_of(ranker, chunk_tokens, fgsm=fgsm, epsilon=0.03, weight=0.5)
    batch = batch_of(ranker, IS_PAIR)
    loss, found = learnt(objective, batch)
    objective.zero_grad(set_to_none=True)
    expected = one_pair_at_a_time(ranker, objective, batch)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-9)
    gradients = {name: weight.grad for name, weight in objective.named_parameters() if weight.grad is not None}
    assert found.keys() == gradients.keys() and "scorer.score.weight" in found
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-9, msg=name)


@pytest.mark.parametrize("keeps", [False, True])
def test_adversarial_negatives_score_higher_and_positives_lower(tiny: str, keeps: bool) -> None:
    ranker = load(tiny)
    pieces = batch_of(ranker, np.ones((4, 5))).pairs
    passes = Passes(ranker.module, normalise=False, keeps=keeps)
    for chunk in cut(pieces, np.arange(20), 200, pad=ranker.pad, seed=(0,), device=torch.device("cpu")):
        ways = torch.arange(len(chunk.ids_TL)) % 2 * 2 - 1
        gains = []
        for epsilon in (1e-5, 2e-5):
            clean, moved = clean_and_adversarial(passes, chunk, torch.ones(len(ways), 1), ways, epsilon)
            gains.append((moved - clean)[:, 0])
        assert (gains[0] * ways > 0).all()
        torch.testing.assert_close(gains[1], 2 * gains[0], rtol=1e-2, atol=0)


def test_dropout_depends_on_the_seed_alone(tiny: str) -> None:
    objective = objective_of(load(tiny, training=True), chunk_tokens=60, fgsm=True)
    batch = batch_of(load(tiny), IS_PAIR)
    losses = [learnt(objective, batch, seed)[0] for seed in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]


def test_memory_is_bounded_by_the_chunk_and_not_by_the_candidates(tiny: str) -> None:
    ranker = load(tiny, training=True)
    objective, peaks = objective_of(ranker, chunk_tokens=512, fgsm=True).float(), {}
    for num_candidates in (16, 64):
        batch = batch_of(ranker, np.ones((1, num_candidates)), longest=20)
        with LiveBytes() as memory:
            objective(batch)[0].backward()
        objective.zero_grad(set_to_none=True)
        peaks[num_candidates] = memory.peak
    assert peaks[64] <= 1.2 * peaks[16], peaks


@pytest.mark.parametrize("fgsm", [False, True])
def test_the_planned_memory_is_that_of_a_chunk_whatever_the_candidates(tiny: str, fgsm: bool) -> None:
    config = load(tiny).module.transformer.config
    objective = RankObjectiveSettings(adversarial=AdversarialSettings(fgsm=fgsm), chunk_tokens=512)
    text = TextSettings.model_validate(TEXT)
    options = {"text": text, "micro_batch": 2, "half_precision": False}
    planned = [rank_step_memory(config, objective, num_candidates=num, **options) for num in (16, 64)]
    assert planned[1].parts["activations"] <= 1.2 * planned[0].parts["activations"]
    assert planned[0].parts["weights"] == planned[1].parts["weights"] > 4 * 10_000
    whole = rank_step_memory(config, objective.model_copy(update={"chunk_tokens": 10**6}), num_candidates=64, **options)
    assert whole.total > 4 * planned[1].total


def test_a_missing_gold_takes_the_place_of_the_last_candidate_or_leaves() -> None:
    entities = np.array([[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, -1], [1, 2, 3, 4]])
    golds = Ragged.of([[7], [9], [6, 5], []])
    candidates = Candidates(np.arange(4), entities, np.zeros((4, 4)), golds, np.array([False, False, False, True]))
    kept = examples_of(candidates, CandidateSettings(num_candidates=4))
    assert kept.rows_M.tolist() == [0, 1, 2] and kept.is_missing_M.tolist() == [False, True, False]
    assert kept.negatives_MN.tolist() == [[5, 6, 8], [5, 6, 7], [7, -1, -1]]
    assert kept.positives.values.tolist() == [7, 9, 5, 6]
    dropped = examples_of(candidates, CandidateSettings(num_candidates=4, missing_gold="drop"))
    assert dropped.rows_M.tolist() == [0, 2] and not dropped.is_missing_M.any()


def train_settings(home: Path, out: Path, **more: Any) -> RankTrainSettings:
    given: dict[str, Any] = {
        "data": str(home / "set"),
        "vectors": str(home / "vectors"),
        "out": str(out),
        "model": {"encoder": str(home / "model"), "text": TEXT},
        "objective": {"adversarial": {"fgsm": True}},
        "candidates": {"num_candidates": K},
        "optimiser": {"epochs": EPOCHS, "batch_size": 4, "micro_batch": 2, "lr": 1e-3},
        "checkpoint_steps": 2,
        "log_steps": 1,
        "resources": ONE_WORKER,
    }
    return RankTrainSettings.model_validate(merged(given, more))


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    rank_train(train_settings(home, home / "ranker"))
    return home / "ranker"


def weights(run: Path) -> dict[str, np.ndarray]:
    """Of the last epoch, which need not be the best one."""
    (model,) = next(run.glob("state-*")).glob(f"model-{EPOCHS:03d}-*")
    return load_file(model / "encoder" / "model.safetensors") | load_file(model / "score.safetensors")


def check_same(run: Path, expected: Path) -> None:
    losses = [[line["loss"] for line in lines(folder) if "loss" in line] for folder in (run, expected)]
    assert losses[0] == losses[1]
    for name, value in weights(expected).items():
        np.testing.assert_array_equal(weights(run)[name], value)


def test_a_run_leaves_a_ranker_its_curves_and_counts(home: Path, undisturbed: Path) -> None:
    manifest = read_manifest(locate(undisturbed), "ranker")
    train = [row for row in rows_of(home / "set", "mentions") if row["split"] == "train"]
    golden = [row for row in train if row["entity_ids"]]
    (hits,) = next(undisturbed.glob("state-*/candidates-train")).glob("hits-*.parquet")
    found = [hit for hit in pq.read_table(hits).to_pylist() if not hit["is_nil"]]
    num_missing = sum(not set(hit["gold_rows"]) & set(hit["entity_rows"][:K]) for hit in found)
    counts = manifest.counts
    assert counts["rows"] == len(golden) and counts["mentions left out: NIL"] == len(train) - len(golden)
    assert 0 < num_missing == counts["gold not among the candidates: append"]
    assert sum(line["missing_gold"] for line in lines(undisturbed) if "loss" in line) == num_missing * EPOCHS
    watched = [line for line in lines(undisturbed) if "validation" in line]
    assert [line["epoch"] for line in watched] == [0, 1, 2]
    assert all(line["validation"]["accuracy"] <= line["validation"]["ceiling"] for line in watched)
    assert (undisturbed / "training.png").stat().st_size > 10_000
    assert weights(undisturbed)["weight"].any()
    assert not rank_train(train_settings(home, undisturbed)).is_new


def test_training_lowers_the_loss(undisturbed: Path) -> None:
    losses = [line["clean_loss"] for line in lines(undisturbed) if "loss" in line]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_killed_worker_goes_on_from_its_checkpoint_to_the_same_weights(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    asked = train_settings(home, tmp_path / "out")
    run_and_kill(lambda: rank_train(asked), lambda: len(lines(tmp_path / "out")) >= 5)
    check_same(tmp_path / "out", undisturbed)


def test_a_run_that_was_stopped_in_its_last_epoch_is_resumed_to_the_same_weights(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(undisturbed, tmp_path / "out")
    request = read_manifest(locate(out)).request
    (out / "unfinished.json").write_text(json.dumps(request.to_json()))
    state = next(out.glob("state-*"))
    newest = max(state.glob("checkpoint-*"))
    for file in (out / "manifest.json", newest, *state.glob("receipt-train-00001*")):
        file.unlink()
    for folder in (out / "model", *state.glob("model-002-*"), state / "validation-002"):
        shutil.rmtree(folder)
    rank_train(train_settings(home, out))
    check_same(out, undisturbed)
    assert load_file(out / "model" / "score.safetensors").keys() == {"weight", "bias"}


@pytest.fixture(scope="module")
def test_rows(home: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(home / "set", "mentions") if row["split"] == "test"]


def padded_scores(ranker: Ranker, mentions: list[dict[str, Any]], entities: list[dict[str, Any]]) -> np.ndarray:
    """Scores of all entities for all mentions, each text padded to 64 pieces."""
    scores = np.zeros((len(mentions), len(entities)), np.float32)
    texts = ranker.texts.entities(entities)
    for number, left in enumerate(ranker.texts.mentions(mentions)):
        ids, mask = (torch.zeros((len(entities), 64), dtype=torch.int64) for _ in range(2))
        for row, right in enumerate(texts):
            pair = [*left, *right[1:]]
            ids[row, : len(pair)], mask[row, : len(pair)] = torch.tensor(pair), 1
        with torch.no_grad():
            scores[number] = ranker.module.eval()(ids, mask)[:, 0].numpy()
    return scores


def test_scores_equal_a_padded_loop(home: Path, undisturbed: Path, test_rows: list[dict[str, Any]]) -> None:
    kb = TableFolder.open(locate(home / "set" / "kb"), "kb")
    reranker = Reranker.load(undisturbed, kb, "fp32")
    rows_QK = np.random.default_rng(0).integers(-1, NUM_ENTITIES, (len(test_rows), 7))
    rows_QK[0] = -1
    found = reranker.scores(test_rows, rows_QK)
    every = padded_scores(load_ranker(RankerSettings(encoder=str(undisturbed / "model"))), test_rows, rows_of_kb(home))
    expected = np.where(rows_QK < 0, -np.inf, every[np.arange(len(rows_QK))[:, None], rows_QK])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    torch.set_num_threads(2)
    np.testing.assert_array_equal(reranker.scores(test_rows, rows_QK), found)
    torch.set_num_threads(1)
    # Without the word pieces that the run has left, they are made.
    moved = shutil.copytree(undisturbed / "model", undisturbed.parent / "moved")
    np.testing.assert_array_equal(Reranker.load(moved, kb, "fp32").scores(test_rows, rows_QK), found)


def rows_of_kb(home: Path) -> list[dict[str, Any]]:
    return rows_of(home / "set", "kb")


def evaluate_settings(home: Path, ranker: Path, out: Path, **more: Any) -> RankEvaluateSettings:
    given = {"data": str(home / "set"), "vectors": str(home / "vectors"), "ranker": str(ranker), "out": str(out)}
    given |= {"num_candidates": K, "resamples": 20, "baselines": ["dictionary"], "resources": ONE_WORKER}
    return RankEvaluateSettings.model_validate(given | more)


def test_rank_evaluate_equals_a_plain_loop(
    home: Path, undisturbed: Path, tmp_path: Path, test_rows: list[dict[str, Any]]
) -> None:
    outcome = rank_evaluate(evaluate_settings(home, undisturbed, tmp_path / "out"))
    found = read_evaluation(outcome)
    retriever = load_model(ModelSettings(encoder=str(home / "model")))
    vectors = retriever.encode_entities(rows_of_kb(home)).astype(np.float16).astype(np.float32)
    first = retriever.encode_mentions(test_rows) @ vectors.T
    ranker = load_ranker(RankerSettings(encoder=str(undisturbed / "model")))
    second = padded_scores(ranker, test_rows, rows_of_kb(home))
    counts = dict.fromkeys(("wrong->right", "right->wrong", "wrong->wrong", "right->right", "kept"), 0)
    num_right = num_within = num_golden = 0
    for number, row in enumerate(test_rows):
        golds = {int(name[1:]) for name in row["entity_ids"]}
        candidates = sorted(range(NUM_ENTITIES), key=lambda one: (-first[number, one], one))[:K]  # noqa: B023
        best = max(candidates, key=lambda one: second[number, one])  # noqa: B023
        if golds:
            num_golden, num_right, num_within = (
                num_golden + 1,
                num_right + (best in golds),
                num_within + bool(golds & set(candidates)),
            )
            words = ["right" if one in golds else "wrong" for one in (candidates[0], best)]
            counts["kept" if best == candidates[0] else "->".join(words)] += 1
    assert list(found["systems"]) == ["ranker", "retriever", "dictionary"]
    micro = found["systems"]["ranker"][0]
    assert micro["mentions"] == num_golden
    assert micro["recall@1"]["value"] == pytest.approx(num_right / num_golden, abs=1e-4)
    assert micro["normalised@1"]["value"] == pytest.approx(num_right / num_within, abs=1e-4)
    assert found["policy"]["ranked"].startswith(f"the retriever's {K} best, recall@{K} {num_within / num_golden:.4f}")
    assert found["changes"]["counts"] == counts
    examples = found["changes"]["examples"]
    assert {name: len(some) for name, some in examples.items()} == {
        name: counts[name] for name in ("wrong->right", "right->wrong")
    }
    assert all(one["after"]["id"] == one["gold"]["id"] for one in examples["wrong->right"])
    assert read_checked(outcome.folder, outcome.manifest).systems.keys() == found["systems"].keys()
    assert not rank_evaluate(evaluate_settings(home, undisturbed, tmp_path / "out")).is_new


def test_the_nil_threshold_of_a_ranker_is_its_own(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    ranker = shutil.copytree(undisturbed / "model", tmp_path / "ranker")
    with pytest.raises(PelRayError, match="ranker has no NIL threshold.*pel-ray rank evaluate"):
        rank_evaluate(evaluate_settings(home, ranker, tmp_path / "none", nil=True))
    more = {"split": "validation", "tune_nil": True}
    rank_evaluate(evaluate_settings(home, ranker, tmp_path / "tuned", **more))
    chosen = read_threshold(ranker)
    assert chosen is not None and read_threshold(home / "model") is None
    found = read_evaluation(rank_evaluate(evaluate_settings(home, ranker, tmp_path / "out", nil=True)))
    assert found["nil"]["threshold"]["threshold"] == chosen.threshold


@pytest.fixture(scope="module")
def with_retriever(home: Path) -> Path:
    rank_train(train_settings(home, home / "with-retriever", blend=True))
    return home / "with-retriever"


def test_a_blended_run_is_the_same_training_and_knows_its_weight(
    home: Path, undisturbed: Path, with_retriever: Path
) -> None:
    check_same(with_retriever, undisturbed)
    plain, both = ([line for line in lines(run) if "validation" in line] for run in (undisturbed, with_retriever))
    new = [{name: line["validation"].pop(name) for name in ("blended", "weight")} for line in both]
    assert both == plain
    accuracies = [line["validation"]["accuracy"] for line in plain]
    assert all(line["blended"] >= accuracy for line, accuracy in zip(new, accuracies, strict=True))
    blend, counts = read_blend(with_retriever / "model"), read_manifest(locate(with_retriever)).counts
    best = int(np.argmax([line["blended"] for line in new]))
    assert blend is not None and counts["best epoch"] == best
    assert {"blended": blend.blended, "weight": blend.weight} == new[best] and blend.accuracy == accuracies[best]
    validation = [row for row in rows_of(home / "set", "mentions") if row["split"] == "validation"]
    assert blend.mentions == sum(bool(row["entity_ids"]) for row in validation)
    # A run that did not ask for it is what it was before one could.
    assert not list(undisturbed.rglob("blend.json"))
    assert not rank_train(train_settings(home, with_retriever, blend=True)).is_new
    with pytest.raises(PelRayError, match="blend is True there and False here"):
        rank_train(train_settings(home, with_retriever))


def with_weight(model: Path, home: Path, weight: float, **more: Any) -> Path:
    """A ranker that was told how much the retriever counts."""
    digest = load_parts(ModelSettings(encoder=str(home / "model"))).digest("mention")
    told = {"weight": weight, "blended": 0.5, "accuracy": 0.4, "mentions": 9, "split": "validation"}
    told |= {"retriever": "a retriever", "retriever_digest": digest, "similarity": "cosine"}
    store_blend(model, Blend(**told | more))
    return model


def test_both_scores_order_the_candidates_of_evaluations_and_links(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    rows = [row for row in rows_of(home / "set", "mentions") if row["split"] == "validation"]
    retriever = load_model(ModelSettings(encoder=str(home / "model")))
    vectors = retriever.encode_entities(rows_of_kb(home), precision="fp32").astype(np.float16).astype(np.float32)
    first = retriever.encode_mentions(rows, precision="fp32") @ vectors.T
    model = shutil.copytree(undisturbed / "model", tmp_path / "ranker")
    second = padded_scores(load_ranker(RankerSettings(encoder=str(model))), rows, rows_of_kb(home))
    # As much as makes both count.
    weight = float(second.std(1).mean() / first.std(1).mean())
    ranker = with_weight(model, home, weight)
    more = {"split": "validation", "tune_nil": True}
    outcome = rank_evaluate(evaluate_settings(home, ranker, tmp_path / "out", **more))
    (hits,) = (tmp_path / "out").glob("hits-*.parquet")
    found = pq.read_table(hits).to_pylist()
    links = list(Linker.load(home / "vectors", k=16, ranker=ranker, precision="fp32", nil=False).link(rows))
    best_scores, num_moved = [], 0
    for number, (hit, link) in enumerate(zip(found, links, strict=True)):
        both = first[number] * weight + second[number]
        nearest = sorted(range(NUM_ENTITIES), key=lambda one: (-first[number, one], one))  # noqa: B023
        expected = sorted(nearest[:K], key=lambda one: -both[one])  # noqa: B023
        np.testing.assert_allclose(hit["scores"], both[expected], atol=1e-2)
        np.testing.assert_allclose(both[hit["entity_rows"]], both[expected], atol=1e-2)
        expected = sorted(nearest[:16], key=lambda one: -both[one])  # noqa: B023
        np.testing.assert_allclose([one.score for one in link.candidates], both[expected], atol=1e-4)
        best_scores.append(hit["scores"][0])
        num_moved += expected[0] not in (nearest[0], max(nearest[:16], key=lambda one: second[number, one]))  # noqa: B023
    assert num_moved, "the weight should matter"
    chosen = read_threshold(ranker)
    is_nil = np.array([not row["entity_ids"] for row in rows])
    assert chosen is not None and chosen.threshold == best_threshold(np.array(best_scores, np.float32), is_nil)
    said = f"; by the ranker's score + {weight:.4g} times the retriever's"
    assert read_evaluation(outcome)["policy"]["ranked"].endswith(said)


def test_another_weight_is_another_ranker(home: Path, undisturbed: Path, tmp_path: Path) -> None:
    model = shutil.copytree(undisturbed / "model", tmp_path / "ranker")
    plain, none, some, more = (
        open_ranker(model if weight is None else with_weight(model, home, weight)).digest for weight in (None, 0, 1, 2)
    )
    assert plain == none and len({plain, some, more}) == 3
    with_weight(model, home, 2, retriever="elsewhere")
    assert open_ranker(model).digest == more


def test_a_weight_is_not_for_scores_of_another_kind(
    home: Path, undisturbed: Path, tmp_path: Path, pel_ray: RunCommand
) -> None:
    ranker = with_weight(shutil.copytree(undisturbed / "model", tmp_path / "ranker"), home, 2, similarity="dot")
    said = "adds 2 times the score of a dot retriever .a retriever., but .* is a cosine retriever. Use one of the same"
    with pytest.raises(PelRayError, match=said):
        rank_evaluate(evaluate_settings(home, ranker, tmp_path / "out"))
    with pytest.raises(PelRayError, match=said):
        Linker.load(home / "vectors", ranker=ranker)
    with_weight(ranker, home, 2, retriever_digest="other")
    given = [home / "set", "--ranker", ranker, "--vectors", home / "vectors", "--out", tmp_path / "out", "--cpus", 1]
    assert "2 times the retriever's, a weight chosen with another retriever (a retriever)" in pel_ray(
        "rank", "evaluate", *given, "--baselines", "none", "--resamples", 10
    ).out.replace("\n", " ")


def test_linking_with_a_ranker_gives_the_order_of_its_scores(
    home: Path, undisturbed: Path, test_rows: list[dict[str, Any]], tmp_path: Path, pel_ray: RunCommand
) -> None:
    # The ranker orders the 16 best, also where fewer are to be given.
    plain = list(Linker.load(home / "vectors", k=16).link(test_rows))
    ranked = list(Linker.load(home / "vectors", k=K, ranker=undisturbed, precision="fp32").link(test_rows))
    kb = rows_of(home / "set", "kb")
    scores = padded_scores(load_ranker(RankerSettings(encoder=str(undisturbed))), test_rows, kb)
    row_of = {row["entity_id"]: number for number, row in enumerate(kb)}
    for number, (before, after) in enumerate(zip(plain, ranked, strict=True)):
        candidates = [row_of[candidate.entity_id] for candidate in before.candidates]
        expected = sorted(candidates, key=lambda row: (-round(float(scores[number, row]), 4), row))
        found = [row_of[candidate.entity_id] for candidate in after.candidates]
        assert len(found) == K and set(found) <= set(candidates)
        np.testing.assert_allclose(scores[number, found], scores[number, expected[:K]], atol=1e-4)
    write_jsonl(tmp_path / "mentions.jsonl", test_rows)
    flags = ["--candidates", K, "--ranker", undisturbed]
    said = pel_ray("link", home / "vectors", "mentions.jsonl", *flags)
    linked = Linker.load(home / "vectors", k=K, ranker=undisturbed).link(test_rows)
    assert [json.loads(line)["entity_id"] for line in said.out.splitlines()] == [link.entity_id for link in linked]
    assert "rank evaluate DATA" in pel_ray("link", home / "vectors", "mentions.jsonl", *flags, "--nil").error


def test_what_cannot_be_ranked_is_refused_in_one_line(
    home: Path, undisturbed: Path, tmp_path: Path, pel_ray: RunCommand
) -> None:
    given = [home / "set", "--vectors", home / "vectors", "--out", "out", "--cpus", 1]
    encoder = ["--encoder", home / "tiny"]
    short = [*encoder, "--mention-length", 24, "--entity-length", 24]
    for command, arguments, expected in (
        ("train", encoder, "make texts of 255 pieces, but .* has positions for 128. Lower one of them"),
        ("train", [*short, "--split", "dev"], "has no split 'dev', only train, validation, test"),
        ("train", [*short, "--workers", 2], "2 workers share the micro-batches of a step, but batch_size 4 has only 1"),
        ("train", ["--encoder", undisturbed, "--layers", 1], "was made with layers None, asked for 1"),
        ("evaluate", ["--ranker", home / "model"], "model holds no ranker"),
        ("evaluate", ["--ranker", undisturbed, "--split", "dev"], "has no mention of split 'dev'"),
    ):
        assert_matches(expected, pel_ray("rank", command, *given, *arguments).error)
    with pytest.raises(PelRayError, match="optimiser.lr is 0.001 there and 0.01 here"):
        rank_train(train_settings(home, undisturbed, optimiser={"lr": 1e-2}))


def test_a_plan_says_what_training_will_take(home: Path, tmp_path: Path, pel_ray: RunCommand) -> None:
    given = [home / "set", "--vectors", home / "vectors", "--out", "out", "--encoder", home / "model"]
    text = ["--mention-length", 24, "--entity-length", 24]
    said = pel_ray("rank", "train", *given, *text, "--num-candidates", K, "--epochs", 3, "--plan")
    num_golden = sum(row["split"] == "train" and bool(row["entity_ids"]) for row in rows_of(home / "set", "mentions"))
    num_steps = -(-num_golden // 4)
    assert said.code == 0, said.err
    assert_matches(rf"mentions +{num_golden} with a gold in the KB", said.out)
    assert_matches(rf"steps +{num_steps} an epoch, {3 * num_steps} in all, of at most {4 * K} pairs", said.out)
    for line in ("rate .* pieces/s in training", "time +about 0:0", "validating 4 times", "activations +[0-9]", "disk"):
        assert_matches(line, said.out)
    assert not (tmp_path / "out").exists()


def test_curves_and_report_show_a_ranker(undisturbed: Path, pel_ray: RunCommand) -> None:
    assert pel_ray("curves", undisturbed, "--out", "curves.png").code == 0
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert pel_ray("report", undisturbed, "--out", "page").code == 0
    page = Path("page/report.html").read_text()
    accuracy = read_manifest(locate(undisturbed)).counts["validation of the best epoch"]["accuracy"]
    assert f"{100 * accuracy:.1f}" in page and "pel-ray rank evaluate" in page and "finding candidates" in page
