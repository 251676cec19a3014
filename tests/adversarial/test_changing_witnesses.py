"""Witnesses whose layers are something else when they are run than when they are followed.

All of these were PROVED once, and differed from the certified network at up to 3/4 of all
points.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.checks.test_own_attention import mine
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import everyformer as ef
from everyformer.checks.own_attention.affine_run import run_affine
from everyformer.checks.own_attention.forms import NotAffine
from everyformer.checks.own_attention.realise import with_own_attention
from everyformer.checks.own_attention.witness import exported, what_it_adds
from everyformer.errors import InputError


@pytest.fixture(scope="module")
def built() -> ef.Built:
    target = ef.targets.reverse(2, 1)
    return ef.construct(target, grid=2, method=ef.Averaging(positional=True))


class Reusing(mine.GainWitness):
    """One layer for both conditions: the second set of weights overwrites the first."""

    def position_aware(self, width: int, seq_len: int, c: torch.Tensor) -> nn.Module:
        self.layer = super().position_aware(width, seq_len, c)
        return self.layer

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> list[nn.Module]:
        (other,) = super().attentive(width, seq_len, M)
        self.layer.load_state_dict(other.state_dict())
        return [self.layer]


def test_a_layer_whose_weights_are_overwritten_by_the_next_is_refused(
    built: ef.Built,
) -> None:
    with pytest.raises(InputError, match="does not tell positions alone"):
        with_own_attention(built.network, Reusing())


class OnlyInTraining(nn.Module):
    """Passes tokens on in training, and 0 after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else 0 * x


class Counting(nn.Module):
    """Does something else from its thousandth run on."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: torch.Tensor
        self.register_buffer("runs", torch.zeros(1, dtype=torch.int64))
        self.share = nn.Parameter(torch.tensor([1.0, 0.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs.add_(1)
        return self.share[self.runs // 1000 % 2] * x


class Dropping(nn.Module):
    """Attention that drops weights in eval mode as well; so rarely that no run shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x @ self.query
        return x + scaled_dot_product_attention(q, q, x, dropout_p=1e-7)


class Graded(nn.Module):
    """Does something else where gradients are wanted, as they are in a plain call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if x.requires_grad else x


def part_in_training() -> nn.Module:
    layer = nn.Sequential(OnlyInTraining()).eval()
    layer[0].train()
    return layer


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Counting(), "writes runs, which the next one reads"),
        (Dropping(), "dropout_p"),
        (Graded(), "where gradients are wanted"),
    ],
)
def test_layers_that_are_not_functions_are_refused(layer: nn.Module, why: str) -> None:
    with pytest.raises((InputError, NotAffine), match=why):
        what_it_adds(layer.eval(), 2, 2)


def test_every_part_of_a_layer_is_followed_in_the_mode_in_which_it_runs() -> None:
    added = what_it_adds(part_in_training(), 1, 1)
    assert added.linear.item() == -1  # 0 x, and not x


def test_a_module_that_was_changed_is_not_reported(built: ef.Built) -> None:
    found = with_own_attention(built.network, mine.GainWitness())
    assert found.report(built.certificate).startswith("PROVED")
    module: Any = found.module
    first: Any = module.layers[0]

    def silent(_: nn.Module, given: object, value: torch.Tensor) -> torch.Tensor:
        return 0 * value

    changes: list[Callable[[], Any]] = [
        lambda: module.W_out.mul_(1 + 2.0**-52),
        lambda: first.gain.add_(2.0**-40),
        lambda: first.value.train(),
        lambda: first.value.register_forward_hook(silent),
    ]
    for change in changes:
        before = {key: held.clone() for key, held in found.module.state_dict().items()}
        with torch.no_grad():
            change()
        with pytest.raises(InputError, match="not what it was"):
            found.report(built.certificate)
        found.module.load_state_dict(before)
        first.value.eval()
    first.value._forward_hooks.clear()
    assert found.report(built.certificate).startswith("PROVED")


class Scaled(nn.Module):
    """Divides by a number, as attention does by the root of its width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x / 4.0


def test_a_quotient_by_a_number_is_followed() -> None:
    found = run_affine(exported(Scaled().eval(), 1, 1))
    assert found.centre.ravel().tolist() == [1.25, 0]
