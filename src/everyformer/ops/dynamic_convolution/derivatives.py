"""What `torch.func` knows of the operator: derivatives both ways, and vmap.

The convolution, its transpose and its gradient by the filters are bilinear, and each is a
derivative of the others (README). Several copies of a problem are one with more sequences.
"""

from typing import Any

from torch import Tensor

from everyformer.ops.bilinear import Gradients, bilinear
from everyformer.ops.copies import Dims
from everyformer.ops.dynamic_convolution import paths


def pull_back(ctx: Any, grad: Tensor, mix: Any, band: Any) -> Gradients:
    """By the tokens the transpose; by the filters the band."""
    x, weights = ctx.saved_tensors
    left, back = ctx.numbers
    count, length = weights.shape[2:]
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = mix(grad, weights, left, not back)
    if ctx.needs_input_grad[1]:
        rows, inputs = (x, grad) if back else (grad, x)
        dw = band(rows, inputs, count, length, left).to(weights.dtype)
    return dx, dw, None, None


def pull_back_band(ctx: Any, upstream: Tensor, mix: Any) -> Gradients:
    """G is linear in both: `upstream` takes the place of the filters."""
    grad, x = ctx.saved_tensors
    left = ctx.numbers[-1]
    dgrad = dx = None
    if ctx.needs_input_grad[0]:
        dgrad = mix(x, upstream, left, False)
    if ctx.needs_input_grad[1]:
        dx = mix(grad, upstream, left, True)
    return dgrad, dx, None, None, None


def _by_sequences(
    function: Any, copies: int, in_dims: Dims, given: Any
) -> tuple[Tensor, int]:
    """Both tensors with the copies before the sequences, and one call."""
    both = [
        (x.expand(copies, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
        for x, dim in zip(given[:2], in_dims, strict=False)
    ]
    found = function.apply(*both, *given[2:])
    return found.unflatten(0, (copies, -1)), 0


Mix: Any = bilinear(
    paths.mix, lambda ctx, grad: pull_back(ctx, grad, Mix.apply, Band.apply), _by_sequences
)
"""C(x, weights), or B(x, weights) with `back`."""

Band: Any = bilinear(
    paths.band,
    lambda ctx, upstream: pull_back_band(ctx, upstream, Mix.apply),
    _by_sequences,
)
"""G(grad, x)."""
