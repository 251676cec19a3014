"""Which code runs: Triton kernels, the blocked path, or `F.conv1d` for small groups."""

from typing import Any

from torch import Tensor

from everyformer.ops.convolving import by_torch
from everyformer.ops.light_convolution import blocked, reference


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
