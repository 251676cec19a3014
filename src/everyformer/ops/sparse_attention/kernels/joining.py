"""Triton kernels that put the slots of long sums together, in a fixed order.

Slots of one token lie `stride` rows apart, from `first` on; JOINS has the token, `first`
and their number.
"""

import triton
import triton.language as tl

from everyformer.ops.sparse_attention.kernels.rows import load_wide


@triton.jit
def _slots(JOINS):
    """Token, first slot and number of slots of this program."""
    join = JOINS + 3 * tl.program_id(0)
    return tl.load(join), tl.load(join + 1), tl.load(join + 2)


@triton.jit(do_not_specialize=["stride", "slots", "n"])
def _softmax_kernel(
    PART, PART_LSE, JOINS, OUT, LSE, stride, slots, n,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """out = sum_t 2^(lse_t - LSE) out_t, LSE = log2 sum_t 2^lse_t."""
    pair = tl.program_id(1).to(tl.int64)
    token, first, count = _slots(JOINS)
    offs_d, offs_t = tl.arange(0, BLOCK_D), tl.arange(0, T)
    inside = offs_d < D
    place = (pair * n + token) * D + offs_d
    m_i = tl.full([1], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    if AGAIN:
        old = tl.load(LSE + pair * n + token)
        m_i = tl.maximum(m_i, old)
        l_i = l_i + tl.where(old == float("-inf"), 0.0, 1.0)
        acc = acc + tl.load(OUT + place, mask=inside, other=0.0).to(tl.float32)
    for t in range(0, count, T):
        there = t + offs_t < count
        rows = first + (t + offs_t) * stride
        lse = tl.load(PART_LSE + pair * slots + rows, mask=there, other=float("-inf"))
        out = load_wide(PART + pair * slots * D, rows, there, D, offs_d, D, BLOCK_D)
        m_new = tl.maximum(m_i, tl.max(lse, 0))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(lse - m_safe)
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(p[:, None] * out, 0)
        m_i = m_new
    empty = l_i == 0
    total = tl.where(empty, 1.0, l_i)
    out = acc / total
    lse = tl.where(empty, float("-inf"), m_i + tl.log2(total))
    tl.store(OUT + place, out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(LSE + pair * n + token + tl.arange(0, 1), lse)


@triton.jit(do_not_specialize=["stride", "slots", "n"])
def _sum_kernel(
    PART, JOINS, TOTAL, stride, slots, n,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """The sum of the slots of a token; AGAIN adds it to what is there."""
    pair = tl.program_id(1).to(tl.int64)
    token, first, count = _slots(JOINS)
    offs_d, offs_t = tl.arange(0, BLOCK_D), tl.arange(0, T)
    inside = offs_d < D
    place = TOTAL + (pair * n + token) * D + offs_d
    total = tl.zeros([BLOCK_D], dtype=tl.float32)
    for t in range(0, count, T):
        there = t + offs_t < count
        rows = first + (t + offs_t) * stride
        found = load_wide(PART + pair * slots * D, rows, there, D, offs_d, D, BLOCK_D)
        total += tl.sum(found, 0)
    if AGAIN:
        total += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, total.to(TOTAL.dtype.element_ty), mask=inside)
