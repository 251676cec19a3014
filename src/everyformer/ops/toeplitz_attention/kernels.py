"""Triton kernels: forward, dQ, dK and dV, and block diagonals for d bias and d gain.

Shapes in comments: M queries and N keys of a tile, D the head size. Scores are in base 2:
scale and bias carry a factor log2(e). bias and gain come padded by PAD zeros at both ends,
so that a tile may read beyond the last token, as pairs (bias, gain); offset i - j is pair
i - j + n_k - 1 + PAD.
"""

import math

import triton
import triton.language as tl

PAD = 256
LOG2_E = math.log2(math.e)


@triton.jit
def _pair(table, offset, ASSEMBLY: tl.constexpr):
    """bias and gain at offsets, from a table of pairs.

    In assembly: tl.load would be made asynchronous, four bytes at a time, through shared
    memory, which is several times slower than reading the first-level cache.
    """
    if ASSEMBLY:
        bias, gain = tl.inline_asm_elementwise(
            "{.reg .u64 a; mad.wide.s32 a, $3, 8, $2; ld.global.nc.v2.f32 {$0, $1}, [a];}",
            "=f,=f,l,r",
            [table.to(tl.int64), offset],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        bias, gain = tl.load(table + 2 * offset), tl.load(table + 2 * offset + 1)
    return bias, gain


@triton.jit
def _tile(
    base, rows, columns, stride, limit,
    D: tl.constexpr, BLOCK_D: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix, (rows, BLOCK_D), zeros below the last row and right of D.

    EVEN says that no tile reaches below the last row.
    """
    pointers = base + rows[:, None] * stride + columns[None, :]
    if EVEN and BLOCK_D == D:
        return tl.load(pointers)
    mask = rows[:, None] < limit
    if BLOCK_D != D:
        mask = mask & (columns[None, :] < D)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _forward_tiles(
    acc, l_i, m_i, q, k_base, v_base, table, pad, offs_m, offs_d,
    stride_kn, stride_vn, n_k, scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, PRECISION: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Key tiles from start to stop; masked where a tile may hold keys that do not count."""
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = _tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        offset = offs_m[:, None] - offs_n[None, :]
        if HAS_BIAS or HAS_GAIN:
            bias, gain = _pair(table, offset, ASSEMBLY)
        if HAS_BIAS:
            s += bias
        if MASKED:
            counts = offs_n[None, :] < n_k
            if CAUSAL:
                counts = counts & (offset >= 0)
            if HAS_PAD:
                counts = (
                    counts
                    & (tl.load(pad + offs_n, mask=offs_n < n_k, other=1) == 0)[None, :]
                )
            s = tl.where(counts, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if HAS_GAIN:
            p *= gain
        v = _tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _forward_kernel(
    Q, K, V, TABLE, PADDED, OUT, LSE,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
    stride_th, stride_pb, H, n_q, n_k, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One tile of queries: running maximum, sum of exp, and sum of exp * gain * v."""
    start_m = tl.program_id(0) * BM
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    q_base = Q + b * stride_qb + h * stride_qh
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    pad = PADDED + b * stride_pb
    q = _tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    acc = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, start_m + BM)
    whole = (tl.minimum(n_k, start_m) if CAUSAL else n_k) // BN * BN
    if HAS_PAD:
        whole = 0
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, table, pad, offs_m, offs_d,
        stride_kn, stride_vn, n_k, scale, 0, whole,
        D, BLOCK_D, BN, CAUSAL, False, HAS_BIAS, HAS_GAIN, HAS_PAD, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, table, pad, offs_m, offs_d,
        stride_kn, stride_vn, n_k, scale, whole, stop,
        D, BLOCK_D, BN, CAUSAL, True, HAS_BIAS, HAS_GAIN, HAS_PAD, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    empty = l_i == 0
    out = acc / tl.where(empty, 1.0, l_i)[:, None]
    lse = tl.where(
        empty,
        float("-inf"),
        m_i + tl.log2(tl.where(empty, 1.0, l_i)),
    )
    mask = offs_m[:, None] < n_q
    if BLOCK_D != D:
        mask = mask & (offs_d[None, :] < D)
    out_base = OUT + b * stride_ob + h * stride_oh
    pointers = out_base + offs_m[:, None] * stride_om + offs_d[None, :]
    tl.store(pointers, out.to(OUT.dtype.element_ty), mask=mask)
    tl.store(LSE + tl.program_id(1).to(tl.int64) * n_q + offs_m, lse, mask=offs_m < n_q)


@triton.jit
def _base_2(LSE, at, rows, n_q):
    """LSE of queries in base 2; inf for one that does not exist or has no key."""
    lse = tl.load(LSE + at + rows, mask=rows < n_q, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def _rows(LSE, DELTA, at, rows, n_q):
    """LSE in base 2 and Delta of queries."""
    delta = tl.load(DELTA + at + rows, mask=rows < n_q, other=0.0)
    return _base_2(LSE, at, rows, n_q), delta


@triton.jit
def _dq_tiles(
    dq, q, do, lse, delta, k_base, v_base, table, pad, offs_m, offs_d,
    stride_kn, stride_vn, n_k, scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, PRECISION: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ = dS K over key tiles, dS = P (C G - Delta)."""
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = _tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        v = _tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        offset = offs_m[:, None] - offs_n[None, :]
        if HAS_BIAS or HAS_GAIN:
            bias, gain = _pair(table, offset, ASSEMBLY)
        if HAS_BIAS:
            s += bias
        p = tl.exp2(s - lse[:, None])
        if MASKED:
            counts = offs_n[None, :] < n_k
            if CAUSAL:
                counts = counts & (offset >= 0)
            if HAS_PAD:
                counts = (
                    counts
                    & (tl.load(pad + offs_n, mask=offs_n < n_k, other=1) == 0)[None, :]
                )
            p = tl.where(counts, p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if HAS_GAIN:
            g *= gain
        ds = p * (g - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit
def _dq_kernel(
    Q, K, V, TABLE, PADDED, DOUT, LSE, DELTA, OUT, DQ,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_th, stride_pb, H, n_q, n_k, scale, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries; and Delta_i = dO_i . O_i = sum_j P_ij C_ij G_ij."""
    start_m = tl.program_id(0) * BM
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    pad = PADDED + b * stride_pb
    q = _tile(
        Q + b * stride_qb + h * stride_qh, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN
    )
    do = _tile(
        DOUT + b * stride_db + h * stride_dh,
        offs_m,
        offs_d,
        stride_dm,
        n_q,
        D,
        BLOCK_D,
        EVEN,
    )
    at = tl.program_id(1).to(tl.int64) * n_q
    out = _tile(OUT + at * D, offs_m, offs_d, D, n_q, D, BLOCK_D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + at + offs_m, delta, mask=offs_m < n_q)
    lse = _base_2(LSE, at, offs_m, n_q)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, start_m + BM)
    whole = (tl.minimum(n_k, start_m) if CAUSAL else n_k) // BN * BN
    if HAS_PAD:
        whole = 0
    dq = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    dq = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, table, pad, offs_m, offs_d,
        stride_kn, stride_vn, n_k, scale, 0, whole,
        D, BLOCK_D, BN, CAUSAL, False, HAS_BIAS, HAS_GAIN, HAS_PAD, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    dq = _dq_tiles(
        dq, q, do, lse, delta, k_base, v_base, table, pad, offs_m, offs_d,
        stride_kn, stride_vn, n_k, scale, whole, stop,
        D, BLOCK_D, BN, CAUSAL, True, HAS_BIAS, HAS_GAIN, HAS_PAD, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    mask = offs_m[:, None] < n_q
    if BLOCK_D != D:
        mask = mask & (offs_d[None, :] < D)
    place = DQ + (at + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(place, (dq * back_scale).to(DQ.dtype.element_ty), mask=mask)


@triton.jit
def _dkv_tiles(
    dk, dv, k, v, q_base, do_base, LSE, DELTA, at, table, keep, offs_n, offs_d,
    stride_qm, stride_dm, n_q, scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """dV = (P C)^T dO and dK = dS^T Q over query tiles, everything transposed: [N, M]."""
    for m in range(start, stop, BM):
        m = tl.multiple_of(m, BM)
        offs_m = m + tl.arange(0, BM)
        q = _tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = _tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse, delta = _rows(LSE, DELTA, at, offs_m, n_q)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # [N, M]
        offset = offs_m[None, :] - offs_n[:, None]
        if HAS_BIAS or HAS_GAIN:
            bias, gain = _pair(table, offset, ASSEMBLY)
        if HAS_BIAS:
            s += bias
        p = tl.exp2(s - lse[None, :])
        if MASKED:
            counts = keep[:, None]
            if CAUSAL:
                counts = counts & (offset >= 0)
            p = tl.where(counts, p, 0.0)
        g = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        if HAS_GAIN:
            dv = tl.dot((p * gain).to(do.dtype), do, dv, input_precision=PRECISION)
            g *= gain
        else:
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (g - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def _dkv_kernel(
    Q, K, V, TABLE, PADDED, DOUT, LSE, DELTA, DK, DV,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_th, stride_pb, H, n_q, n_k, scale, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys."""
    start_n = tl.program_id(0) * BN
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    offs_n, offs_d = start_n + tl.arange(0, BN), tl.arange(0, BLOCK_D)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    k = _tile(
        K + b * stride_kb + h * stride_kh, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN
    )
    v = _tile(
        V + b * stride_vb + h * stride_vh, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN
    )
    keep = offs_n < n_k
    if HAS_PAD:
        keep = keep & (tl.load(PADDED + b * stride_pb + offs_n, mask=keep, other=1) == 0)
    at = tl.program_id(1).to(tl.int64) * n_q
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    start, whole = 0, 0
    if CAUSAL:
        start = start_n // BM * BM
        whole = tl.cdiv(tl.minimum(start_n + BN, n_q), BM) * BM
    # Keys that do not exist or are padded get gradients that are never stored, or are zero
    # by `keep`: only tiles on the diagonal and padded ones need a mask.
    dk, dv = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, LSE, DELTA, at, table, keep, offs_n, offs_d,
        stride_qm, stride_dm, n_q, scale, start, whole if not HAS_PAD else n_q,
        D, BLOCK_D, BM, CAUSAL, True, HAS_BIAS, HAS_GAIN, PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    dk, dv = _dkv_tiles(
        dk, dv, k, v, q_base, do_base, LSE, DELTA, at, table, keep, offs_n, offs_d,
        stride_qm, stride_dm, n_q, scale, whole if not HAS_PAD else n_q, n_q,
        D, BLOCK_D, BM, CAUSAL, False, HAS_BIAS, HAS_GAIN, PRECISION, ASSEMBLY, EVEN,
    )  # fmt: skip
    mask = offs_n[:, None] < n_k
    if BLOCK_D != D:
        mask = mask & (offs_d[None, :] < D)
    place = (tl.program_id(1).to(tl.int64) * n_k + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + place, (dk * back_scale).to(DK.dtype.element_ty), mask=mask)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=mask)


@triton.jit
def _diagonal_kernel(
    Q, K, V, TABLE, PADDED, DOUT, LSE, DELTA, STRIPS_B, STRIPS_C,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_th, stride_pb, B, H, n_q, n_k, scale, share,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, NEEDS_BIAS: tl.constexpr, NEEDS_GAIN: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sums of dS and P G over all tiles (I, J) with I - J = delta, then along diagonals.

    All these tiles have the same offsets, so whole tiles are added in registers, without
    atomics, and rolled and reduced once:

        R[a, c] = sum[a, (a - c) mod T];   c <= a: offset delta T + c;   c > a: that less T
    """
    tiles_q, tiles_k = tl.cdiv(n_q, T), tl.cdiv(n_k, T)
    # Longest diagonals first: 0, 1, -1, 2, -2, ...
    number = tl.program_id(0)
    shift = (number + 1) // 2
    shift = tl.where(number % 2 == 1, shift, -shift)
    if CAUSAL:
        shift = number
    h = (tl.program_id(1) % H).to(tl.int64)
    first_j, last_j = tl.maximum(0, -shift), tl.minimum(tiles_k, tiles_q - shift)
    count = tl.maximum(last_j - first_j, 0)
    first_b = (tl.program_id(1) // H) * share
    batches = tl.maximum(tl.minimum(share, B - first_b), 0)
    a, c = tl.arange(0, T), tl.arange(0, T)
    offs_d = tl.arange(0, BLOCK_D)
    offset = shift * T + a[:, None] - c[None, :]
    # A diagonal without tiles must not read beyond the vectors.
    exists = (offset * 0 + count) > 0
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    if HAS_BIAS:
        bias = tl.load(table + 2 * offset, mask=exists, other=0.0)
    if HAS_GAIN:
        gain = tl.load(table + 2 * offset + 1, mask=exists, other=0.0)
    acc_b = tl.zeros([T, T], dtype=tl.float32)
    acc_c = tl.zeros([T, T], dtype=tl.float32)
    for step in range(count * batches):
        z = (first_b + step // count).to(tl.int64)
        j = first_j + step % count
        offs_m, offs_n = (j + shift) * T + a, j * T + c
        q = _tile(
            Q + z * stride_qb + h * stride_qh,
            offs_m,
            offs_d,
            stride_qm,
            n_q,
            D,
            BLOCK_D,
            EVEN,
        )
        k = _tile(
            K + z * stride_kb + h * stride_kh,
            offs_n,
            offs_d,
            stride_kn,
            n_k,
            D,
            BLOCK_D,
            EVEN,
        )
        v = _tile(
            V + z * stride_vb + h * stride_vh,
            offs_n,
            offs_d,
            stride_vn,
            n_k,
            D,
            BLOCK_D,
            EVEN,
        )
        do = _tile(
            DOUT + z * stride_db + h * stride_dh,
            offs_m,
            offs_d,
            stride_dm,
            n_q,
            D,
            BLOCK_D,
            EVEN,
        )
        lse, delta = _rows(LSE, DELTA, (z * H + h) * n_q, offs_m, n_q)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if HAS_BIAS:
            s += bias
        keep = offs_n < n_k
        if HAS_PAD:
            keep = keep & (
                tl.load(PADDED + z * stride_pb + offs_n, mask=keep, other=1) == 0
            )
        counts = keep[None, :]
        if CAUSAL:
            counts = counts & (offset >= 0)
        p = tl.where(counts, tl.exp2(s - lse[:, None]), 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if NEEDS_GAIN:
            acc_c += p * g
        if NEEDS_BIAS:
            if HAS_GAIN:
                g *= gain
            acc_b += p * (g - delta[:, None])
    turn = (a[:, None] - c[None, :] + T) % T
    wrapped = c[None, :] > a[:, None]
    width = tiles_q + tiles_k - 1
    row = (tl.program_id(1).to(tl.int64) * width + shift + tiles_k - 1) * 2 * T
    # Numbers beyond the last diagonal belong to no strip.
    place = c * 0 + shift
    inside = (place > -tiles_k) & (place < tiles_q)
    if NEEDS_BIAS:
        rolled = tl.gather(acc_b, turn, 1)
        tl.store(STRIPS_B + row + c, tl.sum(tl.where(wrapped, 0.0, rolled), 0), mask=inside)
        tl.store(
            STRIPS_B + row + T + c, tl.sum(tl.where(wrapped, rolled, 0.0), 0), mask=inside
        )
    if NEEDS_GAIN:
        rolled = tl.gather(acc_c, turn, 1)
        tl.store(STRIPS_C + row + c, tl.sum(tl.where(wrapped, 0.0, rolled), 0), mask=inside)
        tl.store(
            STRIPS_C + row + T + c, tl.sum(tl.where(wrapped, rolled, 0.0), 0), mask=inside
        )
