"""Triton kernels: forward, dQ with d c2p, dK and dV with d p2c.

Shapes in comments: M queries and N keys of a tile, D the head size, R the number of
buckets. Scores are in base 2. `TABLE` holds four numbers, the last offset of the first
bucket, the first offset of the last bucket and these two buckets, and then the bucket of
each offset, repeated `LEAD` times at both ends, so that a tile may read beyond the last
token.

Tiles whose offsets all lie in the first or the last bucket are far: their terms are one
number for each query and one for each key. Near tiles gather theirs. Along a row of queries
or keys buckets do not decrease, so each is a run: its sum is finished where the run ends,
and stored there, once. No atomics, and no zeros to add to but those of empty buckets.
"""

import triton
import triton.language as tl

from everyformer.ops.toeplitz_attention.kernels.tiles import (
    dropped,
    load_lse,
    load_rows,
    load_tile,
)

HEAD = tl.constexpr(4)
"""Numbers before the buckets in the table."""


@triton.jit
def _entries(base, place, ASSEMBLY: tl.constexpr):
    """Numbers of a read-only array at any places.

    In assembly, as for Toeplitz vectors: tl.load would go through shared memory.
    """
    if ASSEMBLY:
        if base.dtype.element_ty.primitive_bitwidth == 16:
            found = tl.inline_asm_elementwise(
                "{.reg .u64 a; mad.wide.s32 a, $2, 2, $1; ld.global.nc.b16 $0, [a];}",
                "=h,l,r",
                [base.to(tl.int64), place],
                dtype=tl.int16,
                is_pure=True,
                pack=1,
            ).to(base.dtype.element_ty, bitcast=True)
        elif base.dtype.element_ty == tl.int32:
            found = tl.inline_asm_elementwise(
                "{.reg .u64 a; mad.wide.s32 a, $2, 4, $1; ld.global.nc.b32 $0, [a];}",
                "=r,l,r",
                [base.to(tl.int64), place],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
        else:
            found = tl.inline_asm_elementwise(
                "{.reg .u64 a; mad.wide.s32 a, $2, 4, $1; ld.global.nc.f32 $0, [a];}",
                "=f,l,r",
                [base.to(tl.int64), place],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
    else:
        found = tl.load(base + place)
    return found


@triton.jit
def _scores(
    s, c2p, p2c, table, i, j, bucket, n_q, n_k, R,
    FAR: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """q k^T with both terms, unscaled; queries i and keys j in either order of axes."""
    if not FAR:
        bucket = _entries(table, i - j, ASSEMBLY)
    if HAS_C2P:
        place = tl.minimum(i, n_q - 1) * R + bucket
        s += _entries(c2p, place, ASSEMBLY).to(tl.float32)
    if HAS_P2C:
        place = tl.minimum(j, n_k - 1) * R + bucket
        s += _entries(p2c, place, ASSEMBLY).to(tl.float32)
    return s


@triton.jit
def _counting(offs_n, pad, n_k, HAS_PAD: tl.constexpr):
    """Whether keys exist and are not padding."""
    keep = offs_n < n_k
    if HAS_PAD:
        keep = keep & (tl.load(pad + offs_n, mask=keep, other=1) == 0)
    return keep


@triton.jit
def _join(sum_1, bucket_1, sum_2, bucket_2):
    """The sum of the last run of two neighbours."""
    return sum_2 + tl.where(bucket_1 == bucket_2, sum_1, 0.0), bucket_2


@triton.jit
def _runs(
    ds, carry, bucket, following, last, place, inside, scale, WIDTH: tl.constexpr
):  # fmt: skip
    """Store the sums of runs of equal buckets along rows where they end.

    `carry` is the sum of the run that is open at the left end; returns that of the right.
    """
    column = tl.arange(0, WIDTH)[None, :]
    ds += tl.where(column == 0, carry[:, None], 0.0)
    sums, _ = tl.associative_scan((ds, bucket), 1, _join)
    ends = (bucket != following) | last
    value = (sums * scale).to(place.dtype.element_ty)
    tl.store(place + bucket, value, mask=ends & inside)
    return tl.sum(tl.where((column == WIDTH - 1) & (ends == 0), sums, 0.0), 1)


@triton.jit
def _forward_tiles(
    acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, bucket, offs_m, offs_d,
    SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R, threshold, growth, scale,
    start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    FAR: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, HAS_PAD: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Key tiles from start to stop, all near or all far."""
    for n in range(start, stop, BN):
        offs_n = n + tl.arange(0, BN)
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [M, N]
        s = scale * _scores(
            s, c2p, p2c, table, offs_m[:, None], offs_n[None, :], bucket, n_q, n_k, R,
            FAR, HAS_C2P, HAS_P2C, ASSEMBLY,
        )  # fmt: skip
        if HAS_PAD or not EVEN:
            keep = _counting(offs_n, pad, n_k, HAS_PAD)
            s = tl.where(keep[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROPS:
            rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
            p *= dropped(SEED, b, h, start_m, n, rows, columns, threshold, growth)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _key_ranges(TABLE, start_m, n_k, BM: tl.constexpr, BN: tl.constexpr):
    """Where near keys begin and end, as seen from a tile of queries; in whole tiles."""
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    end = tl.cdiv(n_k, BN) * BN
    near = tl.minimum(end, tl.maximum(0, start_m - high + 1) // BN * BN)
    far = tl.cdiv(tl.maximum(0, start_m + BM - 1 - low), BN) * BN
    return near, tl.minimum(end, tl.maximum(near, far)), end


@triton.jit
def _forward_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, OUT, LSE,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_pb, H, n_q, n_k, R, threshold, growth, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, HAS_PAD: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: running maximum, sum of exp, and sum of exp * v."""
    start_m = tl.program_id(0) * BM
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // H, pair % H
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    q_base = Q + b * stride_qb + h * stride_qh
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    c2p, p2c = C2P + pair * n_q * R, P2C + pair * n_k * R
    table, pad = TABLE + HEAD + LEAD + n_k - 1, PADDED + b * stride_pb
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    acc = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    near, far, end = _key_ranges(TABLE, start_m, n_k, BM, BN)
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, tl.load(TABLE + 3),
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, 0, near,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, 0,
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, near, far,
        D, BLOCK_D, BM, BN, False, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, tl.load(TABLE + 2),
        offs_m, offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, R,
        threshold, growth, scale, far, end,
        D, BLOCK_D, BM, BN, True, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    total = tl.where(l_i == 0, 1.0, l_i)
    lse = tl.where(l_i == 0, float("-inf"), m_i + tl.log2(total))
    mask = (offs_m[:, None] < n_q) & (offs_d[None, :] < D)
    place = (pair * n_q + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(OUT + place, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=mask)
    tl.store(LSE + pair * n_q + offs_m, lse, mask=offs_m < n_q)


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
        s = scale * _scores(
            s, c2p, p2c, table, i, j, bucket, n_q, n_k, R, FAR, HAS_C2P, HAS_P2C, ASSEMBLY
        )
        p = tl.exp2(s - lse[:, None])
        if HAS_PAD or not EVEN:
            p = tl.where(_counting(offs_n, pad, n_k, HAS_PAD)[None, :], p, 0.0)
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
                carry = _runs(
                    ds, carry,
                    _entries(table, i - j, ASSEMBLY), _entries(table, i - j - 1, ASSEMBLY),
                    j == n_k - 1, dc2p + i * R, (i < n_q) & (j < n_k), back_scale, BN,
                )  # fmt: skip
    return dq, carry


@triton.jit
def _dq_kernel(
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
    near, far, end = _key_ranges(TABLE, start_m, n_k, BM, BN)
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
        s = scale * _scores(
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
                carry = _runs(
                    ds, carry,
                    _entries(table, i - j, ASSEMBLY), _entries(table, i - j + 1, ASSEMBLY),
                    i == n_q - 1, dp2c + j * R, (i < n_q) & (j < n_k), back_scale, BM,
                )  # fmt: skip
    return dk, dv, carry


@triton.jit
def _dkv_kernel(
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
    keep = _counting(offs_n, PADDED + b * stride_pb, n_k, HAS_PAD)
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
