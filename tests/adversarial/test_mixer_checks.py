"""Mixers that `check` should not trip over: missing biases, and weights of other shapes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from everyformer.checks.report import check
from everyformer.layers.mixers.average import AverageAttention
from everyformer.layers.mixers.bilinear import BilinearProjection
from everyformer.layers.mixers.light import LightConvolution
from everyformer.layers.mixers.separable import SeparableConvolution
from everyformer.layers.positions import AbsolutePositions
from everyformer.layers.residual import Residual
from everyformer.verdict import Verdict

N, D = 4, 2


class Foreign(nn.Module):
    """A bi-linear projection of someone else, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.P = nn.Parameter(torch.randn(N, N))
        self.W = nn.Linear(D, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.W(self.P @ x)


def test_zero_to_zero_refutes_nothing_where_feed_forward_layers_have_biases() -> None:
    """One feed-forward layer with b_2 = 1 is the target: it is 0 from it, and not 1."""
    module = Foreign()
    report = check(module, N, D, trials=2)
    assert report["EF007"].verdict is Verdict.PROVED
    zero = torch.zeros(1, N, D)
    after = module(zero) + torch.ones(D)  # x + W_2 relu(W_1 x + b_1) + b_2, W_2 = 0
    assert np.array_equal(after.detach().numpy(), np.ones((1, N, D)))
    assert report.sup.verdict is Verdict.UNKNOWN, str(report.sup)


def test_zero_to_zero_refutes_stacks_of_the_layer_alone() -> None:
    report = check(Foreign(), N, D, trials=2, feed_forward=False)
    assert report.sup.verdict is Verdict.REFUTED
    assert report.sup.lower_bound == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: BilinearProjection(D, N, bias=False),
        lambda: Residual(BilinearProjection(D, N, bias=False)),
        lambda: SeparableConvolution(D, 3, bias=False),
        lambda: LightConvolution(D, filters=1, filter_length=3, bias=False),
    ],
    ids=["bilinear", "bilinear, skip", "separable", "light"],
)
def test_the_theorem_needs_no_bias_of_the_mixer(make: Callable[[], nn.Module]) -> None:
    report = check(make(), N, D, trials=2)
    assert report.verdict is Verdict.PROVED, str(report)
    assert report.sup.verdict is not Verdict.REFUTED


def _one_row(skip: bool) -> nn.Module:
    made = BilinearProjection(D, N)
    made.position_weight = nn.Parameter(torch.randn(1, N))
    return Residual(made) if skip else made


def _equal_positions() -> nn.Module:
    made = AbsolutePositions(Residual(AverageAttention(D)), N, D)
    made.positions = nn.Parameter(torch.randn(1, D).expand(N, D))
    return made


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: _one_row(False), marks=pytest.mark.unhooked),
        pytest.param(lambda: _one_row(True), marks=pytest.mark.unhooked),
        _equal_positions,
        lambda: Residual(AbsolutePositions(AverageAttention(D), N, D)),
    ],
    ids=["one row", "one row, skip", "equal positions", "positions inside the skip"],
)
def test_mixers_that_treat_all_tokens_alike_are_not_proved(
    make: Callable[[], nn.Module],
) -> None:
    assert check(make(), N, D, trials=2).verdict is not Verdict.PROVED
