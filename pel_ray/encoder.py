"""The bi-encoder: two independent towers over any Hugging Face encoder, and what they were told.

Shapes: B texts in a batch, L word pieces of the longest, D dimensions of a vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import nn

from pel_ray.batches import Batch, BatchTokens, gathered, plan_batches, ragged, tokens_of
from pel_ray.blend import BLEND_FILE
from pel_ray.errors import ArtifactError, SettingsError
from pel_ray.hugging_face import (
    DEFAULT_ENCODER,
    check_weights,
    encoder_folder,
    first_line,
    is_folder_here,
    load_config,
    load_tokenizer,
    load_transformer,
    num_positions,
)
from pel_ray.nil import NIL_FILE
from pel_ray.on_disk import from_disk
from pel_ray.spec import Settings, SettingsType
from pel_ray.storage import BLOCK_BYTES, Location, Where, is_uri, locate, storage_errors, without_credentials
from pel_ray.text import Markers, Texts, TextSettings, parse_template
from pel_ray.threads import one_thread_each

SETTINGS_FILE = "pel_ray.json"
MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
FEW_BATCHES = 8
"""Fewer than these would leave a thread without work at the end of a shard for too long."""
Side = Literal["mention", "entity"]
Precision = Literal["auto", "fp32", "fp16", "bf16"]
EncoderName = Annotated[str, Field(min_length=1)]


class ModelSettings(Settings):
    """What a bi-encoder is made of."""

    encoder: EncoderName = DEFAULT_ENCODER
    """A Hugging Face encoder by hub name or folder (or URI), or a pel-ray model; default: installed MiniLM weights."""
    pooling: Literal["mean", "cls", "mention"] = "mean"
    """mean over all pieces (the paper), the first piece, or the mean over the mention's (the title's) own pieces."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """cosine (the paper's Pb loss) or dot product (its CE loss)."""
    layers: int | None = Field(default=None, ge=1)
    """Keep only the first layers, for small machines; by default all."""
    text: TextSettings = TextSettings()
    """How mentions and entities become word pieces."""


class OverTransformer(nn.Module):
    """A transformer whose word embeddings can be moved, and what pooling takes of it."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer = transformer

    def embed(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """The word embeddings (B, L, D), which `forward` then takes instead of looking them up."""
        embeddings_BLD: torch.Tensor = self.transformer.get_input_embeddings()(ids_BL)
        return embeddings_BLD

    def _hidden(
        self,
        ids_BL: torch.Tensor,
        mask_BL: torch.Tensor | None,
        embeddings_BLD: torch.Tensor | None,
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        """What the transformer makes of each piece (B, L, D), in at least single precision.

        Pooling in half precision would round away what tells near texts apart.
        """
        texts = {"input_ids": ids_BL} if embeddings_BLD is None else {"inputs_embeds": embeddings_BLD}
        hidden_BLD: torch.Tensor = self.transformer(attention_mask=mask_BL, **texts, **inputs).last_hidden_state
        return hidden_BLD.to(torch.promote_types(hidden_BLD.dtype, torch.float32))


class Tower(OverTransformer):
    """One transformer and its pooling."""

    def __init__(self, transformer: Any, pooling: str, start: int, ends: Sequence[int]) -> None:
        super().__init__(transformer)
        self.pooling = pooling
        self.start, self._ends = start, list(ends)

    @property
    def dimension(self) -> int:
        return int(self.transformer.config.hidden_size)

    def forward(
        self, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None, embeddings_BLD: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Vectors (B, D), not normalised; no mask means that no text is padded."""
        hidden_BLD = self._hidden(ids_BL, mask_BL, embeddings_BLD)
        if self.pooling == "cls":
            return hidden_BLD[:, 0]
        if self.pooling == "mention":
            return mean_over(hidden_BLD, self._own_pieces(ids_BL))
        return mean_over(hidden_BLD, mask_BL)

    def _own_pieces(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """1 between the first start token and the first end token after it, 0 elsewhere."""
        is_start = ids_BL == self.start
        begun = is_start.cumsum(1) > 0
        is_end = torch.isin(ids_BL, torch.tensor(self._ends, device=ids_BL.device)) & begun
        inside = begun & ~is_start & (is_end.cumsum(1) == 0)
        # A text without a piece of its own (an empty title) is pooled over its start token.
        return torch.where(inside.any(1, keepdim=True), inside, is_start).long()


def mean_over(hidden_BLD: torch.Tensor, mask_BL: torch.Tensor | None) -> torch.Tensor:
    """(B, D) over the pieces of the mask; no mask means all."""
    if mask_BL is None:
        return hidden_BLD.mean(1)
    weights_BL1 = mask_BL.unsqueeze(-1).to(hidden_BLD.dtype)
    return (hidden_BLD * weights_BL1).sum(1) / weights_BL1.sum(1)


@dataclass(frozen=True)
class BiEncoder:
    """The two towers with their tokenizer; usable at once, trained or not."""

    settings_file: ClassVar = SETTINGS_FILE
    settings: ModelSettings
    tokenizer: Any
    markers: Markers
    mention_tower: Tower
    entity_tower: Tower

    @property
    def texts(self) -> Texts:
        return Texts(self.tokenizer, self.markers, self.settings.text)

    @property
    def dimension(self) -> int:
        return self.entity_tower.dimension

    def tower(self, side: Side) -> Tower:
        return self.entity_tower if side == "entity" else self.mention_tower

    def encode_entities(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> np.ndarray:
        """Vectors (rows, D) of entities, as rows of kb/."""
        return self.encode(self.texts.entities(rows), "entity", **options)

    def encode_mentions(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> np.ndarray:
        """Vectors (rows, D) of mentions, as rows of mentions/."""
        return self.encode(self.texts.mentions(rows), "mention", **options)

    def encode(
        self,
        pieces: Sequence[Sequence[int]],
        side: Side,
        *,
        batch_tokens: BatchTokens = "auto",
        precision: Precision = "auto",
    ) -> np.ndarray:
        """Vectors of texts that are word pieces already, fp32, in the order given, of length 1 for cosine."""
        return Encoding(self.tower(side), self.settings, self.markers.pad, precision).run_lists(pieces, batch_tokens)

    def save(self, folder: Path) -> None:
        """Writes the Hugging Face layout: a folder per tower, the tokenizer, and what the towers were told."""
        for side, tower in (("mention", self.mention_tower), ("entity", self.entity_tower)):
            tower.transformer.save_pretrained(folder / f"{side}_encoder", safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        settings = self.settings.model_dump(mode="json") | {"encoder": without_credentials(self.settings.encoder)}
        content = {"settings": settings, "markers": self.markers.__dict__}
        (folder / SETTINGS_FILE).write_text(json.dumps(content, indent=2) + "\n")


class Saveable(Protocol):
    """A model that writes itself into a folder, and the file of it that says what it is."""

    @property
    def settings_file(self) -> str: ...

    def save(self, folder: Path) -> None: ...


def save_whole(model: Saveable, folder: Where) -> None:
    """Saves a model, also to a bucket: a folder that has the settings file is whole."""
    with from_disk(locate(folder), last=model.settings_file) as path:
        model.save(path)


class Encoding:
    """A tower made ready to turn word pieces into vectors on this machine's device."""

    def __init__(self, tower: Tower, settings: ModelSettings, pad: int, precision: Precision) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = choose_dtype(precision, self.device)
        self._tower = tower.to(self.device).eval()
        self._normalise = settings.similarity == "cosine"
        self._pad = pad

    def run_lists(self, pieces: Sequence[Sequence[int]], batch_tokens: BatchTokens = "auto") -> np.ndarray:
        """Vectors (texts, D) of word pieces."""
        return self.run(*ragged(pieces), batch_tokens)

    def run(self, flat: np.ndarray, offsets: np.ndarray, batch_tokens: BatchTokens = "auto") -> np.ndarray:
        """Vectors (texts, D) of ragged word pieces: text i is flat[offsets[i]:offsets[i+1]]."""
        vectors = np.empty((len(offsets) - 1, self._tower.dimension), np.float32)
        self.fill(vectors, flat, offsets, plan_batches(np.diff(offsets), tokens_of(batch_tokens, self.device.type)))
        return vectors

    def fill(
        self,
        vectors: np.ndarray,
        flat: np.ndarray,
        offsets: np.ndarray,
        batches: Sequence[np.ndarray],
        seen: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Writes the vectors of the batches' rows into their places; `seen` hears how many pieces each batch had."""

        def encode(batch: Batch) -> None:
            vectors[batch.rows] = self._vectors(batch)
            seen(batch.ids.size)

        coming = gathered(batches, flat, offsets, self._pad)
        if len(batches) < FEW_BATCHES:
            # All threads on one: a single mention is waited for.
            for batch in coming:
                encode(batch)
        else:
            one_thread_each(encode, coming, self.device)

    def _vectors(self, batch: Batch) -> np.ndarray:
        ids_BL = torch.from_numpy(batch.ids).to(self.device)
        mask_BL = None if batch.mask is None else torch.from_numpy(batch.mask).to(self.device)
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            vectors_BD = self._tower(ids_BL, mask_BL)
        if self._normalise:
            vectors_BD = nn.functional.normalize(vectors_BD, dim=1)
        return vectors_BD.cpu().numpy()


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The fastest type that the hardware really has: emulated bf16 is many times slower than fp32."""
    if precision != "auto":
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


@dataclass(frozen=True)
class Parts:
    """A model without its weights: enough to make texts, and to tell one model from another."""

    folder: Location
    settings: ModelSettings
    tokenizer: Any
    markers: Markers

    @property
    def named(self) -> str:
        """For manifests: its folder, or the name by which the hub or a package has it."""
        return self.folder.address if is_uri(self.settings.encoder) else self.settings.encoder

    @property
    def is_saved(self) -> bool:
        return (self.folder / SETTINGS_FILE).is_file()

    @property
    def texts(self) -> Texts:
        return Texts(self.tokenizer, self.markers, self.settings.text)

    def tower_folder(self, side: Side) -> Location:
        return self.folder / f"{side}_encoder" if self.is_saved else self.folder

    @property
    def tokenizer_digest(self) -> str:
        content = f"{self.tokenizer.backend_tokenizer.to_str()} {self.markers}"
        return hashlib.sha256(content.encode()).hexdigest()

    def digest(self, side: Side) -> str:
        """Changes with the weights and the configuration of a tower, the tokenizer and the markers."""
        other = "mention_encoder/" if side == "entity" else "entity_encoder/"
        files = tuple(
            (name, info.size, info.mtime_ns)
            for name, info in self.folder.files().items()
            if name.endswith(MODEL_SUFFIXES) and not name.startswith(other)
            if name.rsplit("/", 1)[-1] not in (SETTINGS_FILE, NIL_FILE, BLEND_FILE)
        )
        # A local file is read again each time: its clock may be too coarse for a change that comes at once.
        digest = _digest_of.__wrapped__ if self.folder.is_local else _digest_of
        return digest(self.folder, files, str(self.markers))


@lru_cache(maxsize=64)
def _digest_of(folder: Location, files: tuple[tuple[str, int, int], ...], markers: str) -> str:
    """Of files in their present state, which are fetched no more than once."""
    digest = hashlib.sha256(markers.encode())
    for name, *_ in files:
        digest.update(name.encode())
        with (folder / name).open_input() as stream, storage_errors(folder / name, "read"):
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def load_parts(settings: ModelSettings) -> Parts:
    """Everything but the weights, checked: they must be there, and fit the tokenizer."""
    folder = encoder_folder(settings.encoder)
    if is_folder_here(settings.encoder):
        # Workers run elsewhere.
        settings = settings.model_copy(update={"encoder": folder.path})
    tokenizer = load_tokenizer(folder)
    if (folder / SETTINGS_FILE).is_file():
        settings, markers = read_saved(folder / SETTINGS_FILE, settings, settings.encoder, "a model folder")
    else:
        markers = _add_markers(tokenizer)
    _check_pooling(settings)
    parts = Parts(folder, settings, tokenizer, markers)
    _check_towers(parts)
    return parts


def load_model(settings: ModelSettings) -> BiEncoder:
    """A pel-ray model folder as it was saved, or an untrained model: both towers from the same encoder."""
    parts = load_parts(settings)
    towers = (load_tower(parts, "mention"), load_tower(parts, "entity"))
    return BiEncoder(parts.settings, parts.tokenizer, parts.markers, *towers)


def load_tower(parts: Parts, side: Side) -> Tower:
    transformer = load_transformer(parts.tower_folder(side), None if parts.is_saved else parts.settings.layers)
    if len(parts.tokenizer) > transformer.get_input_embeddings().num_embeddings:
        transformer.resize_token_embeddings(len(parts.tokenizer), mean_resizing=True)
    markers = parts.markers
    if side == "mention":
        return Tower(transformer, parts.settings.pooling, markers.mention_start, (markers.mention_end,))
    return Tower(transformer, parts.settings.pooling, markers.cls, (markers.sep, markers.entity))


def is_saved_model(folder: Where) -> bool:
    """Whether it is the folder of a pel-ray model, which knows its own settings."""
    return (locate(folder) / SETTINGS_FILE).is_file()


def read_saved(file: Location, asked: SettingsType, encoder: str, called: str) -> tuple[SettingsType, Markers]:
    """What a saved model, which is `called` so, was told; other settings than its own are refused."""
    try:
        content = json.loads(file.read_bytes())
        saved = type(asked).model_validate(content["settings"])
        markers = Markers(**content["markers"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{file} is damaged: {first_line(error)}") from error
    for name in sorted(asked.model_fields_set - {"encoder"}):
        if getattr(asked, name) != getattr(saved, name):
            raise SettingsError(
                f"{file.parent} was made with {name} {getattr(saved, name)!r}, asked for {getattr(asked, name)!r}. "
                f"Leave the setting out: {called} brings its own"
            )
    return saved.model_copy(update={"encoder": encoder}), markers


def _check_pooling(settings: ModelSettings) -> None:
    first, *rest = parse_template(settings.text.template)
    if settings.pooling == "mention" and (first.field != "title" or (rest and not rest[0].separator)):
        raise SettingsError(
            f"pooling mention takes the pieces before the first separator for the title, but template "
            f"{settings.text.template!r} begins otherwise. Begin it with {{title}} [SEP], or pool by mean"
        )


def _check_towers(parts: Parts) -> None:
    text = parts.settings.text
    lengths: dict[Side, int] = {"mention": text.mention_length, "entity": text.entity_length}
    for side, length in lengths.items():
        folder = parts.tower_folder(side)
        check_weights(folder)
        config = load_config(folder)
        most = num_positions(config)
        if most is not None and length > most:
            raise SettingsError(
                f"{side}_length is {length}, but {folder} has positions for texts of {most} pieces. "
                f"Lower it to {most} or less"
            )
        layers = parts.settings.layers
        if layers is not None and not parts.is_saved and layers > config.num_hidden_layers:
            raise SettingsError(
                f"layers is {layers}, but {folder} has {config.num_hidden_layers}. Ask for fewer, or leave it out"
            )
        num_pieces = parts.tokenizer.vocab_size if not parts.is_saved else len(parts.tokenizer)
        if num_pieces > config.vocab_size:
            raise ArtifactError(
                f"{folder}: the tokenizer has {num_pieces:,} pieces, the model {config.vocab_size:,} embeddings. "
                "They do not belong together: copy both from the same model"
            )


def _add_markers(tokenizer: Any) -> Markers:
    """`[unused0]` to `[unused2]` where the vocabulary has them, which needs no new embeddings; else added tokens."""
    names = ["[unused0]", "[unused1]", "[unused2]"]
    if any(tokenizer.convert_tokens_to_ids(name) in (None, tokenizer.unk_token_id) for name in names):
        names = ["[Ms]", "[Me]", "[ENT]"]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
    start, end, entity = (int(tokenizer.convert_tokens_to_ids(name)) for name in names)
    return Markers(
        cls=tokenizer.cls_token_id,
        sep=tokenizer.sep_token_id,
        mention_start=start,
        mention_end=end,
        entity=entity,
        pad=tokenizer.pad_token_id,
    )
