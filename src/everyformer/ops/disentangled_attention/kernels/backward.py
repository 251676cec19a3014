"""The backward pass: dQ by tiles of queries, dK and dV by tiles of keys, and near dS."""

import triton
import triton.language as tl

from everyformer.ops.disentangled_attention.kernels.buckets import (
    HEAD,
    near_keys,
    near_queries,
    with_terms,
)
from everyformer.ops.kernel_tiles import (
    dropped,
    keys_count,
    load_lse,
    load_ready,
    load_tile,
)


@triton.jit
def _dq_tiles(
    dq, q, do, lse, delta, k_base, v_base, c2p, p2c, table, pad, band, bucket, SEED, b, h,
    start_m, offs_d, stride_kn, stride_vn, n_q, n_k, threshold, growth, scale, width,
    start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, FAR: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr,
    NEEDS: tl.constexpr, HAS_PAD: tl.constexpr, DROPS: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ = dS K over key tiles, dS = P (G - Delta), which is kept or, if far, summed."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    total = tl.zeros([BM], dtype=tl.float32)
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + columns
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [M, N]
        s = scale * with_terms(
            s, c2p, p2c + n.to(tl.int64) * R, table, start_m - n, rows, columns,
            n_q - start_m, n_k - n, bucket, R, 1, FAR, HAS_C2P, HAS_P2C, ASSEMBLY, EVEN,
        )  # fmt: skip
        p = tl.exp2(s - lse[:, None])
        if HAS_PAD or not EVEN:
            keep = keys_count(pad, n, columns, n_k, HAS_PAD, False, EVEN, ASSEMBLY)
            p = tl.where(keep[None, :], p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            g *= dropped(
                SEED, b, h, start_m, n, rows[:, None], columns[None, :], threshold, growth
            )
        ds = p * (g - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
        if NEEDS:
            if FAR:
                total += tl.sum(ds, 1)
            else:
                place = band + rows[:, None] * width + (n - start)
                tl.store(place + columns[None, :], ds.to(band.dtype.element_ty))
    return dq, total


@triton.jit(do_not_specialize=("first_program",))
def dq_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, DOUT, READY, LSE, OUT, DQ, BAND, SUMS,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
    stride_pb, H, n_q, n_k, threshold, growth, scale, back_scale, first_program, width,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries, and dS for d c2p; LSE and Delta as dK needs them.

    Delta_i = dO_i . O_i
    """
    tiles, number = tl.cdiv(n_q, BM), tl.program_id(0) + first_program
    pair, start_m = (number // tiles).to(tl.int64), number % tiles * BM
    b, h = pair // H, pair % H
    rows = tl.arange(0, BM)
    offs_m, offs_d = start_m + rows, tl.arange(0, BLOCK_D)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    c2p, p2c = C2P + (pair * n_q + start_m) * R, P2C + pair * n_k * R
    table, pad = TABLE + HEAD + LEAD + n_k - 1, PADDED + b * stride_pb
    local = tl.program_id(0).to(tl.int64) * BM
    band, sums = BAND + local * width, SUMS + 2 * (local + rows)
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
    at = pair * n_q
    out = load_tile(OUT + at * D, offs_m, offs_d, D, n_q, D, BLOCK_D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    lse = load_lse(LSE, at, offs_m, n_q)
    ready = READY + 2 * (at + offs_m)
    tl.store(ready, lse, mask=offs_m < n_q)
    tl.store(ready + 1, delta, mask=offs_m < n_q)
    dq = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    near, far, end = near_keys(TABLE, start_m, n_k, BM, BN)
    dq, before = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, c2p, p2c, table, pad, band,
        tl.load(TABLE + 3), SEED, b, h, start_m, offs_d, stride_kn, stride_vn, n_q, n_k,
        threshold, growth, scale, width, 0, near,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    dq, _ = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, c2p, p2c, table, pad, band,
        0, SEED, b, h, start_m, offs_d, stride_kn, stride_vn, n_q, n_k,
        threshold, growth, scale, width, near, far,
        D, BLOCK_D, R, BM, BN, False, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    dq, after = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, c2p, p2c, table, pad, band,
        tl.load(TABLE + 2), SEED, b, h, start_m, offs_d, stride_kn, stride_vn, n_q, n_k,
        threshold, growth, scale, width, far, end,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        tl.store(sums, before)
        tl.store(sums + 1, after)
    mask = (offs_m[:, None] < n_q) & (offs_d[None, :] < D)
    place = DQ + (at + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(place, (dq * back_scale).to(DQ.dtype.element_ty), mask=mask)


@triton.jit
def _dkv_tiles(
    dk, dv, k, v, q_base, do_base, READY, at, c2p, p2c, table, keep, band, bucket, SEED, b,
    h, start_n, offs_d, stride_qm, stride_dm, n_q, n_k, threshold, growth, scale, width,
    start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, FAR: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr,
    NEEDS: tl.constexpr, HAS_PAD: tl.constexpr, DROPS: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dV = P^T dO, dK = dS^T Q over query tiles; dS as above; transposed: [N, M]."""
    rows, columns = tl.arange(0, BN), tl.arange(0, BM)
    total = tl.zeros([BN], dtype=tl.float32)
    for m in range(start, stop, BM):
        m = tl.multiple_of(m, BM)
        offs_m = m + columns
        q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse, delta = load_ready(READY, at + m, columns, n_q - m, False, EVEN, ASSEMBLY)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [N, M]
        s = scale * with_terms(
            s, p2c, c2p + m.to(tl.int64) * R, table, m - start_n, rows, columns,
            n_k - start_n, n_q - m, bucket, R, -1, FAR, HAS_P2C, HAS_C2P, ASSEMBLY, EVEN,
        )  # fmt: skip
        p = tl.exp2(s - lse[None, :])
        if HAS_PAD or not EVEN:
            p = tl.where(keep[:, None], p, 0.0)
        g = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        used = p
        if DROPS:
            factor = dropped(
                SEED, b, h, m, start_n, columns[None, :], rows[:, None], threshold, growth
            )
            used = p * factor
            g *= factor
        dv = tl.dot(used.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (g - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        if NEEDS:
            if FAR:
                total += tl.sum(ds, 1)
            else:
                place = band + rows[:, None] * width + (m - start)
                tl.store(place + columns[None, :], ds.to(band.dtype.element_ty))
    return dk, dv, total


@triton.jit(do_not_specialize=("first_program",))
def dkv_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, DOUT, READY, DK, DV, BAND, SUMS,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
    stride_pb, H, n_q, n_k, threshold, growth, scale, back_scale, first_program, width,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, NEEDS: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys, and dS for d p2c."""
    tiles, number = tl.cdiv(n_k, BN), tl.program_id(0) + first_program
    pair, start_n = (number // tiles).to(tl.int64), number % tiles * BN
    b, h = pair // H, pair % H
    rows = tl.arange(0, BN)
    offs_n, offs_d = start_n + rows, tl.arange(0, BLOCK_D)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    c2p, p2c = C2P + pair * n_q * R, P2C + (pair * n_k + start_n) * R
    table = TABLE + HEAD + LEAD + n_k - 1
    local = tl.program_id(0).to(tl.int64) * BN
    band, sums = BAND + local * width, SUMS + 2 * (local + rows)
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    pad = PADDED + b * stride_pb
    keep = keys_count(pad, start_n, rows, n_k, HAS_PAD, True, EVEN, ASSEMBLY)
    at = pair * n_q
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    near, far, end = near_queries(TABLE, start_n, n_q, BM, BN)
    dk, dv, before = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, READY, at, c2p, p2c, table, keep, band,
        tl.load(TABLE + 2), SEED, b, h, start_n, offs_d, stride_qm, stride_dm, n_q, n_k,
        threshold, growth, scale, width, 0, near,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    dk, dv, _ = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, READY, at, c2p, p2c, table, keep, band,
        0, SEED, b, h, start_n, offs_d, stride_qm, stride_dm, n_q, n_k,
        threshold, growth, scale, width, near, far,
        D, BLOCK_D, R, BM, BN, False, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    dk, dv, after = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, READY, at, c2p, p2c, table, keep, band,
        tl.load(TABLE + 3), SEED, b, h, start_n, offs_d, stride_qm, stride_dm, n_q, n_k,
        threshold, growth, scale, width, far, end,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, NEEDS, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    if NEEDS:
        tl.store(sums, before)
        tl.store(sums + 1, after)
    mask = (offs_n[:, None] < n_k) & (offs_d[None, :] < D)
    place = (pair * n_k + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + place, (dk * back_scale).to(DK.dtype.element_ty), mask=mask)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=mask)
