"""The paper's two losses, as functions of the scores of a mention's candidates.

Shapes: B mentions, C candidates of each. One candidate of a mention is its positive, the others are negatives.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch.nn import functional

from pel_ray.spec import Settings


class LossSettings(Settings):
    """What a wrong ranking costs."""

    kind: Literal["pb", "ce"] = "pb"
    """pb, the proxy loss, meant for cosine scores, or ce, cross-entropy over the candidates, meant for dot products."""
    alpha: float = Field(default=32.0, gt=0)
    """How strongly pb pulls the positive and pushes the negatives."""
    margin: float = Field(default=0.0, ge=0)
    """How far pb wants the positive above, and the negatives below, a score of zero; helps to detect NIL."""


def retrieval_loss(
    scores_BC: torch.Tensor,
    settings: LossSettings,
    positive_B: torch.Tensor | None = None,
    mask_BC: torch.Tensor | None = None,
) -> torch.Tensor:
    """The loss that the settings name, a mean over the mentions."""
    if settings.kind == "ce":
        return ce_loss(scores_BC, positive_B, mask_BC)
    return pb_loss(scores_BC, positive_B, mask_BC, alpha=settings.alpha, margin=settings.margin)


def ce_loss(
    scores_BC: torch.Tensor, positive_B: torch.Tensor | None = None, mask_BC: torch.Tensor | None = None
) -> torch.Tensor:
    """Cross-entropy (eq. 1), a mean over the mentions.

    `positive_B` is the column of the positive, by default 0; a negative whose `mask_BC` is False does not count.
    """
    positive_B, negatives_BC = _split(scores_BC, positive_B, mask_BC)
    all_BC = torch.cat([positive_B[:, None], negatives_BC], dim=1)
    return (all_BC.logsumexp(1) - positive_B).mean()


def pb_loss(
    scores_BC: torch.Tensor,
    positive_B: torch.Tensor | None = None,
    mask_BC: torch.Tensor | None = None,
    *,
    alpha: float = 32.0,
    margin: float = 0.0,
) -> torch.Tensor:
    """The proxy loss (eq. 3), a mean over the mentions; arguments as of `ce_loss`."""
    positive_B, negatives_BC = _split(scores_BC, positive_B, mask_BC)
    pull_B = -functional.logsigmoid(alpha * (positive_B - margin))
    # The 1 of log(1 + sum) is one more candidate, whose exponent is 0.
    exponents_BC = functional.pad(alpha * (negatives_BC + margin), (1, 0))
    return (pull_B + exponents_BC.logsumexp(1)).mean()


def _split(
    scores_BC: torch.Tensor, positive_B: torch.Tensor | None, mask_BC: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the positives (B), and all scores (B, C) with -inf at what is no negative."""
    # In half precision alpha * s has steps of 1/64 already near 32.
    scores_BC = scores_BC.to(torch.promote_types(scores_BC.dtype, torch.float32))
    if positive_B is None:
        positive_B = scores_BC.new_zeros(len(scores_BC), dtype=torch.int64)
    is_out_BC = functional.one_hot(positive_B, scores_BC.shape[1]).bool()
    if mask_BC is not None:
        is_out_BC = is_out_BC | ~mask_BC
    return scores_BC.gather(1, positive_B[:, None])[:, 0], scores_BC.masked_fill(is_out_BC, -torch.inf)
