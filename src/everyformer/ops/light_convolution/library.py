"""The operator as custom ops, for `torch.compile`, export and fake tensors.

Two ops that are each other's derivative: y = x * filters, and the sum over tokens of grad
times shifted x.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.bilinear import keep
from everyformer.ops.eager import is_forward_mode, is_transformed
from everyformer.ops.light_convolution import derivatives, paths
from everyformer.ops.light_convolution.derivatives import Convolve, FilterGradient


@torch.library.custom_op("everyformer::light_convolution", mutates_args=())
def convolve_op(x: Tensor, filters: Tensor, left: int) -> Tensor:
    """x * filters."""
    return paths.convolve(x, filters, left)


@convolve_op.register_fake
def _convolve_fake(x: Tensor, filters: Tensor, left: int) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("everyformer::light_convolution_filters", mutates_args=())
def gradient_op(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    """The gradient of the filters."""
    return paths.filter_gradient(grad, x, count, length, left)


@gradient_op.register_fake
def _gradient_fake(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((count, length), dtype=wide)


def _pull_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if is_transformed() or is_forward_mode():
        return derivatives.pull_back(ctx, grad, Convolve.apply, FilterGradient.apply)
    return derivatives.pull_back(ctx, grad, convolve_op, gradient_op)


def _pull_back_gradient(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    moved = is_transformed() or is_forward_mode()
    convolve = Convolve.apply if moved else convolve_op
    return derivatives.pull_back_gradient(ctx, upstream, convolve)


convolve_op.register_autograd(_pull_back, setup_context=keep)
gradient_op.register_autograd(_pull_back_gradient, setup_context=keep)
