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
def apart(places, ALONG: tl.constexpr):
    """Places in a tile as those of a thread and what differs within it, by its layout.

    In the result of a product a thread has rows that differ in bit 3 (and from 64 on, 128),
    and columns that differ in bit 0 and from bit 3 on: ALONG says which. Their sum is right
    in any layout. In this one the compiler sees that the second part of an address is a
    constant, which costs no instruction, and which addresses of a thread are equal.
    """
    if ALONG:
        return places & ~8, places & 8
    return places & 6, places & ~6


@triton.jit
def two_numbers(address):
    """Two float32 numbers that lie side by side.

    In assembly: tl.load would be made asynchronous, four bytes at a time, through shared
    memory, which is several times slower than reading the first-level cache.
    """
    return tl.inline_asm_elementwise(
        "ld.global.nc.v2.f32 {$0, $1}, [$2];",
        "=f,=f,l",
        [address],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def load_ready(
    READY, at, rows, n_q, ALONG: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr
):  # fmt: skip
    """LSE and Delta of queries as dQ has left them: LSE is inf where there is no key.

    ALONG says that queries lie along a tile's rows; see `apart`.
    """
    pair = READY + 2 * at
    if EVEN:
        if ASSEMBLY:
            thread, constant = apart(rows, ALONG)
            place = pair.to(tl.int64) + thread.to(tl.int64) * 8
            return two_numbers(place + constant.to(tl.int64) * 8)
        return tl.load(pair + 2 * rows), tl.load(pair + 2 * rows + 1)
    there = rows < n_q
    lse = tl.load(pair + 2 * rows, mask=there, other=float("inf"))
    return lse, tl.load(pair + 2 * rows + 1, mask=there, other=0.0)


@triton.jit
def keys_count(
    pad, first, places, n_k, HAS_PAD: tl.constexpr, ALONG: tl.constexpr,
    EVEN: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Whether keys first + places exist and are not padding; ALONG as in `apart`."""
    keep = first + places < n_k
    if HAS_PAD:
        if EVEN and ASSEMBLY:  # as `two_numbers`; all of them exist
            thread, constant = apart(places, ALONG)
            place = pad.to(tl.int64) + (first + thread).to(tl.int64) + constant.to(tl.int64)
            padded = tl.inline_asm_elementwise(
                "ld.global.nc.u8 $0, [$1];",
                "=r,l",
                [place],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
            keep = padded == 0
        else:
            padded = tl.load(pad + first + places, mask=keep, other=1)
            keep = keep & (padded == 0)
    return keep


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
