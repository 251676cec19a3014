"""The operator as custom ops, for `torch.compile`, export and fake tensors."""

import torch
from torch import Tensor

from everyformer.ops.bilinear import register
from everyformer.ops.dynamic_convolution import paths
from everyformer.ops.dynamic_convolution.derivatives import (
    Band,
    Mix,
    pull_back,
    pull_back_band,
)


@torch.library.custom_op("everyformer::dynamic_convolution", mutates_args=())
def mix_op(x: Tensor, weights: Tensor, left: int, back: bool) -> Tensor:
    """C(x, weights), or its transpose with `back`."""
    return paths.mix(x, weights, left, back)


@mix_op.register_fake
def _mix_fake(x: Tensor, weights: Tensor, left: int, back: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("everyformer::dynamic_convolution_filters", mutates_args=())
def band_op(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    """The gradient of the filters."""
    return paths.band(grad, x, count, length, left)


@band_op.register_fake
def _band_fake(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((*x.shape[:2], count, length), dtype=wide)


register(mix_op, pull_back, (mix_op, band_op), (Mix, Band))
register(band_op, pull_back_band, (mix_op,), (Mix,))
