"""The chunked CPU path against the reference: outputs and all gradients."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import settings
from tests.ops.cases import (
    EXPLICIT,
    TINY,
    Case,
    Inputs,
    Results,
    assert_agrees,
    cases,
    expected,
)
from tests.ops.cases import inputs as make
from tests.ops.references import toeplitz_attention_reference
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer.ops.toeplitz_attention import chunked
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands

NO_TABLE = torch.zeros(0)
"""The chunked path needs none."""


@pytest.fixture(autouse=True, scope="module")
def nan_in_empty_memory() -> Iterator[None]:
    """Fill `torch.empty` with NaN, so that memory read before it is written is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(100).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def results(x: Inputs) -> Results:
    out, lse = chunked.forward(x.operands)
    incoming = Incoming(x.grad_out, out, lse, NO_TABLE, True, True)
    gradients = chunked.backward(x.operands, incoming)
    names = "dq", "dk", "dv", "dbias", "dgain"
    named = zip(names, gradients, strict=True)
    return {"out": out, "lse": lse} | {name: x for name, x in named if x is not None}


@pytest.mark.parametrize("case", EXPLICIT, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_agrees_with_the_reference(case: Case, dtype: torch.dtype) -> None:
    x = make(case, dtype)
    actual = results(x)
    assert all(result.dtype == dtype for result in actual.values())
    assert_agrees(actual, expected(x), dtype)


@for_all(case=cases())
@settings(max_examples=100, deadline=None)
def test_agrees_in_small_steps(case: Case) -> None:
    """Steps of 4 queries and one to three heads: many steps on short sequences."""
    entries = 4 * case.n_k * (1 + case.seed % 3)
    with mock.patch.multiple(chunked, CHUNK=4, STEP_ENTRIES=entries):
        x = make(case)
        assert_agrees(results(x), expected(x), torch.float64)


@pytest.mark.parametrize("vectors", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, vectors: torch.dtype | None) -> None:
    x = make(Case(n_q=70, n_k=50, d=16, padding="some")).to(dtype, vectors)
    actual = results(x)
    kinds = {name: result.dtype for name, result in actual.items()}
    assert kinds.pop("lse") == torch.float32
    assert kinds.pop("dbias") == kinds.pop("dgain") == (vectors or dtype)
    assert set(kinds.values()) == {dtype}
    assert_agrees(actual, expected(x), dtype)


def test_large_random_biases() -> None:
    """Logits of size 1e4 are rounded 1e4 times as coarsely; the weights inherit it."""
    x = make(Case(n_q=40, n_k=30))
    assert x.bias is not None
    x = replace(x, bias=1e4 + x.bias)
    actual, wanted = results(x), expected(x)
    error = 1e4 * torch.finfo(torch.float64).eps
    for name, want in wanted.items():
        size = max(1.0, float(want.abs().amax()))
        assert float((actual[name] - want).abs().amax()) <= 8 * error * size, name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_q", "n_k"), [(150, 150), (150, 40), (40, 150)])
def test_unit_gain_and_zero_bias_equal_sdpa(n_q: int, n_k: int, causal: bool) -> None:
    x = make(Case(n_q=n_q, n_k=n_k, causal=causal))
    zeros = torch.zeros(1, n_q + n_k - 1, dtype=torch.float64)
    out, _ = chunked.forward(x.operands._replace(bias=zeros, gain=zeros + 1))
    want = scaled_dot_product_attention(x.q, x.k, x.v, is_causal=causal, scale=x.scale)
    torch.testing.assert_close(out, want, atol=1e-13, rtol=1e-13)


def test_equal_tokens() -> None:
    """With gain 1 no bias tells equal tokens apart; a strictly triangular gain does."""
    n = 140
    tokens = torch.randn(1, 2, 1, 4, dtype=torch.float64).expand(1, 2, n, 4)
    bias = 10 * torch.randn(2, 2 * n - 1, dtype=torch.float64)
    x = Operands(tokens, tokens, tokens, bias, bias**0, scale=0.5)
    rows, _ = chunked.forward(x)
    torch.testing.assert_close(rows, tokens, atol=1e-13, rtol=0)
    past = (torch.arange(2 * n - 1) >= n).to(torch.float64)[None]
    rows, _ = chunked.forward(x._replace(bias=None, gain=past))
    steps = rows.diff(dim=2) / tokens[:, :, 1:]
    torch.testing.assert_close(steps, torch.full_like(steps, 1 / n), atol=1e-13, rtol=0)


def test_keys_of_the_future_are_not_read() -> None:
    x = make(Case(n_q=5, n_k=9, causal=True))
    k, v = x.k.clone(), x.v.clone()
    k[:, :, 5:] = v[:, :, 5:] = math.nan
    actual = results(replace(x, k=k, v=v))
    assert_agrees(actual, expected(x), torch.float64)
    assert torch.all(actual["dk"][:, :, 5:] == 0)


def test_gradients_only_where_needed() -> None:
    x = make(Case())
    out, lse = chunked.forward(x.operands)
    wanted = expected(x)
    for needs_bias, needs_gain in [(False, False), (True, False), (False, True)]:
        incoming = Incoming(x.grad_out, out, lse, NO_TABLE, needs_bias, needs_gain)
        *_, dbias, dgain = chunked.backward(x.operands, incoming)
        assert (dbias is not None, dgain is not None) == (needs_bias, needs_gain)
        for gradient, name in ((dbias, "dbias"), (dgain, "dgain")):
            if gradient is not None:
                torch.testing.assert_close(gradient, wanted[name], atol=1e-12, rtol=0)


class Chunked(torch.autograd.Function):
    """The pair as a differentiable function, for finite differences."""

    @staticmethod
    def forward(ctx: Any, x: Inputs, *leaves: Tensor) -> Tensor:
        ctx.options = x.operands[5:]
        out, lse = chunked.forward(Operands._make((*leaves, *ctx.options)))
        ctx.save_for_backward(*leaves, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        *leaves, out, lse = ctx.saved_tensors
        incoming = Incoming(grad_outputs[0], out, lse, NO_TABLE, True, True)
        return None, *chunked.backward(Operands._make((*leaves, *ctx.options)), incoming)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    x = make(case)
    leaves = [
        y.clone().requires_grad_() for y in (x.q, x.k, x.v, x.bias, x.gain) if y is not None
    ]

    def attend(*y: Tensor) -> Any:
        return Chunked.apply(x, *y)

    with mock.patch.multiple(chunked, CHUNK=2):
        assert torch.autograd.gradcheck(attend, leaves)


def test_a_wrong_offset_is_noticed() -> None:
    """Negative control: a backward that looks offset r up at index r + n_k."""
    x = make(Case())
    assert x.bias is not None
    assert x.gain is not None
    out, lse = chunked.forward(x.operands)
    rolled = x.operands._replace(bias=x.bias.roll(-1, 1), gain=x.gain.roll(-1, 1))
    incoming = Incoming(x.grad_out, out, lse, NO_TABLE, True, True)
    dq, dk, dv, dbias, dgain = chunked.backward(rolled, incoming)
    assert dbias is not None
    assert dgain is not None
    wrong = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    wrong |= {"dbias": dbias.roll(1, 1), "dgain": dgain.roll(1, 1)}
    with pytest.raises(AssertionError, match=r"dq is off .* dbias is off .* dgain is off"):
        assert_agrees(wrong, expected(x), torch.float64)


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv", "dbias", "dgain"])
@pytest.mark.parametrize("change", [1e-9, math.nan])
def test_one_wrong_entry_is_noticed(name: str, change: float) -> None:
    """Negative control of the helper: no result goes uncompared."""
    wanted = expected(make(Case()))
    wrong = {key: value.clone() for key, value in wanted.items()}
    assert_agrees(wrong, wanted, torch.float64)
    wrong[name][(-1,) * wrong[name].dim()] += change
    with pytest.raises(AssertionError, match=name):
        assert_agrees(wrong, wanted, torch.float64)


class LargestStorage(TorchDispatchMode):
    """Notes the largest memory behind any tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return result


def test_nothing_of_size_n_squared_is_stored() -> None:
    n = 2048
    x = make(Case(batch=1, heads=2, n_q=n, n_k=n, d=8), torch.float32)
    with mock.patch.multiple(chunked, STEP_ENTRIES=1), LargestStorage() as memory:
        results(x)
    assert memory.largest <= 4 * chunked.CHUNK * (n + chunked.CHUNK)
    with LargestStorage() as memory:
        toeplitz_attention_reference(x.q, x.k, x.v, x.bias, x.gain)
    assert memory.largest >= 4 * 2 * n * n
