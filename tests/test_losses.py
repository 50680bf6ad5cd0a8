"""The losses: equal to a double loop over mentions and candidates, with the gradients that the paper gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.losses import LossSettings, ce_loss, pb_loss, retrieval_loss

Loss = Callable[..., torch.Tensor]
ALPHA, MARGIN = 32.0, 0.05


def pb(*arguments: torch.Tensor | None) -> torch.Tensor:
    return pb_loss(*arguments, alpha=ALPHA, margin=MARGIN)


def looped(loss: Loss, scores: torch.Tensor, positive: list[int], mask: list[list[bool]]) -> float:
    total = 0.0
    for row, best, counts in zip(scores.tolist(), positive, mask, strict=True):
        negatives = [s for c, s in enumerate(row) if c != best and counts[c]]
        if loss is ce_loss:
            total -= math.log(math.exp(row[best]) / sum(math.exp(s) for s in [row[best], *negatives]))
        else:
            total += math.log(1 + math.exp(-ALPHA * (row[best] - MARGIN)))
            total += math.log(1 + sum(math.exp(ALPHA * (s + MARGIN)) for s in negatives))
    return total / len(positive)


@st.composite
def score_matrices(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], list[list[bool]]]:
    num_mentions, num_candidates = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    scores = torch.rand(num_mentions, num_candidates, generator=generator, dtype=torch.float64) * 2 - 1
    positive = torch.randint(num_candidates, (num_mentions,), generator=generator).tolist()
    mask = (torch.rand(num_mentions, num_candidates, generator=generator) < 0.7).tolist()
    return scores, positive, mask


@pytest.mark.parametrize("loss", [ce_loss, pb])
@given(score_matrices())
def test_a_loss_equals_the_double_loop(loss: Loss, drawn: tuple[torch.Tensor, list[int], list[list[bool]]]) -> None:
    scores, positive, mask = drawn
    found = loss(scores, torch.tensor(positive), torch.tensor(mask)).item()
    assert found == pytest.approx(looped(loss, scores, positive, mask), rel=1e-12, abs=1e-12)
    first = loss(scores).item()
    assert first == pytest.approx(looped(loss, scores, [0] * len(scores), [[True] * scores.shape[1]] * len(scores)))


def gradient(loss: Loss, scores: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
    scores = scores.detach().clone().requires_grad_()
    loss(scores, *arguments).backward()
    assert scores.grad is not None
    return scores.grad


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.rand(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1


def test_the_gradient_of_ce_is_equation_2(scores: torch.Tensor) -> None:
    expected = scores.exp() / scores.exp().sum(1, keepdim=True)
    expected[:, 0] -= 1
    torch.testing.assert_close(gradient(ce_loss, scores) * len(scores), expected, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_pb_is_equation_4(scores: torch.Tensor) -> None:
    pull = torch.exp(-ALPHA * (scores[:, :1] - MARGIN))
    push = torch.exp(ALPHA * (scores[:, 1:] + MARGIN))
    expected = torch.cat([-ALPHA * pull / (1 + pull), ALPHA * push / (1 + push.sum(1, keepdim=True))], dim=1)
    torch.testing.assert_close(gradient(pb, scores) * len(scores), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [ce_loss, pb])
@pytest.mark.parametrize("scale", [1, 100])
def test_half_precision_scores_lose_nothing_in_the_loss(
    loss: Loss, dtype: torch.dtype, scale: int, scores: torch.Tensor
) -> None:
    half = (scores * scale).to(dtype)
    torch.testing.assert_close(loss(half).double(), loss(half.double()), rtol=1e-5, atol=1e-6)
    found, expected = gradient(loss, half), gradient(loss, half.double())
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("loss", [ce_loss, pb])
def test_a_masked_candidate_has_no_influence_whatever_its_score(loss: Loss, scores: torch.Tensor) -> None:
    positive, mask = torch.zeros(5, dtype=torch.int64), torch.ones(5, 9, dtype=torch.bool)
    mask[:, 3:5] = False
    kept = [0, 1, 2, 5, 6, 7, 8]
    scores[:, 3], scores[:, 4] = torch.nan, torch.inf
    assert loss(scores, positive, mask).item() == pytest.approx(loss(scores[:, kept]).item(), rel=1e-12)
    found = gradient(loss, scores, positive, mask)
    assert (found[:, 3:5] == 0).all()
    torch.testing.assert_close(found[:, kept], gradient(loss, scores[:, kept]))


def test_a_mention_without_negatives_is_only_pulled(scores: torch.Tensor) -> None:
    positive, mask = torch.full((5,), 2), torch.zeros(5, 9, dtype=torch.bool)
    assert ce_loss(scores, positive, mask).item() == 0
    found = gradient(pb, scores, positive, mask)
    assert (found[:, 2] < 0).all() and found.count_nonzero() == 5
    assert pb(scores[:, 2:3]).item() == pytest.approx(pb(scores, positive, mask).item())


def test_the_settings_choose_the_loss(scores: torch.Tensor) -> None:
    assert retrieval_loss(scores, LossSettings(kind="ce")) == ce_loss(scores)
    assert retrieval_loss(scores, LossSettings(alpha=2, margin=0.1)) == pb_loss(scores, alpha=2, margin=0.1)
