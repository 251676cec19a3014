"""Dynamic convolution against its matrix, on every path; its gradients; what it refuses."""

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.cases import TOLERANCE
from tests.ops.test_light_convolution import Shape, gap
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops import dynamic_convolution, light_convolution
from everyformer.ops.dynamic_convolution import banded, reference

SHAPES: list[Shape] = [
    (1, 1, 4, 2, 5),
    (2, 7, 6, 3, 4),
    (2, 40, 16, 2, 3),
    (1, 70, 48, 3, 8),
    (2, 33, 32, 2, 128),
    (1, 96, 16, 1, 1),
]
"""n = 1, below, at and beyond a tile, even and odd lengths, filters longer than n."""


def dense(x: Tensor, filters: Tensor) -> Tensor:
    """The formula with the whole n x n matrix of each sequence and dimension."""
    n, d = x.shape[1:]
    count, length = filters.shape[2:]
    tokens = torch.arange(n)
    tap = tokens - tokens[:, None] + (length - 1) // 2  # of input j for output i
    inside = (tap >= 0) & (tap < length)
    at = tap.clamp(0, length - 1).expand(len(x), count, n, n)
    matrices = filters.transpose(1, 2).gather(3, at) * inside  # [b, h, i, j]
    each = [matrices[:, c // (d // count)] @ x[:, :, c, None] for c in range(d)]
    return torch.cat(each, -1)


def made(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, filters of each token and a gradient of the output."""
    b, n, d, h, k = shape
    random = torch.Generator().manual_seed(0)
    sizes = ((b, n, d), (b, n, h, k), (b, n, d))
    found = [
        torch.randn(*s, generator=random, dtype=torch.float64).to(dtype) for s in sizes
    ]
    return found[0], found[1], found[2]


def results(path: Any, x: Tensor, filters: Tensor, grad: Tensor) -> list[Tensor]:
    """Output, dx and dfilters by one path."""
    count, length = filters.shape[2:]
    left = (length - 1) // 2
    return [
        path.mix(x, filters, left, False),
        path.mix(grad, filters, left, True),
        path.band(grad, x, count, length, left),
    ]


def wanted(x: Tensor, filters: Tensor, grad: Tensor) -> list[Tensor]:
    """The same in float64 by the matrices and autograd."""
    leaves = [t.detach().clone().double().requires_grad_() for t in (x, filters)]
    out = dense(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.parametrize("shape", SHAPES)
def test_both_paths_are_the_definition(shape: Shape) -> None:
    given = made(shape)
    exact = wanted(*given)
    for path in (banded, reference):
        assert gap(results(path, *given), exact) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Half precision is summed in float32; filters may stay in float32."""
    x, filters, grad = made((2, 50, 16, 2, 24), dtype)
    out = results(banded, x, filters, grad)
    assert [t.dtype for t in out] == [dtype, dtype, torch.float32]
    assert gap(out, wanted(x, filters, grad)) <= TOLERANCE[dtype]
    assert dynamic_convolution(x, filters.float()).dtype == dtype


def test_equal_filters_are_the_light_one() -> None:
    x, filters, _ = made((2, 60, 32, 2, 9))
    same = filters[:1, :1].expand_as(filters)
    found = dynamic_convolution(x, same)
    assert gap([found], [light_convolution(x, filters[0, 0])]) <= TOLERANCE[torch.float64]
    assert gap([found], [dynamic_convolution(x, filters)]) > 1e-2


def test_memory_that_holds_nan_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made((2, 70, 16, 2, 9))
    original, exact = torch.empty, wanted(*given)

    def spoiled(*args: Any, **kwargs: Any) -> Tensor:
        return original(*args, **kwargs).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", spoiled)
    assert gap(results(banded, *given), exact) <= TOLERANCE[torch.float64]


def test_a_shifted_or_swapped_filter_is_noticed() -> None:
    x, filters, grad = made((2, 40, 16, 2, 8))
    exact = wanted(x, filters, grad)
    for wrong in (filters.roll(1, 3), filters.flip(2), filters.roll(1, 1)):
        assert gap(results(banded, x, wrong, grad)[:2], exact[:2]) > 1e-2


@given(
    b=st.integers(1, 3),
    n=st.integers(1, 80),
    h=st.integers(1, 3),
    r=st.sampled_from([1, 8, 9]),
    k=st.integers(1, 40),
)
@settings(max_examples=15, deadline=None)
def test_any_shape(b: int, n: int, h: int, r: int, k: int) -> None:
    x, filters, grad = made((b, n, h * r, h, k))
    leaves = [x.requires_grad_(), filters.requires_grad_()]
    out = dynamic_convolution(*leaves)
    found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    exact = results(reference, x.detach(), filters.detach(), grad)
    assert gap(found, exact) <= TOLERANCE[torch.float64]


def test_any_batch_and_none() -> None:
    x, filters, _ = made((6, 5, 16, 2, 3))
    many = dynamic_convolution(x.unflatten(0, (2, 3)), filters.unflatten(0, (2, 3)))
    assert torch.equal(many.flatten(0, 1), dynamic_convolution(x, filters))
    one = dynamic_convolution(x[0], filters[0])
    assert gap([one], [dynamic_convolution(x, filters)[0]]) <= TOLERANCE[torch.float64]
    assert dynamic_convolution(x[:0], filters[:0]).shape == (0, 5, 16)


@pytest.mark.parametrize(
    ("x", "filters", "message"),
    [
        (torch.ones(2, 3, 5), torch.ones(2, 3, 2, 3), "need a multiple of 2"),
        (torch.ones(2, 3, 4), torch.ones(2, 3, 2, 0), "h filters for each token"),
        (torch.ones(2, 3, 4), torch.ones(2, 3), "h filters for each token"),
        (torch.ones(2, 3, 4), torch.ones(2, 4, 2, 3), r"need x of shape \(\*batch, n, d\)"),
        (torch.ones(2, 3, 4).long(), torch.ones(2, 3, 2, 3), "give floating point"),
        (torch.ones(2, 3, 4), torch.ones(2, 3, 2, 3, device="meta"), "use one device"),
    ],
)
def test_refusals(x: Tensor, filters: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dynamic_convolution(x, filters)


@pytest.mark.parametrize(
    "shape", [(1, 1, 4, 2, 5), (2, 40, 32, 2, 8), (1, 70, 72, 1, 31)], ids=str
)
def test_kernels(shape: Shape) -> None:
    """Interpreted where there is no GPU."""
    pytest.importorskip("triton")
    launch: Any = import_module("everyformer.ops.dynamic_convolution.launch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, filters, grad = made(shape, torch.float32)
    found = results(launch, *(t.to(device) for t in (x, filters, grad)))
    assert gap([t.cpu() for t in found], wanted(x, filters, grad)) <= TOLERANCE[x.dtype]
