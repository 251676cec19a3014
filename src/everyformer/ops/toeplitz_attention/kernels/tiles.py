"""What all kernels do with a tile: read it, hide pairs, drop weights."""

import math

import triton
import triton.language as tl

from everyformer.ops.toeplitz_attention.operands import HIDES

PAD = 256
LOG2_E = math.log2(math.e)
LOG2_E_ = tl.constexpr(LOG2_E)
HIDES_ = tl.constexpr(HIDES)


@triton.jit
def load_pair(table, offset, ASSEMBLY: tl.constexpr):
    """bias and gain at offsets, from a table of pairs.

    In assembly: tl.load would be made asynchronous, four bytes at a time, through shared
    memory, which is several times slower than reading the first-level cache.
    """
    if ASSEMBLY:
        bias, gain = tl.inline_asm_elementwise(
            "{.reg .u64 a; mad.wide.s32 a, $3, 8, $2; ld.global.nc.v2.f32 {$0, $1}, [a];}",
            "=f,=f,l,r",
            [table.to(tl.int64), offset],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        bias, gain = tl.load(table + 2 * offset), tl.load(table + 2 * offset + 1)
    return bias, gain


@triton.jit
def tile_offsets(first, queries, keys):
    """i - j within a tile, whose first query and first key are `first` apart.

    Written so that the compiler sees which offsets of a thread are equal: it then reads
    the vectors 18 instead of 32 times for 64 x 64 pairs.
    """
    return first + (queries + keys * -1)


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
def with_mask(s, mask, queries, keys, stride_mm, stride_mn, n_q, n_k, ADDS: tl.constexpr):
    """The scores with numbers of a mask added, and -inf where it hides a pair.

    queries and keys are places in the tile, each with an axis of length 1 for the other.
    """
    place = queries.to(tl.int64) * stride_mm + keys.to(tl.int64) * stride_mn
    found = tl.load(mask + place, mask=(queries < n_q) & (keys < n_k), other=0)
    if ADDS:
        added = found.to(tl.float32)
        hidden = added <= HIDES_
        added = tl.where(hidden, 0.0, added) * LOG2_E_  # the lowest number would overflow
        return tl.where(hidden, float("-inf"), s + added)
    return tl.where(found != 0, s, float("-inf"))


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
def load_bounds(BEGIN, END, places, limit):
    """Begin and end of the sequences of tokens; nothing for one that does not exist."""
    there = places < limit
    begin = tl.load(BEGIN + places, mask=there, other=limit)
    return begin, tl.load(END + places, mask=there, other=0)


@triton.jit
def load_lse(LSE, at, rows, n_q):
    """LSE of queries in base 2; inf for one that does not exist or has no key."""
    lse = tl.load(LSE + at + rows, mask=rows < n_q, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def load_ready(LSE, DELTA, at, rows, n_q, EVEN: tl.constexpr):
    """LSE and Delta of queries as dQ has left them: inf already where there is no key."""
    if EVEN:
        return tl.load(LSE + at + rows), tl.load(DELTA + at + rows)
    there = rows < n_q
    lse = tl.load(LSE + at + rows, mask=there, other=float("inf"))
    return lse, tl.load(DELTA + at + rows, mask=there, other=0.0)


@triton.jit
def load_rows(LSE, DELTA, at, rows, n_q):
    """LSE in base 2 and Delta of queries."""
    delta = tl.load(DELTA + at + rows, mask=rows < n_q, other=0.0)
    return load_lse(LSE, at, rows, n_q), delta
