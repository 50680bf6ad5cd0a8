"""Texts through a tower in chunks: activations of a chunk are kept, or computed again when its gradient arrives.

Shapes: N texts in all, T texts of a chunk, L word pieces of its longest, D dimensions of a vector; a score is a vector
of one dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pel_ray.batches import gathered, plan_batches, ragged

CPU_CHUNK_TOKENS = 8192


class TextModule(Protocol):
    """What turns texts into vectors, or into scores: a tower of the retriever, or the ranker."""

    def embed(self, ids_TL: torch.Tensor) -> torch.Tensor: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def __call__(self, *inputs: torch.Tensor | None) -> torch.Tensor: ...


@dataclass(frozen=True)
class Pieces:
    """Texts as word pieces: text i is flat[offsets[i]:offsets[i+1]]."""

    flat: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Pieces:
        return cls(*ragged(texts))

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Chunk:
    """Texts of similar length that go through a tower together."""

    texts_T: torch.Tensor
    """Which of all texts these are."""
    ids_TL: torch.Tensor
    mask_TL: torch.Tensor | None
    seed: int
    """Of the dropout, so that every pass over the chunk has the same."""


def cut(
    pieces: Pieces, rows_N: np.ndarray, chunk_tokens: int, *, pad: int, seed: tuple[int, ...], device: torch.device
) -> list[Chunk]:
    """Chunks of the N texts that are `rows_N` of the pieces, each of at most `chunk_tokens` pieces with its padding."""
    plan = plan_batches(np.diff(pieces.offsets)[rows_N], chunk_tokens)
    batches = gathered([rows_N[texts_T] for texts_T in plan], pieces.flat, pieces.offsets, pad)
    return [
        Chunk(
            torch.from_numpy(texts_T).to(device),
            torch.from_numpy(batch.ids).to(device),
            None if batch.mask is None else torch.from_numpy(batch.mask).to(device),
            int(np.random.SeedSequence((*seed, number)).generate_state(1)[0]),
        )
        for number, (texts_T, batch) in enumerate(zip(plan, batches, strict=True))
    ]


def num_pieces(chunks: Sequence[Chunk]) -> int:
    """With the padding."""
    return sum(chunk.ids_TL.numel() for chunk in chunks)


def in_order(vectors: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> torch.Tensor:
    """The vectors (N, D) of all chunks, in the order of the texts."""
    return torch.cat(list(vectors))[torch.cat([chunk.texts_T for chunk in chunks]).argsort()]


class Passes:
    """A tower's passes over the chunks of one step; made anew in each step, inside the caller's autocast if any."""

    def __init__(self, tower: TextModule, *, normalise: bool, keeps: bool) -> None:
        is_training = torch.is_grad_enabled()
        self.tower = tower
        self.keeps = keeps and is_training
        self.parameters = [weight for weight in tower.parameters() if weight.requires_grad and is_training]
        self._normalise = normalise
        self._device = next(tower.parameters()).device
        kind = self._device.type
        # No cache: in older torch it hands weights that were cast in a pass without gradients to one with them.
        self._autocast: dict[str, Any] = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            "cache_enabled": False,
        }

    def vectors(self, chunk: Chunk, step_TLD: torch.Tensor | None = None, size: float = 1.0) -> torch.Tensor:
        """Vectors (T, D), after a step of the word embeddings if one is given."""

        def run() -> torch.Tensor:
            return self.run(
                chunk, None if step_TLD is None else self.tower.embed(chunk.ids_TL).add(step_TLD, alpha=size)
            )

        if self.keeps:
            return run()
        with torch.no_grad():
            vectors_TD = run()
        return self.replayed(run, vectors_TD)

    def run(self, chunk: Chunk, embeddings_TLD: torch.Tensor | None) -> torch.Tensor:
        """One pass with its graph, always with the chunk's dropout and the step's precision."""
        with _dropout_of(chunk.seed, self._device), torch.autocast(**self._autocast):
            vectors_TD = self.tower(chunk.ids_TL, chunk.mask_TL, embeddings_TLD)
        vectors_TD = vectors_TD.to(torch.promote_types(vectors_TD.dtype, torch.float32))
        return nn.functional.normalize(vectors_TD, dim=1) if self._normalise else vectors_TD

    def replayed(self, run: Callable[[], torch.Tensor], vectors_TD: torch.Tensor) -> torch.Tensor:
        """Vectors that `run` gave before, whose graph is built when the gradient arrives, by running it again."""
        if not self.parameters:
            return vectors_TD
        replayed_TD: torch.Tensor = _Replay.apply(run, vectors_TD, *self.parameters)
        return replayed_TD


class _Replay(torch.autograd.Function):
    """Activation checkpointing whose first pass the caller has made already, as FGSM has for its direction.

    The parameters are arguments, so that they are in the graph and DistributedDataParallel sees one gradient of each.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[[], torch.Tensor], vectors_TD: torch.Tensor, *parameters: Any) -> torch.Tensor:
        ctx.run, ctx.parameters = run, parameters
        return vectors_TD.view_as(vectors_TD)

    @staticmethod
    def backward(ctx: Any, gradient_TD: torch.Tensor) -> Any:
        with torch.enable_grad():
            vectors_TD = ctx.run()
        return None, None, *torch.autograd.grad(vectors_TD, ctx.parameters, gradient_TD, allow_unused=True)


@contextmanager
def _dropout_of(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of this seed; afterwards those of the program go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def auto_chunk_tokens(config: Any, free_bytes: int, length: int = 128) -> int:
    """Pieces whose activations take half of the free memory, for texts of this length.

    A layer of BERT keeps 10 D + 2 I + 3 H * length numbers of 4 bytes per piece (counted in training on a CPU, half
    precision needs less): D dimensions, I of the feed-forward part, H attention heads, each with a row of weights,
    their softmax and its dropout. The other half is for the gradients on their way back, and for the vectors and
    steps of all chunks.
    """
    numbers = 10 * config.hidden_size + 2 * config.intermediate_size + 3 * config.num_attention_heads * length
    return int(min(max(free_bytes // 2 // (4 * config.num_hidden_layers * numbers), 512), 65536))
