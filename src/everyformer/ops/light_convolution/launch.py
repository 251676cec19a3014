"""Launch the Triton kernels: shapes, tile sizes, buffers."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.launching import ceil_div, launch, side_by_side
from everyformer.ops.light_convolution import kernels as jitted
from everyformer.ops.light_convolution.blocked import diagonals

kernels: Any = jitted  # their calls have a grid and options that no signature shows


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of one kernel: outputs, columns, inputs of a chunk, warps, stages."""

    outputs: int
    columns: int
    chunk: int
    warps: int
    stages: int


HALF = (Tiles(128, 128, 64, 8, 3), Tiles(64, 64, 64, 4, 3))
"""Convolution and gradient by the filters, for bf16 and fp16."""

FULL = (Tiles(64, 64, 32, 4, 2), Tiles(32, 64, 32, 4, 2))
"""The same for float32, whose products use no tensor cores."""

ENOUGH_PROGRAMS = 512
"""Programs of the gradient kernel below which its sum is split."""


def _tiles(x: Tensor, n: int) -> tuple[Tiles, Tiles]:
    convolution, gradient = FULL if x.dtype == torch.float32 else HALF
    if n <= gradient.outputs:  # short sequences: smaller tiles do less in vain
        convolution = Tiles(
            gradient.outputs, convolution.columns, convolution.chunk, 4, convolution.stages
        )
    return convolution, gradient


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def convolve(
    x: Float[Tensor, "b n d"], filters: Float[Tensor, "h k"], left: int
) -> Float[Tensor, "b n d"]:
    """y_ic = sum_k filters[c // (d / h), k] x_{i + k - left, c}, zeros beyond the ends."""
    x = side_by_side(x)
    b, n, d = x.shape
    count, length = filters.shape
    tiles, _ = _tiles(x, n)
    width = ceil_div(tiles.outputs + length - 1, tiles.chunk) * tiles.chunk
    matrices = torch.empty(count, tiles.outputs, width, dtype=x.dtype, device=x.device)
    launch(
        kernels._toeplitz_kernel, (width // tiles.chunk, count),
        filters.contiguous(), matrices, length, width, BM=tiles.outputs, BK=tiles.chunk,
    )  # fmt: skip
    out = torch.empty(b, n, d, dtype=x.dtype, device=x.device)
    columns = b * (d // count)
    grid = (ceil_div(n, tiles.outputs), ceil_div(columns, tiles.columns), count)
    launch(
        kernels._convolve_kernel, grid,
        x, matrices, out, *x.stride()[:2], *out.stride()[:2], n, columns, left, width,
        R=d // count, BM=tiles.outputs, BN=tiles.columns, BK=tiles.chunk,
        PRECISION=_precision(x), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def filter_gradient(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "{count} {length}"]:
    """sum_{b, i, c of group h} grad_bic x_{b, i + k - left, c}; float32, fixed order."""
    x, grad = side_by_side(x), side_by_side(grad)
    b, n, d = x.shape
    _, tiles = _tiles(x, n)
    width = ceil_div(tiles.outputs + length - 1, tiles.chunk) * tiles.chunk
    columns = b * (d // count)
    along = ceil_div(n, tiles.outputs)
    pieces = along * ceil_div(columns, tiles.columns)
    chunks = width // tiles.chunk
    shares = min(pieces, max(1, ENOUGH_PROGRAMS // (chunks * count)))
    products = torch.empty(
        shares, count, tiles.outputs, width, dtype=torch.float32, device=x.device
    )
    launch(
        kernels._filter_gradient_kernel, (chunks, count, shares),
        grad, x, products, *grad.stride()[:2], *x.stride()[:2],
        n, columns, left, width, along, pieces,
        R=d // count, BM=tiles.outputs, BN=tiles.columns, BK=tiles.chunk,
        PRECISION=_precision(x), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return diagonals(products.sum(0), length)
