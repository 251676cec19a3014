"""Triton kernels: a tile of outputs of one sequence and one group of dimensions.

Row a of a tile and input e of its window meet with weight w[token, h, tap]. For the
convolution the token is that of the row and the tap is e - a; for its transpose the token
is that of the input and the tap is a - e + K - 1. R dimensions of a group, padded to BN.
"""

import triton
import triton.language as tl


@triton.jit
def _rows_of(X, row, n, dimension, exists, stride_n):
    """Rows of tokens by dimensions, zeros beyond the ends."""
    at = row[:, None].to(tl.int64) * stride_n + dimension[None, :]
    inside = (row >= 0)[:, None] & (row < n)[:, None] & exists[None, :]
    return tl.load(X + at, mask=inside, other=0.0)


@triton.jit
def _mix_kernel(
    X, WEIGHTS, OUT, stride_xb, stride_xn, stride_wb, stride_wn, stride_wh, stride_ob,
    stride_on, n, length, left, width, count,
    R: tl.constexpr, BACK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT[i] = sum over the window of weights times tokens, chunk by chunk."""
    first = tl.program_id(0) * BM
    b = (tl.program_id(1) // count).to(tl.int64)
    h = tl.program_id(1) % count
    column = tl.program_id(2) * BN + tl.arange(0, BN)
    exists, dimension = column < R, column + h * R
    rows, chunk = tl.arange(0, BM), tl.arange(0, BK)
    weights = WEIGHTS + b * stride_wb + h * stride_wh
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, width, BK):
        e = start + chunk
        if BACK:
            tap = rows[:, None] - e[None, :] + length - 1
            token = (first - left + e)[None, :] + 0 * rows[:, None]
        else:
            tap = e[None, :] - rows[:, None]
            token = (first + rows)[:, None] + 0 * e[None, :]
        inside = (tap >= 0) & (tap < length) & (token >= 0) & (token < n)
        T = tl.load(weights + token.to(tl.int64) * stride_wn + tap, mask=inside, other=0.0)
        x = _rows_of(X + b * stride_xb, first - left + e, n, dimension, exists, stride_xn)
        acc = tl.dot(T.to(x.dtype), x, acc, input_precision=PRECISION)
    row = first + rows
    at = b * stride_ob + row[:, None].to(tl.int64) * stride_on + dimension[None, :]
    there = (row < n)[:, None] & exists[None, :]
    tl.store(OUT + at, acc.to(OUT.dtype.element_ty), mask=there)


@triton.jit
def _band_kernel(
    GRAD, X, OUT, stride_gb, stride_gn, stride_xb, stride_xn, n, length, left, count,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The band of a chunk of grad window^T; OUT is (b, n, h, k), contiguous."""
    first = tl.program_id(0) * BM
    b = (tl.program_id(1) // count).to(tl.int64)
    h = tl.program_id(1) % count
    rows = tl.arange(0, BM)
    e = tl.program_id(2) * BK + tl.arange(0, BK)
    acc = tl.zeros([BM, BK], dtype=tl.float32)
    for start in range(0, R, BN):
        column = start + tl.arange(0, BN)
        exists, dimension = column < R, column + h * R
        g = _rows_of(GRAD + b * stride_gb, first + rows, n, dimension, exists, stride_gn)
        x = _rows_of(X + b * stride_xb, first - left + e, n, dimension, exists, stride_xn)
        acc = tl.dot(g, tl.trans(x), acc, input_precision=PRECISION)
    row = (first + rows)[:, None]
    tap = e[None, :] - rows[:, None]
    at = ((b * n + row) * count + h) * length + tap
    tl.store(OUT + at, acc, mask=(tap >= 0) & (tap < length) & (row < n))
