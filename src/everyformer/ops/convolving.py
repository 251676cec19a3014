"""What light and dynamic convolution share: refusals, the way of a call, and tiles."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.eager import (
    is_forward_mode,
    is_plain,
    is_transformed,
    needs_plain_torch,
)

SMALLEST_GROUP = {"cpu": 8, "cuda": 16}
"""Dimensions of a filter below which matrix products have too few columns."""

WIDE = (torch.float32, torch.float64)
"""Precisions in which plain torch needs no wider sums."""


def by_torch(x: Tensor, count: int) -> bool:
    """Whether plain torch runs; torch.compile looks at this, so it imports nothing."""
    small = x.shape[2] // count < SMALLEST_GROUP.get(x.device.type, x.shape[2] + 1)
    return small or (x.is_cuda and x.dtype == torch.float64)


def of_numbers(x: Tensor, filters: Tensor) -> list[str]:
    """What is wrong with dtypes and devices."""
    wrong: list[str] = []
    if not (x.is_floating_point() and filters.is_floating_point()):
        wrong.append(f"dtypes are {x.dtype} and {filters.dtype}; give floating point")
    if x.device != filters.device:
        wrong.append(f"x lies on {x.device}, filters on {filters.device}; use one device")
    return wrong


def convolved(
    plain: Callable[..., Tensor],
    function: Any,
    custom_op: Any,
    count: int,
    *given: Any,
) -> Any:
    """What an operator says: in plain torch, by `torch.func`, or as a custom op.

    Args:
        plain: The reference.
        function: The `autograd.Function`.
        custom_op: For all else.
        count: Filters of a token.
        given: Tokens (b, n, d), filters, and numbers.
    """
    x, filters, *numbers = given
    if x.dtype in WIDE and by_torch(x, count):
        return plain(*given)
    if needs_plain_torch(x) and not is_plain(x):  # a custom op would carry no derivative
        wide = torch.promote_types(x.dtype, torch.float32)
        return plain(x.to(wide), filters.to(wide), *numbers).to(x.dtype)
    transformed = is_plain(x) and (is_transformed() or is_forward_mode())
    return (function.apply if transformed else custom_op)(*given)


def relaid(
    x: Float[Tensor, "b n d"], count: int, rows: int, length: int, left: int
) -> Float[Tensor, "h m c"]:
    """For each filter, tokens as rows, batch and group as columns; zeros around."""
    b, n, d = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    tokens = -(-n // rows) * rows + length - 1
    found = torch.zeros(count, tokens, b, d // count, dtype=wide)
    found[:, left : left + n] = x.reshape(b, n, count, -1).permute(2, 1, 0, 3)
    return found.flatten(2)


def windows(
    relaid: Float[Tensor, "h m c"], rows: int, length: int
) -> Float[Tensor, "h tiles w c"]:
    """The inputs of all tiles: a view whose windows overlap by length - 1 rows."""
    count, tokens, columns = relaid.shape
    shape = (count, (tokens - length + 1) // rows, rows + length - 1, columns)
    return relaid.as_strided(shape, (tokens * columns, rows * columns, columns, 1))
