"""Triton kernels: tiles of outputs, and block diagonals for the gradient by the filters.

For one filter all tiles of BM outputs have the same banded Toeplitz matrix, BM rows by the
BM + K - 1 inputs they need. Columns of a product are pairs (sequence, dimension of the
group): R dimensions of B sequences, R a constant.
"""

import triton
import triton.language as tl


@triton.jit
def _toeplitz_kernel(
    FILTERS, OUT, length, width, BM: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """OUT[h, a, w] = filter[h, w - a], zeros elsewhere; one chunk of w."""
    h = tl.program_id(1)
    rows = tl.arange(0, BM)
    w = tl.program_id(0) * BK + tl.arange(0, BK)
    tap = w[None, :] - rows[:, None]
    inside = (tap >= 0) & (tap < length)
    found = tl.load(FILTERS + h * length + tap, mask=inside, other=0.0)
    at = (h * BM + rows[:, None]) * width + w[None, :]
    tl.store(OUT + at, found.to(OUT.dtype.element_ty))


@triton.jit
def _columns(start, limit, R: tl.constexpr, BN: tl.constexpr):
    """Sequence and dimension of BN columns, and which of them exist."""
    column = start + tl.arange(0, BN)
    dimension = column % R
    if R % 16 == 0:
        dimension = tl.max_contiguous(tl.multiple_of(dimension, 16), 16)
    return (column // R).to(tl.int64), dimension, column < limit


@triton.jit
def _tokens(X, row, n, sequence, dimension, exists, stride_b, stride_n):
    """Rows of tokens by columns, zeros beyond the ends."""
    at = row[:, None].to(tl.int64) * stride_n + (sequence * stride_b + dimension)[None, :]
    inside = (row >= 0)[:, None] & (row < n)[:, None] & exists[None, :]
    return tl.load(X + at, mask=inside, other=0.0)


@triton.jit
def _convolve_kernel(
    X, MATRICES, OUT, stride_xb, stride_xn, stride_ob, stride_on,
    n, columns, left, width,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of outputs: its matrix times the window of inputs, chunk by chunk."""
    first = tl.program_id(0) * BM
    h = tl.program_id(2)
    sequence, dimension, exists = _columns(tl.program_id(1) * BN, columns, R, BN)
    dimension = dimension + h * R
    rows, chunk = tl.arange(0, BM), tl.arange(0, BK)
    matrix = MATRICES + (h * BM + rows[:, None]) * width + chunk[None, :]
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, width, BK):
        T = tl.load(matrix + start)  # [M, K]
        row = first - left + start + chunk
        x = _tokens(X, row, n, sequence, dimension, exists, stride_xb, stride_xn)
        acc = tl.dot(T, x, acc, input_precision=PRECISION)
    row = first + rows
    at = row[:, None].to(tl.int64) * stride_on + (sequence * stride_ob + dimension)[None, :]
    inside = (row < n)[:, None] & exists[None, :]
    tl.store(OUT + at, acc.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def _filter_gradient_kernel(
    GRAD, X, PRODUCTS, stride_gb, stride_gn, stride_xb, stride_xn,
    n, columns, left, width, tiles, pieces,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of sum over tiles and columns of grad window^T, for its share of both.

    Entry (a, w) belongs to tap w - a in every tile, so that whole tiles are added up. The
    shares are added up outside, in a fixed order.
    """
    start = tl.program_id(0) * BK
    h = tl.program_id(1)
    rows, chunk = tl.arange(0, BM), tl.arange(0, BK)
    acc = tl.zeros([BM, BK], dtype=tl.float32)
    for piece in range(tl.program_id(2), pieces, tl.num_programs(2)):
        first = piece % tiles * BM
        sequence, dimension, exists = _columns(piece // tiles * BN, columns, R, BN)
        dimension = dimension + h * R
        g = _tokens(
            GRAD, first + rows, n, sequence, dimension, exists, stride_gb, stride_gn
        )  # [M, N]
        x = _tokens(
            X, first - left + start + chunk, n, sequence, dimension, exists,
            stride_xb, stride_xn,
        )  # [K, N]  # fmt: skip
        acc = tl.dot(g, tl.trans(x), acc, input_precision=PRECISION)
    share = tl.program_id(2) * tl.num_programs(1) + h
    at = (share * BM + rows[:, None]) * width + (start + chunk)[None, :]
    tl.store(PRODUCTS + at, acc)
