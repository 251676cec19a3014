"""Which code runs: Triton kernels, the blocked path, or `F.conv1d` for small groups."""

from typing import Any

import torch
from torch import Tensor

from everyformer.ops.light_convolution import blocked, reference

SMALLEST_GROUP = {"cpu": 8, "cuda": 16}
"""Dimensions of a filter below which matrix products have too few columns."""


def by_torch(x: Tensor, count: int) -> bool:
    """Whether `F.conv1d` runs; torch.compile looks at this, so it imports nothing."""
    small = x.shape[2] // count < SMALLEST_GROUP.get(x.device.type, x.shape[2] + 1)
    return small or (x.is_cuda and x.dtype == torch.float64)


def _path(x: Tensor, count: int) -> Any:
    """The module whose `convolve` and `filter_gradient` run."""
    if by_torch(x, count):
        return reference
    if x.is_cuda:  # Triton is imported where there is a GPU and only there
        from everyformer.ops.light_convolution import launch

        return launch
    return blocked


def convolve(x: Tensor, filters: Tensor, left: int) -> Tensor:
    """y_ic = sum_k filters[c // (d / h), k] x_{i + k - left, c}; contiguous."""
    return _path(x, filters.shape[0]).convolve(x, filters, left).contiguous()


def filter_gradient(grad: Tensor, x: Tensor, count: int, length: int, left: int) -> Tensor:
    """sum_{b, i, c of group h} grad_bic x_{b, i + k - left, c}; float32 or float64."""
    return _path(x, count).filter_gradient(grad, x, count, length, left)
