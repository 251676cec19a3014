"""Sums over diagonals, for d bias and d gain: one diagonal of tiles for each program."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import dropped, keys_count, load_ready, load_tile
from everyformer.ops.toeplitz_attention.kernels.tiles import (
    load_bounds,
    with_mask,
)


@triton.jit
def _add_tile(
    acc_b, acc_c, bias, gain, q_at, k_at, v_at, do_at, lse, delta, PADDED, MASK, BEGIN,
    END, SEED, start_m, start_n, offs_m, offs_n, offs_d, z, h, stride_qm, stride_kn,
    stride_vn, stride_dm, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn, n_q, n_k,
    scale, threshold, growth,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr,
    HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr, ADDS: tl.constexpr,
    PACKED: tl.constexpr, DROPS: tl.constexpr, NEEDS_BIAS: tl.constexpr,
    NEEDS_GAIN: tl.constexpr, FACTORED: tl.constexpr,
    PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add dS, or what it is made of, and P G of the tile that begins at these pointers."""
    rows, columns = tl.arange(0, BM), tl.arange(0, T)
    left_q, left_k = n_q - start_m, n_k - start_n
    q = load_tile(q_at, rows, offs_d, stride_qm, left_q, D, BLOCK_D, EVEN)
    k = load_tile(k_at, columns, offs_d, stride_kn, left_k, D, BLOCK_D, EVEN)
    v = load_tile(v_at, columns, offs_d, stride_vn, left_k, D, BLOCK_D, EVEN)
    do = load_tile(do_at, rows, offs_d, stride_dm, left_q, D, BLOCK_D, EVEN)
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
        pad = PADDED + z * stride_pb
        keep = keys_count(pad, start_n, columns, n_k, HAS_PAD, False, EVEN, ASSEMBLY)
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


@triton.jit
def _read_ahead(
    READY, row_at, rows, left, there, EVEN: tl.constexpr, ASSEMBLY: tl.constexpr
):  # fmt: skip
    """LSE and Delta of a tile, long before they are used; of row 0 after the last tile."""
    row_at = tl.where(there, row_at, 0)
    return load_ready(READY, row_at, rows, tl.where(there, left, 0), True, EVEN, ASSEMBLY)


@triton.jit
def _store_strips(base, rolled, strip, inside, R: tl.constexpr, T: tl.constexpr):
    """Sums over the rows of a rolled tile, of the entries of each strip of T offsets."""
    for number in tl.static_range(R + 1):
        total = tl.sum(tl.where(strip == number, rolled, 0.0), 0)
        tl.store(base + number * T + tl.arange(0, T), total, mask=inside)


@triton.jit(do_not_specialize=("shift", "lowest"))
def diagonal_kernel(
    Q, K, V, TABLE, PADDED, MASK, BEGIN, END, SEED, DOUT, READY, STRIPS_B, STRIPS_C,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_db, stride_dh, stride_dm: tl.constexpr,
    stride_th, stride_pb, stride_mb, stride_mh, stride_mm, stride_mn,
    H, n_q, n_k, scale, shift, threshold, growth, B, share, lowest, width,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BM: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, SHIFTED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_PAD: tl.constexpr, HAS_MASK: tl.constexpr,
    ADDS: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr, GROUP: tl.constexpr,
    NEEDS_BIAS: tl.constexpr, NEEDS_GAIN: tl.constexpr,
    PRECISION: tl.constexpr, LEAD: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sums of dS and P G over all tiles (I, J) with R I - J = delta, then along diagonals.

    A tile has R T queries and T keys. All these tiles have the same offsets, so whole
    tiles are added in registers, without atomics, and rolled and reduced once:

        rolled[a, c] = sum[a, (a - c) mod T], at offset delta T + a - (a - c) mod T

    C is the same in all of them, too: sum P (C G - Delta) = C sum P G - sum P Delta. In
    float32, where the rounding of these two sums would be seen, dS itself is added; and
    with a mask, where it takes fewer registers.
    """
    HALF: tl.constexpr = PRECISION != "ieee"
    FACTORED: tl.constexpr = NEEDS_BIAS and HAS_GAIN and HALF and not HAS_MASK
    R: tl.constexpr = BM // T
    tiles_q, tiles_k = tl.cdiv(n_q, BM), tl.cdiv(n_k, T)
    # Longest diagonals first: 0, 1, -1, 2, -2, ...
    number = tl.program_id(0)
    diagonal = (number + 1) // 2
    diagonal = tl.where(number % 2 == 1, diagonal, -diagonal)
    if CAUSAL:
        diagonal = number + lowest
    h = (tl.program_id(1) % H).to(tl.int64)
    first_i = tl.maximum(diagonal + R - 1, 0) // R
    last_i = tl.minimum(tiles_q, tl.maximum(tiles_k - 1 + diagonal + R, 0) // R)
    count = tl.maximum(last_i - first_i, 0)
    first_b = (tl.program_id(1) // H) * share
    batches = tl.maximum(tl.minimum(share, B - first_b), 0)
    a, c = tl.arange(0, BM), tl.arange(0, T)
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
    acc_b = tl.zeros([BM, T], dtype=tl.float32)
    acc_c = tl.zeros([BM, T], dtype=tl.float32)
    z, i = first_b.to(tl.int64), first_i
    # Pointers go from tile to tile, and from the last one of a sequence to the next.
    h_k = h // GROUP if GROUP > 1 else h
    first_m, first_n = i.to(tl.int64) * BM, (R * i - diagonal).to(tl.int64) * T
    back = (count - 1).to(tl.int64) * BM
    q_at = Q + z * stride_qb + h * stride_qh + first_m * stride_qm
    k_at = K + z * stride_kb + h_k * stride_kh + first_n * stride_kn
    v_at = V + z * stride_vb + h_k * stride_vh + first_n * stride_vn
    do_at = DOUT + z * stride_db + h * stride_dh + first_m * stride_dm
    row_at = (z * H + h) * n_q + first_m
    steps = count * batches
    lse, delta = _read_ahead(READY, row_at, a, n_q - i * BM, steps > 0, EVEN, ASSEMBLY)
    for step in range(steps):
        start_m, start_n = i * BM, (R * i - diagonal) * T
        offs_m, offs_n = start_m + a, start_n + c
        overlaps = True
        if PACKED:
            begin, end = load_bounds(BEGIN, END, offs_m, n_q)
            overlaps = (tl.min(begin, 0) < start_n + T) & (tl.max(end, 0) > start_n)
        if overlaps:
            acc_b, acc_c = _add_tile(
                acc_b, acc_c, bias, gain, q_at, k_at, v_at, do_at, lse, delta, PADDED,
                MASK, BEGIN, END, SEED, start_m, start_n, offs_m, offs_n, offs_d, z, h,
                stride_qm, stride_kn, stride_vn, stride_dm, stride_pb, stride_mb,
                stride_mh, stride_mm, stride_mn, n_q, n_k, scale, threshold, growth,
                D, BLOCK_D, BM, T, CAUSAL, HAS_BIAS, HAS_GAIN, HAS_PAD, HAS_MASK, ADDS,
                PACKED, DROPS, NEEDS_BIAS, NEEDS_GAIN, FACTORED, PRECISION, ASSEMBLY, EVEN,
            )  # fmt: skip
        i += 1
        ends = i == last_i
        q_at += tl.where(ends, stride_qb - back * stride_qm, BM * stride_qm)
        k_at += tl.where(ends, stride_kb - back * stride_kn, BM * stride_kn)
        v_at += tl.where(ends, stride_vb - back * stride_vn, BM * stride_vn)
        do_at += tl.where(ends, stride_db - back * stride_dm, BM * stride_dm)
        i = tl.where(ends, first_i, i)
        z += ends.to(tl.int64)
        row_at += tl.where(ends, H * n_q - back, BM)
        left, more = n_q - i * BM, step + 1 < steps
        lse, delta = _read_ahead(READY, row_at, a, left, more, EVEN, ASSEMBLY)
    if FACTORED:
        acc_b = tl.load(table + 2 * offset + 1, mask=exists, other=0.0) * acc_c - acc_b
    turn = (a[:, None] - c[None, :] + BM) % T
    strip = a[:, None] // T + (c[None, :] <= a[:, None] % T).to(tl.int32)
    row = (tl.program_id(1).to(tl.int64) * width + diagonal + tiles_k - 1) * ((R + 1) * T)
    # Numbers beyond the last diagonal belong to no strip.
    place = c * 0 + diagonal
    inside = (place > -tiles_k) & (place <= R * (tiles_q - 1))
    if NEEDS_BIAS:
        _store_strips(STRIPS_B + row, tl.gather(acc_b, turn, 1), strip, inside, R, T)
    if NEEDS_GAIN:
        _store_strips(STRIPS_C + row, tl.gather(acc_c, turn, 1), strip, inside, R, T)
