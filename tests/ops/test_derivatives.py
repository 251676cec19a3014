"""Derivatives of every order, in both modes, and `torch.func`, against the references."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.ops.cases import Case
from tests.ops.operators import (
    OPERATORS,
    Operator,
    convolution,
    gap,
    slopes,
    sparse,
    toeplitz,
)
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from everyformer import patterns
from everyformer.ops import sparse_attention, toeplitz_attention
from everyformer.ops.toeplitz_attention import derivatives

EXACT = 1e-11

LONGER = {
    "toeplitz": toeplitz(Case(2, 2, 9, 13, 3, padding="some")),
    "toeplitz, steps": toeplitz(Case(2, 2, 130, 7, 3, causal=True)),
    "sparse, band": sparse(patterns.Window(300, 2, 3), "some"),
    "sparse, pieces": sparse(patterns.big_bird(300, 3, 2, 1).parts[0]),
    "sparse, blocks": sparse(patterns.big_bird_blocks(300, 16).parts[0]),
    "convolution": convolution(70, 16, 2, 9),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_finite_differences(name: str) -> None:
    """First and second derivatives by all arguments, reverse and forward."""
    case = OPERATORS[name]
    if "window" in name:  # -inf has no neighbours
        q, k, v, bias, gain = case.leaves()
        finite = bias.detach().isfinite()

        def free(*x: Tensor) -> Tensor:
            rows = torch.where(finite, x[3], -torch.inf)
            return case.fast(*x[:3], rows, x[4])

        leaves = [q, k, v, torch.zeros_like(bias).requires_grad_(), gain]
        assert gradcheck(free, leaves, fast_mode=True)
        assert gradgradcheck(free, leaves, fast_mode=True)
        return
    assert gradcheck(case.fast, case.leaves(), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(case.fast, case.leaves(), fast_mode=True)


@pytest.mark.parametrize("name", OPERATORS | LONGER)
def test_three_orders(name: str) -> None:
    """Hessian-vector products, and one order more."""
    case = (OPERATORS | LONGER)[name]
    for order in (1, 2, 3) if name in OPERATORS else (2,):
        found = slopes(case.fast, case.leaves(), order)
        wanted = slopes(case.plain, case.leaves(), order)
        assert gap(found, wanted) <= EXACT
        if "neither" not in name:
            assert any(x.abs().max() > 0 for x in wanted), "there is something to compare"


def test_the_memory_of_second_derivatives_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequences one by one give the same."""
    case = LONGER["toeplitz"]
    wanted = slopes(case.plain, case.leaves(), 2)
    monkeypatch.setattr(derivatives, "STEP_ENTRIES", 1)
    assert gap(slopes(case.fast, case.leaves(), 2), wanted) <= EXACT


def test_arguments_that_are_one_tensor() -> None:
    """And one without a gradient."""
    part = patterns.Window(4, 1, 1)
    x, v = torch.randn(2, 1, 1, 4, 2, dtype=torch.float64).unbind()
    x = x.clone().requires_grad_()

    def dense(x: Tensor) -> Tensor:
        return toeplitz_attention(x, x, v)

    def sparsely(x: Tensor) -> Tensor:
        return sparse_attention(x, x, v, part)

    assert gradgradcheck(dense, [x])
    assert gradgradcheck(sparsely, [x])


def test_half_precision() -> None:
    """Second derivatives have the dtypes of their arguments."""
    case = LONGER["toeplitz"]
    wanted = slopes(case.plain, case.leaves(torch.bfloat16), 2)
    found = slopes(case.fast, case.leaves(torch.bfloat16), 2)
    assert [x.dtype for x in found] == [torch.bfloat16] * 5
    assert gap(found, wanted) <= 0.1


def one_argument(function: Any, tensors: Any, number: int) -> Callable[[Tensor], Tensor]:
    def called(x: Tensor) -> Tensor:
        return function(*tensors[:number], x, *tensors[number + 1 :])

    return called


def number(function: Any) -> Callable[..., Tensor]:
    return lambda *x: function(*x).sin().sum()


def last_first(function: Any) -> Callable[[Tensor, list[Tensor]], Tensor]:
    return lambda last, rest: function(*rest, last)


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: grad(number(f), tuple(range(len(x))))(*x),
    "grad of grad": lambda f, x: grad(
        lambda *y: grad(number(f))(*y).square().sum(), tuple(range(len(x)))
    )(*x),
    "jacrev": lambda f, x: jacrev(f, tuple(range(len(x))))(*x),
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(y.cos() for y in x)),
    "jvp of grad": lambda f, x: jvp(grad(number(f)), tuple(x), tuple(y.cos() for y in x)),
    "grad of jvp": lambda f, x: grad(
        lambda *y: jvp(f, y, tuple(z.cos() for z in x))[1].square().sum()
    )(*x),
    "vjp": lambda f, x: (lambda y: y[1](y[0].cos()))(vjp(f, *x)),
    "vmap": lambda f, x: vmap(f)(*copies(x)),
    "vmap by one": lambda f, x: vmap(one_argument(f, x, len(x) - 1))(copies(x)[-1]),
    "vmap at the end": lambda f, x: vmap(f, in_dims=-1, out_dims=1)(
        *(y.movedim(0, -1) for y in copies(x))
    ),
    "vmap of grad": lambda f, x: vmap(grad(number(f), tuple(range(len(x)))))(*copies(x)),
    "vmap of grad by the last": lambda f, x: vmap(
        grad(last_first(number(f))), in_dims=(None, 0)
    )(x[-1], copies(x)[:-1]),
    "vmap of vmap": lambda f, x: vmap(vmap(f))(*(copies(copies(x)))),
    "hessian": lambda f, x: [
        hessian(number(one_argument(f, x, k)))(y) for k, y in enumerate(x)
    ],
}


def copies(x: Any) -> list[Tensor]:
    return [torch.stack([y, y.flip(-1) * 0.5, y.sin()]) for y in x]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", [n for n in OPERATORS if "window" not in n])
def test_torch_func(name: str, transform: str) -> None:
    case, change = OPERATORS[name], TRANSFORMS[transform]
    tensors = list(case.tensors)
    assert gap(change(case.fast, tensors), change(case.plain, tensors)) <= EXACT


def test_paddings_of_their_own() -> None:
    """vmap over samples with their masks, as for gradients of each sample."""
    random = torch.Generator().manual_seed(0)
    q = torch.randn(3, 1, 2, 5, 2, generator=random, dtype=torch.float64)
    bias, gain = (torch.randn(2, 9, generator=random, dtype=torch.float64) for _ in "bc")
    padded = torch.rand(3, 1, 5, generator=random) < 0.4
    part = patterns.Star(5, 1)

    def losses(bias: Tensor, gain: Tensor, q: Tensor, padded: Tensor) -> Tensor:
        out = toeplitz_attention(q, q, q, bias, gain, key_padding=padded)
        return sparse_attention(out, q, q, part, key_padding=padded).square().sum()

    found = vmap(grad(losses, (0, 1, 2)), in_dims=(None, None, 0, 0))(bias, gain, q, padded)
    each = [grad(losses, (0, 1, 2))(bias, gain, q[k], padded[k]) for k in range(3)]
    wanted = [torch.stack(column) for column in zip(*each, strict=True)]
    assert gap(found, wanted) <= EXACT
    assert found[0].shape == (3, 2, 9)


@pytest.mark.parametrize("name", ["toeplitz", "sparse", "convolution"])
def test_a_tangent_on_the_way_back(name: str) -> None:
    """A backward pass inside forward mode, of a forward pass outside of it."""
    case = OPERATORS[name]
    found: list[Any] = []
    for function in (case.fast, case.plain):
        leaves = case.leaves()
        out = function(*leaves)
        with forward_ad.dual_level():
            upstream = forward_ad.make_dual(out.detach().cos(), out.detach().sin())
            gradients = torch.autograd.grad(out, leaves, upstream)
            pairs = [forward_ad.unpack_dual(x) for x in gradients]
            assert all(pair.tangent is not None for pair in pairs)
            found.append([(pair.primal, pair.tangent) for pair in pairs])
    assert gap(*found) <= EXACT


def _always(q: Tensor) -> bool:
    return True


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators run their Triton kernels on the CPU, interpreted."""
    pytest.importorskip("triton")
    for name in ("toeplitz_attention", "sparse_attention"):
        paths = import_module(f"everyformer.ops.{name}.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)
    paths = import_module("everyformer.ops.light_convolution.paths")
    launch = import_module("everyformer.ops.light_convolution.launch")

    def only(*_: object) -> Any:
        return launch

    monkeypatch.setattr(paths, "_path", only)


INTERPRETED: dict[str, Operator] = {
    "toeplitz": toeplitz(Case(1, 1, 5, 7, 16, padding="some")),
    "sparse": sparse(patterns.Columns(5, 2, last=True), "some", d=16),
    "convolution": convolution(5, 16, 1, 4),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted on the CPU")
@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("name", INTERPRETED)
def test_kernels_have_the_same_derivatives(name: str) -> None:
    case = INTERPRETED[name]
    found = slopes(case.fast, case.leaves(torch.float32), 2)
    assert gap(found, slopes(case.plain, case.leaves(), 2)) <= 2e-5
    exact, x = list(case.tensors), [y.float() for y in case.tensors]
    change = TRANSFORMS["vmap of grad"]
    assert gap(change(case.fast, x), change(case.plain, exact)) <= 2e-5
