"""The bi-encoder: the same vectors as the plainest loop, whatever the batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, RobertaConfig, T5Config

from pel_ray.batches import gathered, plan_batches
from pel_ray.encoder import BiEncoder, ModelSettings, load_model, load_parts
from pel_ray.errors import ArtifactError, PelRayError, SettingsError
from pel_ray.hugging_face import num_positions
from pel_ray.text import TextSettings
from tests.models import write_encoder
from tests.samples import KB_ROWS

ROWS = [
    {"title": row["name"], "types": row["types"], "description": row.get("description", ""), "synonyms": []}
    for row in KB_ROWS
] + [{"title": "a b c", "types": [], "description": "the " * 30, "synonyms": []}]
MENTIONS = [
    {"context_left": "the ", "mention": "fever", "context_right": " has"},
    {"context_left": "", "mention": "a scanner", "context_right": " " + "x " * 40},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("model") / "tiny"))


def one_by_one(model: BiEncoder, pieces: list[list[int]], side: str, pooled: Any) -> np.ndarray:
    """The plainest loop: one text at a time, no padding, no mask."""
    transformer = model.tower(side).transformer.eval()
    with torch.inference_mode():
        vectors = [pooled(transformer(input_ids=torch.tensor([ids])).last_hidden_state[0], ids) for ids in pieces]
    return torch.stack(vectors).numpy()


def between(hidden: torch.Tensor, ids: list[int], start: int, ends: set[int]) -> torch.Tensor:
    first = ids.index(start) + 1
    last = next(place for place in range(first, len(ids)) if ids[place] in ends)
    return hidden[first:last].mean(0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "mention"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_batched_vectors_equal_those_of_one_text_at_a_time(tiny: str, pooling: str, batch_tokens: int) -> None:
    model = load_model(ModelSettings.model_validate({"encoder": tiny, "pooling": pooling, "similarity": "dot"}))
    marks = model.markers
    pools = {
        "mean": (lambda hidden, ids: hidden.mean(0),) * 2,
        "cls": (lambda hidden, ids: hidden[0],) * 2,
        "mention": (
            lambda hidden, ids: between(hidden, ids, marks.cls, {marks.sep, marks.entity}),
            lambda hidden, ids: between(hidden, ids, marks.mention_start, {marks.mention_end}),
        ),
    }[pooling]
    entities = model.encode_entities(ROWS, batch_tokens=batch_tokens, precision="fp32")
    np.testing.assert_allclose(entities, one_by_one(model, model.texts.entities(ROWS), "entity", pools[0]), atol=2e-6)
    mentions = model.encode_mentions(MENTIONS, batch_tokens=batch_tokens, precision="fp32")
    np.testing.assert_allclose(
        mentions, one_by_one(model, model.texts.mentions(MENTIONS), "mention", pools[1]), atol=2e-6
    )


def test_cosine_vectors_have_length_one(tiny: str) -> None:
    vectors = load_model(ModelSettings(encoder=tiny)).encode_entities(ROWS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_no_rows_give_no_vectors(tiny: str) -> None:
    assert load_model(ModelSettings(encoder=tiny)).encode_entities([]).shape == (0, 32)


def test_a_saved_model_is_the_same_model_and_each_tower_opens_alone(tiny: str, tmp_path: Path) -> None:
    text = TextSettings(template="zeshel", entity_length=16)
    model = load_model(ModelSettings(encoder=tiny, pooling="mention", layers=1, text=text))
    with torch.no_grad():
        model.mention_tower.transformer.embeddings.word_embeddings.weight += 0.1
    model.save(tmp_path / "model")
    loaded = load_model(ModelSettings(encoder=str(tmp_path / "model")))
    assert loaded.settings.text == text and loaded.settings.pooling == "mention"
    np.testing.assert_array_equal(loaded.encode_entities(ROWS), model.encode_entities(ROWS))
    np.testing.assert_array_equal(loaded.encode_mentions(MENTIONS), model.encode_mentions(MENTIONS))
    assert not np.allclose(loaded.encode(model.texts.mentions(MENTIONS), "entity"), model.encode_mentions(MENTIONS))
    assert AutoModel.from_pretrained(tmp_path / "model" / "mention_encoder").config.num_hidden_layers == 1
    assert list((tmp_path / "model").rglob("*.bin")) == []
    with pytest.raises(SettingsError, match="was made with pooling 'mention', asked for 'mean'"):
        load_model(ModelSettings(encoder=str(tmp_path / "model"), pooling="mean"))


def test_added_markers_have_embeddings_of_their_own(tmp_path: Path) -> None:
    model = load_model(ModelSettings(encoder=str(write_encoder(tmp_path / "plain", with_unused=False))))
    assert model.encode_mentions(MENTIONS).shape == (2, 32)
    model.save(tmp_path / "saved")
    loaded = load_model(ModelSettings(encoder=str(tmp_path / "saved")))
    np.testing.assert_array_equal(loaded.encode_mentions(MENTIONS), model.encode_mentions(MENTIONS))


def test_models_that_cannot_be_are_refused(tiny: str, tmp_path: Path) -> None:
    other = write_encoder(tmp_path / "other", vocabulary=50)
    with pytest.raises(ArtifactError, match="They do not belong together"):
        load_parts(ModelSettings(encoder=str(other)))
    (other / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match="holds no weights"):
        load_parts(ModelSettings(encoder=str(other)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match="empty"):
        load_parts(ModelSettings(encoder=str(tmp_path / "empty")))
    with pytest.raises(SettingsError, match="layers is 9"):
        load_parts(ModelSettings(encoder=tiny, layers=9))
    for side in ("entity", "mention"):
        with pytest.raises(SettingsError, match=f"{side}_length is 129, but .* has positions for texts of 128 pieces"):
            load_parts(ModelSettings(encoder=tiny, text=TextSettings(**{f"{side}_length": 129})))
    (other / "pel_ray.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(PelRayError, match="is damaged"):
        load_parts(ModelSettings(encoder=str(other)))


@pytest.mark.parametrize("name", ["", "x" * 5000])
def test_a_name_that_is_none_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((ValidationError, ArtifactError), match="at least 1 character|is no folder here"):
        load_parts(ModelSettings(encoder=name))


def test_weights_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    cut, lacking = write_encoder(tmp_path / "cut"), write_encoder(tmp_path / "lacking")
    file = cut / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match=r"model.safetensors is damaged: .* Is the download or copy whole\?"):
        load_parts(ModelSettings(encoder=str(cut)))
    weights = load_file(lacking / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"lack 1 tensors of the model \(encoder.layer.1.output.dense.weight\)"):
        load_model(ModelSettings(encoder=str(lacking)))
    # The layer that lacks one is not used.
    assert len(load_model(ModelSettings(encoder=str(lacking), layers=1)).encode_entities(ROWS)) == len(ROWS)


def test_weights_without_a_pooler_are_whole(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert len(load_model(ModelSettings(encoder=str(folder))).encode_entities(ROWS)) == len(ROWS)


@pytest.mark.parametrize(
    ("template", "is_refused"),
    [("{types} [SEP] {title}", True), ("{title} {types}", True), ("{title}", False), ("{title} [ENT] {types}", False)],
)
def test_pooling_over_the_title_needs_it_before_the_first_separator(tiny: str, template: str, is_refused: bool) -> None:
    settings = ModelSettings(encoder=tiny, pooling="mention", text=TextSettings(template=template))
    if is_refused:
        with pytest.raises(SettingsError, match="before the first separator for the title"):
            load_parts(settings)
    else:
        assert load_parts(settings).settings.text.template == template


def test_positions_of_roberta_begin_after_that_of_the_padding() -> None:
    assert num_positions(RobertaConfig(max_position_embeddings=514)) == 512
    assert num_positions(BertConfig()) == 512 and num_positions(T5Config()) is None


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 200))
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    sizes = np.array(lengths, np.int64)
    batches = plan_batches(sizes, budget)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or sizes[rows].max() * len(rows) <= budget for rows in batches)
    flat, offsets = np.arange(sizes.sum(), dtype=np.int32) + 1, np.concatenate([[0], np.cumsum(sizes)])
    for batch in gathered(batches, flat, offsets, pad=0):
        for ids, row in zip(batch.ids, batch.rows, strict=True):
            assert [piece for piece in ids if piece] == list(flat[offsets[row] : offsets[row + 1]])
        if batch.mask is not None:
            assert ((batch.ids > 0) == batch.mask).all()
