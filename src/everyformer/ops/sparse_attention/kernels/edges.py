"""Triton kernels for listed pairs: forward, dQ, dK and dV, without tensor cores.

The lists are cut into strands: at most so many pairs of one token, the owner. A program
has R strands and reads E partners of each at a time. A strand of an owner that has more
writes to a slot, and `joining` puts them together in a fixed order. Scores are in base 2.
"""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped_pairs
from everyformer.ops.sparse_attention.kernels.rows import (
    load_lse,
    load_wide,
    store_rows,
)


@triton.jit
def _strands(STRANDS, strands, R: tl.constexpr):
    """Owner, first pair, end and slot (or -1) of the strands of a program."""
    number = tl.program_id(0) * R + tl.arange(0, R)
    there = number < strands
    owner = tl.load(STRANDS + 4 * number, mask=there, other=0)
    first = tl.load(STRANDS + 4 * number + 1, mask=there, other=0)
    end = tl.load(STRANDS + 4 * number + 2, mask=there, other=0)
    slot = tl.load(STRANDS + 4 * number + 3, mask=there, other=-1)
    return owner, first, end, slot, there


@triton.jit
def _partners(PARTNERS, pad, first, end, offset, HAS_PAD: tl.constexpr):
    """Partners of the strands at these offsets, and whether there are, [R, E]."""
    at = first[:, None] + offset[None, :]
    there = at < end[:, None]
    partner = tl.load(PARTNERS + at, mask=there, other=0)
    if HAS_PAD:
        there = there & (tl.load(pad + partner, mask=there, other=1) == 0)
    return partner, there


@triton.jit
def _gathered(base, places, there, stride, offs_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of a matrix in float32, [R, E, D]."""
    mask = there[:, :, None]
    if BLOCK_D != D:
        mask = mask & (offs_d[None, None, :] < D)
    pointers = base + places[:, :, None] * stride + offs_d[None, None, :]
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["strands", "slots", "n", "threshold"])
def _forward_kernel(
    Q, K, V, PADDED, SEED, STRANDS, PARTNERS, OUT, LSE, PART, PART_LSE,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_pb, strands, slots, H, n, scale,
    threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """R strands of queries; AGAIN begins with what OUT and LSE hold already."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    query, first, end, slot, here = _strands(STRANDS, strands, R)
    offs_d, offs_e = tl.arange(0, BLOCK_D), tl.arange(0, E)
    pad = PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    q_base = Q + b * stride_qb + h * stride_qh
    q = load_wide(q_base, query, here, stride_qn, offs_d, D, BLOCK_D) * scale
    out_base, lse_base = OUT + pair * n * D, LSE + pair * n
    done = here
    if SLOTS:
        done = here & (slot < 0)
    acc = tl.zeros([R, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([R], dtype=tl.float32)
    m_i = tl.full([R], float("-inf"), dtype=tl.float32)
    if AGAIN:
        m_i = tl.load(lse_base + query, mask=done, other=float("-inf"))
        l_i = tl.where(m_i == float("-inf"), 0.0, 1.0)
        acc = load_wide(out_base, query, done, D, offs_d, D, BLOCK_D)
    longest = tl.max(end - first, 0)
    for e in range(0, longest, E):
        key, there = _partners(PARTNERS, pad, first, end, e + offs_e, HAS_PAD)
        k = _gathered(k_base, key, there, stride_kn, offs_d, D, BLOCK_D)
        v = _gathered(v_base, key, there, stride_vn, offs_d, D, BLOCK_D)
        s = tl.where(there, tl.sum(q[:, None, :] * k, 2), float("-inf"))  # [R, E]
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROP:
            p *= dropped_pairs(SEED, b, h, query[:, None], key, threshold, growth)
        acc = acc * alpha[:, None] + tl.sum(p[:, :, None] * v, 1)
        m_i = m_new
    empty = l_i == 0
    total = tl.where(empty, 1.0, l_i)
    out = acc / total[:, None]
    lse = tl.where(empty, float("-inf"), m_i + tl.log2(total))
    if SLOTS:
        parted = here & (slot >= 0)
        store_rows(PART + pair * slots * D, slot, parted, offs_d, out, D, BLOCK_D)
        tl.store(PART_LSE + pair * slots + slot, lse, mask=parted)
    store_rows(out_base, query, done, offs_d, out, D, BLOCK_D)
    tl.store(lse_base + query, lse, mask=done)


@triton.jit(do_not_specialize=["strands", "slots", "n", "threshold"])
def _dq_kernel(
    Q, K, V, PADDED, SEED, STRANDS, PARTNERS, DOUT, OUT, LSE, DELTA, DQ, PART,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    strands, slots, H, n, scale, back_scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """dQ of R strands of queries; the first piece also writes Delta_i = dO_i . O_i."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    query, first, end, slot, here = _strands(STRANDS, strands, R)
    offs_d, offs_e = tl.arange(0, BLOCK_D), tl.arange(0, E)
    pad = PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    q_base = Q + b * stride_qb + h * stride_qh
    do_base = DOUT + b * stride_db + h * stride_dh
    q = load_wide(q_base, query, here, stride_qn, offs_d, D, BLOCK_D) * scale
    do = load_wide(do_base, query, here, stride_dn, offs_d, D, BLOCK_D)
    at_row = pair * n
    lse = load_lse(LSE + at_row, query, here)
    if AGAIN:
        delta = tl.load(DELTA + at_row + query, mask=here, other=0.0)
    else:
        out = load_wide(OUT + at_row * D, query, here, D, offs_d, D, BLOCK_D)
        delta = tl.sum(out * do, 1)
        tl.store(DELTA + at_row + query, delta, mask=here)
    dq = tl.zeros([R, BLOCK_D], dtype=tl.float32)
    longest = tl.max(end - first, 0)
    for e in range(0, longest, E):
        key, there = _partners(PARTNERS, pad, first, end, e + offs_e, HAS_PAD)
        k = _gathered(k_base, key, there, stride_kn, offs_d, D, BLOCK_D)
        v = _gathered(v_base, key, there, stride_vn, offs_d, D, BLOCK_D)
        s = tl.sum(q[:, None, :] * k, 2)
        p = tl.where(there, tl.exp2(s - lse[:, None]), 0.0)
        g = tl.sum(do[:, None, :] * v, 2)
        if DROP:
            g *= dropped_pairs(SEED, b, h, query[:, None], key, threshold, growth)
        ds = p * (g - delta[:, None])
        dq += tl.sum(ds[:, :, None] * k, 1)
    dq *= back_scale
    done = here
    if SLOTS:
        done = here & (slot < 0)
        parted = here & (slot >= 0)
        store_rows(PART + pair * slots * D, slot, parted, offs_d, dq, D, BLOCK_D)
    if AGAIN:
        dq += load_wide(DQ + at_row * D, query, done, D, offs_d, D, BLOCK_D)
    store_rows(DQ + at_row * D, query, done, offs_d, dq, D, BLOCK_D)


@triton.jit(do_not_specialize=["strands", "slots", "n", "threshold"])
def _dkv_kernel(
    Q, K, V, PADDED, SEED, STRANDS, PARTNERS, DOUT, LSE, DELTA, DK, DV, PART_K, PART_V,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    strands, slots, H, n, scale, back_scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    AGAIN: tl.constexpr, SLOTS: tl.constexpr, HAS_PAD: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """dK and dV of R strands of keys; their partners are queries."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    key, first, end, slot, here = _strands(STRANDS, strands, R)
    offs_d, offs_e = tl.arange(0, BLOCK_D), tl.arange(0, E)
    pad = PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    q_base = Q + b * stride_qb + h * stride_qh
    do_base = DOUT + b * stride_db + h * stride_dh
    k = load_wide(k_base, key, here, stride_kn, offs_d, D, BLOCK_D) * scale
    v = load_wide(v_base, key, here, stride_vn, offs_d, D, BLOCK_D)
    at_row = pair * n
    dk = tl.zeros([R, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([R, BLOCK_D], dtype=tl.float32)
    longest = tl.max(end - first, 0)
    for e in range(0, longest, E):
        query, there = _partners(PARTNERS, pad, first, end, e + offs_e, False)
        lse = load_lse(LSE + at_row, query, there)
        delta = tl.load(DELTA + at_row + query, mask=there, other=0.0)
        q = _gathered(q_base, query, there, stride_qn, offs_d, D, BLOCK_D)
        do = _gathered(do_base, query, there, stride_dn, offs_d, D, BLOCK_D)
        p = tl.exp2(tl.sum(k[:, None, :] * q, 2) - lse)  # 0 where nobody is there
        g, kept = tl.sum(v[:, None, :] * do, 2), p
        if DROP:
            factor = dropped_pairs(SEED, b, h, query, key[:, None], threshold, growth)
            kept = p * factor
            g *= factor
        ds = p * (g - delta)
        dk += tl.sum(ds[:, :, None] * q, 1)
        dv += tl.sum(kept[:, :, None] * do, 1)
    if HAS_PAD:
        padded = tl.load(pad + key, mask=here, other=1)
        dk = tl.where((padded == 0)[:, None], dk, 0.0)
        dv = tl.where((padded == 0)[:, None], dv, 0.0)
    dk *= back_scale
    done = here
    if SLOTS:
        done = here & (slot < 0)
        parted = here & (slot >= 0)
        store_rows(PART_K + pair * slots * D, slot, parted, offs_d, dk, D, BLOCK_D)
        store_rows(PART_V + pair * slots * D, slot, parted, offs_d, dv, D, BLOCK_D)
    if AGAIN:
        dk += load_wide(DK + at_row * D, key, done, D, offs_d, D, BLOCK_D)
        dv += load_wide(DV + at_row * D, key, done, D, offs_d, D, BLOCK_D)
    store_rows(DK + at_row * D, key, done, offs_d, dk, D, BLOCK_D)
    store_rows(DV + at_row * D, key, done, offs_d, dv, D, BLOCK_D)
