"""Launch the Triton kernels: shapes, tile sizes, buffers."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.dynamic_convolution import kernels as jitted
from everyformer.ops.launching import ceil_div, launch, power_of_two, side_by_side

kernels: Any = jitted  # their calls have a grid and options that no signature shows

OUTPUTS, CHUNK = 64, 64
"""Rows of a tile and inputs of a chunk; half of them in float32."""


def _sizes(x: Tensor, group: int) -> dict[str, Any]:
    """The constants that both kernels have."""
    full = x.dtype == torch.float32
    columns = min(64, max(16, power_of_two(group)))
    return {
        "R": group,
        "BM": OUTPUTS // 2 if full else OUTPUTS,
        "BN": columns,
        "BK": CHUNK // 2 if full else CHUNK,
        "PRECISION": "ieee" if full else "tf32",
        "num_warps": 4,
        "num_stages": 2,
    }


def mix(
    x: Float[Tensor, "b n d"], weights: Float[Tensor, "b n h k"], left: int, back: bool
) -> Float[Tensor, "b n d"]:
    """C(x, weights), or its transpose B(x, weights) with `back`."""
    x, weights = side_by_side(x), side_by_side(weights)
    b, n, d = x.shape
    count, length = weights.shape[2:]
    sizes = _sizes(x, d // count)
    left = length - 1 - left if back else left
    out = torch.empty(b, n, d, dtype=x.dtype, device=x.device)
    grid = (
        ceil_div(n, sizes["BM"]),
        b * count,
        ceil_div(d // count, sizes["BN"]),
    )
    launch(
        kernels._mix_kernel, grid,
        x, weights, out, *x.stride()[:2], *weights.stride()[:3], *out.stride()[:2],
        n, length, left, sizes["BM"] + length - 1, count, BACK=back, **sizes,
    )  # fmt: skip
    return out


def band(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "b n {count} {length}"]:
    """G(grad, x); float32."""
    grad, x = side_by_side(grad), side_by_side(x)
    b, n, d = x.shape
    sizes = _sizes(x, d // count)
    out = torch.empty(b, n, count, length, dtype=torch.float32, device=x.device)
    chunks = ceil_div(sizes["BM"] + length - 1, sizes["BK"])
    launch(
        kernels._band_kernel, (ceil_div(n, sizes["BM"]), b * count, chunks),
        grad, x, out, *grad.stride()[:2], *x.stride()[:2], n, length, left, count, **sizes,
    )  # fmt: skip
    return out
