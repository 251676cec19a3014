"""The forward pass, by tiles of queries."""

import triton
import triton.language as tl

from everyformer.ops.disentangled_attention.kernels.buckets import (
    HEAD,
    near_keys,
    with_terms,
)
from everyformer.ops.kernel_tiles import dropped, keys_count, load_tile


@triton.jit
def _forward_tiles(
    acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, bucket, offs_d, SEED, b, h,
    start_m, stride_kn, stride_vn, n_q, n_k, threshold, growth, scale, start, stop,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, FAR: tl.constexpr,
    HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, HAS_PAD: tl.constexpr,
    DROPS: tl.constexpr, PRECISION: tl.constexpr, ASSEMBLY: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Key tiles from start to stop, all near or all far."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    for n in range(start, stop, BN):
        n = tl.multiple_of(n, BN)
        offs_n = n + columns
        k = load_tile(k_base, offs_n, offs_d, stride_kn, n_k, D, BLOCK_D, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [M, N]
        s = scale * with_terms(
            s, c2p, p2c + n.to(tl.int64) * R, table, start_m - n, rows, columns,
            n_q - start_m, n_k - n, bucket, R, 1, FAR, HAS_C2P, HAS_P2C, ASSEMBLY, EVEN,
        )  # fmt: skip
        if HAS_PAD or not EVEN:
            keep = keys_count(pad, n, columns, n_k, HAS_PAD, False, EVEN, ASSEMBLY)
            s = tl.where(keep[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROPS:
            p *= dropped(
                SEED, b, h, start_m, n, rows[:, None], columns[None, :], threshold, growth
            )
        v = load_tile(v_base, offs_n, offs_d, stride_vn, n_k, D, BLOCK_D, EVEN)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def forward_kernel(
    Q, K, V, C2P, P2C, TABLE, SEED, PADDED, OUT, LSE,
    stride_qb, stride_qh, stride_qm: tl.constexpr,
    stride_kb, stride_kh, stride_kn: tl.constexpr,
    stride_vb, stride_vh, stride_vn: tl.constexpr,
    stride_pb, H, n_q, n_k, threshold, growth, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr, HAS_PAD: tl.constexpr,
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
    c2p, p2c = C2P + (pair * n_q + start_m) * R, P2C + pair * n_k * R
    table, pad = TABLE + HEAD + LEAD + n_k - 1, PADDED + b * stride_pb
    q = load_tile(q_base, offs_m, offs_d, stride_qm, n_q, D, BLOCK_D, EVEN)
    acc = tl.zeros([BM, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BM], dtype=tl.float32)
    m_i = tl.full([BM], float("-inf"), dtype=tl.float32)
    near, far, end = near_keys(TABLE, start_m, n_k, BM, BN)
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, tl.load(TABLE + 3),
        offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, threshold, growth,
        scale, 0, near,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, 0,
        offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, threshold, growth,
        scale, near, far,
        D, BLOCK_D, R, BM, BN, False, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    acc, l_i, m_i = _forward_tiles(
        acc, l_i, m_i, q, k_base, v_base, c2p, p2c, table, pad, tl.load(TABLE + 2),
        offs_d, SEED, b, h, start_m, stride_kn, stride_vn, n_q, n_k, threshold, growth,
        scale, far, end,
        D, BLOCK_D, R, BM, BN, True, HAS_C2P, HAS_P2C, HAS_PAD, DROPS, PRECISION,
        ASSEMBLY, EVEN,
    )  # fmt: skip
    total = tl.where(l_i == 0, 1.0, l_i)
    lse = tl.where(l_i == 0, float("-inf"), m_i + tl.log2(total))
    mask = (offs_m[:, None] < n_q) & (offs_d[None, :] < D)
    place = (pair * n_q + offs_m[:, None]) * D + offs_d[None, :]
    tl.store(OUT + place, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=mask)
    tl.store(LSE + pair * n_q + offs_m, lse, mask=offs_m < n_q)
