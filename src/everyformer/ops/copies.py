"""`torch.func.vmap` over an operator: copies of a problem, each as it would be alone.

`function` is an `autograd.Function`, `given` are its arguments, and `in_dims` says along
which axis of each the copies lie; None for what all copies share. Both ways return the
results and the axes of their copies, as vmap wants them.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

Dims = tuple[int | None, ...]
"""The axis of each argument that vmap runs over."""


def one_by_one(function: Any, copies: int, in_dims: Dims, given: Any) -> tuple[Any, Any]:
    """By one call for each copy: right for every operator."""

    def of(copy: int, x: Any, dim: int | None) -> Any:
        return x if dim is None or not isinstance(x, Tensor) else x.select(dim, copy)

    found = [
        function.apply(*(of(copy, x, dim) for x, dim in zip(given, in_dims, strict=True)))
        for copy in range(copies)
    ]
    stacked = tuple(torch.stack(column) for column in zip(*found, strict=True))
    return stacked, tuple(0 for _ in stacked)


def in_one_batch(
    function: Any, copies: int, in_dims: Dims, given: Any, shared: Collection[int] = ()
) -> tuple[Any, Any]:
    """By one call with a larger batch.

    Args:
        function: Its tensors and results have the batch as their first axis, or are empty.
        copies: How many.
        in_dims: The axes of the copies.
        given: The arguments.
        shared: The numbers of those without a batch, which are the same for all copies.
    """

    def joined(x: Any, dim: int | None, number: int) -> Any:
        if not isinstance(x, Tensor) or number in shared:
            return x
        each = x.expand(copies, *x.shape) if dim is None else x.movedim(dim, 0)
        return each.flatten(0, 1)

    found: Any = function.apply(*map(joined, given, in_dims, range(len(given))))
    apart = tuple(
        x.unflatten(0, (copies, -1)) if x.numel() else x.expand(copies, 0) for x in found
    )
    return apart, tuple(0 for _ in apart)
