"""Attention with a bias and a gain for each pair, on a GPU: every dtype, memory, bits."""

from typing import Any

import pytest
import torch
from tests.ops.cases import TOLERANCE
from tests.ops.pairwise_cases import NAMES, Pairs, expected, options, upstream
from torch import Tensor

from everyformer.bench.pairwise import gate
from everyformer.layers import Graphormer, RelativeAttention
from everyformer.layers.gains import GraphGain
from everyformer.layers.graphs.graph import Graph
from everyformer.ops import pairwise_attention
from everyformer.ops.dropping import kept_pairs
from everyformer.ops.pairwise_attention.operands import Operands

pytestmark = pytest.mark.gpu

AXES = ["", "h", "hq", "bq", "bhq"]
CASES = {
    **{f"38, {a!r}": Pairs(5, 3, 38, 38, 10, bias=a, gain=a) for a in AXES},
    **{f"200, {a!r}": Pairs(3, 2, 200, 130, 64, bias=a, gain=a) for a in AXES},
    "small, apart": Pairs(4, 2, 49, 64, 32, bias="hq", gain="bq", padding=True),
    "small, causal": Pairs(4, 2, 64, 17, 16, bias="hq", gain=None, causal=True),
    "small, wide": Pairs(4, 2, 33, 64, 128, bias="hq", hidden=True),
    "small, dropout": Pairs(4, 2, 38, 38, 16, gain="hq", dropout=0.3),
    "tiled, apart": Pairs(2, 3, 127, 300, 40, bias="bq", gain="h", padding=True),
    "tiled, causal": Pairs(2, 2, 512, 512, 64, bias="hq", causal=True),
    "tiled, hidden": Pairs(2, 2, 300, 100, 128, gain="hq", hidden=True),
    "tiled, dropout": Pairs(2, 2, 200, 130, 64, bias="hq", gain=None, dropout=0.3),
    "whole tiles": Pairs(2, 2, 256, 256, 64, bias="hq", gain="hq"),
    "256": Pairs(1, 2, 70, 100, 256, bias="hq"),
    "neither": Pairs(1, 2, 70, 100, 64, bias=None, gain=None),
    "one key": Pairs(2, 2, 70, 1, 64, bias="hq"),
}
OTHERS = {
    torch.float32: ("small, apart", "tiled, apart", "whole tiles", "256", "38, 'bhq'"),
    torch.float16: ("small, apart", "tiled, apart"),
}
CALLS = [(name, torch.bfloat16) for name in CASES]
CALLS += [(name, dtype) for dtype, names in OTHERS.items() for name in names]
"""Each compiles several kernels."""


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    *,
    causal: bool,
    scale: float,
    key_padding: Tensor | None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """As one writes it in PyTorch, every product in the dtype of q."""
    scores = q @ k.mT * scale
    if bias is not None:
        scores = scores + bias.to(q.dtype)
    if causal:
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if key_padding is not None:
        scores = scores.masked_fill(key_padding[:, None, None], float("-inf"))
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if seed is not None:
        weights = weights * kept_pairs(weights, seed, dropout)
    return (weights if gain is None else weights * gain.to(q.dtype)) @ v


def on_gpu(x: Operands) -> Operands:
    return x._make(y.cuda() if isinstance(y, Tensor) else y for y in x)


def found(function: Any, x: Operands) -> dict[str, Tensor]:
    """The output and all gradients."""
    leaves = [None if y is None else y.clone().requires_grad_() for y in x[:5]]
    out = function(*leaves, **options(x))
    there = {f"d{k}": y for k, y in zip(NAMES, leaves, strict=True) if y is not None}
    gradients = torch.autograd.grad(out, list(there.values()), upstream(x))
    return {"out": out.detach()} | dict(zip(there, gradients, strict=True))


@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_error_is_at_most_twice_that_of_eager(name: str, dtype: torch.dtype) -> None:
    """Or half of the tolerance, where eager is close to exact; and two runs alike."""
    x = on_gpu(CASES[name].operands(dtype))
    x = x._replace(
        **{k: y.float() for k in ("bias", "gain") if (y := getattr(x, k)) is not None}
    )
    wanted = expected(x)
    ours, again, theirs = (
        found(pairwise_attention, x),
        found(pairwise_attention, x),
        found(eager, x),
    )
    for key, result in ours.items():
        assert torch.equal(result, again[key]), f"{key} differs from run to run"
        exact = wanted[key].cuda()
        largest = max(1.0, float(exact.abs().max()))
        mine, other = (
            float((y.double() - exact).abs().max()) / largest for y in (result, theirs[key])
        )
        assert mine <= max(2 * other, TOLERANCE[dtype] / 2), (
            f"{key}: {mine:.1e}, {other:.1e}"
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_of_bias_and_gain(dtype: torch.dtype) -> None:
    """Each gradient has that of its matrix."""
    x = on_gpu(Pairs(2, 2, 70, 70, 64, bias="hq").operands(torch.bfloat16))
    assert x.bias is not None
    leaf = x.bias.to(dtype).requires_grad_()
    out = pairwise_attention(x.q, x.k, x.v, leaf, x.gain)
    (gradient,) = torch.autograd.grad(out.sum(), leaf)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("bias", "size"), [("hq", 4), ("bq", 16)])
def test_memory(bias: str, size: int) -> None:
    """A bias that a batch or the heads share costs no n^2 for each of them."""
    n = 1024
    x = on_gpu(Pairs(16, 4, 1, 1, 64, bias=None, gain=None).operands(torch.bfloat16))
    q = x.q.expand(16, 4, n, 64).contiguous().requires_grad_()
    shape = (16 if "b" in bias else 1, 4 if "h" in bias else 1, n, n)
    leaf = torch.zeros(shape, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = pairwise_attention(q, q, q, leaf)
    torch.autograd.grad(out, (q, leaf), torch.ones_like(out))
    spent = torch.cuda.max_memory_allocated() - before
    assert spent < size * n * n * 4 + 8 * q.numel() * 2 + 17 * 2**20
    assert spent < 64 * n * n * 4, "less than one matrix for each head of each sequence"


def test_more_heads_than_a_grid_has_rows() -> None:
    """Windows of large images: b h > 65,535."""
    q = torch.randn(9000, 8, 4, 16, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(1, 8, 4, 4, device="cuda")
    ours, theirs = (
        f(q, q, q, bias, None, causal=False, scale=0.25, key_padding=None)
        for f in (pairwise_attention, eager)
    )
    assert (ours - theirs).abs().max() < 0.05


def test_compiled_and_captured() -> None:
    """One graph for the compiler, and a CUDA graph with the same bits."""
    x = on_gpu(Pairs(4, 2, 38, 38, 16, bias="bhq", gain="hq").operands(torch.bfloat16))
    leaves = [y.requires_grad_() for y in x[:5] if y is not None]

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        out = pairwise_attention(*given)
        return out, *torch.autograd.grad(out, given, torch.ones_like(out))

    wanted = step(*leaves)
    compiled = torch.compile(pairwise_attention, fullgraph=True)
    torch.testing.assert_close(compiled(*leaves), wanted[0])
    fresh = [y.detach().requires_grad_() for y in leaves]  # known to no other stream
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))


def test_graphormer_layer() -> None:
    """The layer on the GPU beside plain torch."""
    torch.manual_seed(0)
    layer = RelativeAttention(64, 4, encoding=Graphormer(4, 5), gain=GraphGain(4, 5)).cuda()
    x = torch.randn(3, 38, 64, device="cuda", requires_grad=True)
    graph = Graph(torch.randint(-2, 6, (3, 38, 38), device="cuda"))
    leaves = [x, *layer.parameters()]
    results: list[tuple[Tensor, ...]] = []
    for layer.implementation in ("auto", "reference"):
        out = layer(x, graph=graph)
        results.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-4, atol=2e-4)


def test_gate() -> None:
    assert gate("cuda")
