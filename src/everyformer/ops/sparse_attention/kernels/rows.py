"""Rows of matrices from memory and back, at any places."""

import triton
import triton.language as tl


@triton.jit
def load_rows(
    base, places, there, stride, offs_d,
    D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix, (places, BLOCK_D), zeros where there is no such row and right of D.

    Without MASKED all are there.
    """
    pointers = base + places[:, None] * stride + offs_d[None, :]
    if BLOCK_D == D:
        if MASKED:
            return tl.load(pointers, mask=there[:, None], other=0.0)
        return tl.load(pointers)
    inside = offs_d[None, :] < D
    if MASKED:
        inside = inside & there[:, None]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def load_wide(base, places, there, stride, offs_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The same in float32."""
    return load_rows(base, places, there, stride, offs_d, D, BLOCK_D, True).to(tl.float32)


@triton.jit
def store_rows(base, places, there, offs_d, rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows of size D to their places, where there is one."""
    mask = there[:, None]
    if BLOCK_D != D:
        mask = mask & (offs_d[None, :] < D)
    pointers = base + places[:, None] * D + offs_d[None, :]
    tl.store(pointers, rows.to(base.dtype.element_ty), mask=mask)


@triton.jit
def load_lse(LSE, places, there):
    """LSE in base 2; inf for a query that does not exist or has no key, so that P = 0."""
    lse = tl.load(LSE + places, mask=there, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse)
