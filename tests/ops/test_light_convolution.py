"""The convolution against its matrix, on every path; its gradients; what it refuses."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.cases import TOLERANCE
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops import light_convolution
from everyformer.ops.light_convolution import blocked, reference

Shape = tuple[int, int, int, int, int]
"""b, n, d, h, k."""

SHAPES: list[Shape] = [
    (1, 1, 4, 2, 5),
    (2, 7, 6, 3, 4),
    (2, 40, 16, 2, 3),
    (1, 70, 48, 3, 8),
    (2, 33, 32, 2, 128),
    (1, 170, 16, 1, 128),
]
"""n = 1, n below, at and beyond a tile, even and odd lengths, filters longer than n."""


def dense(x: Tensor, filters: Tensor) -> Tensor:
    """The formula with the whole n x n matrix of each dimension: group c div R."""
    n, d = x.shape[1:]
    count, length = filters.shape
    tokens = torch.arange(n)
    tap = tokens - tokens[:, None] + (length - 1) // 2  # of input j for output i
    inside = (tap >= 0) & (tap < length)
    matrices = filters[:, tap.clamp(0, length - 1)] * inside
    return torch.stack([x[:, :, c] @ matrices[c // (d // count)].T for c in range(d)], -1)


def made(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, filters and a gradient of the output."""
    b, n, d, h, k = shape
    random = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64).to(dtype)

    return normal(b, n, d), normal(h, k), normal(b, n, d)


def results(path: Any, x: Tensor, filters: Tensor, grad: Tensor) -> list[Tensor]:
    """Output, dx and dfilters by one path."""
    count, length = filters.shape
    left = (length - 1) // 2
    return [
        path.convolve(x, filters, left),
        path.convolve(grad, filters.flip(1), length - 1 - left),
        path.filter_gradient(grad, x, count, length, left),
    ]


def wanted(x: Tensor, filters: Tensor, grad: Tensor) -> list[Tensor]:
    """The same in float64 by the matrices and autograd."""
    leaves = [t.detach().clone().double().requires_grad_() for t in (x, filters)]
    out = dense(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


def gap(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest error, as a share of the largest entry and 1; infinite for NaN."""
    errors = [
        float((a.double() - b).abs().max() / b.abs().max().clamp_min(1.0))
        for a, b in zip(found, exact, strict=True)
    ]
    return max(e if e == e else float("inf") for e in errors)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_cpu_paths(shape: Shape) -> None:
    given = made(shape)
    exact = wanted(*given)
    for path in (blocked, reference):
        assert gap(results(path, *given), exact) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Half precision is summed in float32; filters may stay in float32."""
    x, filters, grad = made((2, 50, 16, 2, 24), dtype)
    out = results(blocked, x, filters, grad)
    assert [t.dtype for t in out] == [dtype, dtype, torch.float32]
    assert gap(out, wanted(x, filters, grad)) <= TOLERANCE[dtype]
    assert light_convolution(x, filters.float()).dtype == dtype


def test_memory_that_holds_nan_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made((2, 70, 16, 2, 9))
    original = torch.empty

    def spoiled(*args: Any, **kwargs: Any) -> Tensor:
        return original(*args, **kwargs).fill_(float("nan"))

    exact = wanted(*given)
    monkeypatch.setattr(torch, "empty", spoiled)
    assert gap(results(blocked, *given), exact) <= TOLERANCE[torch.float64]


def test_groups_are_contiguous() -> None:
    """c div R, not c mod H; and a length of 128 is not all zeros."""
    x = torch.ones(1, 300, 4)
    filters = torch.stack([torch.ones(128), torch.zeros(128)])
    assert light_convolution(x, filters)[0, 150].tolist() == [128.0, 128.0, 0.0, 0.0]


def test_a_shifted_or_swapped_filter_is_noticed() -> None:
    x, filters, grad = made((2, 40, 16, 2, 8))
    exact = wanted(x, filters, grad)
    assert gap(results(blocked, x, filters.roll(1, 1), grad), exact) > 1e-2
    assert gap(results(blocked, x, filters.flip(0), grad), exact) > 1e-2


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
    out = light_convolution(*leaves)
    found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    exact = results(reference, x.detach(), filters.detach(), grad)
    assert gap(found, exact) <= TOLERANCE[torch.float64]


def test_any_batch_and_none() -> None:
    x, filters, _ = made((6, 5, 16, 2, 3))
    many = light_convolution(x.reshape(2, 3, 5, 16), filters)
    assert torch.equal(many.reshape(6, 5, 16), light_convolution(x, filters))
    one = light_convolution(x[0], filters)
    assert gap([one], [light_convolution(x, filters)[0]]) <= TOLERANCE[torch.float64]
    assert light_convolution(x[:0], filters).shape == (0, 5, 16)


def test_autocast_decides_on_the_dtype() -> None:
    x, filters, _ = made((1, 5, 16, 2, 3), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert light_convolution(x, filters).dtype == torch.bfloat16


Make = Callable[[], Tensor]


@pytest.mark.parametrize(
    ("x", "filters", "message"),
    [
        (torch.ones(2, 3, 5), torch.ones(2, 3), "d a multiple of 2"),
        (torch.ones(2, 3, 4), torch.ones(2, 0), "a row for each filter"),
        (torch.ones(2, 3, 4), torch.ones(3), "a row for each filter"),
        (torch.ones(4), torch.ones(2, 3), r"need \(\*batch, n, d\)"),
        (torch.ones(2, 3, 4).long(), torch.ones(2, 3), "give floating point"),
        (torch.ones(2, 3, 4), torch.ones(2, 3, device="meta"), "use one device"),
    ],
)
def test_refusals(x: Tensor, filters: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        light_convolution(x, filters)


TRITON: list[Shape] = [
    (1, 1, 4, 2, 5),
    (2, 40, 32, 2, 8),
    (1, 70, 24, 1, 31),
]


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    pytest.importorskip("triton")
    return import_module("everyformer.ops.light_convolution.launch")


@pytest.mark.parametrize("shape", TRITON)
def test_kernels(launch: Any, shape: Shape) -> None:
    """Interpreted where there is no GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, filters, grad = made(shape, torch.float32)
    found = results(launch, *(t.to(device) for t in (x, filters, grad)))
    assert gap([t.cpu() for t in found], wanted(x, filters, grad)) <= TOLERANCE[x.dtype]


def test_kernels_split_their_sums(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for all pieces, or one for each: the same sum."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, filters, grad = (t.to(device) for t in made((1, 40, 72, 1, 8), torch.float32))
    found: list[Tensor] = []
    for enough in (1, 10**6):
        monkeypatch.setattr(launch, "ENOUGH_PROGRAMS", enough)
        found.append(launch.filter_gradient(grad, x, 1, 8, 3))
    assert gap(found[:1], [found[1].double()]) <= TOLERANCE[torch.float32]
    exact = wanted(x.cpu(), filters.cpu(), grad.cpu())[2]
    assert gap([found[0].cpu()], [exact]) <= TOLERANCE[torch.float32]
