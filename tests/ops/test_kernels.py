"""The Triton kernels against the float64 specification; interpreted without a GPU."""

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.ops.cases import (
    Case,
    Inputs,
    Results,
    assert_agrees,
    cases,
    expected,
    inputs,
)
from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import Incoming, Operands

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.importorskip("triton")


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    return import_module("everyformer.ops.toeplitz_attention.launch")


CASES = {
    "square": Case(1, 2, 70, 70, 16),
    "one token": Case(2, 1, 1, 1, 16),
    "whole tiles": Case(1, 1, 128, 128, 16),
    "causal": Case(2, 1, 65, 65, 16, causal=True),
    "causal, more keys": Case(1, 1, 40, 100, 16, causal=True),
    "causal, more queries": Case(1, 1, 100, 33, 16, causal=True),
    "padding": Case(2, 1, 50, 70, 16, padding="all"),
    "odd size": Case(1, 2, 33, 40, 24),
    "bias alone": Case(1, 2, 40, 40, 16, gain="none"),
    "gain alone": Case(1, 2, 40, 40, 16, bias="none"),
    "neither": Case(1, 2, 40, 40, 16, bias="none", gain="none"),
    "shared by heads": Case(2, 2, 40, 40, 16, gain="shared"),
    "gain zero": Case(1, 1, 40, 40, 16, gain="zero"),
    "large bias": Case(1, 1, 40, 40, 16, bias="large"),
    "one query, cache, group": Case(
        1, 2, 1, 70, 16, causal=True, offset=69, group=2, mask="keys"
    ),
    "cache": Case(1, 1, 40, 75, 16, causal=True, offset=35),
    "offset beyond": Case(1, 1, 40, 33, 16, causal=True, offset=50, gain="none"),
    "offset below": Case(1, 1, 70, 40, 16, causal=True, offset=-40),
    "nothing seen": Case(1, 1, 33, 20, 16, causal=True, offset=-33),
    "group": Case(2, 4, 33, 40, 16, group=2, padding="some", bias="shared"),
    "one head of keys": Case(1, 3, 33, 33, 16, group=3, causal=True),
    "mask": Case(2, 2, 33, 40, 16, mask="bool"),
    "mask of rows": Case(1, 1, 40, 33, 16, mask="rows", causal=True, offset=3),
    "mask of heads": Case(1, 2, 33, 40, 16, mask="heads", group=2),
    "added mask": Case(2, 2, 33, 40, 16, mask="added", bias="none"),
    "lowest mask": Case(1, 1, 33, 40, 16, mask="lowest", gain="none", padding="some"),
    "packed": Case(1, 2, 100, 100, 16, sequences=(20, 1, 0, 60, 19)),
    "packed, causal, group": Case(
        1, 2, 70, 70, 16, sequences=(40, 30), causal=True, group=2, mask="added"
    ),
    "dropout": Case(2, 2, 33, 40, 16, dropout=0.3),
    "dropout, all": Case(
        1, 2, 40, 70, 16, dropout=0.5, causal=True, offset=30, group=2, mask="bool",
        gain="none", seed=9,
    ),
}  # fmt: skip


def drawn(name: str) -> Inputs:
    return inputs(replace(CASES[name], scale=0.3), torch.float32)


def results(launch: Any, x: Inputs) -> Results:
    """Those of the kernels."""
    given = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in x.operands)
    needs = x.bias is not None, x.gain is not None
    with torch.no_grad():
        out, lse, table = launch.forward(given)
        incoming = Incoming(x.grad_out.to(DEVICE), out, lse, table, *needs)
        gradients = launch.backward(given, incoming)
    found = {"out": out, "lse": lse * math.log(2)}
    found |= dict(zip(("dq", "dk", "dv", "dbias", "dgain"), gradients, strict=True))
    return {name: tensor.cpu() for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(launch: Any, name: str) -> None:
    x = drawn(name)
    assert_agrees(results(launch, x), expected(x), torch.float32)


def test_a_shifted_table_is_noticed(launch: Any) -> None:
    x = drawn("square")
    assert x.gain is not None
    shifted = replace(x, gain=x.gain.roll(1, dims=-1))
    with pytest.raises(AssertionError, match=r"out is off .* dq is off .* dbias is off"):
        assert_agrees(results(launch, shifted), expected(x), torch.float32)


def test_two_runs_are_bit_identical(launch: Any) -> None:
    x = drawn("padding")
    first, second = results(launch, x), results(launch, x)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_frozen_vectors_do_not_launch_the_third_kernel(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = drawn("square")
    given = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in x.operands)
    monkeypatch.setattr(launch.kernels, "diagonal_kernel", None)
    with torch.no_grad():
        out, lse, table = launch.forward(given)
        frozen = Incoming(x.grad_out.to(DEVICE), out, lse, table[:0], False, False)
        *_, dbias, dgain = launch.backward(given, frozen)
        assert dbias is None
        assert dgain is None
        with pytest.raises(AttributeError, match="NoneType"):
            launch.backward(given, frozen._replace(needs_bias=True))


def test_strides_are_respected(launch: Any) -> None:
    """Heads and tokens exchanged, as in (b, n, h, d) tensors: no copy is needed."""
    x = drawn("square")
    q, k, v = (y.transpose(1, 2).contiguous().transpose(1, 2) for y in (x.q, x.k, x.v))
    assert not q.is_contiguous()
    found = results(launch, replace(x, q=q, k=k, v=v))
    assert_agrees(found, expected(x), torch.float32)


@given(cases(longest=18))
@settings(max_examples=5, deadline=None)
def test_any_shape(case: Case) -> None:
    """Random lengths, head sizes and options; every gradient. One head: interpreted."""
    case = replace(case, batch=1, heads=case.group)
    if case.bias == "steep":  # float32 rounds logits of 1e5 by more than the tolerance
        case = replace(case, bias="normal")
    launched = import_module("everyformer.ops.toeplitz_attention.launch")
    x = inputs(case, torch.float32)
    assert_agrees(results(launched, x), expected(x), torch.float32)
