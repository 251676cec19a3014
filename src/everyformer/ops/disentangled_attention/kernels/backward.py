"""The backward pass: dQ, d c2p by tiles of queries; dK, dV, d p2c by tiles of keys."""

import triton
import triton.language as tl

from everyformer.ops.disentangled_attention.kernels.buckets import (
    HEAD,
    counting,
    entries,
    key_ranges,
    store_runs,
    with_terms,
)
from everyformer.ops.kernel_tiles import (
    dropped,
    load_lse,
    load_rows,
    load_tile,
)


@triton.jit
def _dq_tiles(
    dq, carry, q, do, lse, delta, k_base, v_base, c2p, p2c, dc2p, table, pad, bucket,
    offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
    threshold, growth, scale, back_scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    FAR: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ = dS K over key tiles, dS = P (G - Delta); and sums of dS by bucket."""
    i = offs_m[:, None]
    for n in range(start, stop, BN):
        offs_n = n + tl.arange(0, BN)
        j = offs_n[None, :]
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [M, N]
        s = scale * with_terms(
            s, c2p, p2c, table, i, j, bucket, n_q, n_k, R, FAR, HAS_C2P, HAS_P2C, ASSEMBLY
        )
        p = tl.exp2(s - lse[:, None])
        if HAS_PAD or not EVEN:
            p = tl.where(counting(offs_n, pad, n_k, HAS_PAD)[None, :], p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
            g *= dropped(SEED, b, h, start_m, n, rows, columns, threshold, growth)
        ds = p * (g - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
        if NEEDS:
            if FAR:
                carry += tl.sum(ds, 1)
            else:
                carry = store_runs(
                    ds, carry,
                    entries(table, i - j, ASSEMBLY), entries(table, i - j - 1, ASSEMBLY),
                    j == n_k - 1, dc2p + i * R, (i < n_q) & (j < n_k), back_scale, BN,
                )  # fmt: skip
    return dq, carry


@triton.jit
def dq_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, DOUT, LSE, DELTA, OUT, DQ, DC2P,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_pb, H, n_q, n_k, R, threshold, growth, scale, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ and d c2p of one tile of queries; and Delta_i = dO_i . O_i."""
    start_m = tl.program_id(0) * BM
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    c2p, p2c, dc2p = C2P + pair * n_q * R, P2C + pair * n_k * R, DC2P + pair * n_q * R
    table, pad = TABLE + HEAD + LEAD + n_k - 1, PADDED + b * stride_pb
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
    at = pair * n_q
    out = load_tile(OUT + at * D, offs_m, offs_d, D, n_q, D, BLOCK_D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + at + offs_m, delta, mask=offs_m < n_q)
    lse = load_lse(LSE, at, offs_m, n_q)
    dq = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    carry = tl.zeros([BM], dtype=tl.float32)
    near, far, end = key_ranges(TABLE, start_m, n_k, BM, BN)
    first, last = tl.load(TABLE + 2), tl.load(TABLE + 3)
    dq, carry = _dq_tiles(
        dq, carry, q, do, lse, delta, k_base, v_base, c2p, p2c, dc2p, table, pad, last,
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, back_scale, 0, near,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        # The run of the last bucket may end where near keys begin.
        begin = offs_m * 0 + near
        ends = (tl.load(table + offs_m - near) != last) | (begin >= n_k)
        ends = ends & (begin > 0)
        value = (carry * back_scale).to(DC2P.dtype.element_ty)
        tl.store(dc2p + offs_m * R + last, value, mask=ends & (offs_m < n_q))
        carry = tl.where(ends, 0.0, carry)
    dq, carry = _dq_tiles(
        dq, carry, q, do, lse, delta, k_base, v_base, c2p, p2c, dc2p, table, pad, 0,
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, back_scale, near, far,
        D, BLOCK_D, BM, BN, False, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    dq, carry = _dq_tiles(
        dq, carry, q, do, lse, delta, k_base, v_base, c2p, p2c, dc2p, table, pad, first,
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, back_scale, far, end,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        value = (carry * back_scale).to(DC2P.dtype.element_ty)
        open_run = (offs_m < n_q) & (offs_m * 0 + far < n_k)
        tl.store(dc2p + offs_m * R + first, value, mask=open_run)
    mask = (offs_m[:, None] < n_q) & (offs_d[None, :] < D)
    place = DQ + (at + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(place, (dq * back_scale).to(DQ.dtype.element_ty), mask=mask)


@triton.jit
def _dkv_tiles(
    dk, dv, carry, k, v, q_base, do_base, LSE, DELTA, at, c2p, p2c, dp2c, table, keep,
    bucket, offs_n, offs_d, SEED, b, h, start_n, stride_qm, stride_dm, n_q, n_k, R,
    threshold, growth, scale, back_scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    FAR: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dV = P^T dO, dK = dS^T Q over query tiles and sums by bucket, transposed: [N, M]."""
    j = offs_n[:, None]
    for m in range(start, stop, BM):
        offs_m = m + tl.arange(0, BM)
        i = offs_m[None, :]
        q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse, delta = load_rows(LSE, DELTA, at, offs_m, n_q)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [N, M]
        s = scale * with_terms(
            s, c2p, p2c, table, i, j, bucket, n_q, n_k, R, FAR, HAS_C2P, HAS_P2C, ASSEMBLY
        )
        p = tl.exp2(s - lse[None, :])
        if HAS_PAD or not EVEN:
            p = tl.where(keep[:, None], p, 0.0)
        g = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        used = p
        if DROPS:
            rows, columns = tl.arange(0, BM)[None, :], tl.arange(0, BN)[:, None]
            factor = dropped(SEED, b, h, m, start_n, rows, columns, threshold, growth)
            used = p * factor
            g *= factor
        dv = tl.dot(used.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (g - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        if NEEDS:
            if FAR:
                carry += tl.sum(ds, 1)
            else:
                carry = store_runs(
                    ds, carry,
                    entries(table, i - j, ASSEMBLY), entries(table, i - j + 1, ASSEMBLY),
                    i == n_q - 1, dp2c + j * R, (i < n_q) & (j < n_k), back_scale, BM,
                )  # fmt: skip
    return dk, dv, carry


@triton.jit
def dkv_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, DOUT, LSE, DELTA, DK, DV, DP2C,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_pb, H, n_q, n_k, R, threshold, growth, scale, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dK, dV and d p2c of one tile of keys."""
    start_n = tl.program_id(0) * BN
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    offs_n, offs_d = start_n + tl.arange(0, BN), tl.arange(0, BLOCK_D)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    c2p, p2c, dp2c = C2P + pair * n_q * R, P2C + pair * n_k * R, DP2C + pair * n_k * R
    table = TABLE + HEAD + LEAD + n_k - 1
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    keep = counting(offs_n, PADDED + b * stride_pb, n_k, HAS_PAD)
    at = pair * n_q
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    carry = tl.zeros([BN], dtype=tl.float32)
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    first, last = tl.load(TABLE + 2), tl.load(TABLE + 3)
    # Seen from keys, queries begin with the most negative offsets.
    end = tl.cdiv(n_q, BM) * BM
    near = tl.minimum(end, tl.maximum(0, start_n + low + 1) // BM * BM)
    far = tl.cdiv(tl.maximum(0, start_n + BN - 1 + high), BM) * BM
    far = tl.minimum(end, tl.maximum(near, far))
    dk, dv, carry = _dkv_tiles(
        dk, dv, carry, k, v, q_base, do_base, LSE, DELTA, at, c2p, p2c, dp2c, table, keep,
        first, offs_n, offs_d, SEED, b, h, start_n, stride_qm, stride_dm, n_q, n_k, R,
        threshold, growth, scale, back_scale, 0, near,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        begin = offs_n * 0 + near
        ends = (tl.load(table + near - offs_n) != first) | (begin >= n_q)
        ends = ends & (begin > 0)
        value = (carry * back_scale).to(DP2C.dtype.element_ty)
        tl.store(dp2c + offs_n * R + first, value, mask=ends & (offs_n < n_k))
        carry = tl.where(ends, 0.0, carry)
    dk, dv, carry = _dkv_tiles(
        dk, dv, carry, k, v, q_base, do_base, LSE, DELTA, at, c2p, p2c, dp2c, table, keep,
        0, offs_n, offs_d, SEED, b, h, start_n, stride_qm, stride_dm, n_q, n_k, R,
        threshold, growth, scale, back_scale, near, far,
        D, BLOCK_D, BM, BN, False, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    dk, dv, carry = _dkv_tiles(
        dk, dv, carry, k, v, q_base, do_base, LSE, DELTA, at, c2p, p2c, dp2c, table, keep,
        last, offs_n, offs_d, SEED, b, h, start_n, stride_qm, stride_dm, n_q, n_k, R,
        threshold, growth, scale, back_scale, far, end,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS,
        PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        value = (carry * back_scale).to(DP2C.dtype.element_ty)
        open_run = (offs_n < n_k) & (offs_n * 0 + far < n_q)
        tl.store(dp2c + offs_n * R + last, value, mask=open_run)
    mask = (offs_n[:, None] < n_k) & (offs_d[None, :] < D)
    place = (pair * n_k + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + place, (dk * back_scale).to(DK.dtype.element_ty), mask=mask)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=mask)
