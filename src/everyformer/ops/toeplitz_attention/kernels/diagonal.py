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
    acc_b, acc_c, bias, gain, q_at, k_at, v_at, do_at, row_at, PADDED, MASK, BEGIN, END,
    SEED, LSE, DELTA, start_m, start_n, offs_m, offs_n, offs_d, z, h, stride_qm, stride_kn,
    stride_vn, stride_dm, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn, n_q, n_k,
    scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr, ADDS: tl.constexpr,
    PACKED: tl.constexpr, DROPS: tl.constexpr, NEEDS_BIAS: tl.constexpr,
    NEEDS_GAIN: tl.constexpr, FACTORED: tl.constexpr,
    PRECISION: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add dS, or what it is made of, and P G of the tile that begins at these pointers."""
    rows, columns = tl.arange(0, T), tl.arange(0, T)
    left_q, left_k = n_q - start_m, n_k - start_n
    q = load_tile(q_at, rows, offs_d, stride_qm, left_q, D, BLOCK_D, EVEN)
    k = load_tile(k_at, columns, offs_d, stride_kn, left_k, D, BLOCK_D, EVEN)
    v = load_tile(v_at, columns, offs_d, stride_vn, left_k, D, BLOCK_D, EVEN)
    do = load_tile(do_at, rows, offs_d, stride_dm, left_q, D, BLOCK_D, EVEN)
    lse, delta = load_ready(LSE, DELTA, row_at, rows, left_q, EVEN)
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
        g *= dropped(
            SEED, z, h, start_m, start_n, rows[:, None], columns[None, :], threshold, growth
        )
    if NEEDS_GAIN or FACTORED:
        acc_c += p * g
    if FACTORED:
        acc_b += p * delta[:, None]
    elif NEEDS_BIAS:
        if HAS_GAIN:
            g *= gain
        acc_b += p * (g - delta[:, None])
    return acc_b, acc_c


@triton.jit(do_not_specialize=("shift", "lowest"))
def diagonal_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, DOUT, LSE, DELTA, STRIPS_B, STRIPS_C,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
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

    C is the same in all of them, too: sum P (C G - Delta) = C sum P G - sum P Delta. In
    float32, where the rounding of these two sums would be seen, dS itself is added; and
    with a mask, where it takes fewer registers.
    """
    HALF: tl.constexpr = PRECISION != "ieee"
    FACTORED: tl.constexpr = NEEDS_BIAS and HAS_GAIN and HALF and not HAS_MASK
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
    if HAS_GAIN and not FACTORED:
        gain = tl.load(table + 2 * offset + 1, mask=exists, other=0.0)
    if CAUSAL:  # -inf once, instead of a mask for every tile
        seen = offset + shift >= 0 if SHIFTED else offset >= 0
        bias = tl.where(seen, bias, float("-inf"))
    acc_b = tl.zeros([T, T], dtype=tl.float32)
    acc_c = tl.zeros([T, T], dtype=tl.float32)
    z, j = first_b.to(tl.int64), first_j
    # Pointers go from tile to tile, and from the last one of a sequence to the next.
    h_k = h // GROUP if GROUP > 1 else h
    first_m, first_n = (j + diagonal).to(tl.int64) * T, j.to(tl.int64) * T
    back = (count - 1).to(tl.int64) * T
    q_at = Q + z * stride_qb + h * stride_qh + first_m * stride_qm
    k_at = K + z * stride_kb + h_k * stride_kh + first_n * stride_kn
    v_at = V + z * stride_vb + h_k * stride_vh + first_n * stride_vn
    do_at = DOUT + z * stride_db + h * stride_dh + first_m * stride_dm
    row_at = (z * H + h) * n_q + first_m
    for _ in range(count * batches):
        start_m, start_n = (j + diagonal) * T, j * T
        offs_m, offs_n = start_m + a, start_n + c
        overlaps = True
        if PACKED:
            begin, end = load_bounds(BEGIN, END, offs_m, n_q)
            overlaps = (tl.min(begin, 0) < (j + 1) * T) & (tl.max(end, 0) > j * T)
        if overlaps:
            acc_b, acc_c = _add_tile(
                acc_b, acc_c, bias, gain, q_at, k_at, v_at, do_at, row_at, PADDED, MASK,
                BEGIN, END, SEED, LSE, DELTA, start_m, start_n, offs_m, offs_n, offs_d, z,
                h, stride_qm, stride_kn, stride_vn, stride_dm, stride_pb, stride_mb,
                stride_mh, stride_mm, stride_mn, n_q, n_k, scale, threshold, growth,
                D, BLOCK_D, T, CAUSAL, HAS_BIAS, HAS_GAIN, HAS_PAD, HAS_MASK, ADDS,
                PACKED, DROPS, NEEDS_BIAS, NEEDS_GAIN, FACTORED, PRECISION, EVEN,
            )  # fmt: skip
        j += 1
        ends = j == last_j
        q_at += tl.where(ends, stride_qb - back * stride_qm, T * stride_qm)
        k_at += tl.where(ends, stride_kb - back * stride_kn, T * stride_kn)
        v_at += tl.where(ends, stride_vb - back * stride_vn, T * stride_vn)
        do_at += tl.where(ends, stride_db - back * stride_dm, T * stride_dm)
        row_at += tl.where(ends, H * n_q - back, T)
        z += ends.to(tl.int64)
        j = tl.where(ends, first_j, j)
    if FACTORED:
        acc_b = tl.load(table + 2 * offset + 1, mask=exists, other=0.0) * acc_c - acc_b
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
