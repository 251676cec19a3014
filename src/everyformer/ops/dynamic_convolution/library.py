"""The operator as custom ops, for `torch.compile`, export and fake tensors."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.bilinear import keep
from everyformer.ops.dynamic_convolution import derivatives, paths
from everyformer.ops.dynamic_convolution.derivatives import Band, Mix
from everyformer.ops.eager import is_forward_mode, is_transformed


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


def _pull_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if is_transformed() or is_forward_mode():
        return derivatives.pull_back(ctx, grad, Mix.apply, Band.apply)
    return derivatives.pull_back(ctx, grad, mix_op, band_op)


def _pull_back_band(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    moved = is_transformed() or is_forward_mode()
    return derivatives.pull_back_band(ctx, upstream, Mix.apply if moved else mix_op)


mix_op.register_autograd(_pull_back, setup_context=keep)
band_op.register_autograd(_pull_back_band, setup_context=keep)
