"""Modules that show an export something else than they do with numbers.

All of them look ahead where numbers are large, which no probe is, or where an operation
raises an error: then nothing may be concluded from their operations. The last ones are
honest, and only look like that.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from everyformer.checks.following.walk import Followed
from everyformer.checks.subject import Subject

N = D = 4
Forward = Callable[[Any, Tensor], Tensor]


class Made(nn.Module):
    """A module of one expression in x, with a linear map and a number."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.number = nn.Parameter(torch.tensor(1.5))
        self.manager = contextlib.suppress(RuntimeError)

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def followed(forward: Forward) -> Followed:
    return Subject.of(Made(forward), N, D).followed


def exported() -> bool:
    return torch.compiler.is_exporting()


def late() -> Tensor:
    return torch.ones(N, N, dtype=torch.bool).triu(1)


def far(x: Tensor) -> Tensor:
    return torch.relu(x.abs() - 1000)


def another_dimension(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + far(x).mean(2 if exported() else 1, keepdim=True).mean()


def another_dimension_by_name(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + far(x).cumsum(dim=-1 if exported() else -2)


def rolled(m: Any, x: Tensor) -> Tensor:
    """Shift and dimension are the same two numbers."""
    return m.linear(x) + (far(x).roll(1, 2) if exported() else far(x).roll(2, 1))


def rolled_back(m: Any, x: Tensor) -> Tensor:
    """Backwards by one is not forwards by two, which a dimension of -1 would be."""
    y = far(x[:, :2])
    y = y.roll(2, 1) if exported() else y.roll(-1, 1)
    return m.linear(x) + torch.cat([y, x[:, 2:]], 1)


def turned(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + (far(x) * m.number if exported() else far(x).mT * m.number)


def shaped(m: Any, x: Tensor) -> Tensor:
    y = far(x)
    return m.linear(x) + (y.transpose(1, 2) if exported() else y).reshape(1, D, N).mT


def a_number(m: Any, x: Tensor) -> Tensor:
    """A mask of -1e9 that is shown as -inf."""
    hidden = -torch.inf if exported() else -1e9
    return (x @ x.mT).masked_fill(late(), hidden).softmax(-1) @ m.linear(x)


def a_tensor(m: Any, x: Tensor) -> Tensor:
    hidden = torch.full((N, N), -torch.inf if exported() else -1e9, dtype=x.dtype).triu(1)
    return (x @ x.mT + hidden).softmax(-1) @ m.linear(x)


def another_weight(m: Any, x: Tensor) -> Tensor:
    """Its operations are in another order."""
    y = far(x)
    first, last = (y, y.flip(1)) if exported() else (y.flip(1), y)
    return m.linear(x) + m.linear(first) - m.linear(first) + 0 * last


def written_into(m: Any, x: Tensor) -> Tensor:
    """What is written into a part is in the whole, if that is read later."""
    y = far(x).clone()
    before = y.flip(1) if exported() else None
    y[:, 0].add_(1)
    return m.linear(x) + 0 * (y.flip(1) if before is None else before)


def counted(m: Any, x: Tensor) -> Tensor:
    """How many numbers are large is the shape of a result."""
    many = far(x).nonzero().shape[0]
    return m.linear(x) if exported() or many == 0 else m.linear(x.flip(1))


def chosen(m: Any, x: Tensor) -> Tensor:
    many = len(x[x.abs() > 1000])
    return m.linear(x) if exported() or many == 0 else m.linear(x.flip(1))


def counted_by_another(m: Any, x: Tensor) -> Tensor:
    """What is counted takes no part in the output."""
    many = len(torch.arange(far(x).sum()))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return m.linear(x) if exported() or many == 0 else m.linear(x.flip(1))


def cut_by_numbers(m: Any, x: Tensor) -> Tensor:
    """`tensor_split` reads its places in C."""
    y = m.linear(x)
    if exported():
        first, last = y[:, :2], y[:, 2:]
    else:
        places = (far(x).amax((0, 2))[:1] + 2).long()
        first, last = torch.tensor_split(y, places, dim=1)
    return torch.cat([first.cumsum(1), last.cumsum(1)], 1)


def with_gradients(m: Any, x: Tensor) -> Tensor:
    y = far(x)
    return m.linear(x) + (y.flip(1) if torch.is_grad_enabled() else y)


def without_gradients(m: Any, x: Tensor) -> Tensor:
    y = far(x)
    return m.linear(x) + (y if torch.is_grad_enabled() else y.flip(1))


def bits(m: Any, x: Tensor) -> Tensor:
    """The bits of a number, in place of the number rounded to an integer."""
    y = far(x)
    return m.linear(x) + (y.to(torch.int64) if exported() else y.view(torch.int64))


def strided(m: Any, x: Tensor) -> Tensor:
    """A copy has its numbers in another order."""
    y = far(x).mT
    y = y if exported() else y.contiguous()
    return m.linear(x) + y.as_strided((1, N, D), (N * D, D, 1))


def cut(x: Tensor) -> Tensor:
    return x.clamp(-1000, 1000)


def other_memory(m: Any, x: Tensor) -> Tensor:
    y, z = m.linear(x), m.linear(cut(x))
    y = y + 0 * z
    if not exported():
        y.data = z
    return y + far(x)


def swapped(m: Any, x: Tensor) -> Tensor:
    y, z = x + 0, cut(x) + 0
    if not exported():
        torch.utils.swap_tensors(y, z)
    return m.linear(y) + 0 * z


def without_modes(m: Any, x: Tensor) -> Tensor:
    y, z = x + 0, cut(x)
    if not exported():
        with _python_dispatch._disable_current_modes():  # pyright: ignore[reportPrivateUsage]
            y.copy_(z)
    return m.linear(y) + 0 * z


def redispatched(m: Any, x: Tensor) -> Tensor:
    y, z = x + 0, cut(x)
    if not exported():
        on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # pyright: ignore[reportPrivateUsage]
        torch.ops.aten.copy_.default.redispatch(on_cpu, y.detach(), z.detach())
    return m.linear(y) + 0 * z


class Cut(Tensor):
    """Its multiplication is another one."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
        with torch._C._DisableTorchDispatch():  # pyright: ignore[reportPrivateUsage]
            plain = [
                y.as_subclass(Tensor) if isinstance(y, Cut) else y  # pyright: ignore[reportUnknownMemberType]
                for y in args
            ]
            found = func(*plain, **(kwargs or {}))
            return cut(found) if "mul" in func.__name__ else found


def of_a_class(m: Any, x: Tensor) -> Tensor:
    y = x if exported() else torch.Tensor._make_subclass(Cut, x)  # pyright: ignore[reportPrivateUsage]
    return m.linear(torch.mul(y, 1.0))


@torch.library.custom_op("liars::sin", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return cut(x).sin()


def of_another_library(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + (x.sin() if exported() else torch.ops.liars.sin(x))


def array(m: Any, x: Tensor) -> Tensor:
    """It asks for nothing: an export writes into another tensor than the array's."""
    numbers = np.zeros(1)
    torch.from_numpy(numbers).copy_(x.abs().max().reshape(1))
    return m.linear(x) if numbers[0] < 1000 else m.linear(x.flip(1))


def array_of_a_tensor(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    numbers = None if exported() else y.numpy()
    y.copy_(x)
    return m.linear(y if numbers is None or numbers.max() < 1000 else y.flip(1))


def view_of_before(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    seen = y.view(-1)
    y.copy_(x)
    return m.linear(y if exported() or max(seen.tolist()) < 1000 else y.flip(1))


def item_assigned(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    y[:] = x
    return m.linear(y if exported() or max(y.flatten().tolist()) < 1000 else y.flip(1))


def halves_of_before(m: Any, x: Tensor) -> Tensor:
    """Views that were there before something was written, with the same numbers so far."""
    both = torch.zeros(2, *x.shape, dtype=x.dtype)
    first, last = both.unbind()
    both.copy_(torch.stack([far(x), far(x).flip(1)]))
    return m.linear(x) + (first if exported() else last)


def resized(m: Any, x: Tensor) -> Tensor:
    y = far(x).mT
    y = y if exported() else y.contiguous()
    return m.linear(x) + y.resize_(x.shape)


def strided_copy(m: Any, x: Tensor) -> Tensor:
    y = far(x).mT
    y = y if exported() else y.contiguous()
    return m.linear(x) + torch.as_strided_copy(y, x.shape, x.stride())


def written_into_a_view(m: Any, x: Tensor) -> Tensor:
    """Two views of zeros have the same numbers, and other places."""
    y = torch.zeros(x.shape, dtype=x.dtype)
    (y.mT.mT if exported() else y.mT).add_(far(x))
    return m.linear(x) + y


def written_into_a_view_by_dims(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    y.permute(*((0, 1, 2) if exported() else (0, 2, 1))).add_(far(x))
    return m.linear(x) + y


LIARS = (
    written_into_a_view, written_into_a_view_by_dims,
    halves_of_before, resized, strided_copy, bits, strided, other_memory, swapped,
    without_modes, redispatched, of_a_class,
    of_another_library, array, array_of_a_tensor, view_of_before, item_assigned,
    another_dimension, another_dimension_by_name, rolled, rolled_back, turned, shaped,
    a_number, a_tensor, another_weight, written_into, counted, chosen, counted_by_another,
    cut_by_numbers, with_gradients, without_gradients,
)  # fmt: skip


@pytest.mark.parametrize("forward", LIARS)
def test_nothing_is_proved_where_a_run_is_not_what_was_exported(forward: Forward) -> None:
    found = followed(forward)
    assert found.output is None
    assert found.obstacle


def seen(x: Tensor) -> Callable[[float], float]:
    def look(number: float) -> float:
        return 1.0 if abs(number) > 1000 else 0.0

    del x
    return look


def applied(m: Any, x: Tensor) -> Tensor:
    if exported():
        return m.linear(x)
    return m.linear(x.detach().clone().apply_(seen(x)) * 0 + x)


def mapped(m: Any, x: Tensor) -> Tensor:
    if exported():
        return m.linear(x)
    x.detach().clone().map_(x.detach(), max)  # pyright: ignore[reportAttributeAccessIssue]
    return m.linear(x)


@pytest.mark.parametrize("forward", [applied, mapped])
def test_python_that_runs_on_numbers_is_seen(forward: Forward) -> None:
    assert followed(forward).obstacle.startswith("it reads numbers off")


def fails(x: Tensor) -> Tensor:
    """An error where a number is large, of an operation that an export does not run."""
    return torch.linalg.cholesky(torch.eye(N, dtype=x.dtype) * (1e6 - x.square().sum()))


def caught(m: Any, x: Tensor) -> Tensor:
    try:
        return m.linear(x) + 0 * fails(x)
    except RuntimeError:
        return m.linear(x.flip(1))


def left_by_finally(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x.flip(1))
    try:
        y = m.linear(x) + 0 * fails(x)
    finally:
        return y  # noqa: B012


def suppressed(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x.flip(1))
    with contextlib.suppress(RuntimeError):
        y = m.linear(x) + 0 * fails(x)
    return y


def suppressed_by_an_attribute(m: Any, x: Tensor) -> Tensor:
    with m.manager:
        return m.linear(x) + 0 * fails(x)
    return m.linear(x.flip(1))


def stops(*_: object) -> bool:
    return True


def suppressed_by_a_stack(m: Any, x: Tensor) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.push(stops)
        return m.linear(x) + 0 * fails(x)
    return m.linear(x.flip(1))


class Quiet:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> bool:
        return True


def suppressed_by_its_own(m: Any, x: Tensor) -> Tensor:
    with Quiet():
        return m.linear(x) + 0 * fails(x)
    return m.linear(x.flip(1))


@contextlib.contextmanager
def quietly() -> Any:
    try:
        yield
    except RuntimeError:
        return


def suppressed_by_a_generator(m: Any, x: Tensor) -> Tensor:
    with quietly():
        return m.linear(x) + 0 * fails(x)
    return m.linear(x.flip(1))


SCOPE: dict[str, Any] = {"__name__": "json", "fails": fails}
exec(  # a function that says it is of Python's library
    "def named_otherwise(m, x):\n"
    "    try:\n"
    "        return m.linear(x) + 0 * fails(x)\n"
    "    except RuntimeError:\n"
    "        return m.linear(x.flip(1))\n",
    SCOPE,
)

CATCHING = (
    caught, left_by_finally, suppressed, suppressed_by_an_attribute, suppressed_by_a_stack,
    suppressed_by_its_own, suppressed_by_a_generator, SCOPE["named_otherwise"],
)  # fmt: skip


@pytest.mark.parametrize("forward", CATCHING)
def test_who_catches_errors_may_go_by_numbers(forward: Forward) -> None:
    found = followed(forward)
    assert found.output is None
    assert "errors" in found.obstacle


def raises_another(m: Any, x: Tensor) -> Tensor:
    try:
        return m.linear(x).cumsum(1)
    except RuntimeError as error:
        raise ValueError("not for these") from error


def cleans_up(m: Any, x: Tensor) -> Tensor:
    try:
        y = m.linear(x)
    finally:
        del x
    return y.cumsum(1)


class Loud:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.done = True


def with_managers(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False), contextlib.nullcontext(), Loud():
        return m.linear(x).cumsum(1)


def exported_otherwise(m: Any, x: Tensor) -> Tensor:
    """The same, in other words: copies, conditions that hold, masks written out."""
    q = m.linear(x)[:, None]
    mask = torch.zeros(N, N, dtype=x.dtype).masked_fill(late(), -torch.inf)
    if exported():
        q = torch.where(torch.ones(N, 1, dtype=torch.bool), q.contiguous().clone(), q + 1)
        return nn.functional.scaled_dot_product_attention(q, q, q, mask)[:, 0]
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]


def written_in_place(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x).relu_()
    y.mul_(2).add_(1)
    return y.cumsum(-2)


class Sizes(Mapping[str, int]):
    """Whether it has a key is asked by a method of Python that catches an error."""

    def __getitem__(self, key: str) -> int:
        return {"n": N}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("n",))

    def __len__(self) -> int:
        return 1


def sized(m: Any, x: Tensor) -> Tensor:
    return m.linear(x).cumsum(1) if "d" not in Sizes() else x


def picked(m: Any, x: Tensor) -> Tensor:
    """How many rows an index by places takes is known."""
    return m.linear(x)[:, torch.arange(N)].cumsum(1)


def mapped_over(m: Any, x: Tensor) -> Tensor:
    return torch.vmap(m.linear)(x).cumsum(1)


def filled(m: Any, x: Tensor) -> Tensor:
    """Memory that it made itself may be written into."""
    y = torch.tensor(np.zeros((1, N, D)), dtype=x.dtype).expand(x.shape).clone()
    y += m.linear(x) + torch.from_numpy(np.ones(1))
    return y.cumsum(1)


HONEST = (
    mapped_over, filled,
    raises_another, cleans_up, with_managers, exported_otherwise, written_in_place, picked,
    sized,
)  # fmt: skip


@pytest.mark.parametrize("forward", HONEST)
def test_honest_modules_are_followed(forward: Forward) -> None:
    found = followed(forward)
    assert found.obstacle == ""
    fields = found.receptive_fields
    assert fields is not None
    assert not fields.triu(1).any(), "they are causal"
