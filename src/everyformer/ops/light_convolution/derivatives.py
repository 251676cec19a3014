"""What `torch.func` knows of the operator: derivatives both ways, and vmap.

Convolution and its gradient by the filters are bilinear, and each is the derivative of the
other: with y = x * f, dx is a convolution of dy with f turned round, and df the gradient.
Several copies of a problem are one with more dimensions and as many more filters.
"""

from typing import Any

from torch import Tensor

from everyformer.ops.bilinear import Gradients, bilinear
from everyformer.ops.copies import Dims
from everyformer.ops.light_convolution import paths


def pull_back(ctx: Any, grad: Tensor, convolve: Any, filter_gradient: Any) -> Gradients:
    """dx: the same with the filter turned round; dfilters: the other operator."""
    x, filters = ctx.saved_tensors
    (left,) = ctx.numbers
    count, length = filters.shape
    dx = df = None
    if ctx.needs_input_grad[0]:
        dx = convolve(grad, filters.flip(1), length - 1 - left)
    if ctx.needs_input_grad[1]:
        df = filter_gradient(grad, x, count, length, left).to(filters.dtype)
    return dx, df, None


def pull_back_gradient(ctx: Any, upstream: Tensor, convolve: Any) -> Gradients:
    """The operator is linear in grad and in x: `upstream` takes the place of filters."""
    grad, x = ctx.saved_tensors
    _, length, left = ctx.numbers
    dgrad = dx = None
    if ctx.needs_input_grad[0]:
        dgrad = convolve(x, upstream, left)
    if ctx.needs_input_grad[1]:
        dx = convolve(grad, upstream.flip(1), length - 1 - left)
    return dgrad, dx, None, None, None


def _convolution_of_copies(
    function: Any, copies: int, in_dims: Dims, given: Any
) -> tuple[Tensor, int]:
    x, filters, left = given
    each = (
        filters.expand(copies, *filters.shape)
        if in_dims[1] is None
        else filters.movedim(in_dims[1], 0)
    )
    found = function.apply(_wide(x, in_dims[0], copies), each.flatten(0, 1), left)
    return found.unflatten(2, (copies, -1)), 2


def _gradient_of_copies(
    function: Any, copies: int, in_dims: Dims, given: Any
) -> tuple[Tensor, int]:
    _, _, count, length, left = given
    both = [_wide(x, dim, copies) for x, dim in zip(given[:2], in_dims, strict=False)]
    found = function.apply(*both, copies * count, length, left)
    return found.unflatten(0, (copies, count)), 0


def _wide(x: Tensor, dim: int | None, copies: int) -> Tensor:
    """(b, n, copies d) of copies, which lie along `dim`, or are all the same."""
    if dim is None:
        return x[:, :, None].expand(-1, -1, copies, -1).flatten(2)
    return x.movedim(dim, 2).flatten(2)


Convolve: Any = bilinear(
    paths.convolve,
    lambda ctx, grad: pull_back(ctx, grad, Convolve.apply, FilterGradient.apply),
    _convolution_of_copies,
)
"""x * filters."""

FilterGradient: Any = bilinear(
    paths.filter_gradient,
    lambda ctx, upstream: pull_back_gradient(ctx, upstream, Convolve.apply),
    _gradient_of_copies,
)
"""The sum over tokens of grad times shifted x, for each filter."""
