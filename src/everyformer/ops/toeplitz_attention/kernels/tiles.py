"""What these kernels do with a tile beside what all do: offsets, masks, sequences."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import LOG2_E, apart, two_numbers
from everyformer.ops.toeplitz_attention.operands import HIDES

PAD = 256
LOG2_E_ = tl.constexpr(LOG2_E)
HIDES_ = tl.constexpr(HIDES)


@triton.jit
def load_pair(table, first, rows, columns, SIGN: tl.constexpr, ASSEMBLY: tl.constexpr):
    """bias and gain at first + SIGN (row - column), from a table of pairs.

    Many pairs of a thread are equal: it reads 18 for 64 x 64 entries, instead of 32.
    """
    if ASSEMBLY:
        row, row_here = apart(rows, True)
        column, column_here = apart(columns, False)
        thread, constant = row - column, row_here - column_here
        place = table.to(tl.int64) + (first + SIGN * thread).to(tl.int64) * 8
        bias, gain = two_numbers(place + constant.to(tl.int64) * (8 * SIGN))
    else:
        pair = table + 2 * (first + SIGN * (rows - columns))
        bias, gain = tl.load(pair), tl.load(pair + 1)
    return bias, gain


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
