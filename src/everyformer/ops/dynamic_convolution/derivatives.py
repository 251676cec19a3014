"""What `torch.func` knows of the operator: derivatives both ways, and vmap.

The convolution, its transpose and its gradient by the filters are bilinear, and each is a
derivative of the others (README). Several copies of a problem are one with more sequences.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.copies import Dims
from everyformer.ops.dynamic_convolution import paths


class Mix(torch.autograd.Function):
    """C(x, weights), or B(x, weights) with `back`."""

    @staticmethod
    def forward(x: Tensor, weights: Tensor, left: int, back: bool) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the fastest path."""
        return paths.mix(x, weights, left, back)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep both factors."""
        x, weights, ctx.left, ctx.back = inputs
        ctx.save_for_backward(x, weights)
        ctx.save_for_forward(x, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the other two operators, as the module says."""
        return pull_back(ctx, grad, Mix.apply, Band.apply)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dw: Tensor | None, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The product rule."""
        x, weights = ctx.saved_tensors
        found: list[Any] = []
        if dx is not None:
            found.append(Mix.apply(dx, weights, ctx.left, ctx.back))
        if dw is not None:
            found.append(Mix.apply(x, dw, ctx.left, ctx.back))
        return torch.stack(found).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By more sequences."""
        return _by_sequences(Mix, info.batch_size, in_dims, given)


class Band(torch.autograd.Function):
    """G(grad, x)."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the fastest path."""
        return paths.band(grad, x, count, length, left)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep both factors."""
        grad, x, ctx.count, ctx.length, ctx.left = inputs
        ctx.save_for_backward(grad, x)
        ctx.save_for_forward(grad, x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the other two operators, as the module says."""
        return pull_back_band(ctx, upstream, Mix.apply)

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dx: Tensor | None, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The product rule."""
        grad, x = ctx.saved_tensors
        found: list[Any] = []
        sizes = (ctx.count, ctx.length, ctx.left)
        if dgrad is not None:
            found.append(Band.apply(dgrad, x, *sizes))
        if dx is not None:
            found.append(Band.apply(grad, dx, *sizes))
        return torch.stack(found).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By more sequences."""
        return _by_sequences(Band, info.batch_size, in_dims, given)


def _by_sequences(function: Any, copies: int, in_dims: Dims, given: Any) -> Any:
    """Both tensors with the copies before the sequences, and one call."""
    both = [
        (x.expand(copies, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
        for x, dim in zip(given[:2], in_dims, strict=False)
    ]
    found = function.apply(*both, *given[2:])
    return found.unflatten(0, (copies, -1)), 0


def pull_back(ctx: Any, grad: Tensor, mix: Any, band: Any) -> tuple[Tensor | None, ...]:
    """By the tokens the transpose; by the filters the band."""
    x, weights = ctx.saved_tensors
    count, length = weights.shape[2:]
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = mix(grad, weights, ctx.left, not ctx.back)
    if ctx.needs_input_grad[1]:
        rows, inputs = (x, grad) if ctx.back else (grad, x)
        dw = band(rows, inputs, count, length, ctx.left).to(weights.dtype)
    return dx, dw, None, None


def pull_back_band(ctx: Any, upstream: Tensor, mix: Any) -> tuple[Tensor | None, ...]:
    """G is linear in both: `upstream` takes the place of the filters."""
    grad, x = ctx.saved_tensors
    dgrad = dx = None
    if ctx.needs_input_grad[0]:
        dgrad = mix(x, upstream, ctx.left, False)
    if ctx.needs_input_grad[1]:
        dx = mix(grad, upstream, ctx.left, True)
    return dgrad, dx, None, None, None
