"""Attention from its formula, one pair of tokens at a time: what the layers must equal."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from everyformer.layers import Graph, RelativeAttention

EXACT = 1e-12
"""Largest deviation in float64, of outputs and gradients."""


@dataclass
class Rule:
    """What one kind of attention is, for head h, query i, key j of sample b."""

    score: Callable[[int, int, int, int, Tensor, Tensor], Tensor]
    gain: Callable[[int, int, int, int], Tensor | float] = lambda b, h, i, j: 1.0
    value: Callable[[int, int, int], Tensor | float] = lambda h, i, j: 0.0


def plain_attention(
    layer: RelativeAttention, x: Tensor, rule: Rule, padded: Tensor | None = None
) -> Tensor:
    """The layer's weights, the rule's formula, and loops."""
    batch, n, width = x.shape
    d = width // layer.num_heads
    W, c = layer.in_proj_weight, layer.in_proj_bias

    def part(which: int, h: int, token: Tensor) -> Tensor:
        rows = slice(which * width + h * d, which * width + (h + 1) * d)
        return W[rows] @ token + (0.0 if c is None else c[rows])

    outputs: list[Tensor] = []
    for b in range(batch):
        for i in range(n):
            heads: list[Tensor] = []
            for h in range(layer.num_heads):
                seen = [
                    j
                    for j in range(n)
                    if (j <= i or not layer.causal)
                    and not (padded is not None and padded[b, j])
                ]
                if not seen:
                    heads.append(x.new_zeros(d))
                    continue
                q = part(0, h, x[b, i])
                logits = [rule.score(b, h, i, j, q, part(1, h, x[b, j])) for j in seen]
                top = max(float(t.detach()) for t in logits)
                exps = [torch.exp(t - top) for t in logits]
                total = torch.stack(exps).sum()
                mixed = x.new_zeros(d)
                for j, e in zip(seen, exps, strict=True):
                    v = part(2, h, x[b, j]) + rule.value(h, i, j)
                    mixed = mixed + e / total * rule.gain(b, h, i, j) * v
                heads.append(mixed)
            out = layer.out_proj.weight @ torch.cat(heads)
            outputs.append(out if c is None else out + layer.out_proj.bias)
    return torch.stack(outputs).reshape(x.shape)


def randomise(module: nn.Module, seed: int = 0, size: float = 0.5) -> None:
    """Fill all parameters with normal numbers, so that every one matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * size)


def tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def some_padding(batch: int, n: int) -> Tensor:
    """Sample 0 whole; the others without the first and the last token."""
    padded = torch.zeros(batch, n, dtype=torch.bool)
    padded[1:, 0] = padded[1:, -1] = True
    return padded


def assert_equal_with_gradients(
    layer: RelativeAttention,
    rule: Rule,
    x: Tensor,
    *,
    padded: Tensor | None = None,
    graph: Graph | None = None,
) -> None:
    """The same outputs, and the same gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    names = ["x", *(name for name, _ in layer.named_parameters())]
    given = [x, *layer.parameters()]
    out = layer(x, key_padding_mask=padded, graph=graph)
    expected = plain_attention(layer, x, rule, padded)
    assert out.isfinite().all()
    assert (out - expected).abs().max() <= EXACT
    direction = tokens(*out.shape, seed=5)
    for name, *pair in zip(
        names,
        torch.autograd.grad((out * direction).sum(), given, materialize_grads=True),
        torch.autograd.grad((expected * direction).sum(), given, materialize_grads=True),
        strict=True,
    ):
        ours, theirs = pair
        size = max(1.0, float(theirs.abs().max()))
        assert float((ours - theirs).abs().max()) <= EXACT * size, name


def sqrt_scale(layer: RelativeAttention, terms: int = 1) -> float:
    return 1 / math.sqrt(terms * layer.head_dim)
