"""The convolution on the CPU: banded Toeplitz matrices times tiles of tokens.

A tile of L outputs needs L + K - 1 inputs, and for one filter all tiles have the same
matrix T[a, w] = filter[w - a]. So the convolution is, for each filter, one L x (L + K - 1)
matrix times the windows of x, with the dimensions of the group and the batch as columns:
(L + K - 1) / K times the multiplications of a loop, at the speed of a matrix product. A
sequence of at most L + K - 1 tokens is one tile, with the n x n matrix filter[j - i + l].
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from everyformer.ops.convolving import relaid, windows

TILE = 32
"""Outputs of a tile, L; measured, for filters of length 31 to 255."""


def convolve(
    x: Float[Tensor, "b n d"], filters: Float[Tensor, "h k"], left: int
) -> Float[Tensor, "b n d"]:
    """y_ic = sum_k filters[c // (d / h), k] x_{i + k - left, c}, zeros beyond the ends."""
    count, length = filters.shape
    n = x.shape[1]
    wide = torch.promote_types(x.dtype, torch.float32)
    if _is_one_tile(n, length):
        matrices = _toeplitz(filters.to(wide), n, slice(left, left + n))
        return _back(torch.bmm(matrices, relaid(x, count, n, 1, 0)), x)
    inputs = windows(relaid(x, count, TILE, length, left), TILE, length)
    matrices = _toeplitz(filters.to(wide), TILE)
    _, tiles, _, columns = inputs.shape
    out = inputs.new_empty(count, tiles, TILE, columns)
    for matrix, window, part in zip(matrices, inputs, out, strict=True):
        torch.bmm(matrix.expand(tiles, -1, -1), window, out=part)
    return _back(out.flatten(1, 2), x)


def filter_gradient(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "{count} {length}"]:
    """sum_{b, i, c of group h} grad_bic x_{b, i + k - left, c}; float32 or float64.

    Entry (a, w) of grad times window^T belongs to tap w - a in every tile: add the tiles
    up, then the diagonals.
    """
    n = x.shape[1]
    if _is_one_tile(n, length):
        tokens, upstream = (relaid(each, count, n, 1, 0) for each in (x, grad))
        whole = functional.pad(torch.bmm(upstream, tokens.mT), (left, length - 1 - left))
        return diagonals(whole, length)
    inputs = windows(relaid(x, count, TILE, length, left), TILE, length)
    upstream = windows(relaid(grad, count, TILE, 1, 0), TILE, 1)
    products = [
        torch.bmm(g, window.mT).sum(0) for g, window in zip(upstream, inputs, strict=True)
    ]
    return diagonals(torch.stack(products), length)


def diagonals(
    products: Float[Tensor, "h rows w"], length: int
) -> Float[Tensor, "h {length}"]:
    """sum_a products[h, a, a + k] for k = 0 .. length - 1."""
    count, rows, width = products.shape
    strides = (rows * width, width + 1, 1)
    return products.contiguous().as_strided((count, rows, length), strides).sum(1)


def _is_one_tile(n: int, length: int) -> bool:
    """Whether the inputs of one tile would be the whole sequence."""
    return n <= TILE + length - 1


def _toeplitz(
    filters: Float[Tensor, "h k"], rows: int, columns: slice = slice(None)
) -> Float[Tensor, "h {rows} w"]:
    """T[a, w] = filter[w - a], zero elsewhere; the rows + K - 1 columns or some of them."""
    padded = functional.pad(filters, (rows - 1, rows - 1))
    return padded.unfold(1, rows + filters.shape[1] - 1, 1)[:, :, columns].flip(1)


def _back(out: Float[Tensor, "h m c"], x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """The layout and the dtype of x."""
    b, n, d = x.shape
    count = out.shape[0]
    tokens = out[:, :n].unflatten(2, (b, -1)).permute(2, 1, 0, 3)  # [b, n, h, d / h]
    back = torch.empty(b, n, count, d // count, dtype=x.dtype)
    return back.copy_(tokens).view(x.shape)
