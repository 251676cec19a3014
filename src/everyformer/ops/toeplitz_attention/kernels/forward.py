"""The forward pass, one tile of queries for each program."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped, keys_count, load_tile
from everyformer.ops.toeplitz_attention.kernels.tiles import (
    load_bounds,
    load_pair,
    with_mask,
)


@triton.jit
def _tiles(
    acc, l_i, m_i, q, k_base, v_base, table, pad, mask, begin, end, SEED, b, h, start_m,
    offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q, n_k, scale, shift,
    threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, MASKED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr,
    HAS_MASK: tl.constexpr, ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Key tiles from start to stop; masked where a tile may hold keys that do not count."""
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        queries, keys = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
        offset = start_m - n + queries - keys
        if HAS_BIAS or HAS_GAIN:
            bias, gain = load_pair(table, start_m - n, queries, keys, 1, ASSEMBLY)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            s += bias
        if HAS_MASK:
            s = with_mask(
                s, mask, offs_m[:, None], offs_n[None, :], stride_mm, stride_mn, n_q, n_k,
                ADDS,
            )  # fmt: skip
        if MASKED:
            counts = keys_count(
                pad, n, tl.arange(0, BN), n_k, HAS_PAD, False, EVEN, ASSEMBLY
            )[None, :]
            if SHIFTED:
                counts = counts & (offset + shift >= 0)
            elif CAUSAL:
                counts = counts & (offset >= 0)
            if PACKED:
                counts = counts & (offs_n[None, :] >= begin[:, None])
                counts = counts & (offs_n[None, :] < end[:, None])
            s = tl.where(counts, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if HAS_GAIN:
            p *= gain
        if DROPS:
            p *= dropped(SEED, b, h, start_m, n, queries, keys, threshold, growth)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=("shift",))
def forward_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, OUT, LSE,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_ob, stride_oh, stride_om,
    stride_th, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn,
    H, n_q, n_k, scale, shift, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: running maximum, sum of exp, and sum of exp * gain * v."""
    tile = tl.program_id(0)
    if CAUSAL:  # those with the most keys first, so that no long one is left at the end
        tile = tl.num_programs(0) - 1 - tile
    start_m = tile * BM
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    q_base = Q + b * stride_qb + h * stride_qh
    h_k = h // GROUP if GROUP > 1 else h
    k_base, v_base = (
        K + b * stride_kb + h_k * stride_kh,
        V + b * stride_vb + h_k * stride_vh,
    )
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    pad = PADDED + b * stride_pb
    mask = MASK + b * stride_mb + h * stride_mh
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    acc = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    last_m = start_m + shift if SHIFTED else start_m
    start, stop = 0, n_k
    if CAUSAL:
        stop = tl.minimum(n_k, last_m + BM)
    begin, end = n_q, n_q
    if PACKED:
        begin, end = load_bounds(BEGIN, END, offs_m, n_q)
        start = tl.min(begin, 0) // BN * BN
        stop = tl.minimum(stop, tl.max(end, 0))
    if not ((HAS_PAD or HAS_MASK) or PACKED):
        whole = tl.minimum(n_k, last_m) if CAUSAL else n_k
        if SHIFTED:
            whole = tl.maximum(whole, 0)
        whole = whole // BN * BN
        acc, l_i, m_i = _tiles(
            acc, l_i, m_i, q, k_base, v_base, table, pad, mask, begin, end, SEED, b, h,
            start_m, offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q, n_k,
            scale, shift, threshold, growth, 0, whole,
            D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, False, HAS_BIAS, HAS_GAIN, HAS_PAD,
            HAS_MASK, ADDS, PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
        )  # fmt: skip
        start = whole
    acc, l_i, m_i = _tiles(
        acc, l_i, m_i, q, k_base, v_base, table, pad, mask, begin, end, SEED, b, h,
        start_m, offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q, n_k,
        scale, shift, threshold, growth, start, stop,
        D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, True, HAS_BIAS, HAS_GAIN, HAS_PAD, HAS_MASK,
        ADDS, PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    empty = l_i == 0
    out = acc / tl.where(empty, 1.0, l_i)[:, None]
    lse = tl.where(
        empty,
        float("-inf"),
        m_i + tl.log2(tl.where(empty, 1.0, l_i)),
    )
    there = offs_m[:, None] < n_q
    if BLOCK_D != D:
        there = there & (offs_d[None, :] < D)
    out_base = OUT + b * stride_ob + h * stride_oh
    pointers = out_base + offs_m[:, None] * stride_om + offs_d[None, :]
    tl.store(pointers, out.to(OUT.dtype.element_ty), mask=there)
    tl.store(LSE + tl.program_id(1).to(tl.int64) * n_q + offs_m, lse, mask=offs_m < n_q)
