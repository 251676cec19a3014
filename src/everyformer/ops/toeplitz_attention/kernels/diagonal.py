"""Sums over diagonals, for d bias and d gain: one diagonal of tiles for each program."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped, load_tile
from everyformer.ops.toeplitz_attention.kernels.tiles import (
    load_bounds,
    load_ready,
    with_mask,
)


@triton.jit
def _add_tile(
    acc_b, acc_c, bias, gain, Q, K, V, PADDED, MASK, BEGIN, END, SEED, DOUT, LSE, DELTA,
    start_m, start_n, offs_m, offs_n, offs_d, z, h, stride_qb, stride_qh,
    stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_db, stride_dh, stride_dm, stride_pb, stride_mb, stride_mh, stride_mm,
    stride_mn, H, n_q, n_k, scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr, ADDS: tl.constexpr,
    PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    NEEDS_BIAS: tl.constexpr, NEEDS_GAIN: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Add dS and P G of one tile."""
    h_k = h // GROUP if GROUP > 1 else h
    q_base, k_base = Q + z * stride_qb + h * stride_qh, K + z * stride_kb + h_k * stride_kh
    v_base, do_base = (
        V + z * stride_vb + h_k * stride_vh,
        DOUT + z * stride_db + h * stride_dh,
    )
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
    v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
    do = load_tile(do_base, offs_m, offs_d, stride_dm, n_q, D, BLOCK_D, EVEN)
    lse, delta = load_ready(LSE, DELTA, (z * H + h) * n_q, offs_m, n_q, EVEN)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if HAS_BIAS or CAUSAL:
        s += bias
    if HAS_MASK:
        mask = MASK + z * stride_mb + h * stride_mh
        s = with_mask(
            s, mask, offs_m[:, None], offs_n[None, :], stride_mm, stride_mn, n_q, n_k, ADDS
        )
    p = tl.exp2(s - lse[:, None])
    if HAS_PAD or PACKED or not EVEN:
        keep = offs_n < n_k
        if HAS_PAD:
            padded = tl.load(PADDED + z * stride_pb + offs_n, mask=keep, other=1)
            keep = keep & (padded == 0)
        counts = keep[None, :]
        if PACKED:
            begin, end = load_bounds(BEGIN, END, offs_m, n_q)
            counts = counts & (offs_n[None, :] >= begin[:, None])
            counts = counts & (offs_n[None, :] < end[:, None])
        p = tl.where(counts, p, 0.0)
    g = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    if DROPS:
        rows, columns = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
        g *= dropped(SEED, z, h, start_m, start_n, rows, columns, threshold, growth)
    if NEEDS_GAIN:
        acc_c += p * g
    if NEEDS_BIAS:
        if HAS_GAIN:
            g *= gain
        acc_b += p * (g - delta[:, None])
    return acc_b, acc_c


@triton.jit(do_not_specialize=("shift", "lowest"))
def diagonal_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, DOUT, LSE, DELTA, STRIPS_B, STRIPS_C,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
    stride_th, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn,
    H, n_q, n_k, scale, shift, threshold, growth, B, share, lowest,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    NEEDS_BIAS: tl.constexpr, NEEDS_GAIN: tl.constexpr,
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
    diagonal = (number + 1) // 2
    diagonal = tl.where(number % 2 == 1, diagonal, -diagonal)
    if SHIFTED:
        diagonal = number + lowest
    elif CAUSAL:
        diagonal = number
    h = (tl.program_id(1) % H).to(tl.int64)
    first_j, last_j = tl.maximum(0, -diagonal), tl.minimum(tiles_k, tiles_q - diagonal)
    count = tl.maximum(last_j - first_j, 0)
    first_b = (tl.program_id(1) // H) * share
    batches = tl.maximum(tl.minimum(share, B - first_b), 0)
    a, c = tl.arange(0, T), tl.arange(0, T)
    offs_d = tl.arange(0, BLOCK_D)
    offset = diagonal * T + a[:, None] - c[None, :]
    # A diagonal without tiles must not read beyond the vectors.
    exists = (offset * 0 + count) > 0
    table = TABLE + h * stride_th + 2 * (n_k - 1 + LEAD)
    bias, gain = 0.0, 0.0
    if HAS_BIAS:
        bias = tl.load(table + 2 * offset, mask=exists, other=0.0)
    if HAS_GAIN:
        gain = tl.load(table + 2 * offset + 1, mask=exists, other=0.0)
    if CAUSAL:  # -inf once, instead of a mask for every tile
        seen = offset + shift >= 0 if SHIFTED else offset >= 0
        bias = tl.where(seen, bias, float("-inf"))
    acc_b = tl.zeros([T, T], dtype=tl.float32)
    acc_c = tl.zeros([T, T], dtype=tl.float32)
    z, j = first_b.to(tl.int64), first_j
    for _ in range(count * batches):
        start_m, start_n = (j + diagonal) * T, j * T
        offs_m, offs_n = start_m + a, start_n + c
        overlaps = True
        if PACKED:
            begin, end = load_bounds(BEGIN, END, offs_m, n_q)
            overlaps = (tl.min(begin, 0) < (j + 1) * T) & (tl.max(end, 0) > j * T)
        if overlaps:
            acc_b, acc_c = _add_tile(
                acc_b, acc_c, bias, gain, Q, K, V, PADDED, MASK, BEGIN, END, SEED, DOUT,
                LSE, DELTA, start_m, start_n, offs_m, offs_n, offs_d, z, h,
                stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
                stride_vb, stride_vh, stride_vn, stride_db, stride_dh, stride_dm,
                stride_pb, stride_mb, stride_mh, stride_mm, stride_mn, H, n_q, n_k, scale,
                threshold, growth,
                D, BLOCK_D, T, CAUSAL, HAS_BIAS, HAS_GAIN, HAS_PAD, HAS_MASK, ADDS,
                PACKED, DROPS, GROUP, NEEDS_BIAS, NEEDS_GAIN, PRECISION, EVEN,
            )  # fmt: skip
        j += 1
        z += (j == last_j).to(tl.int64)
        j = tl.where(j == last_j, first_j, j)
    turn = (a[:, None] - c[None, :] + T) % T
    wrapped = c[None, :] > a[:, None]
    width = tiles_q + tiles_k - 1
    row = (tl.program_id(1).to(tl.int64) * width + diagonal + tiles_k - 1) * 2 * T
    # Numbers beyond the last diagonal belong to no strip.
    place = c * 0 + diagonal
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
