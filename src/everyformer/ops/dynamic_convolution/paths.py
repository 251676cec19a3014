"""Which code runs: Triton kernels, the banded path, or plain torch for small groups."""

from typing import Any

from torch import Tensor

from everyformer.ops.convolving import by_torch
from everyformer.ops.dynamic_convolution import banded, reference


def _path(x: Tensor, count: int) -> Any:
    """The module whose `mix` and `band` run."""
    if by_torch(x, count):
        return reference
    if x.is_cuda:  # Triton is imported where there is a GPU and only there
        from everyformer.ops.dynamic_convolution import launch

        return launch
    return banded


def mix(x: Tensor, weights: Tensor, left: int, back: bool) -> Tensor:
    """C(x, weights), or its transpose B(x, weights) with `back`; contiguous."""
    return _path(x, weights.shape[2]).mix(x, weights, left, back).contiguous()


def band(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    """G(grad, x); float32 or float64, contiguous."""
    return _path(x, count).band(grad, x, count, length, left).contiguous()
