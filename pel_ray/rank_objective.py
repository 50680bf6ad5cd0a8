"""The ranker's loss of one (micro-)batch: scores of pairs, CE and FGSM, in memory bounded by a chunk.

Shapes: B mentions, C candidates of each, T pairs of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from pel_ray.adversarial import AdversarialSettings, clean_and_adversarial
from pel_ray.batches import PASS_TOKENS
from pel_ray.chunks import Chunk, Passes, Pieces, cut, in_order, num_pieces
from pel_ray.losses import LossSettings
from pel_ray.objective import choose_chunk_tokens, freeze_unused, loss_of_scores
from pel_ray.ranker import Ranker
from pel_ray.spec import Settings

CROSS_ENTROPY = LossSettings(kind="ce")


class RankObjectiveSettings(Settings):
    """What training makes smaller: cross-entropy over the candidates, and how much of it is computed at a time."""

    adversarial: AdversarialSettings = AdversarialSettings()
    """A second loss on pairs moved against the model."""
    chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Word pieces whose activations are held at once; auto: by the memory of the GPU, 8192 on a CPU."""


@dataclass(frozen=True)
class RankBatch:
    """Pairs of mentions and their candidates, mention by mention."""

    pairs: Pieces
    is_pair_BC: np.ndarray
    """Where a mention has a candidate: its positive first, then negatives."""

    def __post_init__(self) -> None:
        if not self.is_pair_BC[:, 0].all() or self.is_pair_BC.sum() != len(self.pairs):
            raise ValueError("expected a positive for every mention, and a text for every pair")


class RankObjective(nn.Module):
    """The cross-encoder and its loss; make it when the cross-encoder is on its device."""

    def __init__(self, ranker: Ranker, settings: RankObjectiveSettings, pass_tokens: int | None = None) -> None:
        super().__init__()
        self.scorer = ranker.module
        self.settings = settings
        text, asked = ranker.parts.settings.text, settings.chunk_tokens
        length = text.mention_length + text.entity_length
        self.chunk_tokens = choose_chunk_tokens([self.scorer], length) if asked == "auto" else asked
        self._pass_tokens = min(self.chunk_tokens, pass_tokens or PASS_TOKENS[self._device.type])
        self._pad = ranker.pad
        freeze_unused(self.scorer)

    def forward(self, batch: RankBatch, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, a mean over the mentions, and statistics; dropout follows from seed, batch and chunks alone."""
        adversarial = self.settings.adversarial
        everything = np.arange(len(batch.pairs))
        chunks = cut(
            batch.pairs, everything, self._pass_tokens, pad=self._pad, seed=(seed,), device=self._device
        )  # fmt: skip
        pieces = num_pieces(chunks) * (1 + adversarial.fgsm)
        # What fits into one chunk altogether needs no second pass.
        passes = Passes(self.scorer, normalise=False, keeps=pieces <= self.chunk_tokens)
        if adversarial.fgsm:
            scores = self._both(passes, chunks, batch)
        else:
            scores = [in_order([passes.vectors(chunk) for chunk in chunks], chunks)]
        texts_BC, mask_BC = self._layout(batch)
        loss, statistics = loss_of_scores(
            [some_T1[:, 0][texts_BC] for some_T1 in scores], mask_BC, CROSS_ENTROPY, adversarial.weight
        )
        texts = len(batch.pairs) * len(scores)
        return loss, statistics | {"texts": torch.tensor(texts), "pieces": torch.tensor(pieces)}

    def _both(self, passes: Passes, chunks: Sequence[Chunk], batch: RankBatch) -> list[torch.Tensor]:
        """The clean and the adversarial scores (T, 1); positives go down the gradient of the score, negatives up."""
        column_T = torch.from_numpy(np.nonzero(batch.is_pair_BC)[1]).to(self._device)
        ways_T = torch.where(column_T == 0, -1, 1)
        # A score is its own similarity: the anchor of each is 1.
        anchors_T1 = torch.ones(len(ways_T), 1, device=self._device)
        epsilon = self.settings.adversarial.epsilon
        both = [
            clean_and_adversarial(passes, chunk, anchors_T1[chunk.texts_T], ways_T[chunk.texts_T], epsilon)
            for chunk in chunks
        ]
        return [in_order(scores, chunks) for scores in zip(*both, strict=True)]

    def _layout(self, batch: RankBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Which pair stands where in the scores (B, C), and where there is one."""
        is_pair_BC = batch.is_pair_BC
        texts_BC = np.where(is_pair_BC, np.cumsum(is_pair_BC).reshape(is_pair_BC.shape) - 1, 0)
        return torch.from_numpy(texts_BC).to(self._device), torch.from_numpy(is_pair_BC).to(self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device
