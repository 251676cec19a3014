"""Triton kernels for the star: a ring with w neighbours on either side, and a relay.

A program has M tokens of the ring, as queries and as keys at once: each pass reads and
writes every row about once, which is all that a star costs. What the relay (token n - 1)
gathers from the tile goes to a slot, and `joining` puts the slots together in a fixed
order. Scores are in base 2; shapes are [M, D] for the tile and [D] for the relay.
"""

import triton
import triton.language as tl

from everyformer.ops.sparse_attention.kernels.rows import (
    load_lse,
    load_wide,
    store_rows,
)


@triton.jit
def _relay(base, n, stride, offs_d, D: tl.constexpr):
    """The last row, in float32."""
    return tl.load(base + (n - 1) * stride + offs_d, mask=offs_d < D, other=0.0).to(
        tl.float32
    )


@triton.jit
def _neighbours(ring, way, n):
    """Tokens `way` further along the ring of n - 1."""
    moved = ring + way
    moved = tl.where(moved < 0, moved + n - 1, moved)
    return tl.where(moved >= n - 1, moved - (n - 1), moved)


@triton.jit
def _heard(pad, places, there, HAS_PAD: tl.constexpr):
    """Which keys are there and not padded."""
    if HAS_PAD:
        return there & (tl.load(pad + places, mask=there, other=1) == 0)
    return there


@triton.jit
def _hear(
    acc, l_i, m_i, q, k_base, v_base, pad, ring, here, way, n, stride_kn, stride_vn,
    offs_d, D: tl.constexpr, BLOCK_D: tl.constexpr, HAS_PAD: tl.constexpr,
):  # fmt: skip
    """The neighbour `way` further along."""
    places = _neighbours(ring, way, n)
    heard = _heard(pad, places, here, HAS_PAD)
    k = load_wide(k_base, places, heard, stride_kn, offs_d, D, BLOCK_D)
    v = load_wide(v_base, places, heard, stride_vn, offs_d, D, BLOCK_D)
    return _weigh(acc, l_i, m_i, q, k, v, heard)


@triton.jit
def _weigh(acc, l_i, m_i, q, k, v, heard):
    """One key for each query: running maximum, sum of exp, sum of exp * v."""
    s = tl.where(heard, tl.sum(q * k, 1), float("-inf"))
    m_new = tl.maximum(m_i, s)
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s - m_safe)
    alpha = tl.exp2(m_i - m_safe)
    acc = acc * alpha[:, None] + p[:, None] * v
    return acc, l_i * alpha + p, m_new


@triton.jit(do_not_specialize=["slots", "n", "width"])
def _forward_kernel(
    Q, K, V, PADDED, OUT, LSE, PART, PART_LSE,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_pb, slots, H, n, width, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, NARROW: tl.constexpr,
    HAS_PAD: tl.constexpr,
):  # fmt: skip
    """Outputs of M tokens of the ring, and the part of the relay's output they give.

    NARROW is the width if it is small, so that the loop is unrolled; 0 otherwise. The
    loop goes over -width .. width without 0, which comes first.
    """
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    ring, offs_d = tile * M + tl.arange(0, M), tl.arange(0, BLOCK_D)
    here = ring < n - 1
    q_base, pad = Q + b * stride_qb + h * stride_qh, PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    q = load_wide(q_base, ring, here, stride_qn, offs_d, D, BLOCK_D) * scale
    relay_q = _relay(q_base, n, stride_qn, offs_d, D) * scale
    relay_k = _relay(k_base, n, stride_kn, offs_d, D)
    relay_v = _relay(v_base, n, stride_vn, offs_d, D)
    last = ring * 0 + n - 1
    heard = _heard(pad, last, here, HAS_PAD)
    m_i = tl.where(heard, tl.sum(q * relay_k[None, :], 1), float("-inf"))
    l_i = tl.where(heard, 1.0, 0.0)
    acc = l_i[:, None] * relay_v[None, :]
    # The tile hears itself: the same rows that the relay hears below.
    heard = _heard(pad, ring, here, HAS_PAD)
    k = load_wide(k_base, ring, heard, stride_kn, offs_d, D, BLOCK_D)
    v = load_wide(v_base, ring, heard, stride_vn, offs_d, D, BLOCK_D)
    acc, l_i, m_i = _weigh(acc, l_i, m_i, q, k, v, heard)
    if NARROW > 0:
        for step in tl.static_range(0, 2 * NARROW):
            way = step - NARROW + step // NARROW
            acc, l_i, m_i = _hear(
                acc, l_i, m_i, q, k_base, v_base, pad, ring, here, way, n,
                stride_kn, stride_vn, offs_d, D, BLOCK_D, HAS_PAD,
            )  # fmt: skip
    else:
        for step in range(2 * width):
            way = step - width + step // width
            acc, l_i, m_i = _hear(
                acc, l_i, m_i, q, k_base, v_base, pad, ring, here, way, n,
                stride_kn, stride_vn, offs_d, D, BLOCK_D, HAS_PAD,
            )  # fmt: skip
    empty = l_i == 0
    total = tl.where(empty, 1.0, l_i)
    lse = tl.where(empty, float("-inf"), m_i + tl.log2(total))
    out = acc / total[:, None]
    store_rows(OUT + pair * n * D, ring, here, offs_d, out, D, BLOCK_D)
    tl.store(LSE + pair * n + ring, lse, mask=here)
    # The relay hears the tile; the first program adds the relay itself.
    s = tl.where(heard, tl.sum(relay_q[None, :] * k, 1), float("-inf"))
    first = _heard(pad, last, last == n - 1 + tile, HAS_PAD)
    own = tl.where(first, tl.sum(relay_q * relay_k, 0), float("-inf"))
    top = tl.max(tl.maximum(s, own), 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp2(s - safe)
    p_own = tl.max(tl.exp2(own - safe), 0)
    total = tl.sum(p, 0) + p_own
    mixed = tl.sum(p[:, None] * v, 0) + p_own * relay_v
    some = tl.where(total == 0, 1.0, total)
    row = pair * slots + tile
    tl.store(PART + row * D + offs_d, mixed / some, mask=offs_d < D)
    found = tl.where(total == 0, float("-inf"), safe + tl.log2(some))
    tl.store(PART_LSE + row, found)


@triton.jit
def _pull(
    dq, dk, dv, q, k, v, do, lse, delta, heard, q_base, k_base, v_base, do_base, out_base,
    lse_base, pad, ring, here, way, n, scale, stride_qn, stride_kn, stride_vn, stride_dn,
    offs_d, D: tl.constexpr, BLOCK_D: tl.constexpr, HAS_PAD: tl.constexpr,
):  # fmt: skip
    """The pair with the neighbour `way` further along, both ways."""
    places = _neighbours(ring, way, n)
    there = _heard(pad, places, here, HAS_PAD)
    k_ = load_wide(k_base, places, there, stride_kn, offs_d, D, BLOCK_D)
    v_ = load_wide(v_base, places, there, stride_vn, offs_d, D, BLOCK_D)
    p = tl.where(there, tl.exp2(tl.sum(q * k_, 1) * scale - lse), 0.0)
    ds = p * (tl.sum(do * v_, 1) - delta)
    dq += ds[:, None] * k_
    q_ = load_wide(q_base, places, heard, stride_qn, offs_d, D, BLOCK_D)
    do_ = load_wide(do_base, places, heard, stride_dn, offs_d, D, BLOCK_D)
    out_ = load_wide(out_base, places, heard, D, offs_d, D, BLOCK_D)
    lse_ = load_lse(lse_base, places, heard)
    p = tl.exp2(tl.sum(q_ * k, 1) * scale - lse_)
    ds = p * (tl.sum(do_ * v, 1) - tl.sum(do_ * out_, 1))
    dk += ds[:, None] * q_
    dv += p[:, None] * do_
    return dq, dk, dv


@triton.jit(do_not_specialize=["slots", "n", "width"])
def _backward_kernel(
    Q, K, V, PADDED, DOUT, OUT, LSE, DQ, DK, DV, PART,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    slots, H, n, width, scale, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, M: tl.constexpr, NARROW: tl.constexpr,
    HAS_PAD: tl.constexpr,
):  # fmt: skip
    """dQ, dK and dV of M tokens of the ring, and the parts of the relay's they give."""
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    ring, offs_d = tile * M + tl.arange(0, M), tl.arange(0, BLOCK_D)
    here = ring < n - 1
    q_base, pad = Q + b * stride_qb + h * stride_qh, PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    do_base, out_base = DOUT + b * stride_db + h * stride_dh, OUT + pair * n * D
    lse_base = LSE + pair * n
    heard = _heard(pad, ring, here, HAS_PAD)
    q = load_wide(q_base, ring, here, stride_qn, offs_d, D, BLOCK_D)
    k = load_wide(k_base, ring, heard, stride_kn, offs_d, D, BLOCK_D)
    v = load_wide(v_base, ring, heard, stride_vn, offs_d, D, BLOCK_D)
    do = load_wide(do_base, ring, here, stride_dn, offs_d, D, BLOCK_D)
    out = load_wide(out_base, ring, here, D, offs_d, D, BLOCK_D)
    delta = tl.sum(do * out, 1)
    lse = load_lse(lse_base, ring, here)
    relay_q = _relay(q_base, n, stride_qn, offs_d, D)
    relay_k = _relay(k_base, n, stride_kn, offs_d, D)
    relay_v = _relay(v_base, n, stride_vn, offs_d, D)
    relay_do = _relay(do_base, n, stride_dn, offs_d, D)
    relay_delta = tl.sum(relay_do * _relay(out_base, n, D, offs_d, D), 0)
    relay_lse = tl.load(lse_base + n - 1)
    relay_lse = tl.where(relay_lse == float("-inf"), float("inf"), relay_lse)
    # The tile hears the relay.
    last = ring * 0 + n - 1
    there = _heard(pad, last, here, HAS_PAD)
    p = tl.where(there, tl.exp2(tl.sum(q * relay_k[None, :], 1) * scale - lse), 0.0)
    ds = p * (tl.sum(do * relay_v[None, :], 1) - delta)
    dq = ds[:, None] * relay_k[None, :]
    part_k = tl.sum(ds[:, None] * q, 0) * back_scale
    part_v = tl.sum(p[:, None] * do, 0)
    # The relay hears the tile.
    s = tl.sum(relay_q[None, :] * k, 1) * scale
    p = tl.where(heard, tl.exp2(s - relay_lse), 0.0)
    ds = p * (tl.sum(relay_do[None, :] * v, 1) - relay_delta)
    dk = ds[:, None] * relay_q[None, :]
    dv = p[:, None] * relay_do[None, :]
    part_q = tl.sum(ds[:, None] * k, 0) * back_scale
    # The tile hears itself.
    p = tl.where(heard, tl.exp2(tl.sum(q * k, 1) * scale - lse), 0.0)
    ds = p * (tl.sum(do * v, 1) - delta)
    dq += ds[:, None] * k
    dk += ds[:, None] * q
    dv += p[:, None] * do
    if NARROW > 0:
        for step in tl.static_range(0, 2 * NARROW):
            way = step - NARROW + step // NARROW
            dq, dk, dv = _pull(
                dq, dk, dv, q, k, v, do, lse, delta, heard, q_base, k_base, v_base,
                do_base, out_base, lse_base, pad, ring, here, way, n, scale, stride_qn,
                stride_kn, stride_vn, stride_dn, offs_d, D, BLOCK_D, HAS_PAD,
            )  # fmt: skip
    else:
        for step in range(2 * width):
            way = step - width + step // width
            dq, dk, dv = _pull(
                dq, dk, dv, q, k, v, do, lse, delta, heard, q_base, k_base, v_base,
                do_base, out_base, lse_base, pad, ring, here, way, n, scale, stride_qn,
                stride_kn, stride_vn, stride_dn, offs_d, D, BLOCK_D, HAS_PAD,
            )  # fmt: skip
    at = pair * n * D
    store_rows(DQ + at, ring, here, offs_d, dq * back_scale, D, BLOCK_D)
    store_rows(DK + at, ring, here, offs_d, dk * back_scale, D, BLOCK_D)
    store_rows(DV + at, ring, here, offs_d, dv, D, BLOCK_D)
    # The relay hears itself; the first program counts it.
    first = tl.max(tl.where(_heard(pad, last, last == n - 1 + tile, HAS_PAD), 1.0, 0.0), 0)
    s = tl.sum(relay_q * relay_k, 0) * scale
    p_own = tl.where(first > 0, tl.exp2(s - relay_lse), 0.0)
    ds_own = p_own * (tl.sum(relay_do * relay_v, 0) - relay_delta) * back_scale
    part_q += ds_own * relay_k
    part_k += ds_own * relay_q
    part_v += p_own * relay_do
    inside = offs_d < D
    row = (pair * slots + tile) * D + offs_d
    every = tl.num_programs(1).to(tl.int64) * slots * D
    tl.store(PART + row, part_q, mask=inside)
    tl.store(PART + every + row, part_k, mask=inside)
    tl.store(PART + 2 * every + row, part_v, mask=inside)
