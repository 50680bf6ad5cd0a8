"""FGSM (eq. 5-8): entities that a small step of their input embeddings makes harder for one mention.

Shapes: T texts of a chunk, L word pieces of its longest, D dimensions of a vector.
"""

from __future__ import annotations

import torch
from pydantic import Field

from pel_ray.chunks import Chunk, Passes
from pel_ray.spec import Settings

HALF_PRECISION_SCALE = 1024.0
"""Gradients of a similarity are near the smallest numbers of fp16; a power of two changes none of their signs."""


class AdversarialSettings(Settings):
    """A second loss on entities moved against the model."""

    fgsm: bool = False
    """Add the loss of the adversarial entities; a step takes 2 to 2.6 times as long."""
    epsilon: float = Field(default=0.01, ge=0)
    """How far each number of an input embedding moves."""
    weight: float = Field(default=1.0, ge=0)
    """What the adversarial loss counts beside the clean one (the paper's lambda)."""


def clean_and_adversarial(
    passes: Passes, chunk: Chunk, anchors_TD: torch.Tensor, ways_T: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors (T, D) of the texts, and of the same texts moved up (ways 1) or down (-1) their similarity to an anchor.

    Gradients of both flow into the weights, the step itself is a constant.
    """
    with torch.enable_grad():
        embeddings_TLD = passes.tower.embed(chunk.ids_TL)
        if not (passes.keeps and embeddings_TLD.requires_grad):
            embeddings_TLD = embeddings_TLD.detach().requires_grad_()
        clean_TD = passes.run(chunk, embeddings_TLD)
        step_TLD = _step(clean_TD, embeddings_TLD, chunk, anchors_TD.detach() * ways_T[:, None], passes.keeps)
    adversarial_TD = passes.vectors(chunk, step_TLD, epsilon)
    if passes.keeps and passes.parameters:
        return clean_TD, adversarial_TD
    # The pass that gave the direction was the clean one, so its vectors need no other until their gradient comes.
    return passes.replayed(
        lambda: passes.run(chunk, passes.tower.embed(chunk.ids_TL)), clean_TD.detach()
    ), adversarial_TD


def _step(
    vectors_TD: torch.Tensor, embeddings_TLD: torch.Tensor, chunk: Chunk, anchors_TD: torch.Tensor, keeps: bool
) -> torch.Tensor:
    """The sign of the gradient of each text's similarity to its anchor, in one byte, and 0 at the padding."""
    with torch.autocast(vectors_TD.device.type, enabled=False):
        similarity = (vectors_TD * anchors_TD).sum() * HALF_PRECISION_SCALE
    (gradient_TLD,) = torch.autograd.grad(similarity, embeddings_TLD, retain_graph=keeps)
    step_TLD = gradient_TLD.sign().to(torch.int8)
    return step_TLD if chunk.mask_TL is None else step_TLD * chunk.mask_TL[..., None].to(torch.int8)
