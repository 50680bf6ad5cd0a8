"""What a ranker teaches a retriever: its distribution over a mention's candidates, beside the gold.

Shapes: B mentions, C candidates of each; the positive is the first of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from pel_ray.spec import Settings

SCALES = {"cosine": 32.0, "dot": 1.0}
"""What `scale: auto` means: cosines lie within 1 of each other, so as they are no softmax of them could be sure."""


class TeachingSettings(Settings):
    """How a retriever follows a ranker."""

    temperature: float = Field(default=1.0, gt=0)
    """Divides the ranker's scores: above 1 its distribution is flatter, towards 0 only its favourite counts."""
    scale: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Multiplies the retriever's similarities before their softmax; auto: 32 for cosines, 1 for dot products."""
    gold_weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the loss that is cross-entropy on the gold; the rest follows the ranker, which may be wrong."""
    random_negatives: int = Field(default=2, ge=0)
    """Random entities beside the candidates, to which the ranker gives nothing; without them some come to fit all."""

    def scale_of(self, similarity: str) -> float:
        return SCALES[similarity] if self.scale == "auto" else self.scale


def taught_loss(
    similarities_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    mask_BC: torch.Tensor,
    *,
    scale: float,
    temperature: float,
    gold_weight: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A mean over the mentions of (1 - w) KL(teacher || student) + w CE of the gold; and statistics.

    The student is the softmax of its scaled similarities where the mask is True, the teacher that of its scores
    divided by the temperature, which are -inf where it gives nothing.
    """
    wide = torch.promote_types(similarities_BC.dtype, torch.float32)
    student_BC = (scale * similarities_BC.to(wide)).masked_fill(~mask_BC, -torch.inf).log_softmax(1)
    teacher_BC = (teacher_BC.to(wide) / temperature).softmax(1)
    # Zero times the logarithm of zero is to be zero.
    crossed_B = -(teacher_BC * student_BC.masked_fill(teacher_BC == 0, 0)).sum(1)
    divergence_B = crossed_B + torch.special.xlogy(teacher_BC, teacher_BC).sum(1)
    gold_B = -student_BC[:, 0]
    loss = ((1 - gold_weight) * divergence_B + gold_weight * gold_B).mean()
    agreement_B = student_BC.argmax(1) == teacher_BC.argmax(1)
    return loss, {"divergence": divergence_B.detach().mean(), "agreement": agreement_B.to(wide).mean()}
