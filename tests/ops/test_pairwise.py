"""Attention with a bias and a gain for each pair: kernels, the CPU's path, refusals."""

import itertools
import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch
from tests.contracts.operator import EXACT, OperatorContract, laid_out, normal
from tests.ops.cases import assert_agrees
from tests.ops.operators import Operator, gap
from tests.ops.pairwise_cases import Pairs, expected, operator, results
from torch import Tensor

from everyformer.ops import pairwise_attention
from everyformer.ops.pairwise_attention import chunked, library
from everyformer.ops.pairwise_attention.reference import pairwise_attention_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def launch() -> Any:
    """The launcher; it imports Triton."""
    pytest.importorskip("triton")
    return import_module("everyformer.ops.pairwise_attention.launch")


AXES = ["".join(axes) for k in range(4) for axes in itertools.combinations("bhq", k)]
"""Every way of sharing, from "" (one row for all) to "bhq" (nothing shared)."""

KERNEL_CASES = {
    **{f"small {a!r}": Pairs(2, 3, 5, 7, bias=a, gain=a) for a in AXES},
    **{f"tiled {a!r}": Pairs(2, 2, 5, 65, bias=a, gain=a) for a in AXES},
    "batch and heads": Pairs(3, 2, 6, 5, bias="hq", gain="bq"),
    "all and nothing": Pairs(2, 2, 6, 5, bias="", gain="bhq"),
    "tiled, batch and heads": Pairs(2, 2, 66, 5, bias="bq", gain="hq"),
    "tiled, one row and nothing": Pairs(1, 2, 66, 5, bias="h", gain="bhq"),
    "causal": Pairs(2, 1, 9, 17, bias="hq", causal=True),
    "tiled, causal": Pairs(1, 2, 40, 70, bias="hq", causal=True),
    "tiled, causal, more queries": Pairs(2, 1, 70, 33, gain="hq", causal=True),
    "padding": Pairs(2, 2, 6, 9, bias="bq", gain="hq", padding=True),
    "tiled, padding": Pairs(2, 1, 33, 66, bias="bhq", gain="h", padding=True),
    "hidden": Pairs(2, 2, 6, 9, gain="hq", hidden=True),
    "tiled, hidden": Pairs(2, 1, 6, 66, gain="hq", hidden=True),
    "bias alone": Pairs(2, 1, 6, 9, gain=None, bias="hq"),
    "gain alone": Pairs(2, 1, 6, 66, bias=None, gain="hq"),
    "neither": Pairs(1, 1, 6, 9, bias=None, gain=None),
    "one key": Pairs(2, 1, 3, 1, bias="q"),
    "odd size": Pairs(1, 2, 3, 5, d=10),
    "whole tiles": Pairs(1, 1, 64, 64, bias="hq"),
    "wide heads": Pairs(1, 1, 3, 20, d=200),
}


def drawn(case: Pairs, dtype: torch.dtype = torch.float32) -> Any:
    given = case.operands(dtype)
    return given._make(y.to(DEVICE) if isinstance(y, Tensor) else y for y in given)


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_kernels(launch: Any, name: str) -> None:
    """Output and every gradient against float64; interpreted without a GPU."""
    x = drawn(KERNEL_CASES[name])
    found = results(launch, x)
    found["lse"] = found["lse"] * math.log(2)
    if x.k.shape[2] == 1:  # `paths` sets these to the 0 that they are
        found |= {name: 0 * found[name] for name in ("dq", "dk", "dbias")}
    assert_agrees(found, expected(x), torch.float32)


CHUNKED_CASES = {
    **{repr(a): Pairs(2, 3, 5, 7, bias=a, gain=a, d=3) for a in AXES},
    "steps": Pairs(2, 2, 130, 9, bias="hq", gain="bq", d=3, causal=True, padding=True),
    "hidden": Pairs(2, 2, 6, 9, gain="h", hidden=True),
    "causal, more keys": Pairs(1, 2, 5, 9, bias="q", causal=True),
    "neither": Pairs(1, 1, 6, 9, bias=None, gain=None),
}


@pytest.mark.parametrize("small_steps", [False, True])
@pytest.mark.parametrize("name", CHUNKED_CASES)
def test_chunks(name: str, small_steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, also by steps of four queries and one head."""
    if small_steps:
        monkeypatch.setattr(chunked, "CHUNK", 4)
        monkeypatch.setattr(chunked, "STEP_ENTRIES", 1)
    x = CHUNKED_CASES[name].operands()
    assert_agrees(results(chunked, x), expected(x), torch.float64)


def _always(q: Tensor) -> bool:
    return True


class TestPairwiseAttention(OperatorContract):
    """What every operator must do."""

    small: ClassVar[dict[str, Operator]] = {
        "nothing shared": operator(Pairs(1, 2, 3, 4, 2)),
        "shared": operator(Pairs(2, 2, 3, 4, 2, bias="hq", gain="bq", padding=True)),
        "rows": operator(Pairs(2, 1, 4, 3, 2, bias="b", gain="", causal=True)),
        "hidden": operator(Pairs(2, 1, 3, 4, 2, bias="q", gain=None, hidden=True)),
        "gain": operator(Pairs(2, 1, 3, 3, 1, bias=None, gain="hq")),
    }
    infinite = "hidden"
    longer: ClassVar[dict[str, Operator]] = {
        "rectangle": operator(Pairs(2, 2, 9, 13, 3, bias="q", padding=True)),
        "steps": operator(Pairs(2, 2, 130, 7, 3, gain="h", causal=True)),
    }
    interpreted = operator(Pairs(2, 1, 5, 7, bias="hq", gain="b", padding=True))

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.pairwise_attention.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        q, k, v = (laid_out(layout, 2, 2, n, 4).detach() for n in (5, 7, 7))
        bias = normal(1, 5, 7, q.shape[1]).movedim(-1, 1)
        gain = normal(q.shape[0], 1, 5, 14)[..., ::2]
        padded = torch.zeros(q.shape[0], 7, dtype=torch.bool)
        padded[:, 6] = True
        x = (*(y.requires_grad_() for y in (q, k, v, bias, gain)), padded, True, 0.3)
        yield library.forward_op, x
        with torch.no_grad():
            out, lse = library.forward_op(*x)
        grad = laid_out(layout, 2, 2, 5, 4).detach().requires_grad_()
        yield library.gradients_op, (*x, grad, out, lse, True, True)


@pytest.mark.compile
def test_compiled() -> None:
    """As one graph, forward and backward, with the layout of heads that layers have."""
    torch.compiler.reset()
    x, table, gain = normal(2, 9, 12), normal(9, 9, 3), normal(2, 1, 9, 9)
    leaves = [y.requires_grad_() for y in (x, table, gain)]

    def model(attend: Any) -> Any:
        def called(x: Tensor, table: Tensor, gain: Tensor) -> Tensor:
            q = x.unflatten(-1, (3, 4)).transpose(1, 2)
            bias = table.sin().movedim(-1, 0)[None]
            return attend(q, q.cos(), q * q, bias, gain, causal=True).sin()

        return called

    fast, plain = model(pairwise_attention), model(pairwise_attention_reference)
    out, wanted = torch.compile(fast, fullgraph=True)(*leaves), plain(*leaves)
    one, two = (torch.autograd.grad(y.square().sum(), leaves) for y in (out, wanted))
    assert gap((out, one), (wanted, two)) <= EXACT
