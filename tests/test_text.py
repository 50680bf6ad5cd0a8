"""Texts of mentions and entities: templates, budgets, the context window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.encoder import ModelSettings, Parts, load_parts
from pel_ray.errors import SettingsError
from pel_ray.text import Texts, TextSettings, parse_template, split_context
from tests.models import write_encoder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return load_parts(ModelSettings(encoder=str(write_encoder(tmp_path_factory.mktemp("model") / "tiny"))))


def texts_of(parts: Parts, **settings: Any) -> Texts:
    return Texts(parts.tokenizer, parts.markers, TextSettings(**settings))


def entity(**fields: Any) -> dict[str, Any]:
    return {"title": "fever", "types": ["finding"], "description": "too hot", "synonyms": ["hot"]} | fields


def mention(left: str, text: str, right: str) -> dict[str, str]:
    return {"context_left": left, "mention": text, "context_right": right}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("medmentions", "[CLS] fever [SEP] finding [SEP] too hot [SEP]"),
        ("zeshel", "[CLS] fever [unused2] too hot [SEP]"),
        ("synonyms", "[CLS] fever [SEP] hot [SEP] finding [SEP] too hot [SEP]"),
        ("the {title} with {types}", "[CLS] the fever with finding [SEP]"),
    ],
)
def test_entity_texts_follow_their_template(parts: Parts, template: str, expected: str) -> None:
    (ids,) = texts_of(parts, template=template).entities([entity()])
    assert " ".join(parts.tokenizer.convert_ids_to_tokens(ids)) == expected


def test_mention_texts_are_those_of_the_paper(parts: Parts) -> None:
    (ids,) = texts_of(parts).mentions([mention("the hospital has ", "fever", " too")])
    tokens = parts.tokenizer.convert_ids_to_tokens(ids)
    assert tokens == "[CLS] the hospital has [unused0] fever [unused1] too [SEP]".split()


@pytest.mark.parametrize(
    "template",
    ["{titel}", "no field", "{}", "", "{title} {title}", "{title", "{title} types}", "{title!r}", "{{title}}"],
)
def test_a_template_that_cannot_be_is_refused(template: str) -> None:
    with pytest.raises(SettingsError):
        parse_template(template)


def test_an_unknown_field_gets_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="did you mean {title}?"):
        parse_template("{titel} [SEP] {description}")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(10, 40))
def test_a_long_description_never_pushes_out_title_and_types(
    parts: Parts, num_title: int, num_types: int, num_description: int, length: int
) -> None:
    row = entity(
        title=" ".join(["fever"] * num_title),
        types=[" ".join(["finding"] * num_types)],
        description=" ".join(["hot"] * num_description),
    )
    (ids,) = texts_of(parts, entity_length=length).entities([row])
    tokens = parts.tokenizer.convert_ids_to_tokens(ids)
    room = length - 4
    assert len(ids) == min(num_title + num_types + num_description, room) + 4
    assert tokens.count("fever") >= min(num_title, room // 2)
    assert tokens.count("finding") >= min(num_types, (room - tokens.count("fever")) // 4)
    # The description is the first to give way: it is whole, or nothing else was cut more than its share asks.
    if tokens.count("hot") < num_description:
        assert len(ids) == length


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 124))
def test_the_window_gives_half_to_each_side_and_what_is_unused_to_the_other(left: int, right: int, room: int) -> None:
    num_left, num_right = split_context(left, right, room)
    assert num_left + num_right == min(left + right, room)
    assert num_left <= left and num_right <= right
    assert num_left >= min(left, room // 2) and num_right >= min(right, room // 2)


def test_the_context_nearest_to_the_mention_stays(parts: Parts) -> None:
    (ids,) = texts_of(parts, mention_length=10).mentions([mention("a b c d e f ", "fever", " g h i j k")])
    tokens = parts.tokenizer.convert_ids_to_tokens(ids)
    assert tokens == "[CLS] e f [unused0] fever [unused1] g h i [SEP]".split()


def test_a_mention_longer_than_the_window_is_cut_but_keeps_its_markers(parts: Parts) -> None:
    (ids,) = texts_of(parts, mention_length=8).mentions([mention("the ", "a b c d e f g", " has")])
    tokens = parts.tokenizer.convert_ids_to_tokens(ids)
    assert tokens == "[CLS] [unused0] a b c d [unused1] [SEP]".split()


def test_a_vocabulary_without_unused_pieces_gets_markers_added(tmp_path: Path) -> None:
    parts = load_parts(ModelSettings(encoder=str(write_encoder(tmp_path / "plain", with_unused=False))))
    (ids,) = texts_of(parts).mentions([mention("", "fever", "")])
    assert parts.tokenizer.convert_ids_to_tokens(ids) == "[CLS] [Ms] fever [Me] [SEP]".split()


@pytest.mark.parametrize("with_unused", [True, False])
@pytest.mark.parametrize("word", ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "[Ms]", "[Me]", "[ENT]", "[unused0]"])
def test_special_tokens_that_somebody_wrote_are_text(tmp_path: Path, with_unused: bool, word: str) -> None:
    parts = load_parts(ModelSettings(encoder=str(write_encoder(tmp_path / "tiny", with_unused=with_unused))))
    texts, written = texts_of(parts), f"has {word} too"
    # The vocabulary has no brackets, so that they are unknown pieces, as those of `(` are.
    (plain,) = texts.mentions([mention(*[written.replace("[", "(").replace("]", ")")] * 3)])
    assert texts.mentions([mention(written, written, written)]) == [plain]
    (ids,) = texts.entities([entity(title=written, description=written, types=[written])])
    assert ids.count(parts.markers.sep) == 3 and ids.count(parts.markers.cls) == 1
    assert parts.tokenizer.pad_token_id not in ids and parts.tokenizer.mask_token_id not in ids


def test_texts_without_special_tokens_are_what_the_tokenizer_makes_of_them(parts: Parts) -> None:
    text = "The  Fever, a-b (hot) [x] 12%, na\u00efve \u03b2 \u4e2d"
    (ids,) = texts_of(parts, template="{title}").entities([entity(title=text)])
    assert ids == parts.tokenizer(text)["input_ids"]


def test_a_field_that_a_row_does_not_have_is_empty(parts: Parts) -> None:
    rows = [{"title": "fever"}, entity(types=None, description=None, synonyms=None)]
    assert texts_of(parts).entities(rows) == texts_of(parts).entities([entity(types=[], description="")] * 2)


def test_special_tokens_of_a_template_are_meant(parts: Parts) -> None:
    (ids,) = texts_of(parts, template="[MASK] {title}").entities([entity(title="[MASK]")])
    assert ids.count(parts.tokenizer.mask_token_id) == 1
