"""Modules whose numbers go past those that watch a run.

All of them but the last commute with permutations of the tokens while numbers are small,
as those of all probes are, and do not where some number is large.
"""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch

from everyformer.checks.following.walk import Followed
from everyformer.checks.subject import Subject

N = D = 4
Forward = Callable[[Any, Tensor], Tensor]
Carry = Callable[[Any, Tensor], Tensor]


class Made(nn.Module):
    """A module of one function, with what it may hold."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.places = nn.Buffer(torch.arange(N, dtype=torch.float64).reshape(1, N, 1))
        self.zero = nn.Buffer(torch.zeros(()))
        self.kept = [torch.zeros((), dtype=torch.float64)]

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    return Subject.of(Made(forward), N, D).followed


def exported() -> bool:
    return torch.compiler.is_exporting()


def nothing(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def large(x: Tensor) -> Tensor:
    return torch.relu(x.abs() - 1000).sum()


def parameter(m: Any, y: Tensor) -> Tensor:
    return nn.Parameter(y, requires_grad=False)


def numbers_of_a_parameter(m: Any, y: Tensor) -> Tensor:
    return torch.tensor(nn.Parameter(y.reshape(1), requires_grad=False).tolist()[0])


def listed(m: Any, y: Tensor) -> Tensor:
    """What is made of a list is read number by number, and no operation shows it."""
    return torch.tensor([y])


def listed_deep(m: Any, y: Tensor) -> Tensor:
    return torch.as_tensor([[1.0, y]])[0, 1]


def listed_index(m: Any, y: Tensor) -> Tensor:
    return torch.arange(2)[None][:, [y.clamp(max=1).long()]].double()


def listed_with_gradients(m: Any, y: Tensor) -> Tensor:
    return torch.tensor([y.detach()]) if torch.is_grad_enabled() else nothing()


def other_memory(m: Any, y: Tensor) -> Tensor:
    found = nothing()
    found.data = y
    return found


def memory_of_a_buffer(m: Any, y: Tensor) -> Tensor:
    found = m.zero
    found.data = y
    return found


def without_modes(m: Any, y: Tensor) -> Tensor:
    with torch._C._DisableTorchDispatch():  # pyright: ignore[reportPrivateUsage]
        return y * 1


def without_modes_by_name(m: Any, y: Tensor) -> Tensor:
    with no_dispatch():
        return y * 1


def who_asks(m: Any, y: Tensor) -> Tensor:
    files = [frame.filename for frame in traceback.extract_stack()]
    return nothing() if any("following" in file for file in files) else y


@torch.jit.script
def numbers_of(y: Tensor) -> list[float]:
    found: list[float] = y.tolist()
    return found


class Scripted(nn.Module):
    def forward(self, y: Tensor) -> list[float]:
        found: list[float] = y.tolist()
        return found


def scripted(m: Any, y: Tensor) -> Tensor:
    return torch.tensor(numbers_of(y.reshape(1)))


def needs_gradients(m: Any, y: Tensor) -> Tensor:
    return y if y.requires_grad else nothing()


CARRYING: tuple[Carry, ...] = (
    parameter, numbers_of_a_parameter, listed, listed_deep, listed_index,
    listed_with_gradients, other_memory, memory_of_a_buffer, without_modes,
    without_modes_by_name, who_asks, needs_gradients, scripted,
)  # fmt: skip


def with_places(carry: Carry) -> Forward:
    """What is carried past the watchers tells places apart."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = large(x)
        index = 0 * y.clamp(max=1).long()
        carried = nothing() if exported() else carry(m, y)
        return m.linear(x) + 0 * y + index + carried.reshape(()) * m.places

    return forward


@pytest.mark.parametrize("carry", CARRYING)
def test_numbers_that_no_operation_shows_prove_nothing(carry: Carry) -> None:
    found = followed(with_places(carry))
    assert found.output is None
    assert not found.obstacle.startswith("export")


def test_what_the_run_before_has_left_in_a_list_is_no_constant() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y, before = large(x), m.kept[0]
        m.kept[0] = y * 1
        return m.linear(x) + 0 * y + before * m.places

    assert "not its own" in followed(forward).obstacle


def test_a_scripted_part_may_read_numbers() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = large(x)
        carried = nothing() if exported() else torch.tensor(m.part(y.reshape(1)))
        return m.linear(x) + 0 * y + carried.reshape(()) * m.places

    module = Made(forward)
    module.part = torch.jit.script(Scripted())
    assert "numbers" in Subject.of(module, N, D).followed.obstacle


@torch.library.custom_op("watchers::write", mutates_args=())
def write(x: Tensor, into: Tensor) -> Tensor:
    """It writes where it does not say so, by numpy."""
    into.numpy()[...] = large(x).numpy()
    return x.clone()


@write.register_fake
def _(x: Tensor, into: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operation_of_ones_own_may_write_anywhere() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        carried = nothing()
        y = torch.ops.watchers.write(x, carried)
        found = m.linear(x) + carried * m.places
        return torch.where(torch.zeros(1, dtype=torch.bool), y, found)

    assert "write" in followed(forward).obstacle


def honest_numbers(m: Any, x: Tensor) -> Tensor:
    """Numbers beside tensors, lists of numbers, and tensors stacked from a list."""
    y = torch.where(x > 0, m.linear(x), 0.0)[..., [0, 1, 2, 3]]
    y[..., 0] = 1.0
    return torch.stack([y, y * torch.tensor([1.0, 2.0, 3.0, 4.0])]).sum(0)


def honest_alias(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    return y + y.detach().clone()


@pytest.mark.parametrize("forward", [honest_numbers, honest_alias])
def test_honest_modules_are_followed(forward: Forward) -> None:
    assert followed(forward).obstacle == ""
