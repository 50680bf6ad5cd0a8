"""The cross-encoder: one transformer over a mention and an entity in one text, and a linear score of the pair.

[CLS] left [Ms] mention [Me] right [SEP] title [SEP] types [SEP] description [SEP]      (template `medmentions`)

Shapes: B texts in a batch, L word pieces of the longest, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import nn

from pel_ray.blend import Blend, read_blend
from pel_ray.encoder import (
    EncoderName,
    ModelSettings,
    OverTransformer,
    Parts,
    load_parts,
    load_tower,
    mean_over,
    read_saved,
)
from pel_ray.errors import ArtifactError, SettingsError, StorageError
from pel_ray.hugging_face import DEFAULT_ENCODER, load_config, num_positions
from pel_ray.spec import Settings
from pel_ray.storage import Location, Where, locate
from pel_ray.text import Markers, Texts, TextSettings

RANKER_FILE = "pel_ray_ranker.json"
SCORE_FILE = "score.safetensors"
FIRST_SCORE_SEED = 13


class RankerSettings(Settings):
    """What a ranker is made of."""

    encoder: EncoderName = DEFAULT_ENCODER
    """A Hugging Face encoder by hub name or folder, a pel-ray model folder (its mention tower), or a ranker."""
    layers: int | None = Field(default=None, ge=1)
    """Keep only the first layers, for small machines; by default all."""
    text: TextSettings = TextSettings()
    """How a mention and an entity become one text; by default of 256 pieces, half of them for each."""


class CrossEncoder(OverTransformer):
    """One transformer, the mean over its pieces, and a linear score."""

    def __init__(self, transformer: Any, markers: Markers) -> None:
        super().__init__(transformer)
        self.score = nn.Linear(int(transformer.config.hidden_size), 1)
        self.start = markers.cls
        self._markers = markers
        self._has_types = getattr(transformer.config, "type_vocab_size", 0) > 1

    def forward(
        self, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None, embeddings_BLD: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores (B, 1); no mask means that no text is padded."""
        types = {"token_type_ids": self.types(ids_BL)} if self._has_types else {}
        mean_BD = mean_over(self._hidden(ids_BL, mask_BL, embeddings_BLD, **types), mask_BL)
        # In half precision near candidates would tie: bf16 has steps of 1/256.
        with torch.autocast(ids_BL.device.type, enabled=False):
            scores_B1: torch.Tensor = self.score(mean_BD)
        return scores_B1

    def types(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """0 up to the [SEP] that ends the mention with its context, 1 in the entity's part."""
        is_after_BL = (ids_BL == self._markers.mention_end).cumsum(1) > 0
        ends_BL = ((ids_BL == self._markers.sep) & is_after_BL).long()
        return (ends_BL.cumsum(1) - ends_BL > 0).long()


@dataclass(frozen=True)
class RankerParts:
    """A ranker without its weights: enough to make texts, and to tell one ranker from another."""

    folder: Location
    settings: RankerSettings
    base: Parts
    """Tokenizer, markers and transformer."""
    blend: Blend | None = None

    @property
    def is_saved(self) -> bool:
        return (self.folder / RANKER_FILE).is_file()

    @property
    def texts(self) -> Texts:
        return Texts(self.base.tokenizer, self.base.markers, self.settings.text)

    @property
    def retriever_weight(self) -> float:
        """How much the retriever's score counts beside the ranker's."""
        return self.blend.weight if self.blend else 0.0

    @property
    def digest(self) -> str:
        """Changes with the weights, the settings, the tokenizer, the markers and how much the retriever counts."""
        digest = Parts(self.folder, self.base.settings, self.base.tokenizer, self.base.markers).digest("mention")
        weight = self.retriever_weight
        return hashlib.sha256(f"{digest} {weight!r}".encode()).hexdigest() if weight else digest

    def check_retriever(self, retriever: Parts) -> None:
        """Refuses one whose scores are of another kind than those the weight was chosen for."""
        found, blend = retriever.settings.similarity, self.blend
        if blend and blend.weight and blend.similarity != found:
            raise ArtifactError(
                f"{self.folder} adds {blend.weight:.4g} times the score of a {blend.similarity} retriever "
                f"({blend.retriever}), but {retriever.folder} is a {found} retriever. Use one of the same similarity, "
                "or train a ranker for this one"
            )


@dataclass(frozen=True)
class Ranker:
    """The cross-encoder with its tokenizer; usable at once, trained or not."""

    settings_file: ClassVar = RANKER_FILE
    parts: RankerParts
    module: CrossEncoder

    @property
    def texts(self) -> Texts:
        return self.parts.texts

    @property
    def pad(self) -> int:
        return self.parts.base.markers.pad

    def save(self, folder: Path) -> None:
        """Writes the Hugging Face layout: encoder/ with its tokenizer, the score, and what the ranker was told."""
        self.module.transformer.save_pretrained(folder / "encoder", safe_serialization=True)
        self.parts.base.tokenizer.save_pretrained(folder / "encoder")
        state = {name: value.cpu().contiguous() for name, value in self.module.score.state_dict().items()}
        save_file(state, folder / SCORE_FILE)
        settings = self.parts.settings.model_dump(mode="json", exclude={"encoder"})
        content = {"settings": settings, "markers": self.parts.base.markers.__dict__}
        (folder / RANKER_FILE).write_text(json.dumps(content, indent=2) + "\n")


def load_ranker(settings: RankerSettings) -> Ranker:
    """A ranker as it was saved, or an untrained one over any encoder."""
    parts = load_ranker_parts(settings)
    module = CrossEncoder(load_tower(parts.base, "mention").transformer, parts.base.markers)
    if parts.is_saved:
        _load_score(module.score, parts.folder / SCORE_FILE)
    else:
        generator = torch.Generator().manual_seed(FIRST_SCORE_SEED)
        nn.init.normal_(module.score.weight, std=0.02, generator=generator)
        nn.init.zeros_(module.score.bias)
    return Ranker(parts, module)


def load_ranker_parts(settings: RankerSettings) -> RankerParts:
    """Everything but the weights, checked."""
    folder = ranker_folder(settings.encoder)
    if folder is not None:
        settings, _ = read_saved(folder / RANKER_FILE, settings, folder.uri, "a ranker")
        base = load_parts(ModelSettings(encoder=(folder / "encoder").uri))
        return RankerParts(folder, settings, base, read_blend(folder))
    asked = {"encoder": settings.encoder} | ({} if settings.layers is None else {"layers": settings.layers})
    base = load_parts(ModelSettings.model_validate(asked))
    parts = RankerParts(base.folder, settings.model_copy(update={"encoder": base.settings.encoder}), base)
    _check_length(parts)
    return parts


def open_ranker(folder: Where) -> RankerParts:
    """A ranker that was trained: its folder, or that of its run."""
    found = ranker_folder(folder)
    if found is None:
        raise ArtifactError(
            f"{locate(folder)} holds no ranker ({RANKER_FILE}). Expected what `pel-ray rank train` has made"
        )
    return load_ranker_parts(RankerSettings(encoder=found.uri))


def ranker_folder(name: Where) -> Location | None:
    """The folder of a saved ranker, given by itself or by its run; nothing where the name is something else's."""
    folder = locate(name)
    return next((found for found in (folder, folder / "model") if (found / RANKER_FILE).is_file()), None)


def _check_length(parts: RankerParts) -> None:
    text = parts.settings.text
    config = load_config(parts.base.tower_folder("mention"))
    most, length = num_positions(config), text.mention_length + text.entity_length - 1
    if most is not None and length > most:
        raise SettingsError(
            f"mention_length {text.mention_length} and entity_length {text.entity_length} make texts of {length} "
            f"pieces, but {parts.folder} has positions for {most}. Lower one of them"
        )


def _load_score(score: nn.Linear, file: Location) -> None:
    try:
        score.load_state_dict(load(file.read_bytes()))
    except (StorageError, RuntimeError, SafetensorError) as error:
        raise ArtifactError(f"{file} is missing or damaged. Is the download or copy whole?") from error
