"""What these kernels do with a tile beside what all do: offsets, masks, sequences."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.toeplitz_attention.operands import HIDES

PAD = 256
LOG2_E_ = tl.constexpr(LOG2_E)
HIDES_ = tl.constexpr(HIDES)


@triton.jit
def _two_numbers(address):
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
def load_pair(table, first, rows, columns, SIGN: tl.constexpr, ASSEMBLY: tl.constexpr):
    """bias and gain at first + SIGN (row - column), from a table of pairs.

    Bits of rows and columns that differ within a thread of a product stand apart: the
    compiler then sees constants, which cost no instruction in an address, and which pairs
    of a thread are equal: it reads 18 for 64 x 64 entries, instead of 32.
    """
    if ASSEMBLY:
        thread = (rows & ~8) - (columns & 6)
        constant = (rows & 8) - (columns & ~6)
        place = table.to(tl.int64) + (first + SIGN * thread).to(tl.int64) * 8
        bias, gain = _two_numbers(place + constant.to(tl.int64) * (8 * SIGN))
    else:
        pair = table + 2 * (first + SIGN * (rows - columns))
        bias, gain = tl.load(pair), tl.load(pair + 1)
    return bias, gain


@triton.jit
def tile_offsets(first, queries, keys):
    """i - j within a tile, whose first query and first key are `first` apart.

    Written so that the compiler sees which offsets of a thread are equal: it then reads
    the vectors 18 instead of 32 times for 64 x 64 pairs.
    """
    return first + (queries + keys * -1)


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
def load_bounds(BEGIN, END, places, limit):
    """Begin and end of the sequences of tokens; nothing for one that does not exist."""
    there = places < limit
    begin = tl.load(BEGIN + places, mask=there, other=limit)
    return begin, tl.load(END + places, mask=there, other=0)


@triton.jit
def load_ready(
    READY, at, rows, n_q, ALONG: tl.constexpr, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr
):  # fmt: skip
    """LSE and Delta of queries as dQ has left them: inf already where there is no key.

    ALONG says that queries lie along a tile's rows; see `load_pair`.
    """
    pair = READY + 2 * at
    if EVEN:
        if ASSEMBLY:
            constant = rows & 8 if ALONG else rows & ~6
            thread = rows & ~8 if ALONG else rows & 6
            place = pair.to(tl.int64) + thread.to(tl.int64) * 8
            return _two_numbers(place + constant.to(tl.int64) * 8)
        return tl.load(pair + 2 * rows), tl.load(pair + 2 * rows + 1)
    there = rows < n_q
    lse = tl.load(pair + 2 * rows, mask=there, other=float("inf"))
    return lse, tl.load(pair + 2 * rows + 1, mask=there, other=0.0)
