"""Every operator beside its reference, for tests of derivatives and of `torch.func`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.ops.cases import Case, inputs
from tests.ops.references import toeplitz_attention_reference
from torch import Tensor
from torch.utils._pytree import tree_leaves

from everyformer import patterns
from everyformer.ops import (
    dynamic_convolution,
    light_convolution,
    sparse_attention,
    toeplitz_attention,
)
from everyformer.ops.dynamic_convolution import reference as plain_dynamic
from everyformer.ops.light_convolution import reference as plain_convolution
from everyformer.ops.sparse_attention.reference import sparse_attention_reference

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Operator:
    """An operator as a function of the tensors that have derivatives, and its reference."""

    fast: Function
    plain: Function
    tensors: tuple[Tensor, ...]

    def leaves(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Any:
        """Copies that have gradients."""
        return [x.to(device, dtype, copy=True).requires_grad_() for x in self.tensors]


def toeplitz(case: Case) -> Operator:
    """With the vectors that the case has."""
    x = inputs(case)
    names = [name for name in ("bias", "gain") if getattr(x, name) is not None]

    def calling(function: Any) -> Function:
        def called(q: Tensor, k: Tensor, v: Tensor, *vectors: Tensor) -> Tensor:
            given = dict(zip(names, vectors, strict=True))
            return function(q, k, v, **given, **x.options(str(q.device)))

        return called

    vectors = [getattr(x, name) for name in names]
    tensors = (x.q, x.k, x.v, *vectors)
    fast, plain = calling(toeplitz_attention), calling(toeplitz_attention_reference)
    return Operator(fast, plain, tensors)


def sparse(
    part: patterns.Part, padding: str = "none", d: int = 2, dropout: float = 0.0
) -> Operator:
    """Over a part."""
    x = inputs(Case(2, 1, part.n, part.n, d, padding=padding))  # type: ignore[arg-type]

    def calling(function: Any) -> Function:
        def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            padded = None if x.key_padding is None else x.key_padding.to(q.device)
            dropped = {"dropout": dropout, "seed": torch.tensor([7**20], device=q.device)}
            return function(q, k, v, part, scale=0.7, key_padding=padded, **dropped)

        return called

    tensors = (x.q, x.k, x.v)
    return Operator(calling(sparse_attention), calling(sparse_attention_reference), tensors)


def convolution(n: int, d: int, filters: int, length: int) -> Operator:
    """With (length - 1) // 2 zeros on the left."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, n, d, generator=random, dtype=torch.float64)
    f = torch.randn(filters, length, generator=random, dtype=torch.float64)

    def plain(x: Tensor, f: Tensor) -> Tensor:
        return plain_convolution.convolve(x, f, (length - 1) // 2)

    return Operator(light_convolution, plain, (x, f))


def dynamic(n: int, d: int, filters: int, length: int) -> Operator:
    """Filters for each token, with (length - 1) // 2 zeros on the left."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, n, d, generator=random, dtype=torch.float64)
    f = torch.randn(2, n, filters, length, generator=random, dtype=torch.float64)

    def plain(x: Tensor, f: Tensor) -> Tensor:
        return plain_dynamic.mix(x, f, (length - 1) // 2, False)

    return Operator(dynamic_convolution, plain, (x, f))


def slopes(function: Function, leaves: list[Tensor], order: int) -> list[Tensor]:
    """Gradients of a number made of the output, of the given order: each of the last ones.

    The second is the Hessian times the gradient, the third goes on in the same way.
    """
    value = function(*leaves).sin().sum()
    found: tuple[Tensor, ...] = ()
    for step in range(order):
        more = step + 1 < order
        found = torch.autograd.grad(
            value, leaves, create_graph=more, materialize_grads=True
        )
        if more:
            value = torch.stack([x.square().sum() for x in found]).sum()
    return list(found)


def gap(found: Any, wanted: Any) -> float:
    """The largest difference of two nests of tensors, relative to the largest or 1."""
    ones, twos = (tree_leaves(x) for x in (found, wanted))
    assert len(ones) == len(twos)
    gaps: list[float] = []
    for one, two in zip(ones, twos, strict=True):
        assert one.shape == two.shape
        one, two = one.detach().cpu().double(), two.detach().cpu().double()
        gaps.append(float((one - two).abs().max()) / max(1.0, float(two.abs().max())))
    return float("nan") if any(x != x for x in gaps) else max(gaps)
