"""Triton kernels: forward, dQ, dK and dV, sums of d bias and d gain, and all at small n.

Shapes in comments: M queries and N keys of a tile, D the head size. Scores are in base 2:
scale carries a factor log2(e), and the bias gets it when it is read. bias and gain have
strides for batch, head, query and key; a stride is 0 where they are shared.
"""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import (
    dropped,
    load_lse,
    load_rows,
    load_tile,
)


@triton.jit
def _entries(
    X, offs_m, offs_n, stride_m, stride_n, n_q, n_k,
    EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Entries of a matrix for pairs, float32, [M, N]; zeros outside of it.

    WIDE says that 32 bits do not number them; then addresses take twice the registers.
    """
    if WIDE:
        at = offs_m.to(tl.int64)[:, None] * stride_m
        at = at + offs_n.to(tl.int64)[None, :] * stride_n
    else:
        at = offs_m[:, None] * stride_m + offs_n[None, :] * stride_n
    if EVEN:
        return tl.load(X + at).to(tl.float32)
    inside = (offs_m[:, None] < n_q) & (offs_n[None, :] < n_k)
    return tl.load(X + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _bias(
    X, offs_m, offs_n, stride_m, stride_n, n_q, n_k,
    EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same times log2(e)."""
    found = _entries(X, offs_m, offs_n, stride_m, stride_n, n_q, n_k, EVEN, WIDE)
    return 1.4426950408889634 * found


@triton.jit
def _kept(pad, offs_n, n_k, HAS_PAD: tl.constexpr):
    """Which keys exist and count."""
    keep = offs_n < n_k
    if HAS_PAD:
        keep = keep & (tl.load(pad + offs_n, mask=keep, other=1) == 0)
    return keep


@triton.jit
def _place(number, B, H, HEADS_FIRST: tl.constexpr):
    """Sequence and head of a program: those that share a bias run at the same time."""
    if HEADS_FIRST:
        return (number % B).to(tl.int64), (number // B).to(tl.int64)
    return (number // H).to(tl.int64), (number % H).to(tl.int64)


@triton.jit
def _summed(owner, z, B, H, SUM_B: tl.constexpr, SUM_H: tl.constexpr):
    """Sequence and head of step z of a gradient that is summed over one or both."""
    if SUM_B and SUM_H:
        b, h = z // H, z % H
    elif SUM_B:
        b, h = z, owner
    elif SUM_H:
        b, h = owner, z
    else:
        b, h = owner // H, owner % H
    return b.to(tl.int64), h.to(tl.int64)


@triton.jit
def _put(
    base, tile, offs_m, offs_n, n_q, n_k,
    SUM_Q: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store a tile of the gradient of a bias or gain, summed over queries if they share."""
    if SUM_Q:
        kind = base.dtype.element_ty
        tl.store(base + offs_n, tl.sum(tile, 0).to(kind), mask=offs_n < n_k)
    else:
        rows = offs_m.to(tl.int64) if WIDE else offs_m
        at = base + rows[:, None] * n_k + offs_n[None, :]
        if EVEN:
            tl.store(at, tile.to(base.dtype.element_ty))
        else:
            inside = (offs_m[:, None] < n_q) & (offs_n[None, :] < n_k)
            tl.store(at, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _put_rows(base, rows, offs_m, offs_d, limit, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store rows of an output or of a gradient of q, k or v, which are contiguous."""
    mask = offs_m[:, None] < limit
    if BLOCK_D != D:
        mask = mask & (offs_d[None, :] < D)
    place = base + offs_m[:, None] * D + offs_d[None, :]
    tl.store(place, rows.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _forward_kernel(
    Q, K, V, BIAS, GAIN, PADDED, SEED, OUT, LSE,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_bb, stride_bh, stride_bm, stride_bn,
    stride_cb, stride_ch, stride_cm, stride_cn, stride_pb,
    B, H, n_q, n_k, scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr, HEADS_FIRST: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """One tile of queries: running maximum, sum of exp, and sum of exp * gain * v.

    ONE says that one tile holds all keys: without a loop fewer registers are needed.
    """
    tiles = tl.cdiv(n_q, BM)
    start_m = (tl.program_id(0) % tiles) * BM
    b, h = _place(tl.program_id(0) // tiles, B, H, HEADS_FIRST)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    bias_base = BIAS + b * stride_bb + h * stride_bh
    gain_base = GAIN + b * stride_cb + h * stride_ch
    q_base = Q + b * stride_qb + h * stride_qh
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, start_m + BM)
    for n in range(0, BN if ONE else stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            s += _bias(
                bias_base, offs_m, offs_n, stride_bm, stride_bn, n_q, n_k, EVEN, WIDE
            )
        if HAS_PAD or not EVEN:
            keep = _kept(PADDED + b * stride_pb, offs_n, n_k, HAS_PAD)
            s = tl.where(keep[None, :], s, float("-inf"))
        if CAUSAL:
            s = tl.where(offs_m[:, None] >= offs_n[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if HAS_GAIN:
            p *= _entries(
                gain_base, offs_m, offs_n, stride_cm, stride_cn, n_q, n_k, EVEN, WIDE
            )
        if DROPS:
            p *= dropped(SEED, b, h, start_m, n, rows, columns, threshold, growth)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        m_i = m_new
    empty = l_i == 0
    whole = tl.where(empty, 1.0, l_i)
    lse = tl.where(empty, float("-inf"), m_i + tl.log2(whole))
    at = (b * H + h) * n_q
    _put_rows(OUT + at * D, acc / whole[:, None], offs_m, offs_d, n_q, D, BLOCK_D)
    tl.store(LSE + at + offs_m, lse, mask=offs_m < n_q)


@triton.jit
def _dq_kernel(
    Q, K, V, BIAS, GAIN, PADDED, SEED, DOUT, LSE, DELTA, OUT, DQ, DBIAS, DGAIN,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_bb, stride_bh, stride_bm, stride_bn,
    stride_cb, stride_ch, stride_cm, stride_cn, stride_pb,
    B, H, n_q, n_k, scale, threshold, growth, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr, HEADS_FIRST: tl.constexpr,
    PUT_BIAS: tl.constexpr, PUT_GAIN: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries; and Delta_i = dO_i . O_i = sum_j P_ij C_ij G_ij.

    A bias or gain that nothing shares has its gradient here, where dS and P G are known.
    """
    tiles = tl.cdiv(n_q, BM)
    start_m = (tl.program_id(0) % tiles) * BM
    b, h = _place(tl.program_id(0) // tiles, B, H, HEADS_FIRST)
    offs_m, offs_d = start_m + tl.arange(0, BM), tl.arange(0, BLOCK_D)
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    bias_base = BIAS + b * stride_bb + h * stride_bh
    gain_base = GAIN + b * stride_cb + h * stride_ch
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
    at = (b * H + h) * n_q
    out = load_tile(OUT + at * D, offs_m, offs_d, D, n_q, D, BLOCK_D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + at + offs_m, delta, mask=offs_m < n_q)
    lse = load_lse(LSE, at, offs_m, n_q)
    stop = n_k
    if CAUSAL:
        stop = tl.minimum(n_k, start_m + BM)
    dq = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    for n in range(0, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + tl.arange(0, BN)
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            s += _bias(
                bias_base, offs_m, offs_n, stride_bm, stride_bn, n_q, n_k, EVEN, WIDE
            )
        p = tl.exp2(s - lse[:, None])
        if HAS_PAD or not EVEN:
            keep = _kept(PADDED + b * stride_pb, offs_n, n_k, HAS_PAD)
            p = tl.where(keep[None, :], p, 0.0)
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            g *= dropped(SEED, b, h, start_m, n, rows, columns, threshold, growth)
        if PUT_GAIN:
            _put(DGAIN + at * n_k, p * g, offs_m, offs_n, n_q, n_k, False, EVEN, WIDE)
        if HAS_GAIN:
            g *= _entries(
                gain_base, offs_m, offs_n, stride_cm, stride_cn, n_q, n_k, EVEN, WIDE
            )
        ds = p * (g - delta[:, None])
        if PUT_BIAS:
            _put(DBIAS + at * n_k, ds, offs_m, offs_n, n_q, n_k, False, EVEN, WIDE)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    _put_rows(DQ + at * D, dq * back_scale, offs_m, offs_d, n_q, D, BLOCK_D)


@triton.jit
def _dkv_kernel(
    Q, K, V, BIAS, GAIN, PADDED, SEED, DOUT, LSE, DELTA, DK, DV,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_bb, stride_bh, stride_bm, stride_bn,
    stride_cb, stride_ch, stride_cm, stride_cn, stride_pb,
    B, H, n_q, n_k, scale, threshold, growth, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr, HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """dV = (P C)^T dO and dK = dS^T Q of one tile of keys.

    Tiles are [M, N] as in the other kernels, since B and C mostly lie by rows: read by
    columns, they would be copied four bytes at a time.
    """
    tiles = tl.cdiv(n_k, BN)
    start_n = (tl.program_id(0) % tiles) * BN
    b, h = _place(tl.program_id(0) // tiles, B, H, HEADS_FIRST)
    offs_n, offs_d = start_n + tl.arange(0, BN), tl.arange(0, BLOCK_D)
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    bias_base = BIAS + b * stride_bb + h * stride_bh
    gain_base = GAIN + b * stride_cb + h * stride_ch
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    keep = _kept(PADDED + b * stride_pb, offs_n, n_k, HAS_PAD)
    at = (b * H + h) * n_q
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    start = 0
    if CAUSAL:
        start = start_n // BM * BM
    for m in range(start, n_q, BM):
        m = tl.multiple_of(m, BM)
        offs_m = m + tl.arange(0, BM)
        q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse, delta = load_rows(LSE, DELTA, at, offs_m, n_q)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            s += _bias(
                bias_base, offs_m, offs_n, stride_bm, stride_bn, n_q, n_k, EVEN, WIDE
            )
        p = tl.exp2(s - lse[:, None])
        if HAS_PAD:
            p = tl.where(keep[None, :], p, 0.0)
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        pc = p
        if DROPS:
            factor = dropped(SEED, b, h, m, start_n, rows, columns, threshold, growth)
            pc, g = p * factor, g * factor
        if HAS_GAIN:
            c = _entries(
                gain_base, offs_m, offs_n, stride_cm, stride_cn, n_q, n_k, EVEN, WIDE
            )
            pc, g = pc * c, g * c
        dv = tl.dot(tl.trans(pc.to(do.dtype)), do, dv, input_precision=PRECISION)
        ds = (p * (g - delta[:, None])).to(q.dtype)
        dk = tl.dot(tl.trans(ds), q, dk, input_precision=PRECISION)
    at = (b * H + h) * n_k * D
    _put_rows(DK + at, dk * back_scale, offs_n, offs_d, n_k, D, BLOCK_D)
    _put_rows(DV + at, dv, offs_n, offs_d, n_k, D, BLOCK_D)


@triton.jit
def _sums_kernel(
    Q, K, V, BIAS, GAIN, PADDED, SEED, DOUT, LSE, DELTA, DBIAS, DGAIN,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_bb, stride_bh, stride_bm, stride_bn,
    stride_cb, stride_ch, stride_cm, stride_cn, stride_pb,
    B, H, n_q, n_k, scale, threshold, growth, owners, steps, share,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr, SUM_B: tl.constexpr, SUM_H: tl.constexpr, SUM_Q: tl.constexpr,
    PUT_BIAS: tl.constexpr, PUT_GAIN: tl.constexpr,
):  # fmt: skip
    """One tile of the gradients of bias and gain, summed over all that share it.

    A program runs over `share` of these `steps` (sequences, heads or both), and over the
    tiles of queries if they share, too.
    """
    tiles_m = 1 if SUM_Q else tl.cdiv(n_q, BM)
    tiles = tiles_m * tl.cdiv(n_k, BN)
    number, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    first_m, start_n = (tile % tiles_m) * BM, (tile // tiles_m) * BN
    owner, part = number % owners, number // owners
    first = part * share
    offs_n, offs_d = start_n + tl.arange(0, BN), tl.arange(0, BLOCK_D)
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    each = tl.cdiv(n_q, BM) if SUM_Q else 1
    count = tl.maximum(tl.minimum(share, steps - first), 0) * each
    if CAUSAL and not SUM_Q:
        count = tl.where(start_n < first_m + BM, count, 0)
    acc_b = tl.zeros([BM, BN], dtype=tl.float32)
    acc_c = tl.zeros([BM, BN], dtype=tl.float32)
    for step in range(count):
        b, h = _summed(owner, first + step // each, B, H, SUM_B, SUM_H)
        offs_m = first_m + (step % each) * BM + tl.arange(0, BM)
        q = load_tile(
            Q + b * stride_qb + h * stride_qh,
            offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN,
        )  # fmt: skip
        k = load_tile(
            K + b * stride_kb + h * stride_kh,
            offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN,
        )  # fmt: skip
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            base = BIAS + b * stride_bb + h * stride_bh
            s += _bias(base, offs_m, offs_n, stride_bm, stride_bn, n_q, n_k, EVEN, WIDE)
        lse, delta = load_rows(LSE, DELTA, (b * H + h) * n_q, offs_m, n_q)
        p = tl.exp2(s - lse[:, None])
        keep = _kept(PADDED + b * stride_pb, offs_n, n_k, HAS_PAD)
        p = tl.where(keep[None, :], p, 0.0)
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        v = load_tile(
            V + b * stride_vb + h * stride_vh,
            offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN,
        )  # fmt: skip
        do = load_tile(
            DOUT + b * stride_db + h * stride_dh,
            offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN,
        )  # fmt: skip
        g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            start_m = first_m + (step % each) * BM
            g *= dropped(SEED, b, h, start_m, start_n, rows, columns, threshold, growth)
        if PUT_GAIN:
            acc_c += p * g
        if PUT_BIAS:
            if HAS_GAIN:
                base = GAIN + b * stride_cb + h * stride_ch
                g *= _entries(
                    base, offs_m, offs_n, stride_cm, stride_cn, n_q, n_k, EVEN, WIDE
                )
            acc_b += p * (g - delta[:, None])
    at = number.to(tl.int64) * n_k
    if not SUM_Q:
        at = at * n_q
    offs_m = first_m + tl.arange(0, BM)
    if PUT_BIAS:
        _put(DBIAS + at, acc_b, offs_m, offs_n, n_q, n_k, SUM_Q, EVEN, WIDE)
    if PUT_GAIN:
        _put(DGAIN + at, acc_c, offs_m, offs_n, n_q, n_k, SUM_Q, EVEN, WIDE)


@triton.jit
def _small_kernel(
    Q, K, V, BIAS, GAIN, PADDED, SEED, DOUT, LSE, DELTA, DQ, DK, DV, DBIAS, DGAIN,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_bb, stride_bh, stride_bm, stride_bn,
    stride_cb, stride_ch, stride_cm, stride_cn, stride_pb,
    B, H, n_q, n_k, scale, threshold, growth, back_scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    WIDE: tl.constexpr, HEADS_FIRST: tl.constexpr,
    PUT_BIAS: tl.constexpr, PUT_GAIN: tl.constexpr,
):  # fmt: skip
    """dQ, dK, dV and Delta of one head of one sequence, where one tile holds all keys.

    Also the gradients of a bias or gain that nothing shares. All keys being here, Delta is
    a sum over them, and the output is not read.
    """
    b, h = _place(tl.program_id(0), B, H, HEADS_FIRST)
    pair = b * H + h
    offs_n, offs_d = tl.arange(0, BN), tl.arange(0, BLOCK_D)
    rows, columns = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    k_base, v_base = K + b * stride_kb + h * stride_kh, V + b * stride_vb + h * stride_vh
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    keep = _kept(PADDED + b * stride_pb, offs_n, n_k, HAS_PAD)
    q_base, do_base = (
        Q + b * stride_qb + h * stride_qh,
        DOUT + b * stride_db + h * stride_dh,
    )
    bias_base = BIAS + b * stride_bb + h * stride_bh
    gain_base = GAIN + b * stride_cb + h * stride_ch
    dk = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BN, BLOCK_D], dtype=tl.float32)
    for m in range(0, n_q, BM):
        m = tl.multiple_of(m, BM)
        offs_m = m + tl.arange(0, BM)
        q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
        do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
        lse = load_lse(LSE, pair * n_q, offs_m, n_q)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [M, N]
        if HAS_BIAS:
            s += _bias(
                bias_base, offs_m, offs_n, stride_bm, stride_bn, n_q, n_k, EVEN, WIDE
            )
        p = tl.where(keep[None, :], tl.exp2(s - lse[:, None]), 0.0)
        if CAUSAL:
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        pg = p * tl.dot(do, tl.trans(v), input_precision=PRECISION)
        pc = p
        if DROPS:
            factor = dropped(SEED, b, h, m, 0, rows, columns, threshold, growth)
            pc, pg = p * factor, pg * factor
        if PUT_GAIN:
            to = DGAIN + pair * n_k * n_q
            _put(to, pg, offs_m, offs_n, n_q, n_k, False, EVEN, WIDE)
        if HAS_GAIN:
            c = _entries(
                gain_base, offs_m, offs_n, stride_cm, stride_cn, n_q, n_k, EVEN, WIDE
            )
            pc, pg = pc * c, pg * c
        dv = tl.dot(tl.trans(pc.to(do.dtype)), do, dv, input_precision=PRECISION)
        delta = tl.sum(pg, 1)
        tl.store(DELTA + pair * n_q + offs_m, delta, mask=offs_m < n_q)
        ds = pg - p * delta[:, None]
        if PUT_BIAS:
            to = DBIAS + pair * n_k * n_q
            _put(to, ds, offs_m, offs_n, n_q, n_k, False, EVEN, WIDE)
        ds = ds.to(k.dtype)
        dq = tl.dot(ds, k, input_precision=PRECISION) * back_scale
        _put_rows(DQ + pair * n_q * D, dq, offs_m, offs_d, n_q, D, BLOCK_D)
        dk = tl.dot(tl.trans(ds), q, dk, input_precision=PRECISION)
    _put_rows(DK + pair * n_k * D, dk * back_scale, offs_n, offs_d, n_k, D, BLOCK_D)
    _put_rows(DV + pair * n_k * D, dv, offs_n, offs_d, n_k, D, BLOCK_D)
