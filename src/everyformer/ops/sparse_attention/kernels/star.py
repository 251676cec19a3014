"""Triton kernels for the star: a ring with w neighbours on either side, and a relay.

A program has T rows of the ring: T - 2w tokens of its own, and w neighbours before and
after them. As queries and as keys at once they are read about once, which is all that a
star costs; products of the whole tile are for tensor cores, and a mask keeps the band. What
the relay (token n - 1) gathers from the tile goes to a slot, and `joining` puts the slots
together in a fixed order. Scores are in base 2; shapes are [T, D] for the tile, [D] for the
relay.
"""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped_pairs
from everyformer.ops.sparse_attention.kernels.rows import (
    load_lse,
    load_rows,
    store_rows,
)


@triton.jit
def _relay(base, n, stride, offs_d, D: tl.constexpr):
    """The last row, in float32."""
    return tl.load(base + (n - 1) * stride + offs_d, mask=offs_d < D, other=0.0).to(
        tl.float32
    )


@triton.jit
def _rows(tile, width, n, T: tl.constexpr):
    """Tokens of the rows of a tile; which are there, and which are its own."""
    row, ring, inner = tl.arange(0, T), n - 1, T - 2 * width
    along = tile * inner - width + row
    end = tl.minimum((tile + 1) * inner, ring)
    tokens = tl.where(along < 0, along + ring, along)
    tokens = tl.where(along >= ring, along - ring, tokens)
    return tokens, along < end + width, (row >= width) & (along < end)


@triton.jit
def _near(heard, width, T: tl.constexpr):
    """Which keys (columns) each query hears: those at most w rows away, [T, T]."""
    row = tl.arange(0, T)
    gap = row[None, :] - row[:, None]
    return heard[None, :] & (gap >= -width) & (gap <= width)


@triton.jit
def _heard(pad, places, there, HAS_PAD: tl.constexpr):
    """Which keys are there and not padded."""
    if HAS_PAD:
        return there & (tl.load(pad + places, mask=there, other=1) == 0)
    return there


@triton.jit(do_not_specialize=["slots", "n", "width", "threshold"])
def _forward_kernel(
    Q, K, V, PADDED, SEED, OUT, LSE, PART, PART_LSE,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_pb, slots, H, n, width, scale,
    threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr,
    HAS_PAD: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of the tile's own tokens, and the part of the relay's output they give."""
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    offs_d = tl.arange(0, BLOCK_D)
    tokens, there, own = _rows(tile, width, n, T)
    q_base, pad = Q + b * stride_qb + h * stride_qh, PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    heard = _heard(pad, tokens, there, HAS_PAD)
    q = load_rows(q_base, tokens, own, stride_qn, offs_d, D, BLOCK_D, True)
    k = load_rows(k_base, tokens, heard, stride_kn, offs_d, D, BLOCK_D, True)
    v = load_rows(v_base, tokens, heard, stride_vn, offs_d, D, BLOCK_D, True)
    relay_q = _relay(q_base, n, stride_qn, offs_d, D)
    relay_k = _relay(k_base, n, stride_kn, offs_d, D)
    relay_v = _relay(v_base, n, stride_vn, offs_d, D)
    # The tile hears its neighbours and the relay.
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    s = tl.where(_near(heard, width, T), s, float("-inf"))
    last = tokens * 0 + n - 1
    s_relay = tl.sum(q.to(tl.float32) * relay_k[None, :], 1) * scale
    s_relay = tl.where(_heard(pad, last, own, HAS_PAD), s_relay, float("-inf"))
    top = tl.maximum(tl.max(s, 1), s_relay)
    safe = tl.where(top == float("-inf"), 0.0, top)
    p, p_relay = tl.exp2(s - safe[:, None]), tl.exp2(s_relay - safe)
    total = tl.sum(p, 1) + p_relay
    some = tl.where(total == 0, 1.0, total)
    if DROP:
        p *= dropped_pairs(SEED, b, h, tokens[:, None], tokens[None, :], threshold, growth)
        p_relay *= dropped_pairs(SEED, b, h, tokens, last, threshold, growth)
    out = tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    out = (out + p_relay[:, None] * relay_v[None, :]) / some[:, None]
    store_rows(OUT + pair * n * D, tokens, own, offs_d, out, D, BLOCK_D)
    lse = tl.where(total == 0, float("-inf"), safe + tl.log2(some))
    tl.store(LSE + pair * n + tokens, lse, mask=own)
    # The relay hears the tile; the first program adds the relay itself.
    s = tl.sum(relay_q[None, :] * k.to(tl.float32), 1) * scale
    s = tl.where(heard & own, s, float("-inf"))
    first = _heard(pad, last, last == n - 1 + tile, HAS_PAD)
    itself = tl.where(first, tl.sum(relay_q * relay_k, 0) * scale, float("-inf"))
    top = tl.max(tl.maximum(s, itself), 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp2(s - safe)
    p_own = tl.max(tl.exp2(itself - safe), 0)
    total = tl.sum(p, 0) + p_own
    if DROP:
        p *= dropped_pairs(SEED, b, h, last, tokens, threshold, growth)
        p_own *= tl.max(dropped_pairs(SEED, b, h, last, last, threshold, growth), 0)
    mixed = tl.sum(p[:, None] * v.to(tl.float32), 0) + p_own * relay_v
    some = tl.where(total == 0, 1.0, total)
    row = pair * slots + tile
    tl.store(PART + row * D + offs_d, mixed / some, mask=offs_d < D)
    found = tl.where(total == 0, float("-inf"), safe + tl.log2(some))
    tl.store(PART_LSE + row, found)


@triton.jit(do_not_specialize=["slots", "n", "width", "threshold"])
def _backward_kernel(
    Q, K, V, PADDED, SEED, DOUT, OUT, LSE, DQ, DK, DV, PART,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dn, stride_pb,
    slots, H, n, width, scale, back_scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr,
    HAS_PAD: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ, dK and dV of the tile's own tokens, and the parts of the relay's they give."""
    tile, pair = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    offs_d = tl.arange(0, BLOCK_D)
    tokens, there, own = _rows(tile, width, n, T)
    q_base, pad = Q + b * stride_qb + h * stride_qh, PADDED + b * stride_pb
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    do_base, out_base = DOUT + b * stride_db + h * stride_dh, OUT + pair * n * D
    lse_base = LSE + pair * n
    heard = _heard(pad, tokens, there, HAS_PAD)
    q = load_rows(q_base, tokens, there, stride_qn, offs_d, D, BLOCK_D, True)
    k = load_rows(k_base, tokens, heard, stride_kn, offs_d, D, BLOCK_D, True)
    v = load_rows(v_base, tokens, heard, stride_vn, offs_d, D, BLOCK_D, True)
    do = load_rows(do_base, tokens, there, stride_dn, offs_d, D, BLOCK_D, True)
    out = load_rows(out_base, tokens, there, D, offs_d, D, BLOCK_D, True)
    wide_do = do.to(tl.float32)
    delta = tl.sum(wide_do * out.to(tl.float32), 1)
    lse = load_lse(lse_base, tokens, there)
    # The tile hears its neighbours: queries of the halo pull at the tile's own keys.
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    p = tl.where(_near(heard, width, T), tl.exp2(s - lse[:, None]), 0.0)
    g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    if DROP:
        factor = dropped_pairs(
            SEED, b, h, tokens[:, None], tokens[None, :], threshold, growth
        )
        g *= factor
    ds = (p * (g - delta[:, None])).to(q.dtype)
    if DROP:
        p *= factor
    dq = tl.dot(ds, k, input_precision=PRECISION)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
    dv = tl.dot(tl.trans(p.to(do.dtype)), do, input_precision=PRECISION)
    relay_q = _relay(q_base, n, stride_qn, offs_d, D)
    relay_k = _relay(k_base, n, stride_kn, offs_d, D)
    relay_v = _relay(v_base, n, stride_vn, offs_d, D)
    relay_do = _relay(do_base, n, stride_dn, offs_d, D)
    relay_delta = tl.sum(relay_do * _relay(out_base, n, D, offs_d, D), 0)
    relay_lse = tl.load(lse_base + n - 1)
    relay_lse = tl.where(relay_lse == float("-inf"), float("inf"), relay_lse)
    # The tile hears the relay.
    last = tokens * 0 + n - 1
    wide_q = q.to(tl.float32)
    s_relay = tl.sum(wide_q * relay_k[None, :], 1) * scale
    p_relay = tl.where(_heard(pad, last, own, HAS_PAD), tl.exp2(s_relay - lse), 0.0)
    g_relay = tl.sum(wide_do * relay_v[None, :], 1)
    if DROP:
        factor = dropped_pairs(SEED, b, h, tokens, last, threshold, growth)
        g_relay *= factor
    ds_relay = p_relay * (g_relay - delta)
    if DROP:
        p_relay *= factor
    dq += ds_relay[:, None] * relay_k[None, :]
    part_k = tl.sum(ds_relay[:, None] * wide_q, 0) * back_scale
    part_v = tl.sum(p_relay[:, None] * wide_do, 0)
    # The relay hears the tile.
    wide_k = k.to(tl.float32)
    s_relay = tl.sum(relay_q[None, :] * wide_k, 1) * scale
    p_relay = tl.where(heard & own, tl.exp2(s_relay - relay_lse), 0.0)
    g_relay = tl.sum(relay_do[None, :] * v.to(tl.float32), 1)
    if DROP:
        factor = dropped_pairs(SEED, b, h, last, tokens, threshold, growth)
        g_relay *= factor
    ds_relay = p_relay * (g_relay - relay_delta)
    if DROP:
        p_relay *= factor
    dk += ds_relay[:, None] * relay_q[None, :]
    dv += p_relay[:, None] * relay_do[None, :]
    part_q = tl.sum(ds_relay[:, None] * wide_k, 0) * back_scale
    at = pair * n * D
    store_rows(DQ + at, tokens, own, offs_d, dq * back_scale, D, BLOCK_D)
    store_rows(DK + at, tokens, own, offs_d, dk * back_scale, D, BLOCK_D)
    store_rows(DV + at, tokens, own, offs_d, dv, D, BLOCK_D)
    # The relay hears itself; the first program counts it.
    first = tl.max(tl.where(_heard(pad, last, last == n - 1 + tile, HAS_PAD), 1.0, 0.0), 0)
    s = tl.sum(relay_q * relay_k, 0) * scale
    p_own = tl.where(first > 0, tl.exp2(s - relay_lse), 0.0)
    g_own = tl.sum(relay_do * relay_v, 0)
    if DROP:
        itself = tl.max(dropped_pairs(SEED, b, h, last, last, threshold, growth), 0)
        g_own *= itself
    ds_own = p_own * (g_own - relay_delta) * back_scale
    if DROP:
        p_own *= itself
    part_q += ds_own * relay_k
    part_k += ds_own * relay_q
    part_v += p_own * relay_do
    inside = offs_d < D
    row = (pair * slots + tile) * D + offs_d
    every = tl.num_programs(1).to(tl.int64) * slots * D
    tl.store(PART + row, part_q, mask=inside)
    tl.store(PART + every + row, part_k, mask=inside)
    tl.store(PART + 2 * every + row, part_v, mask=inside)
