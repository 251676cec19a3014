"""The maps on the CPU: banded matrices, one for each tile, times tiles of tokens.

Row a of a tile has its filter at columns a .. a + K - 1 of an L x (L + K - 1) matrix, which
is a view of the matrix with a stride of one row and one column: filters are copied there as
they are. The transpose is the sum over the same inputs that the convolution of a mirrored
problem has: `skewed` gives every token the weights with which others hear it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.convolving import relaid, windows

TILE = 32
"""Outputs of a tile, L."""


def mix(
    x: Float[Tensor, "b n d"], weights: Float[Tensor, "b n h k"], left: int, back: bool
) -> Float[Tensor, "b n d"]:
    """C(x, weights), or its transpose B(x, weights) with `back`."""
    b, n, d = x.shape
    count, length = weights.shape[2:]
    out = torch.empty(b, n, count, d // count, dtype=x.dtype)
    if back:
        left = length - 1 - left
    rows, tiles = _tiles(n)
    whole = n // rows
    wide = torch.promote_types(x.dtype, torch.float32)
    bands = torch.zeros(count, tiles, rows, rows + length - 1, dtype=wide)
    inside = _diagonals(bands, length)
    for sequence, each, result in zip(x, weights, out, strict=True):
        own = each.transpose(0, 1)  # [h, n, k]
        own = _skewed(own, length - 1 - left) if back else own
        inside[:, :whole] = own[:, : whole * rows].unflatten(1, (whole, rows))
        inside[:, whole:, : n - whole * rows] = own[:, None, whole * rows :]
        inputs = windows(relaid(sequence[None], count, rows, length, left), rows, length)
        found = torch.stack([torch.bmm(T, w) for T, w in zip(bands, inputs, strict=True)])
        result.copy_(found.flatten(1, 2)[:, :n].transpose(0, 1))
    return out.view(x.shape)


def band(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "b n {count} {length}"]:
    """G(grad, x): the bands of grad times window^T; float32 or float64."""
    b, n, _ = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.empty(b, n, count, length, dtype=wide)
    rows, tiles = _tiles(n)
    products = torch.empty(count, tiles, rows, rows + length - 1, dtype=wide)
    for upstream, sequence, result in zip(grad, x, out, strict=True):
        inputs = windows(relaid(sequence[None], count, rows, length, left), rows, length)
        g = windows(relaid(upstream[None], count, rows, 1, 0), rows, 1)
        for one, window, product in zip(g, inputs, products, strict=True):
            torch.bmm(one, window.mT, out=product)
        found = _diagonals(products, length).flatten(1, 2)[:, :n]
        result.copy_(found.transpose(0, 1))
    return out


def _tiles(n: int) -> tuple[int, int]:
    """Rows of a tile, and how many tiles there are."""
    rows = min(TILE, n)
    return rows, -(-n // rows)


def _diagonals(
    bands: Float[Tensor, "h tiles rows w"], length: int
) -> Float[Tensor, "h tiles rows {length}"]:
    """Entries (a, a + k) of each matrix: a view."""
    count, tiles, rows, width = bands.shape
    strides = (tiles * rows * width, rows * width, width + 1, 1)
    return bands.as_strided((count, tiles, rows, length), strides)


def _skewed(own: Float[Tensor, "h n k"], left: int) -> Float[Tensor, "h n k"]:
    """out[h, j, k'] = own[h, j + k' - l', K - 1 - k'], l' = K - 1 - left, or zero."""
    count, n, length = own.shape
    padded = own.new_zeros(count, n + length - 1, length)
    padded[:, length - 1 - left : length - 1 - left + n] = own.flip(2)
    return padded.as_strided(own.shape, (padded.stride(0), length, length + 1))
