"""AdamW with a linear schedule, as the paper has it, and its state on disk without pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from pel_ray.on_disk import from_disk, on_disk
from pel_ray.spec import Settings
from pel_ray.storage import Location


class OptimiserSettings(Settings):
    """How the weights follow the gradient."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after the warm-up."""
    epochs: int = Field(default=7, ge=0)
    """Times that every mention is seen; with 0 the run is the untrained model and its vectors, to start others from."""
    batch_size: int = Field(default=32, ge=1)
    """Mentions of one step of the optimiser, over all workers."""
    micro_batch: int = Field(default=16, ge=1)
    """Mentions that are computed together, and share in-batch negatives; the same for any number of workers."""
    warmup: float = Field(default=0.25, ge=0, le=1)
    """Share of the steps in which the learning rate rises; then it falls to 0."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of AdamW; biases and LayerNorm have none."""
    adam_epsilon: float = Field(default=1e-6, gt=0)
    """Epsilon of AdamW, against division by zero."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient, over all weights; longer ones are scaled down."""
    freeze_embeddings: bool = False
    """Leave the word embeddings as they are: most of a small encoder's weights."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Of both towers; by default what the encoder says."""


def learning_rate(settings: OptimiserSettings, step: int, num_steps: int) -> float:
    """Of step 0, 1, ...: a pure function, so that a resumed run needs no schedule."""
    num_warmup = settings.warmup * num_steps
    if step + 1 < num_warmup:
        return settings.lr * (step + 1) / num_warmup
    return settings.lr * min(max(num_steps - step, 0) / max(num_steps - num_warmup, 1), 1)


def make_optimiser(module: nn.Module, settings: OptimiserSettings) -> torch.optim.AdamW:
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            is_plain = weight.ndim < 2 or "LayerNorm" in name or "layer_norm" in name
            (others if is_plain else decayed).append(weight)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, eps=settings.adam_epsilon, fused=True)


def save_state(file: Location, module: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Writes trained weights, both moments and `state`, whole or not at all."""
    tensors = {}
    for name, weight in _trained(module):
        tensors[f"weight/{name}"] = weight.detach()
        for key, value in optimiser.state.get(weight, {}).items():
            tensors[f"{key}/{name}"] = value
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with from_disk(file) as path:
        save_file(content, path, {"state": json.dumps(state)})


def load_state(file: Location, module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Puts a saved state back; returns what was said beside it."""
    with on_disk(file) as path, safe_open(path, framework="pt") as content:
        names = set(content.keys())
        with torch.no_grad():
            for name, weight in _trained(module):
                weight.copy_(content.get_tensor(f"weight/{name}"))
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if f"{key}/{name}" in names:
                        # The step too: the fused optimiser reads it on the device.
                        optimiser.state[weight][key] = content.get_tensor(f"{key}/{name}").to(weight.device)
        return json.loads(content.metadata()["state"])


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
