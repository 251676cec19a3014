"""Modules of which the rule of an operation once said something false."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from everyformer.checks.calling import call
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.rule import Answer
from everyformer.checks.rules import equal_tokens, right_stochastic, zero_to_zero

N, D = 8, 4
Forward = Callable[[Any, torch.Tensor], torch.Tensor]
EQUAL, MEANS = equal_tokens.by_operations, right_stochastic.by_operations
ZERO = zero_to_zero.by_operations
LATE = torch.ones(N, N, dtype=torch.bool).triu(1)


class Made(nn.Module):
    """A module of one expression in x, a linear map, a table (n, n) and a number."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D, bias=False)
        self.table = nn.Parameter(torch.randn(N, N))
        self.number = nn.Parameter(torch.tensor(1.5))
        self.made = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    x = torch.zeros(1, N, D, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of variances that are 0 / 0
        return follow(Made(forward).double().eval(), call, x)


def mixed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return (x @ m.linear(x).mT).softmax(-1) @ x


def halves(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = mixed(m, x)
    return torch.cat([y[:, :4] + y[:, 4:], y[:, 4:]], dim=1)


def next_token(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.cat([x[:, 1:], x[:, :1]], dim=1)


def minus_minus_infinity(m: Any, x: torch.Tensor) -> torch.Tensor:
    far = torch.zeros(N, N, dtype=x.dtype).masked_fill(LATE, -torch.inf)
    return torch.add(m.table, far, alpha=-1).softmax(-1) @ x


def signs(m: Any, x: torch.Tensor) -> torch.Tensor:
    """1 / 0 and 1 / -0 are the two infinities."""
    zeros = x.new_tensor([0.0] * (N - 1) + [-0.0])[:, None]
    return ((1 + m.number.abs()) / zeros).sigmoid()


FALSE: dict[str, tuple[Callable[[Followed], Answer], Forward]] = {
    "two halves of the sequence added": (MEANS, halves),
    "the first token added to all": (MEANS, lambda m, x: x + x[:, :1]),
    "a token picked out and added": (MEANS, lambda m, x: x + x[:, 0][:, None]),
    "the next token added": (MEANS, next_token),
    "a sum of exponentials, by way of a softmax": (
        MEANS,
        lambda m, x: x.exp() / x.softmax(1),
    ),
    "weights used as values": (MEANS, lambda m, x: x + x.softmax(1)),
    "a weight read as a number": (ZERO, lambda m, x: x + m.number.item()),
    "minus infinity subtracted": (EQUAL, minus_minus_infinity),
    "a power of 0": (
        EQUAL,
        lambda m, x: (x @ x.mT - torch.pow(0, m.table)).softmax(-1) @ x,
    ),
    "a zero with another sign": (EQUAL, lambda m, x: x * signs(m, x)),
    "a variance with too many degrees": (
        ZERO,
        lambda m, x: x * x.var(1, correction=N, keepdim=True),
    ),
    "division by what is not a number": (
        ZERO,
        lambda m, x: x / (m.number.sub(9).sqrt().relu() + 1),
    ),
    "a mean of infinities with weight 0": (
        EQUAL,
        lambda m, x: m.table.masked_fill(LATE, -torch.inf).softmax(-1) @ (1 / x.relu()),
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_nothing_false_follows(name: str) -> None:
    rule, forward = FALSE[name]
    assert rule(followed(forward)).holds is None


def by_dimension(m: Any, x: torch.Tensor) -> torch.Tensor:
    """torch takes a number for a vector of one entry where a dimension is named."""
    number = m.number.sum(0).mean(-1).amax(0).softmax(0).log_softmax(-1).cumsum(0)
    number = number.var(0, correction=0).logsumexp(0).squeeze(0).unsqueeze(0)[0].flip(())
    return mixed(m, x) * (number + x.sum().sum(-1) + x.mean().var(0, correction=0))


def test_minus_zero_is_zero() -> None:
    """As in the masks of BERT, (1 - 1) * -1e9; and equal along all dimensions."""
    found = followed(lambda m, x: mixed(m, x) + (1 - x.new_ones(N, 1)) * -1e9)
    assert EQUAL(found).holds, found.obstacle
    assert ZERO(found).holds


def test_a_number_has_no_dimension_to_get_lost() -> None:
    found = followed(by_dimension)
    assert EQUAL(found).holds, found.obstacle
