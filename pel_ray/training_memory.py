"""How much memory a training step takes, computed on tensors without content: no GPU and hardly any time is needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pel_ray.batches import PASS_TOKENS
from pel_ray.chunks import Pieces
from pel_ray.encoder import BiEncoder, ModelSettings, Parts, Tower
from pel_ray.objective import Objective, ObjectiveSettings, TrainingBatch
from pel_ray.rank_objective import RankBatch, RankObjective, RankObjectiveSettings
from pel_ray.ranker import CrossEncoder, Ranker, RankerParts, RankerSettings
from pel_ray.storage import locate
from pel_ray.text import Markers, TextSettings

BYTES_PER_WEIGHT = {"weights": 4, "gradients": 4, "moments of AdamW": 8}
MARKERS = Markers(cls=1, sep=2, mention_start=3, mention_end=4, entity=5, pad=0)


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made inside have had together.

    torch's own MemTracker cannot follow the gradient that FGSM takes in the middle of a forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._storages: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self._storages:
                storage = tensor.untyped_storage()
                self._storages.add(storage)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._free, storage.nbytes())
        return result

    def _free(self, num_bytes: int) -> None:
        self.live -= num_bytes


@dataclass(frozen=True)
class StepMemory:
    """Bytes by what they are for; all texts are taken to be as long as they may be."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def step_memory(
    config: Any,
    objective: ObjectiveSettings,
    *,
    mention_length: int,
    entity_length: int,
    micro_batch: int,
    num_negatives: int,
    half_precision: bool,
    in_batch: bool = False,
) -> StepMemory:
    """Of one micro-batch on a GPU whose entities are all distinct, for two towers of this configuration."""
    from transformers import AutoModel

    num_entities = micro_batch * (num_negatives + 1)

    def make() -> tuple[nn.Module, TrainingBatch]:
        towers = [Tower(AutoModel.from_config(config), "mean", 0, [0]).train() for _ in range(2)]
        model = BiEncoder(ModelSettings(), None, MARKERS, *towers)
        batch = TrainingBatch(
            _texts(micro_batch, mention_length),
            _texts(num_entities, entity_length),
            np.arange(num_entities).reshape(micro_batch, -1),
            np.ones((micro_batch, num_entities), bool) if in_batch else None,
        )
        return Objective(model, objective, PASS_TOKENS["cuda"]), batch

    return _simulated(make, half_precision)


def rank_step_memory(
    config: Any,
    objective: RankObjectiveSettings,
    *,
    text: TextSettings,
    micro_batch: int,
    num_candidates: int,
    half_precision: bool,
) -> StepMemory:
    """The same for a cross-encoder of this configuration."""
    from transformers import AutoModel

    def make() -> tuple[nn.Module, RankBatch]:
        nowhere = locate(".")
        parts = RankerParts(nowhere, RankerSettings(text=text), Parts(nowhere, ModelSettings(), None, MARKERS))
        ranker = Ranker(parts, CrossEncoder(AutoModel.from_config(config), MARKERS).train())
        pairs = _texts(micro_batch * num_candidates, text.mention_length + text.entity_length - 1)
        batch = RankBatch(pairs, np.ones((micro_batch, num_candidates), bool))
        return RankObjective(ranker, objective, PASS_TOKENS["cuda"]), batch

    return _simulated(make, half_precision)


def _simulated(make: Callable[[], tuple[nn.Module, Any]], half_precision: bool) -> StepMemory:
    with FakeTensorMode(allow_non_fake_inputs=True):
        module, batch = make()
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        num_weights = sum(weight.numel() for weight in trained)
        with LiveBytes() as memory, torch.autocast("cpu", torch.bfloat16, enabled=half_precision):
            module(batch, 0)[0].backward()
    # The gradients are tensors made inside too.
    activations = max(memory.peak - num_weights * BYTES_PER_WEIGHT["gradients"], 0)
    return StepMemory(
        {name: num_weights * each for name, each in BYTES_PER_WEIGHT.items()} | {"activations": activations}
    )


def _texts(count: int, length: int) -> Pieces:
    return Pieces(np.full(count * length, 6, np.int32), np.arange(count + 1) * length)
