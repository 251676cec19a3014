"""Terms of buckets in a tile, and sums by bucket along its rows."""

import triton
import triton.language as tl

HEAD = tl.constexpr(4)
"""Numbers before the buckets in the table."""


@triton.jit
def entries(base, place, ASSEMBLY: tl.constexpr):
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
def with_terms(
    s, c2p, p2c, table, i, j, bucket, n_q, n_k, R,
    FAR: tl.constexpr, HAS_C2P: tl.constexpr, HAS_P2C: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """q k^T with both terms, unscaled; queries i and keys j in either order of axes."""
    if not FAR:
        bucket = entries(table, i - j, ASSEMBLY)
    if HAS_C2P:
        place = tl.minimum(i, n_q - 1) * R + bucket
        s += entries(c2p, place, ASSEMBLY).to(tl.float32)
    if HAS_P2C:
        place = tl.minimum(j, n_k - 1) * R + bucket
        s += entries(p2c, place, ASSEMBLY).to(tl.float32)
    return s


@triton.jit
def counting(offs_n, pad, n_k, HAS_PAD: tl.constexpr):
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
def store_runs(
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
def key_ranges(TABLE, start_m, n_k, BM: tl.constexpr, BN: tl.constexpr):
    """Where near keys begin and end, as seen from a tile of queries; in whole tiles."""
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    end = tl.cdiv(n_k, BN) * BN
    near = tl.minimum(end, tl.maximum(0, start_m - high + 1) // BN * BN)
    far = tl.cdiv(tl.maximum(0, start_m + BM - 1 - low), BN) * BN
    return near, tl.minimum(end, tl.maximum(near, far)), end
