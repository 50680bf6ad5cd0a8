"""The training objective: the loss and gradients of one pair at a time, whatever the chunks, workers and dropout."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from pel_ray.adversarial import AdversarialSettings, clean_and_adversarial
from pel_ray.chunks import Passes, Pieces, auto_chunk_tokens, cut
from pel_ray.encoder import BiEncoder, ModelSettings, load_model
from pel_ray.losses import LossSettings, retrieval_loss
from pel_ray.objective import Objective, ObjectiveSettings, TrainingBatch
from pel_ray.training_memory import LiveBytes, step_memory
from tests.models import write_encoder

NUM_PIECES = 80


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("model") / "tiny"))


def load(tiny: str, *, training: bool = False, **settings: Any) -> BiEncoder:
    """In float64: in float32 the sign of a gradient near zero depends on how texts are batched."""
    model = load_model(ModelSettings.model_validate({"encoder": tiny, **settings}))
    for seed, tower in enumerate((model.mention_tower, model.entity_tower)):
        torch.manual_seed(seed)
        for weight in tower.double().parameters():
            # Two towers that differ, with scores that do.
            weight.data += torch.randn_like(weight) * 0.1
        tower.train(training)
    return model


def objective_of(model: BiEncoder, *, chunk_tokens: int = 10_000, kind: str = "pb", **adversarial: Any) -> Objective:
    loss = LossSettings.model_validate({"kind": kind, "alpha": 4.0, "margin": 0.05})
    adversarial_settings = AdversarialSettings.model_validate(adversarial)
    return Objective(model, ObjectiveSettings(loss=loss, adversarial=adversarial_settings, chunk_tokens=chunk_tokens))


def texts_of(model: BiEncoder, num: int, rng: np.random.Generator, longest: int = 12) -> list[list[int]]:
    marks = model.markers
    start, end = [marks.cls, marks.mention_start], [marks.mention_end, marks.sep]
    return [[*start, *rng.integers(10, NUM_PIECES, rng.integers(1, longest)), *end] for _ in range(num)]


def batch_of(
    model: BiEncoder, columns: list[list[int]], *, seed: int = 0, in_batch: bool = False, longest: int = 12
) -> TrainingBatch:
    rng = np.random.default_rng(seed)
    mentions, entities = (texts_of(model, num, rng, longest) for num in (len(columns), np.max(columns) + 1))
    allowed = rng.random((len(columns), len(entities))) < 0.7 if in_batch else None
    return TrainingBatch(Pieces.of(mentions), Pieces.of(entities), np.array(columns), allowed)


COLUMNS = [[0, 1, 2], [3, 0, 4], [5, 2, -1], [0, 6, 3]]


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


def learnt(objective: Objective, batch: TrainingBatch, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
    objective.zero_grad(set_to_none=True)
    loss, _ = objective(batch, seed)
    loss.backward()
    return loss.item(), gradients(objective)


def text(pieces: Pieces, row: int) -> torch.Tensor:
    return torch.from_numpy(pieces.flat[pieces.offsets[row] : pieces.offsets[row + 1]].astype(np.int64))[None]


def one_pair_at_a_time(model: BiEncoder, objective: Objective, batch: TrainingBatch) -> torch.Tensor:
    """The plainest loop: a text at a time, no chunk, no padding, FGSM as the paper writes it."""
    adversarial, total = objective.settings.adversarial, torch.zeros((), dtype=torch.float64)

    def similarity(mention: torch.Tensor, ids: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        entity = model.entity_tower(ids, None, z)
        both = functional.cosine_similarity(mention, entity)
        return both[0] if model.settings.similarity == "cosine" else (mention * entity).sum()

    for row, columns in enumerate(batch.columns_BC):
        mention = model.mention_tower(text(batch.mentions, row), None)
        clean, moved = [], []
        for place, column in enumerate(columns[columns >= 0]):
            ids = text(batch.entities, column)
            z = model.entity_tower.embed(ids)
            score = similarity(mention, ids, z)
            direction = torch.autograd.grad(similarity(mention.detach(), ids, z), z)[0].sign().detach()
            clean.append(score)
            moved.append(similarity(mention, ids, z + adversarial.epsilon * direction * (-1 if place == 0 else 1)))
        for other in range(len(batch.entities)):
            if batch.allowed_BU is not None and batch.allowed_BU[row, other] and other not in columns:
                ids = text(batch.entities, other)
                for scores in (clean, moved):
                    scores.append(similarity(mention, ids, model.entity_tower.embed(ids)))
        total = total + retrieval_loss(torch.stack(clean)[None], objective.settings.loss)
        if adversarial.fgsm:
            total = total + adversarial.weight * retrieval_loss(torch.stack(moved)[None], objective.settings.loss)
    return total / len(batch.columns_BC)


@pytest.mark.parametrize("chunk_tokens", [1, 60, 10_000])
@pytest.mark.parametrize("fgsm", [False, True])
@pytest.mark.parametrize(
    "kind, similarity, pooling, in_batch",
    [("pb", "cosine", "mean", False), ("ce", "dot", "cls", True), ("pb", "cosine", "mention", True)],
)
def test_loss_and_gradients_equal_those_of_one_pair_at_a_time(
    tiny: str, chunk_tokens: int, fgsm: bool, kind: str, similarity: str, pooling: str, in_batch: bool
) -> None:
    model = load(tiny, similarity=similarity, pooling=pooling)
    objective = objective_of(model, chunk_tokens=chunk_tokens, kind=kind, fgsm=fgsm, epsilon=0.03, weight=0.5)
    batch = batch_of(model, COLUMNS, in_batch=in_batch)
    loss, found = learnt(objective, batch)
    objective.zero_grad(set_to_none=True)
    expected_loss = one_pair_at_a_time(model, objective, batch)
    expected_loss.backward()
    assert loss == pytest.approx(expected_loss.item(), rel=1e-9)
    expected = gradients(objective)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-9, msg=name)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("keeps", [False, True])
def test_adversarial_negatives_score_higher_and_positives_lower(tiny: str, similarity: str, keeps: bool) -> None:
    model = load(tiny, similarity=similarity)
    pieces = Pieces.of(texts_of(model, 20, np.random.default_rng(0)))
    device = torch.device("cpu")
    passes = Passes(model.entity_tower, normalise=similarity == "cosine", keeps=keeps)
    for chunk in cut(pieces, np.arange(20), 100, pad=model.markers.pad, seed=(0,), device=device):
        anchors = torch.randn(len(chunk.ids_TL), model.dimension, dtype=torch.float64)
        ways = torch.arange(len(anchors)) % 2 * 2 - 1
        gains = []
        for epsilon in (1e-5, 2e-5):
            clean, moved = clean_and_adversarial(passes, chunk, anchors, ways, epsilon)
            gains.append(((moved - clean) * anchors).sum(1))
        assert (gains[0] * ways > 0).all()
        torch.testing.assert_close(gains[1], 2 * gains[0], rtol=1e-2, atol=0)


@pytest.mark.parametrize("kind", ["pb", "ce"])
def test_the_adversarial_loss_is_the_higher_one(tiny: str, kind: str) -> None:
    model = load(tiny)
    statistics = objective_of(model, kind=kind, fgsm=True, epsilon=1e-3)(batch_of(model, COLUMNS))[1]
    assert statistics["adversarial_loss"] > statistics["clean_loss"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("chunk_tokens", [40, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_of_size_zero_doubles_the_loss_exactly(
    tiny: str, training: bool, chunk_tokens: int, dtype: torch.dtype
) -> None:
    model = load(tiny, training=training)
    objective = objective_of(model, chunk_tokens=chunk_tokens, fgsm=True, epsilon=0).to(dtype)
    loss, statistics = objective(batch_of(model, COLUMNS, in_batch=True))
    assert statistics["adversarial_loss"] == statistics["clean_loss"]
    assert loss == 2 * statistics["clean_loss"]


@pytest.mark.parametrize("fgsm", [False, True])
@pytest.mark.parametrize("chunk_tokens", [40, 10_000])
def test_with_dropout_the_gradient_is_that_of_the_loss_itself(tiny: str, fgsm: bool, chunk_tokens: int) -> None:
    """A pass that is computed again with other dropout would give the gradient of another loss."""
    model = load(tiny, training=True)
    objective, batch = objective_of(model, chunk_tokens=chunk_tokens, fgsm=fgsm), batch_of(model, COLUMNS)
    _, found = learnt(objective, batch, seed=7)
    weights = dict(objective.named_parameters())
    ways = {name: torch.randn_like(gradient) for name, gradient in found.items()}

    def moved(size: float) -> float:
        with torch.no_grad():
            for name, way in ways.items():
                weights[name] += size * way
            return float(objective(batch, 7)[0])

    slope = (moved(1e-6) - moved(-2e-6)) / 2e-6
    assert slope == pytest.approx(sum(float((found[name] * way).sum()) for name, way in ways.items()), rel=1e-4)


def test_dropout_depends_on_the_seed_and_leaves_the_random_numbers_of_the_program_alone(tiny: str) -> None:
    model = load(tiny, training=True)
    objective, batch = objective_of(model, chunk_tokens=40, fgsm=True), batch_of(model, COLUMNS)
    state = torch.get_rng_state()
    losses = [learnt(objective, batch, seed)[0] for seed in (1, 2, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert losses[0] == losses[2] != losses[1]


def test_padding_a_text_further_changes_nothing(tiny: str) -> None:
    model = load(tiny)
    objective = objective_of(model, fgsm=True, epsilon=0.05)
    batch = batch_of(model, [[0, 1], [2, 3]])
    alone = learnt(objective, batch)[0]
    # A third mention, whose long entities the others are padded to, and whose loss is taken out again.
    longer = batch_of(model, [[0, 1]], seed=5, longest=60)
    both = TrainingBatch(
        *(
            Pieces.of([text(side, row)[0].tolist() for side in sides for row in range(len(side))])
            for sides in ((batch.mentions, longer.mentions), (batch.entities, longer.entities))
        ),
        np.array([[0, 1], [2, 3], [4, 5]]),
    )
    assert objective(both)[0].item() * 3 - objective(longer)[0].item() == pytest.approx(alone * 2, rel=1e-9)


@pytest.mark.parametrize("fgsm", [False, True])
@pytest.mark.parametrize("chunk_tokens", [40, 10_000])
def test_a_frozen_entity_tower_gets_no_gradient_and_the_other_tower_the_same(
    tiny: str, fgsm: bool, chunk_tokens: int
) -> None:
    model = load(tiny)
    batch = batch_of(model, COLUMNS)
    objective = objective_of(model, chunk_tokens=chunk_tokens, fgsm=fgsm)
    expected = {name: gradient for name, gradient in learnt(objective, batch)[1].items() if "mention_tower" in name}
    model.entity_tower.requires_grad_(False)
    found = learnt(objective_of(model, chunk_tokens=chunk_tokens, fgsm=fgsm), batch)[1]
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("chunk_tokens", [40, 10_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_nearly_the_same_loss_and_whole_gradients(
    tiny: str, chunk_tokens: int, dtype: torch.dtype
) -> None:
    model = load(tiny)
    objective = objective_of(model, chunk_tokens=chunk_tokens, fgsm=True).float()
    batch = batch_of(model, COLUMNS, in_batch=True)
    expected, full = learnt(objective, batch)
    objective.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype):
        loss, _ = objective(batch)
        # Inside, where a weight that was cast without its gradient would still be in the cache.
        loss.backward()
        again, _ = objective(batch)
    assert loss.dtype == torch.float32
    assert loss.item() == again.item() == pytest.approx(expected, rel=0.02)
    half = gradients(objective)
    assert half.keys() == full.keys()
    cosines = [functional.cosine_similarity(half[name].flatten(), full[name].flatten(), 0) for name in full]
    assert float(torch.stack(cosines).median()) > 0.95


def test_every_weight_that_is_not_frozen_gets_a_gradient(tiny: str) -> None:
    objective = objective_of(load(tiny))
    _, found = learnt(objective, batch_of(load(tiny), COLUMNS))
    assert found.keys() == {name for name, weight in objective.named_parameters() if weight.requires_grad}
    assert {name for name, weight in objective.named_parameters() if not weight.requires_grad} == {
        f"{side}_tower.transformer.pooler.dense.{part}" for side in ("mention", "entity") for part in ("weight", "bias")
    }


def test_without_gradients_it_is_a_loss_for_validation(tiny: str) -> None:
    model = load(tiny)
    objective, batch = objective_of(model, chunk_tokens=40, fgsm=True), batch_of(model, COLUMNS)
    expected, _ = objective(batch)
    with torch.no_grad():
        found, _ = objective(batch)
    assert found.item() == expected.item() and not found.requires_grad


def test_memory_is_bounded_by_the_chunk_and_not_by_the_negatives(tiny: str) -> None:
    model = load(tiny, training=True)
    objective = objective_of(model, chunk_tokens=512, fgsm=True).float()
    peaks = {}
    for num_negatives in (16, 64):
        columns = np.arange(2 * (num_negatives + 1)).reshape(2, -1).tolist()
        with LiveBytes() as memory:
            objective(batch_of(model, columns, longest=40))[0].backward()
        objective.zero_grad(set_to_none=True)
        peaks[num_negatives] = memory.peak
    assert peaks[64] <= 1.2 * peaks[16], peaks


def test_memory_computed_without_content_is_that_of_a_real_step(tiny: str) -> None:
    model = load(tiny, training=True)
    objective = objective_of(model, chunk_tokens=256, fgsm=True).float()
    mentions, entities = (Pieces(np.full(num * 12, 9, np.int32), np.arange(num + 1) * 12) for num in (4, 36))
    with LiveBytes() as memory:
        objective(TrainingBatch(mentions, entities, np.arange(36).reshape(4, 9)))[0].backward()
    found = step_memory(
        model.entity_tower.transformer.config,
        ObjectiveSettings(adversarial=AdversarialSettings(fgsm=True), chunk_tokens=256),
        mention_length=12,
        entity_length=12,
        micro_batch=4,
        num_negatives=8,
        half_precision=False,
    )
    simulated = found.parts["activations"] + found.parts["gradients"]
    assert simulated == pytest.approx(memory.peak, rel=0.1)


def test_auto_takes_more_pieces_where_there_is_more_memory(tiny: str) -> None:
    config = load(tiny).entity_tower.transformer.config
    assert auto_chunk_tokens(config, 0) < auto_chunk_tokens(config, 1 << 28) < auto_chunk_tokens(config, 1 << 29)


def _train_half(rank: int, tiny: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = load(tiny)
    objective = objective_of(model, chunk_tokens=40, fgsm=True)
    parallel = torch.nn.parallel.DistributedDataParallel(objective)
    for _ in range(2):
        # Twice, as DistributedDataParallel finds out in the second step that a gradient never came in the first.
        objective.zero_grad(set_to_none=True)
        parallel(half_of(batch_of(model, COLUMNS), rank))[0].backward()
    torch.save(gradients(objective), f"{folder}/gradients-{rank}.pt")
    # Were it freed after the group, it would wait for gloo's threads while they wait for Python (torch 2.13).
    del parallel
    gc.collect()
    torch.distributed.destroy_process_group()


def half_of(batch: TrainingBatch, rank: int) -> TrainingBatch:
    rows = np.arange(len(batch.mentions))[rank::2]
    entities, columns = np.unique(batch.columns_BC[rows], return_inverse=True)
    missing = int(entities[0] < 0)
    return dataclasses.replace(
        batch,
        mentions=Pieces.of([text(batch.mentions, row)[0].tolist() for row in rows]),
        entities=Pieces.of([text(batch.entities, row)[0].tolist() for row in entities[missing:]]),
        columns_BC=columns.reshape(len(rows), -1) - missing,
    )


def test_two_workers_average_to_the_gradients_of_one(tiny: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train_half, (tiny, str(tmp_path)), nprocs=2)
    model = load(tiny)
    _, expected = learnt(objective_of(model, fgsm=True), batch_of(model, COLUMNS))
    for rank in range(2):
        found = torch.load(tmp_path / f"gradients-{rank}.pt")
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-9, msg=name)
