"""The operator as custom ops, for `torch.compile`, export and fake tensors.

Two ops that are each other's derivative: y = x * filters, and the sum over tokens of grad
times shifted x.
"""

import torch
from torch import Tensor

from everyformer.ops.bilinear import register
from everyformer.ops.light_convolution import paths
from everyformer.ops.light_convolution.derivatives import (
    Convolve,
    FilterGradient,
    pull_back,
    pull_back_gradient,
)


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


register(convolve_op, pull_back, (convolve_op, gradient_op), (Convolve, FilterGradient))
register(gradient_op, pull_back_gradient, (convolve_op,), (Convolve,))
