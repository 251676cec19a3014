"""What the Triton kernels of all attention do with a tile: read it, drop weights.

Scores are in base 2: scale and bias carry a factor log2(e).
"""

import math

import triton
import triton.language as tl

LOG2_E = math.log2(math.e)


@triton.jit
def load_tile(
    base, rows, columns, stride, limit,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix, (rows, BLOCK_D), zeros below the last row and right of D.

    EVEN says that no tile reaches below the last row.
    """
    pointers = base + rows[:, None] * stride + columns[None, :]
    if EVEN and BLOCK_D == D:
        return tl.load(pointers)
    mask = rows[:, None] < limit
    if BLOCK_D != D:
        mask = mask & (columns[None, :] < D)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def load_lse(LSE, at, rows, n_q):
    """LSE of queries in base 2; inf for one that does not exist or has no key."""
    lse = tl.load(LSE + at + rows, mask=rows < n_q, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def load_rows(LSE, DELTA, at, rows, n_q):
    """LSE in base 2 and Delta of queries."""
    delta = tl.load(DELTA + at + rows, mask=rows < n_q, other=0.0)
    return load_lse(LSE, at, rows, n_q), delta


@triton.jit
def dropped(SEED, b, h, start_m, start_n, rows, columns, threshold, growth):
    """What weights are multiplied by: growth, or 0 where one is dropped.

    As `dropping.kept`. The tile begins at multiples of 16, rows and columns count within
    it; written so that the compiler sees the same counter four times in one thread.
    """
    zero = (rows + columns) * 0
    queries = start_m // 2 + ((rows >> 4 << 3) | (rows & 7))
    keys = start_n // 2 + ((columns >> 4 << 3) | (columns & 7))
    one, two, three, four = tl.philox(
        tl.load(SEED), zero + keys, zero + queries, zero + h.to(tl.int32),
        zero + b.to(tl.int32),
    )  # fmt: skip
    odd, upper = (zero + columns) & 8, (zero + rows) & 8
    word = tl.where(
        upper != 0, tl.where(odd != 0, four, three), tl.where(odd != 0, two, one)
    )
    return tl.where((word >> 8).to(tl.int32) >= threshold, growth, 0.0)


@triton.jit
def dropped_pairs(SEED, b, h, queries, keys, threshold, growth):
    """The same for any tokens: queries and keys broadcast to the shape of the weights."""
    zero = (queries + keys) * 0
    one, two, three, four = tl.philox(
        tl.load(SEED), zero + ((keys >> 4 << 3) | (keys & 7)),
        zero + ((queries >> 4 << 3) | (queries & 7)), zero + h.to(tl.int32),
        zero + b.to(tl.int32),
    )  # fmt: skip
    odd, upper = (zero + keys) & 8, (zero + queries) & 8
    word = tl.where(
        upper != 0, tl.where(odd != 0, four, three), tl.where(odd != 0, two, one)
    )
    return tl.where((word >> 8).to(tl.int32) >= threshold, growth, 0.0)
