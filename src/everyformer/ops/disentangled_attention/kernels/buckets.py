"""Terms of buckets in a tile, and where tiles have more than one bucket."""

import triton
import triton.language as tl

from everyformer.ops.kernel_tiles import apart

HEAD = tl.constexpr(4)
"""Numbers before the buckets in the table."""


@triton.jit
def _buckets(table, first, rows, columns, SIGN: tl.constexpr, ASSEMBLY: tl.constexpr):
    """The buckets of offsets first + SIGN (row - column); see `apart` of all kernels.

    In assembly, as for Toeplitz vectors: tl.load would go through shared memory.
    """
    if ASSEMBLY:
        row, row_here = apart(rows, True)
        column, column_here = apart(columns, False)
        place = table.to(tl.int64) + (first + SIGN * (row - column)).to(tl.int64) * 4
        bucket = tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];",
            "=r,l",
            [place + (row_here - column_here).to(tl.int64) * (4 * SIGN)],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        bucket = tl.load(table + first + SIGN * (rows - columns))
    return bucket


@triton.jit
def _term(
    base, lines, bucket, left, R: tl.constexpr, ALONG: tl.constexpr,
    ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Entries of a matrix (tokens, R) in float32: one line for each row or column."""
    if not EVEN:
        lines = tl.minimum(lines, left - 1)
    if ASSEMBLY:
        BYTES: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        line, line_here = apart(lines, ALONG)
        place = base.to(tl.int64) + line.to(tl.int64) * (R * BYTES)
        place += bucket.to(tl.int64) * BYTES
        place += line_here.to(tl.int64) * (R * BYTES)
        if BYTES == 2:
            found = tl.inline_asm_elementwise(
                "ld.global.nc.b16 $0, [$1];",
                "=h,l",
                [place],
                dtype=tl.int16,
                is_pure=True,
                pack=1,
            ).to(base.dtype.element_ty, bitcast=True)
        else:
            found = tl.inline_asm_elementwise(
                "ld.global.nc.f32 $0, [$1];",
                "=f,l",
                [place],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
    else:
        found = tl.load(base + lines * R + bucket)
    return found.to(tl.float32)


@triton.jit
def with_terms(
    s, of_rows, of_columns, table, first, rows, columns, left_rows, left_columns, bucket,
    R: tl.constexpr, SIGN: tl.constexpr, FAR: tl.constexpr, HAS_ROWS: tl.constexpr,
    HAS_COLUMNS: tl.constexpr, ASSEMBLY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """q k^T with both terms, unscaled.

    Those of the tokens along the rows of a tile, which begin at `of_rows`, and along its
    columns; offsets are first + SIGN (row - column). Far tiles have one bucket, which is
    given.
    """
    rows, columns = rows[:, None], columns[None, :]
    if not FAR:
        bucket = _buckets(table, first, rows, columns, SIGN, ASSEMBLY)
    if HAS_ROWS:
        s += _term(of_rows, rows, bucket, left_rows, R, True, ASSEMBLY, EVEN)
    if HAS_COLUMNS:
        s += _term(of_columns, columns, bucket, left_columns, R, False, ASSEMBLY, EVEN)
    return s


@triton.jit
def near_keys(TABLE, start_m, n_k, BM: tl.constexpr, BN: tl.constexpr):
    """Where near keys begin and end, as seen from a tile of queries; in whole tiles.

    Along the keys buckets do not increase: before are those of the last one only.
    """
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    end = tl.cdiv(n_k, BN) * BN
    near = tl.minimum(end, tl.maximum(0, start_m - high + 1) // BN * BN)
    far = tl.cdiv(tl.maximum(0, start_m + BM - 1 - low), BN) * BN
    return near, tl.minimum(end, tl.maximum(near, far)), end


@triton.jit
def near_queries(TABLE, start_n, n_q, BM: tl.constexpr, BN: tl.constexpr):
    """The same as seen from a tile of keys: before are queries of the first bucket only."""
    low, high = tl.load(TABLE), tl.load(TABLE + 1)
    end = tl.cdiv(n_q, BM) * BM
    near = tl.minimum(end, tl.maximum(0, start_n + low + 1) // BM * BM)
    far = tl.cdiv(tl.maximum(0, start_n + BN - 1 + high), BM) * BM
    return near, tl.minimum(end, tl.maximum(near, far)), end
