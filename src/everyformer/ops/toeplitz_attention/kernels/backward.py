"""The backward pass: dQ by tiles of queries, dK and dV by tiles of keys."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import (
    dropped,
    keys_count,
    load_lse,
    load_ready,
    load_tile,
)
from everyformer.ops.toeplitz_attention.kernels.tiles import (
    load_bounds,
    load_pair,
    with_mask,
)


@triton.jit
def _dq_tiles(
    dq, q, do, lse, delta, k_base, v_base, table, pad, mask, begin, end, SEED, b, h,
    start_m, offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q, n_k, scale,
    shift, threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, MASKED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr,
    HAS_MASK: tl.constexpr, ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ = dS K over key tiles, dS = P (C G - Delta)."""
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
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
        p = tl.exp2(s - lse[:, None])
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
            p = tl.where(counts, p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if HAS_GAIN:
            g *= gain
        if DROPS:
            g *= dropped(SEED, b, h, start_m, n, queries, keys, threshold, growth)
        ds = p * (g - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=("shift",))
def dq_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, DOUT, READY, LSE, OUT, DQ,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
    stride_th, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn,
    H, n_q, n_k, scale, shift, threshold, growth, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries; and LSE and Delta as the other kernels read them.

    Delta_i = dO_i . O_i = sum_j P_ij C_ij G_ij
    """
    tile = tl.program_id(0)
    if CAUSAL:  # those with the most keys first, so that no long one is left at the end
        tile = tl.num_programs(0) - 1 - tile
    start_m = tile * BM
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    h_k = h // GROUP if GROUP > 1 else h
    k_base, v_base = (
        K + b * stride_kb + h_k * stride_kh,
        V + b * stride_vb + h_k * stride_vh,
    )
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    pad = PADDED + b * stride_pb
    mask = MASK + b * stride_mb + h * stride_mh
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
    at = tl.program_id(1).to(tl.int64) * n_q
    out = load_tile(OUT + at * D, offs_m, offs_d, D, n_q, D, BLOCK_D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    lse = load_lse(LSE, at, offs_m, n_q)
    ready = READY + 2 * (at + offs_m)
    tl.store(ready, lse, mask=offs_m < n_q)
    tl.store(ready + 1, delta, mask=offs_m < n_q)
    last_m = start_m + shift if SHIFTED else start_m
    start, stop = 0, n_k
    if CAUSAL:
        stop = tl.minimum(n_k, last_m + BM)
    begin, end = n_q, n_q
    if PACKED:
        begin, end = load_bounds(BEGIN, END, offs_m, n_q)
        start = tl.min(begin, 0) // BN * BN
        stop = tl.minimum(stop, tl.max(end, 0))
    dq = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    if not ((HAS_PAD or HAS_MASK) or PACKED):
        whole = tl.minimum(n_k, last_m) if CAUSAL else n_k
        if SHIFTED:
            whole = tl.maximum(whole, 0)
        whole = whole // BN * BN
        dq = _dq_tiles(
            dq, q, do, lse, delta, k_base, v_base, table, pad, mask, begin, end, SEED, b,
            h, start_m, offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q,
            n_k, scale, shift, threshold, growth, 0, whole,
            D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, False, HAS_BIAS, HAS_GAIN, HAS_PAD,
            HAS_MASK, ADDS, PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
        )  # fmt: skip
        start = whole
    dq = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, table, pad, mask, begin, end, SEED, b, h,
        start_m, offs_m, offs_d, stride_kn, stride_vn, stride_mm, stride_mn, n_q, n_k,
        scale, shift, threshold, growth, start, stop,
        D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, True, HAS_BIAS, HAS_GAIN, HAS_PAD, HAS_MASK,
        ADDS, PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    there = offs_m[:, None] < n_q
    if BLOCK_D != D:
        there = there & (offs_d[None, :] < D)
    place = DQ + (at + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(place, (dq * back_scale).to(DQ.dtype.element_ty), mask=there)


@triton.jit
def _dkv_tiles(
    dk, dv, k, v, q_base, do_base, READY, at, table, keep, mask, begin, end, SEED, b,
    h, start_n, offs_n, offs_d, stride_qm, stride_dm, stride_mm, stride_mn, n_q, n_k,
    scale, shift, threshold, growth, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, MASKED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """dV = (P C)^T dO and dK = dS^T Q over query tiles, everything transposed: [N, M]."""
    for m in range(start, stop, BM):
        m = tl.multiple_of(m, BM)
        offs_m = m + tl.arange(0, BM)
        q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse, delta = load_ready(
            READY, at + m, tl.arange(0, BM), n_q - m, False, EVEN, ASSEMBLY
        )
        queries, keys = tl.arange(0, BM)[None, :], tl.arange(0, BN)[:, None]
        offset = m - start_n + queries - keys
        if HAS_BIAS or HAS_GAIN:
            bias, gain = load_pair(table, m - start_n, keys, queries, -1, ASSEMBLY)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # [N, M]
        if HAS_BIAS:
            s += bias
        if HAS_MASK:
            s = with_mask(
                s, mask, offs_m[None, :], offs_n[:, None], stride_mm, stride_mn, n_q, n_k,
                ADDS,
            )  # fmt: skip
        p = tl.exp2(s - lse[None, :])
        if MASKED:
            counts = keep[:, None]
            if SHIFTED:
                counts = counts & (offset + shift >= 0)
            elif CAUSAL:
                counts = counts & (offset >= 0)
            if PACKED:
                counts = counts & (offs_m[None, :] >= begin[:, None])
                counts = counts & (offs_m[None, :] < end[:, None])
            p = tl.where(counts, p, 0.0)
        g = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if DROPS:
            factor = dropped(SEED, b, h, m, start_n, queries, keys, threshold, growth)
            if HAS_GAIN:
                factor *= gain
            dv = tl.dot((p * factor).to(do.dtype), do, dv, input_precision=PRECISION)
            g *= factor
        elif HAS_GAIN:
            dv = tl.dot((p * gain).to(do.dtype), do, dv, input_precision=PRECISION)
            g *= gain
        else:
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (g - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def _dkv_head(
    dk, dv, k, v, Q, DOUT, READY, TABLE, MASK, SEED, keep, begin, end, b, h, start_n,
    offs_n, offs_d, stride_qb, stride_qh, stride_qm, stride_db, stride_dh, stride_dm,
    stride_th, stride_mb, stride_mh, stride_mm, stride_mn, H, n_q, n_k, scale, shift,
    threshold, growth, start, whole, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_MASK: tl.constexpr, ADDS: tl.constexpr,
    PACKED: tl.constexpr, DROPS: tl.constexpr, ALL_MASKED: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """What one head of queries adds to dK and dV: first tiles with a mask, then others."""
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    mask = MASK + b * stride_mb + h * stride_mh
    at = (b * H + h) * n_q
    dk, dv = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, READY, at, table, keep, mask, begin, end,
        SEED, b, h, start_n, offs_n, offs_d, stride_qm, stride_dm, stride_mm, stride_mn,
        n_q, n_k, scale, shift, threshold, growth, start, stop if ALL_MASKED else whole,
        D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, True, HAS_BIAS, HAS_GAIN, HAS_MASK, ADDS,
        PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    if not ALL_MASKED:
        dk, dv = _dkv_tiles(
            dk, dv, k, v, q_base, do_base, READY, at, table, keep, mask, begin, end,
            SEED, b, h, start_n, offs_n, offs_d, stride_qm, stride_dm, stride_mm,
            stride_mn, n_q, n_k, scale, shift, threshold, growth, whole, n_q,
            D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, False, HAS_BIAS, HAS_GAIN, HAS_MASK, ADDS,
            PACKED, DROPS, PRECISION, ASSEMBLY, EVEN,
        )  # fmt: skip
    return dk, dv


@triton.jit(do_not_specialize=("shift",))
def dkv_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, DOUT, READY, DK, DV,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
    stride_th, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn,
    H, n_q, n_k, scale, shift, threshold, growth, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys, summed over a group of heads in their order."""
    start_n = tl.program_id(0) * BN
    heads = H // GROUP if GROUP > 1 else H
    b, h = (
        (tl.program_id(1) // heads).to(tl.int64),
        (tl.program_id(1) % heads).to(tl.int64),
    )
    offs_n, offs_d = start_n + tl.arange(0, BN), tl.arange(0, BLOCK_D)
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    pad = PADDED + b * stride_pb
    keep = keys_count(pad, start_n, tl.arange(0, BN), n_k, HAS_PAD, True, EVEN, ASSEMBLY)
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    # Keys that do not exist or are padded get gradients that are never stored, or are zero
    # by `keep`: only tiles on the diagonal and padded ones need a mask.
    start, whole, stop = 0, 0, n_q
    if SHIFTED:
        start = tl.maximum(start_n - shift, 0) // BM * BM
        whole = tl.maximum(tl.minimum(start_n + BN - shift, n_q), 0)
        whole = tl.cdiv(whole, BM) * BM
    elif CAUSAL:
        start = start_n // BM * BM
        whole = tl.cdiv(tl.minimum(start_n + BN, n_q), BM) * BM
    begin, end = n_q, n_q
    if PACKED:
        begin, end = load_bounds(BEGIN, END, offs_n, n_k)
        start = tl.maximum(start, tl.min(begin, 0) // BM * BM)
        stop = tl.max(end, 0)
    if GROUP == 1:
        dk, dv = _dkv_head(
            dk, dv, k, v, Q, DOUT, READY, TABLE, MASK, SEED, keep, begin, end, b, h,
            start_n, offs_n, offs_d, stride_qb, stride_qh, stride_qm, stride_db, stride_dh,
            stride_dm, stride_th, stride_mb, stride_mh, stride_mm, stride_mn, H, n_q, n_k,
            scale, shift, threshold, growth, start, whole, stop,
            D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, HAS_BIAS, HAS_GAIN, HAS_MASK, ADDS, PACKED,
            DROPS, (HAS_PAD or HAS_MASK) or PACKED, PRECISION, LEAD, ASSEMBLY, EVEN,
        )  # fmt: skip
    else:
        for member in range(GROUP):
            dk, dv = _dkv_head(
                dk, dv, k, v, Q, DOUT, READY, TABLE, MASK, SEED, keep, begin, end, b,
                h * GROUP + member, start_n, offs_n, offs_d, stride_qb, stride_qh,
                stride_qm, stride_db, stride_dh, stride_dm, stride_th, stride_mb,
                stride_mh, stride_mm, stride_mn, H, n_q, n_k, scale, shift, threshold,
                growth, start, whole, stop,
                D, BLOCK_D, BM, BN, CAUSAL, SHIFTED, HAS_BIAS, HAS_GAIN, HAS_MASK, ADDS,
                PACKED, DROPS, (HAS_PAD or HAS_MASK) or PACKED, PRECISION, LEAD,
                ASSEMBLY, EVEN,
            )  # fmt: skip
    there = offs_n[:, None] < n_k
    if BLOCK_D != D:
        there = there & (offs_d[None, :] < D)
    place = (tl.program_id(1).to(tl.int64) * n_k + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + place, (dk * back_scale).to(DK.dtype.element_ty), mask=there)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=there)
