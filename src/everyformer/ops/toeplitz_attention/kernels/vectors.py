"""bias and gain as other kernels read them, and their gradients from what these write."""

import triton
import triton.language as tl

from everyformer.ops.toeplitz_attention.kernels.tiles import LOG2_E_


@triton.jit
def table_kernel(
    BIAS, GAIN, TABLE, stride_bh, stride_bn, stride_gh, stride_gn, length,
    HAS_BIAS: tl.constexpr, HAS_GAIN: tl.constexpr, LEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Pairs (bias log2(e), gain) of one head between LEAD zeros on both sides."""
    head, place = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = place - LEAD
    inside = (at >= 0) & (at < length)
    bias = tl.zeros([BLOCK], dtype=tl.float32)
    gain = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(BIAS + head * stride_bh + at * stride_bn, mask=inside, other=0.0)
        bias = bias.to(tl.float32) * LOG2_E_
    if HAS_GAIN:
        gain = tl.load(GAIN + head * stride_gh + at * stride_gn, mask=inside, other=0.0)
        gain = gain.to(tl.float32)
    width = length + 2 * LEAD
    pair = TABLE + 2 * (head * width + place)
    tl.store(pair, bias, mask=place < width)
    tl.store(pair + 1, gain, mask=place < width)


@triton.jit
def _fold(
    STRIPS, OUT, h, rows, place, slot, length, splits, H, width, first_strip,
    R: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add strips of equal offsets, over splits of the batch and heads that share."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    strip, column = slot // T, slot % T
    there = (place < length) & (place * 0 + h < rows)
    heads = tl.where(rows == 1, H, 1)  # all share the vector, or it belongs to one
    for step in range(heads * splits):
        row = ((step % splits) * H + h + step // splits).to(tl.int64) * width
        for part in tl.static_range(R + 1):  # of the tiles `part` further left
            tile = strip - part
            written = (tile >= first_strip) & (tile < width)
            found = STRIPS + (row + tile) * ((R + 1) * T) + part * T + column
            total += tl.load(found, mask=there & written, other=0.0)
    tl.store(OUT + h * length + place, total.to(OUT.dtype.element_ty), mask=there)


@triton.jit
def fold_kernel(
    STRIPS_B, STRIPS_C, DBIAS, DGAIN, rows_b, rows_c, length, first, splits, H, width,
    first_strip, NEEDS_BIAS: tl.constexpr, NEEDS_GAIN: tl.constexpr, R: tl.constexpr,
    T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of bias and gain by offset, from the strips of the diagonal kernel.

    Tiles before the first strip were not written. `first` is the slot of the first offset.
    """
    h, place = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = place + first
    if NEEDS_BIAS:
        _fold(
            STRIPS_B, DBIAS, h, rows_b, place, slot, length, splits, H, width, first_strip,
            R, T, BLOCK,
        )  # fmt: skip
    if NEEDS_GAIN:
        _fold(
            STRIPS_C, DGAIN, h, rows_c, place, slot, length, splits, H, width, first_strip,
            R, T, BLOCK,
        )  # fmt: skip
