"""Launch the Triton kernels: each pass of a problem, prepared when it is first seen."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.attention_rules import Gradients
from everyformer.ops.launching import (
    MOST_PREPARED,
    Prepared,
    addressable,
    ceil_div,
    empty_like,
    on,
)
from everyformer.ops.toeplitz_attention import kernels as jitted
from everyformer.ops.toeplitz_attention.kernels.tiles import PAD
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.packing import bounds
from everyformer.ops.toeplitz_attention.problem import Problem

kernels: Any = jitted  # their calls have a grid and options that no signature shows

ENOUGH_PROGRAMS = 1024
"""Programs of the diagonal kernel below which the batch is split."""

ENTRIES = 256
"""Of a vector, for each program that copies or adds up."""

Inputs = tuple[Tensor, ...]
"""What kernels over pairs read; see `_inputs`."""

Diagonals = Callable[[Inputs, Operands], tuple[Tensor | None, Tensor | None]]


def forward(x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the base-2 logarithm of each row's sum of exponentials, and the table.

    In base 2, as the kernels have it: turned into another base and back, a large logarithm
    would no longer cancel the logits.
    """
    x = tidied(x)
    p = Problem.of(x)
    with on(p.device):
        table = _table(p)(x)
        return *_attend(p)(_inputs(x, table)), table


def backward(x: Operands, incoming: Incoming) -> Gradients:
    """Gradients of q, k, v, and of bias and gain where they are needed."""
    x, table = tidied(x), incoming.table
    grad_out, out, lse = incoming[:3]
    incoming = incoming._replace(
        grad_out=addressable(grad_out), out=out.contiguous(), lse=lse.contiguous()
    )
    p = Problem.of(x, incoming)
    with on(p.device):
        table = table if table.numel() else _table(p)(x)
        return _gradients(p)(_inputs(x, table), x, incoming)


def tidied(x: Operands) -> Operands:
    """With contiguous last axes of q, k and v, and with numbers as padding and mask."""
    q, k, v = map(addressable, x[:3])
    padding, mask = x.key_padding, x.attn_mask
    if padding is not None:
        padding = padding.contiguous().view(torch.int8)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        if mask.dtype == torch.bool:
            mask = mask.view(torch.int8)
        elif mask.dtype == torch.float64:
            mask = mask.float()
    return x._replace(q=q, k=k, v=v, key_padding=padding, attn_mask=mask)


def _inputs(x: Operands, table: Tensor) -> Inputs:
    """q, k, v; the table; 1 where a key is padded; the mask; sequences; the seed.

    Of sequences begin and end for each token. q stands for what is missing.
    """
    q = x.q
    given = (table if table.numel() else None, x.key_padding, x.attn_mask)
    begin, end = (q, q) if x.sequences is None else bounds(x.sequences, q.shape[2])
    some = (q if y is None else y for y in given)
    return *x[:3], *some, begin, end, q if x.seed is None else x.seed


@lru_cache(MOST_PREPARED)
def _table(p: Problem) -> Callable[[Operands], Tensor]:
    """bias times log2(e) beside gain, float32; empty without vectors."""
    heads, width = p.table
    if not heads:
        return lambda x: x.q.new_empty(0)
    strides = [(0, 0) if y is None else y.broadcast for y in (p.bias, p.gain)]
    kernel = Prepared(
        kernels.table_kernel, (ceil_div(width, ENTRIES), heads),
        *strides[0], *strides[1], width - 2 * PAD,
        HAS_BIAS=p.bias is not None, HAS_GAIN=p.gain is not None, LEAD=PAD, BLOCK=ENTRIES,
    )  # fmt: skip

    def run(x: Operands) -> Tensor:
        table = torch.empty(heads, width, 2, dtype=torch.float32, device=p.device)
        bias, gain = (table if y is None else y for y in (x.bias, x.gain))
        kernel(bias, gain, table)
        return table

    return run


@lru_cache(MOST_PREPARED)
def _attend(p: Problem) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    """Output and LSE."""
    B, H, n_q, _ = p.sizes
    tiles, D = p.tuning.forward, p.q.shape[3]
    kernel = Prepared(
        kernels.forward_kernel, (ceil_div(n_q, tiles.queries), B * H),
        *p.strides((H * n_q * D, n_q * D, D)), *p.numbers, **tiles.options, **p.options,
    )  # fmt: skip

    def run(inputs: Inputs) -> tuple[Tensor, Tensor]:
        out = empty_like(inputs[0])
        lse = torch.empty(B, H, n_q, dtype=torch.float32, device=p.device)
        kernel(*inputs, out, lse)
        return out, lse

    return run


@lru_cache(MOST_PREPARED)
def _gradients(p: Problem) -> Callable[[Inputs, Operands, Incoming], Gradients]:
    """dQ by tiles of queries, dK and dV by tiles of keys, then sums along diagonals."""
    B, H, n_q, n_k = p.sizes
    tuning, heads = p.tuning, p.k.shape[1]
    numbers = *p.strides(p.of_incoming), *p.numbers, p.scale
    by_query = Prepared(
        kernels.dq_kernel, (ceil_div(n_q, tuning.dq.queries), B * H),
        *numbers, **tuning.dq.options, **p.options,
    )  # fmt: skip
    by_key = Prepared(
        kernels.dkv_kernel, (ceil_div(n_k, tuning.dkv.keys), B * heads),
        *numbers, **tuning.dkv.options, **p.options,
    )  # fmt: skip
    along = _diagonals(p)

    def run(inputs: Inputs, x: Operands, incoming: Incoming) -> Gradients:
        dq, dk, dv = map(empty_like, inputs[:3])
        do, out, lse = incoming[:3]
        ready = torch.empty(*lse.shape, 2, dtype=lse.dtype, device=p.device)
        inputs = (*inputs, do, ready)
        by_query(*inputs, lse, out, dq)  # it fills in what is ready: LSE and Delta
        by_key(*inputs, dk, dv)
        return dq, dk, dv, *along(inputs, x)

    return run


def _diagonals(p: Problem) -> Diagonals:
    """Sums of dS and of P G along diagonals, like the vectors, in a fixed order."""
    if not any(p.needs):
        return lambda inputs, x: (None, None)
    tiles = p.tuning.diagonal
    B, H, n_q, n_k = p.sizes
    T, R = tiles.keys, tiles.queries // tiles.keys
    tiles_q, tiles_k = ceil_div(n_q, tiles.queries), ceil_div(n_k, T)
    lowest, highest = 1 - tiles_k, R * (tiles_q - 1)  # diagonals of tiles
    programs, width = 2 * max(highest, -lowest) + 1, highest - lowest + 1
    if p.causal:  # its last offset, (lowest + R) T - 1, is seen
        lowest = max(lowest, -((p.shift + R * T - 1) // T))
        programs = max(1, highest - lowest + 1)
    splits = min(B, max(1, ENOUGH_PROGRAMS // (programs * H)))
    share = ceil_div(B, splits)
    splits = ceil_div(B, share)
    needs = dict(zip(("NEEDS_BIAS", "NEEDS_GAIN"), p.needs, strict=True))
    add = Prepared(
        kernels.diagonal_kernel, (programs, splits * H),
        *p.strides(p.of_incoming), *p.numbers, B, share, lowest, width,
        BM=R * T, T=T, num_warps=tiles.warps, num_stages=tiles.stages, **needs,
        **p.options,
    )  # fmt: skip
    length, vectors = n_q + n_k - 1, (p.bias, p.gain)
    wanted = [y if needed else None for y, needed in zip(vectors, p.needs, strict=True)]
    rows = [0 if y is None else y.shape[0] for y in wanted]
    fold = Prepared(
        kernels.fold_kernel, (ceil_div(length, ENTRIES), max(rows)),
        *rows, length, tiles_k * T - (n_k - 1), splits, H, width, lowest + tiles_k - 1,
        R=R, T=T, BLOCK=ENTRIES, **needs,
    )  # fmt: skip
    shapes = [(1,) if y is None else (splits, H, width, R + 1, T) for y in wanted]

    def run(inputs: Inputs, x: Operands) -> tuple[Tensor | None, Tensor | None]:
        strips = [torch.empty(y, dtype=torch.float32, device=p.device) for y in shapes]
        found = [
            empty_like(vector) if vector is not None and needed else None
            for vector, needed in zip(x[3:5], p.needs, strict=True)
        ]
        add(*inputs, *strips)
        put = (strip if y is None else y for strip, y in zip(strips, found, strict=True))
        fold(*strips, *put)
        return found[0], found[1]

    return run
