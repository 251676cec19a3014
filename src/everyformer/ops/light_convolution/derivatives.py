"""What `torch.func` knows of the operator: derivatives both ways, and vmap.

Convolution and its gradient by the filters are bilinear, and each is the derivative of the
other: with y = x * f, dx is a convolution of dy with f turned round, and df the gradient.
Several copies of a problem are one with more dimensions and as many more filters.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.copies import Dims
from everyformer.ops.light_convolution import paths


class Convolve(torch.autograd.Function):
    """x * filters."""

    @staticmethod
    def forward(x: Tensor, filters: Tensor, left: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the fastest path."""
        return paths.convolve(x, filters, left)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep both factors."""
        x, filters, ctx.left = inputs
        ctx.save_for_backward(x, filters)
        ctx.save_for_forward(x, filters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the other of the two operators, as the module says."""
        return pull_back(ctx, grad, Convolve.apply, FilterGradient.apply)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, df: Tensor | None, _: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The product rule."""
        x, filters = ctx.saved_tensors
        found: list[Any] = []
        if dx is not None:
            found.append(Convolve.apply(dx, filters, ctx.left))
        if df is not None:
            found.append(Convolve.apply(x, df, ctx.left))
        return torch.stack(found).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor, filters: Tensor, left: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By more dimensions and filters."""
        each = (
            filters.expand(info.batch_size, *filters.shape)
            if in_dims[1] is None
            else (filters.movedim(in_dims[1], 0))
        )
        wide = _wide(x, in_dims[0], info.batch_size)
        found: Any = Convolve.apply(wide, each.flatten(0, 1), left)
        return found.unflatten(2, (info.batch_size, -1)), 2


class FilterGradient(torch.autograd.Function):
    """The sum over tokens of grad times shifted x, for each filter."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the fastest path."""
        return paths.filter_gradient(grad, x, count, length, left)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep both factors."""
        grad, x, ctx.count, ctx.length, ctx.left = inputs
        ctx.save_for_backward(grad, x)
        ctx.save_for_forward(grad, x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By the other of the two operators, as the module says."""
        return pull_back_gradient(ctx, upstream, Convolve.apply)

    @staticmethod
    def jvp(ctx: Any, dgrad: Tensor | None, dx: Tensor | None, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The product rule."""
        grad, x = ctx.saved_tensors
        found: list[Any] = []
        sizes = (ctx.count, ctx.length, ctx.left)
        if dgrad is not None:
            found.append(FilterGradient.apply(dgrad, x, *sizes))
        if dx is not None:
            found.append(FilterGradient.apply(grad, dx, *sizes))
        return torch.stack(found).sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By more dimensions and filters."""
        copies, (_, _, count, length, left) = info.batch_size, given
        both = [_wide(x, dim, copies) for x, dim in zip(given[:2], in_dims, strict=False)]
        found: Any = FilterGradient.apply(*both, copies * count, length, left)
        return found.unflatten(0, (copies, count)), 0


def _wide(x: Tensor, dim: int | None, copies: int) -> Tensor:
    """(b, n, copies d) of copies, which lie along `dim`, or are all the same."""
    if dim is None:
        return x[:, :, None].expand(-1, -1, copies, -1).flatten(2)
    return x.movedim(dim, 2).flatten(2)


def pull_back(
    ctx: Any, grad: Tensor, convolve: Any, filter_gradient: Any
) -> tuple[Tensor | None, ...]:
    """dx: the same with the filter turned round; dfilters: the other operator."""
    x, filters = ctx.saved_tensors
    count, length = filters.shape
    dx = df = None
    if ctx.needs_input_grad[0]:
        dx = convolve(grad, filters.flip(1), length - 1 - ctx.left)
    if ctx.needs_input_grad[1]:
        df = filter_gradient(grad, x, count, length, ctx.left).to(filters.dtype)
    return dx, df, None


def pull_back_gradient(
    ctx: Any, upstream: Tensor, convolve: Any
) -> tuple[Tensor | None, ...]:
    """The operator is linear in grad and in x: `upstream` takes the place of filters."""
    grad, x = ctx.saved_tensors
    dgrad = dx = None
    if ctx.needs_input_grad[0]:
        dgrad = convolve(x, upstream, ctx.left)
    if ctx.needs_input_grad[1]:
        dx = convolve(grad, upstream.flip(1), ctx.length - 1 - ctx.left)
    return dgrad, dx, None, None, None
