"""The loss of one (micro-)batch: towers, similarity, loss and FGSM, in memory bounded by a chunk.

Shapes: B mentions, C candidates that each mention has of its own, U distinct entities among them, T entity texts that
are encoded, D dimensions of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from pel_ray.adversarial import AdversarialSettings, clean_and_adversarial
from pel_ray.batches import PASS_TOKENS
from pel_ray.chunks import (
    CPU_CHUNK_TOKENS,
    Chunk,
    Passes,
    Pieces,
    auto_chunk_tokens,
    cut,
    in_order,
    num_pieces,
)
from pel_ray.encoder import BiEncoder
from pel_ray.losses import LossSettings, retrieval_loss
from pel_ray.spec import Settings
from pel_ray.teaching import TeachingSettings, taught_loss

MENTION_SIDE, ENTITY_SIDE = 0, 1
STATISTICS = ("adversarial_loss", "clean_loss", "hardest_negative_score", "loss", "positive_score")
"""What a step says of itself, each a mean over mentions."""
TAUGHT_STATISTICS = ("agreement", "divergence", "hardest_negative_score", "loss", "positive_score")
"""The same where it follows a ranker."""


class ObjectiveSettings(Settings):
    """What training makes smaller, and how much of it is computed at a time."""

    loss: LossSettings = LossSettings()
    """What a wrong ranking costs."""
    adversarial: AdversarialSettings = AdversarialSettings()
    """A second loss on entities moved against the model."""
    chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Word pieces whose activations are held at once; auto: by the memory of the GPU, 8192 on a CPU."""


@dataclass(frozen=True)
class TrainingBatch:
    """Mentions and their candidates; every entity is a candidate of at least one mention."""

    mentions: Pieces
    entities: Pieces
    columns_BC: np.ndarray
    """The candidates of a mention as rows of `entities`: the positive, then negatives; -1 where it has no more."""
    allowed_BU: np.ndarray | None = None
    """With in-batch negatives: where an entity of another mention is a negative of this one too."""
    teacher_BC: np.ndarray | None = None
    """A ranker's scores of the candidates, to learn from; -inf where it gives nothing."""

    def __post_init__(self) -> None:
        used = np.unique(self.columns_BC)
        if (self.columns_BC[:, 0] < 0).any() or not np.array_equal(used[used >= 0], np.arange(len(self.entities))):
            raise ValueError("expected a positive for every mention, and every entity among the candidates of one")


@dataclass(frozen=True)
class _Layout:
    """Which texts are encoded, and which of them stands where in the scores."""

    entities_T: np.ndarray
    texts_BC: np.ndarray
    texts_U: np.ndarray
    """The text that stands for an entity among the in-batch negatives."""

    @classmethod
    def of_entities(cls, batch: TrainingBatch) -> _Layout:
        """An entity drawn for several mentions is encoded once."""
        entities_U = np.arange(len(batch.entities))
        return cls(entities_U, np.maximum(batch.columns_BC, 0), entities_U)

    @classmethod
    def of_pairs(cls, batch: TrainingBatch) -> _Layout:
        """An entity is encoded for each mention that has it, as the direction in which it moves differs."""
        is_pair_BC = batch.columns_BC >= 0
        entities_T = batch.columns_BC[is_pair_BC]
        texts_BC = np.where(is_pair_BC, np.cumsum(is_pair_BC).reshape(is_pair_BC.shape) - 1, 0)
        texts_U = np.zeros(len(batch.entities), np.int64)
        texts_U[entities_T] = np.arange(len(entities_T))
        return cls(entities_T, texts_BC, texts_U)


class Objective(nn.Module):
    """Both towers and the loss, as one module that DistributedDataParallel can wrap.

    Make it when the towers are on their device: `chunk_tokens: auto` looks at its memory. `pass_tokens` are what one
    pass takes at most, by default what saturates the device. With `teaching` the loss is that of following a ranker.
    """

    def __init__(
        self,
        model: BiEncoder,
        settings: ObjectiveSettings,
        pass_tokens: int | None = None,
        teaching: TeachingSettings | None = None,
    ) -> None:
        super().__init__()
        self.mention_tower, self.entity_tower = model.mention_tower, model.entity_tower
        self.settings = settings
        asked = settings.chunk_tokens
        self.chunk_tokens = choose_chunk_tokens((self.entity_tower, self.mention_tower)) if asked == "auto" else asked
        self._pass_tokens = min(self.chunk_tokens, pass_tokens or PASS_TOKENS[self._device.type])
        self._pad = model.markers.pad
        self._normalise = model.settings.similarity == "cosine"
        self._teaching = teaching
        self._scale = teaching.scale_of(model.settings.similarity) if teaching else 1.0
        for tower in (self.mention_tower, self.entity_tower):
            freeze_unused(tower)

    def forward(self, batch: TrainingBatch, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, a mean over the mentions, and statistics; dropout follows from seed, batch and chunks alone."""
        is_adversarial = self.settings.adversarial.fgsm
        layout = _Layout.of_pairs(batch) if is_adversarial else _Layout.of_entities(batch)
        mentions = self._cut(batch.mentions, np.arange(len(batch.mentions)), (seed, MENTION_SIDE))
        entities = self._cut(batch.entities, layout.entities_T, (seed, ENTITY_SIDE))
        pieces = num_pieces(mentions) + num_pieces(entities) * (1 + is_adversarial)
        # What fits into one chunk altogether needs no second pass.
        options = {"normalise": self._normalise, "keeps": pieces <= self.chunk_tokens}
        mentions_BD = _encoded(Passes(self.mention_tower, **options), mentions)
        if is_adversarial:
            vectors = self._both(Passes(self.entity_tower, **options), entities, mentions_BD, batch)
        else:
            vectors = [_encoded(Passes(self.entity_tower, **options), entities)]
        loss, statistics = self._loss(mentions_BD, vectors, batch, layout)
        texts = len(batch.mentions) + len(layout.entities_T) * len(vectors)
        return loss, statistics | {"texts": torch.tensor(texts), "pieces": torch.tensor(pieces)}

    def _cut(self, pieces: Pieces, rows_N: np.ndarray, seed: tuple[int, int]) -> list[Chunk]:
        return cut(pieces, rows_N, self._pass_tokens, pad=self._pad, seed=seed, device=self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _both(
        self, passes: Passes, chunks: Sequence[Chunk], mentions_BD: torch.Tensor, batch: TrainingBatch
    ) -> list[torch.Tensor]:
        """The clean and the adversarial vectors (T, D) of all pairs; positives go down, negatives up."""
        mention_T, column_T = (torch.from_numpy(indices) for indices in np.nonzero(batch.columns_BC >= 0))
        anchors_TD = mentions_BD.detach()[mention_T.to(mentions_BD.device)]
        ways_T = torch.where(column_T == 0, -1, 1).to(mentions_BD.device)
        epsilon = self.settings.adversarial.epsilon
        both = [
            clean_and_adversarial(passes, chunk, anchors_TD[chunk.texts_T], ways_T[chunk.texts_T], epsilon)
            for chunk in chunks
        ]
        return [in_order(vectors, chunks) for vectors in zip(*both, strict=True)]

    def _loss(
        self, mentions_BD: torch.Tensor, vectors: Sequence[torch.Tensor], batch: TrainingBatch, layout: _Layout
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        device = mentions_BD.device
        texts_BC = torch.from_numpy(layout.texts_BC).to(device)
        mask = torch.from_numpy(_counting(batch)).to(device)
        # Scores in half precision would be rounded by more than FGSM moves them.
        with torch.autocast(device.type, enabled=False):
            scores = [torch.einsum("bd,bcd->bc", mentions_BD, some_TD[texts_BC]) for some_TD in vectors]
            if batch.allowed_BU is not None:
                # Other mentions' entities stay clean: an adversarial one is so for its own mention.
                others_UD = vectors[0][torch.from_numpy(layout.texts_U).to(device)]
                others_BU = mentions_BD @ others_UD.T
                scores = [torch.cat([own_BC, others_BU], dim=1) for own_BC in scores]
        if self._teaching is not None:
            return self._taught_loss(scores[0], mask, batch, self._teaching)
        return loss_of_scores(scores, mask, self.settings.loss, self.settings.adversarial.weight)

    def _taught_loss(
        self, scores_BC: torch.Tensor, mask_BC: torch.Tensor, batch: TrainingBatch, teaching: TeachingSettings
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert batch.teacher_BC is not None and batch.allowed_BU is None
        loss, statistics = taught_loss(
            scores_BC,
            torch.from_numpy(batch.teacher_BC).to(scores_BC.device),
            mask_BC,
            scale=self._scale,
            temperature=teaching.temperature,
            gold_weight=teaching.gold_weight,
        )
        return loss, statistics | _score_statistics(scores_BC.detach(), mask_BC)


def _encoded(passes: Passes, chunks: Sequence[Chunk]) -> torch.Tensor:
    return in_order([passes.vectors(chunk) for chunk in chunks], chunks)


def _counting(batch: TrainingBatch) -> np.ndarray:
    """Which scores count: a mention's own candidates, then those entities of others that it does not have itself."""
    is_own_BC = batch.columns_BC >= 0
    if batch.allowed_BU is None:
        return is_own_BC
    is_other_BU = batch.allowed_BU.copy()
    mention_T, column_T = np.nonzero(is_own_BC)
    is_other_BU[mention_T, batch.columns_BC[mention_T, column_T]] = False
    return np.concatenate([is_own_BC, is_other_BU], axis=1)


def loss_of_scores(
    scores: Sequence[torch.Tensor], mask_BC: torch.Tensor, loss: LossSettings, weight: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of clean scores (B, C), of adversarial ones too where they are given, and statistics."""
    with torch.autocast(mask_BC.device.type, enabled=False):
        losses = [retrieval_loss(some, loss, mask_BC=mask_BC) for some in scores]
    statistics = {"clean_loss": losses[0].detach()} | _score_statistics(scores[0].detach(), mask_BC)
    if len(losses) == 1:
        return losses[0], statistics
    return losses[0] + weight * losses[1], statistics | {"adversarial_loss": losses[1].detach()}


def _score_statistics(scores_BC: torch.Tensor, mask_BC: torch.Tensor) -> dict[str, torch.Tensor]:
    negatives_BC = scores_BC.masked_fill(~mask_BC, -torch.inf)[:, 1:]
    hardest_B = functional.pad(negatives_BC, (0, 1), value=-torch.inf).amax(1)
    return {
        "positive_score": scores_BC[:, 0].mean(),
        # A mention may have no negative.
        "hardest_negative_score": hardest_B.masked_fill(hardest_B.isinf(), torch.nan).nanmean(),
    }


def choose_chunk_tokens(towers: Sequence[Any], length: int = 128) -> int:
    """What `chunk_tokens: auto` means on the device of the towers, for texts of this length."""
    device = next(towers[0].parameters()).device
    if device.type != "cuda":
        return CPU_CHUNK_TOKENS
    num_weights = sum(weight.numel() for tower in towers for weight in tower.parameters())
    # Each weight has a gradient and two moments of AdamW, of 4 bytes each.
    # Of all its memory and not of what is free: a resumed run must cut its texts, and so its dropout, as before.
    total = torch.cuda.get_device_properties(device).total_memory
    return auto_chunk_tokens(towers[0].transformer.config, int(0.9 * total) - 16 * num_weights, length)


def freeze_unused(tower: Any) -> None:
    """Freezes what no result depends on, as BERT's pooler: DistributedDataParallel would wait for its gradient."""
    weights = [weight for weight in tower.parameters() if weight.requires_grad]
    if not weights:
        return
    was_training = tower.training
    with torch.enable_grad():
        text = torch.tensor([[tower.start]], device=weights[0].device)
        gradients = torch.autograd.grad(tower.eval()(text, None).sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.requires_grad_(gradient is not None)
    tower.train(was_training)
