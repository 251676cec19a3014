"""The operator: checks, and registration with `torch.library`.

Two custom ops that are each other's derivative: y = x * filters, and the sum over tokens
of grad times shifted x. On a CUDA device the Triton kernels run, elsewhere the blocked
path, and `F.conv1d` where neither is worth it.
"""

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.eager import autocasted
from everyformer.ops.light_convolution import blocked, reference

SMALLEST_GROUP = {"cpu": 8, "cuda": 16}
"""Dimensions of a filter below which matrix products have too few columns."""

WIDE = (torch.float32, torch.float64)
"""Precisions in which the gradients of PyTorch's convolution need no wider sums."""


def light_convolution(
    x: Float[Tensor, "*batch n d"], filters: Float[Tensor, "h k"]
) -> Float[Tensor, "*batch n d"]:
    """Convolve the tokens of x, each filter on a contiguous group of d / h dimensions.

        y_ic = sum_k filters[c // (d / h), k] x_{i + k - l, c},    l = (K - 1) // 2

    Tokens beyond the ends are zeros: l on the left, K - 1 - l on the right, so that n stays
    n for every K, odd or even. With h = d every dimension has its own filter. Gradients go
    to both; sums of half precision are float32.

    Args:
        x: Tokens as rows.
        filters: Of any length, in any floating-point dtype.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
        >>> light_convolution(x, torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[ 3., 40.],
                [ 5., 60.],
                [ 3.,  0.]])
    """
    _check(x, filters)
    (x,) = autocasted(x)
    if x.numel() == 0:
        return x * filters.sum()
    tokens, left = x.reshape(-1, *x.shape[-2:]), (filters.shape[1] - 1) // 2
    if x.dtype in WIDE and _path(tokens, filters.shape[0]) is reference:
        return reference.convolve(tokens, filters, left).reshape(x.shape)
    return _convolve(tokens, filters, left).reshape(x.shape)


def _check(x: Tensor, filters: Tensor) -> None:
    wrong: list[str] = []
    if filters.dim() != 2 or 0 in filters.shape:
        wrong.append(
            f"filters has shape {tuple(filters.shape)}; give (h, k), a row for each filter"
        )
    elif x.dim() < 2 or x.shape[-1] % filters.shape[0]:
        wrong.append(
            f"x has shape {tuple(x.shape)}; {filters.shape[0]} filters need (*batch, n, d) "
            f"with d a multiple of {filters.shape[0]}"
        )
    if not (x.is_floating_point() and filters.is_floating_point()):
        wrong.append(f"dtypes are {x.dtype} and {filters.dtype}; give floating point")
    if x.device != filters.device:
        wrong.append(f"x lies on {x.device}, filters on {filters.device}; use one device")
    if wrong:
        msg = f"light_convolution cannot run: {'; '.join(wrong)}."
        raise InputError(msg)


def _path(x: Tensor, count: int) -> Any:
    """The module whose `convolve` and `filter_gradient` run."""
    small = x.shape[2] // count < SMALLEST_GROUP.get(x.device.type, x.shape[2] + 1)
    if small or (x.is_cuda and x.dtype == torch.float64):
        return reference
    if x.is_cuda:  # Triton is imported where there is a GPU and only there
        return import_module("everyformer.ops.light_convolution.launch")
    return blocked


@torch.library.custom_op("everyformer::light_convolution", mutates_args=())
def _convolve(x: Tensor, filters: Tensor, left: int) -> Tensor:
    return _path(x, filters.shape[0]).convolve(x, filters, left).contiguous()


@_convolve.register_fake
def _convolve_fake(x: Tensor, filters: Tensor, left: int) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("everyformer::light_convolution_filters", mutates_args=())
def _filter_gradient(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    return _path(x, count).filter_gradient(grad, x, count, length, left)


@_filter_gradient.register_fake
def _filter_gradient_fake(
    grad: Tensor, x: Tensor, count: int, length: int, left: int
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((count, length), dtype=wide)


def _keep_convolution(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, filters, ctx.left = inputs
    ctx.save_for_backward(x, filters)


def _convolve_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """dx: the same with the filter turned round; dfilters: the other operator."""
    x, filters = ctx.saved_tensors
    count, length = filters.shape
    dx = df = None
    if ctx.needs_input_grad[0]:
        dx = _convolve(grad, filters.flip(1), length - 1 - ctx.left)
    if ctx.needs_input_grad[1]:
        df = _filter_gradient(grad, x, count, length, ctx.left).to(filters.dtype)
    return dx, df, None


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, x, _, ctx.length, ctx.left = inputs
    ctx.save_for_backward(grad, x)


def _filter_gradient_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The operator is linear in grad and in x: `upstream` takes the place of filters."""
    grad, x = ctx.saved_tensors
    dgrad = dx = None
    if ctx.needs_input_grad[0]:
        dgrad = _convolve(x, upstream, ctx.left)
    if ctx.needs_input_grad[1]:
        dx = _convolve(grad, upstream.flip(1), ctx.length - 1 - ctx.left)
    return dgrad, dx, None, None, None


_convolve.register_autograd(_convolve_backward, setup_context=_keep_convolution)
_filter_gradient.register_autograd(_filter_gradient_backward, setup_context=_keep_gradient)
