"""The Triton kernels against the float64 specification; interpreted without a GPU."""

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.ops.cases import Case, assert_agrees, cases, expected, inputs
from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.reference import toeplitz_attention_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.importorskip("triton")


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    return import_module("everyformer.ops.toeplitz_attention.launch")


CASES = {
    "square": {"b": 1, "h": 2, "n_q": 70, "n_k": 70, "d": 16},
    "one token": {"b": 2, "h": 1, "n_q": 1, "n_k": 1, "d": 16},
    "whole tiles": {"b": 1, "h": 1, "n_q": 128, "n_k": 128, "d": 16},
    "causal": {"b": 2, "h": 1, "n_q": 65, "n_k": 65, "d": 16, "causal": True},
    "causal, more keys": {"b": 1, "h": 1, "n_q": 40, "n_k": 100, "d": 16, "causal": True},
    "causal, more queries": {
        "b": 1,
        "h": 1,
        "n_q": 100,
        "n_k": 33,
        "d": 16,
        "causal": True,
    },
    "padding": {"b": 2, "h": 1, "n_q": 50, "n_k": 70, "d": 16, "padding": True},
    "odd size": {"b": 1, "h": 2, "n_q": 33, "n_k": 40, "d": 24},
    "bias alone": {"b": 1, "h": 2, "n_q": 40, "n_k": 40, "d": 16, "gain": None},
    "gain alone": {"b": 1, "h": 2, "n_q": 40, "n_k": 40, "d": 16, "bias": None},
    "neither": {"b": 1, "h": 2, "n_q": 40, "n_k": 40, "d": 16, "bias": None, "gain": None},
    "shared by heads": {"b": 2, "h": 2, "n_q": 40, "n_k": 40, "d": 16, "gain": "shared"},
    "gain zero": {"b": 1, "h": 1, "n_q": 40, "n_k": 40, "d": 16, "gain": "zero"},
    "large bias": {"b": 1, "h": 1, "n_q": 40, "n_k": 40, "d": 16, "bias": "large"},
}


def made(case: dict[str, Any]) -> dict[str, Any]:
    """Tensors for a case: float32, all that can have a gradient having one."""
    generator = torch.Generator().manual_seed(0)
    b, h, n_q, n_k, d = (case[key] for key in ("b", "h", "n_q", "n_k", "d"))

    def normal(*shape: int, factor: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=generator) * factor
        return drawn.to(DEVICE).requires_grad_()

    kinds = {"own": (h, 1.0), "shared": (1, 1.0), "zero": (h, 0.0), "large": (h, 30.0)}
    vectors = {
        name: None
        if case.get(name, "own") is None
        else normal(
            kinds[case.get(name, "own")][0],
            n_q + n_k - 1,
            factor=kinds[case.get(name, "own")][1],
        )
        for name in ("bias", "gain")
    }
    padding = None
    if case.get("padding"):
        padding = (torch.rand(b, n_k, generator=generator) < 0.3).to(DEVICE)
        padding[0] = True  # a sequence without any key
    return {
        "q": normal(b, h, n_q, d),
        "k": normal(b, h, n_k, d),
        "v": normal(b, h, n_k, d),
        **vectors,
        "causal": case.get("causal", False),
        "key_padding": padding,
        "upstream": normal(b, h, n_q, d).detach(),
    }


def exact(x: dict[str, Any]) -> list[Tensor | None]:
    """The output and the five gradients of the specification, in float64."""
    names = ("q", "k", "v", "bias", "gain")
    leaves: dict[str, Any] = {
        name: None if x[name] is None else x[name].detach().double().requires_grad_()
        for name in names
    }
    out = toeplitz_attention_reference(
        *leaves.values(), causal=x["causal"], key_padding=x["key_padding"], scale=0.3
    )
    given = [leaf for leaf in leaves.values() if leaf is not None]
    found = iter(torch.autograd.grad(out, given, x["upstream"].double()))
    return [out.detach(), *(None if leaves[n] is None else next(found) for n in names)]


def ours(launch: Any, x: dict[str, Any]) -> list[Tensor | None]:
    """The same by the kernels."""
    given = operands(x)
    needs = given.bias is not None, given.gain is not None
    with torch.no_grad():
        out, lse, table = launch.forward(given)
        incoming = Incoming(x["upstream"], out, lse, table, *needs)
        return [out, *launch.backward(given, incoming)]


def operands(x: dict[str, Any]) -> Operands:
    names = ("q", "k", "v", "bias", "gain", "key_padding", "causal")
    return Operands(*(x[name] for name in names), scale=0.3)


def gap(found: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """The largest error, as a share of the largest entry and 1; infinite for NaN."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        assert a.shape == b.shape
        size = max(float(b.abs().max()), 1.0)
        error = float((a.double() - b).abs().max()) / size
        worst = max(worst, error if error == error else float("inf"))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(launch: Any, name: str) -> None:
    x = made(CASES[name])
    assert gap(ours(launch, x), exact(x)) < 2e-5


def test_a_shifted_table_is_noticed(launch: Any) -> None:
    x = made(CASES["square"])
    shifted = x | {"gain": x["gain"].roll(1, dims=-1)}
    assert gap(ours(launch, shifted), exact(x)) > 1e-2


def test_two_runs_are_bit_identical(launch: Any) -> None:
    x = made(CASES["padding"])
    first, second = ours(launch, x), ours(launch, x)
    for a, b in zip(first, second, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def test_frozen_vectors_do_not_launch_the_third_kernel(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = made(CASES["square"])
    monkeypatch.setattr(launch.kernels, "_diagonal_kernel", None)
    with torch.no_grad():
        out, lse, _ = launch.forward(operands(x))
        empty = out.new_empty(0)
        frozen = Incoming(x["upstream"], out, lse, empty, False, False)
        *_, dbias, dgain = launch.backward(operands(x), frozen)
        assert dbias is None
        assert dgain is None
        with pytest.raises(AttributeError, match="NoneType"):
            launch.backward(operands(x), frozen._replace(needs_bias=True))


def test_strides_are_respected(launch: Any) -> None:
    """Heads and tokens exchanged, as in (b, n, h, d) tensors: no copy is needed."""
    x = made(CASES["square"])
    turned = {
        name: x[name].detach().transpose(1, 2).contiguous().transpose(1, 2)
        for name in ("q", "k", "v")
    }
    assert not turned["q"].is_contiguous()
    assert gap(ours(launch, x | turned), exact(x)) < 2e-5


@given(cases(longest=18))
@settings(max_examples=5, deadline=None)
def test_any_shape(case: Case) -> None:
    """Random lengths, head sizes and options; every gradient. One head: interpreted."""
    case = replace(case, batch=1, heads=1)
    if case.bias == "steep":  # float32 rounds logits of 1e5 by more than the tolerance
        case = replace(case, bias="normal")
    launched = import_module("everyformer.ops.toeplitz_attention.launch")
    drawn = inputs(case, torch.float32)
    x = Operands._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in drawn.operands)
    needs = drawn.bias is not None, drawn.gain is not None
    with torch.no_grad():
        out, lse, table = launched.forward(x)
        incoming = Incoming(drawn.grad_out.to(DEVICE), out, lse, table, *needs)
        *dqkv, dbias, dgain = launched.backward(x, incoming)
    named = {"out": out, "lse": lse * math.log(2), "dbias": dbias, "dgain": dgain}
    named |= dict(zip(("dq", "dk", "dv"), dqkv, strict=True))
    found = {name: tensor.cpu() for name, tensor in named.items() if tensor is not None}
    assert_agrees(found, expected(drawn), torch.float32)
