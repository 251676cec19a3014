"""Launch the Triton kernels: shapes, strides, buffers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import (
    LARGEST_TILE,
    ceil_div,
    empty_like,
    launch,
    power_of_two,
    side_by_side,
)
from everyformer.ops.toeplitz_attention import kernels as jitted
from everyformer.ops.toeplitz_attention.kernels.tiles import PAD
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.packing import bounds
from everyformer.ops.toeplitz_attention.tuning import Tuning, tuning_for

kernels: Any = jitted  # their calls have a grid and options that no signature shows


ENOUGH_PROGRAMS = 1024
"""Programs of the diagonal kernel below which the batch is split."""

ENTRIES = 256
"""Of a vector, for each program that copies or adds up."""


@dataclass(frozen=True)
class Problem:
    """The inputs as kernels want them, and the sizes that follow.

    Attributes:
        inputs: q, k, v with contiguous last axes; the table of pairs (bias in base 2,
            gain), float32, (heads, pairs, 2); 1 where a key is padded, int8; the mask, by
            its strides; begin and end of sequences; the seed. q stands for what is missing.
        table: That table; empty without vectors.
        strides: Those that belong to them, without those of q, k and v.
        numbers: What follows all strides in every kernel.
        offset: The place of the first query.
        options: What all kernels are specialised on.
    """

    inputs: tuple[Tensor, ...]
    table: Tensor
    strides: tuple[int, ...]
    numbers: tuple[float, ...]
    offset: int
    options: dict[str, Any]

    @classmethod
    def of(cls, x: Operands, table: Tensor | None = None) -> "Problem":
        """Make last axes contiguous, pad the vectors, and collect the options."""
        q, k, v = map(side_by_side, x[:3])
        D, n_q, n_k = q.shape[-1], q.shape[2], k.shape[2]
        offset = max(-n_q, min(x.offset, n_k))  # beyond these it changes nothing
        table = _pairs(x) if table is None else table
        of_table = table.stride(0) if table.dim() == 3 and table.shape[0] > 1 else 0
        padded, mask, begin, end, seed = q, q, q, q, q if x.seed is None else x.seed
        of_padded, of_mask = 0, (0, 0, 0, 0)
        if x.key_padding is not None:
            padded = x.key_padding.contiguous().view(torch.int8)
            of_padded = padded.stride(0)
        if x.attn_mask is not None:
            mask, of_mask = _strided(x.attn_mask)
        if x.sequences is not None:
            begin, end = bounds(x.sequences, n_q)
        return cls(
            inputs=(q, k, v, table if table.numel() else q, padded, mask, begin, end, seed),
            table=table,
            strides=(of_table, of_padded, *of_mask),
            numbers=(
                *(q.shape[1], n_q, n_k, x.scale * LOG2_E),
                *(offset, threshold(x.dropout), growth(x.dropout)),
            ),
            offset=offset,
            options={
                "D": D,
                "BLOCK_D": max(16, power_of_two(D)),
                "CAUSAL": x.causal,
                "SHIFTED": x.causal and offset != 0,
                "HAS_BIAS": x.bias is not None,
                "HAS_GAIN": x.gain is not None,
                "HAS_PAD": x.key_padding is not None,
                "HAS_MASK": x.attn_mask is not None,
                "ADDS": x.attn_mask is not None and x.attn_mask.dtype != torch.bool,
                "PACKED": x.sequences is not None,
                "DROPS": x.seed is not None and x.dropout > 0.0,
                "GROUP": x.group,
                "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
                "LEAD": PAD,
                "ASSEMBLY": q.is_cuda,
                "EVEN": n_q % LARGEST_TILE == 0 and n_k % LARGEST_TILE == 0,
            },
        )

    @property
    def q(self) -> Tensor:
        """The queries."""
        return self.inputs[0]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, n_q, n_k."""
        B, H, n_q, _ = self.q.shape
        return B, H, n_q, self.inputs[1].shape[2]

    def strides_with(self, rows: Tensor) -> list[int]:
        """Strides of batch, head and token of q, k, v and these rows, then all others."""
        tensors = (*self.inputs[:3], rows)
        return [*(stride for x in tensors for stride in x.stride()[:3]), *self.strides]


def _strided(mask: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A mask as numbers, and its four strides, 0 along axes on which it is broadcast."""
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.dtype == torch.bool:
        mask = mask.view(torch.int8)
    elif mask.dtype == torch.float64:
        mask = mask.float()
    sizes = zip(mask.stride(), mask.shape, strict=True)
    return mask, tuple(stride if size > 1 else 0 for stride, size in sizes)


def _pairs(x: Operands) -> Tensor:
    """bias times log2(e) beside gain, float32, between PAD zeros on both sides.

    Empty without vectors.
    """
    given = [y for y in (x.bias, x.gain) if y is not None]
    if not given:
        return x.q.new_empty(0)
    heads, length = max(y.shape[0] for y in given), given[0].shape[1]
    width = length + 2 * PAD
    table = torch.empty(heads, width, 2, dtype=torch.float32, device=x.q.device)
    bias, gain = (table if y is None else y for y in (x.bias, x.gain))
    strides = [(y.stride(0) if y.shape[0] > 1 else 0, y.stride(1)) for y in (bias, gain)]
    launch(
        kernels.table_kernel, (ceil_div(width, ENTRIES), heads),
        bias, gain, table, *strides[0], *strides[1], length,
        HAS_BIAS=x.bias is not None, HAS_GAIN=x.gain is not None, LEAD=PAD, BLOCK=ENTRIES,
    )  # fmt: skip
    return table


def forward(x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the base-2 logarithm of each row's sum of exponentials, and the table.

    In base 2, as the kernels have it: turned into another base and back, a large logarithm
    would no longer cancel the logits.
    """
    p = Problem.of(x)
    B, H, n_q, _ = p.sizes
    out = empty_like(p.q)
    lse = torch.empty(B, H, n_q, dtype=torch.float32, device=x.q.device)
    tiles = tuning_for(x.q, x.attn_mask is not None).forward
    launch(
        kernels.forward_kernel, (ceil_div(n_q, tiles.queries), B * H),
        *p.inputs, out, lse, *p.strides_with(out), *p.numbers,
        **tiles.options, **p.options,
    )  # fmt: skip
    return out, lse, p.table


def backward(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of q, k, v, and of bias and gain where they are needed."""
    table, needs_bias, needs_gain = incoming[3:]
    problem = Problem.of(x, table if table.numel() else None)
    step = Backward.of(problem, x.scale, incoming)
    dq = step.dq()
    dk, dv = step.dkv()
    bias, gain = x.bias if needs_bias else None, x.gain if needs_gain else None
    dbias, dgain = step.diagonals(bias, gain)
    return dq, dk, dv, dbias, dgain


@dataclass(frozen=True)
class Backward:
    """The backward pass: its inputs, and one method for each kernel."""

    problem: Problem
    scale: float
    inputs: tuple[Tensor, ...]
    strides: tuple[int, ...]
    lse: Tensor
    out: Tensor
    tuning: Tuning

    @classmethod
    def of(cls, p: Problem, scale: float, incoming: Incoming) -> "Backward":
        """Collect the inputs; LSE and Delta are filled in by `dq`, which comes first."""
        do, out, lse = incoming[:3]
        do = side_by_side(do)
        ready, delta = (torch.empty_like(lse) for _ in range(2))
        inputs = (*p.inputs, do, ready, delta)
        strides = tuple(p.strides_with(do))
        tuning = tuning_for(p.q, p.options["HAS_MASK"])
        return cls(p, scale, inputs, strides, lse, out.contiguous(), tuning)

    def dq(self) -> Tensor:
        """dQ, by tiles of queries; LSE and Delta for the other kernels."""
        p, tiles = self.problem, self.tuning.dq
        B, H, n_q, _ = p.sizes
        dq = empty_like(p.q)
        launch(
            kernels.dq_kernel, (ceil_div(n_q, tiles.queries), B * H),
            *self.inputs, self.lse, self.out, dq, *self.strides, *p.numbers, self.scale,
            **tiles.options, **p.options,
        )  # fmt: skip
        return dq

    def dkv(self) -> tuple[Tensor, Tensor]:
        """dK and dV, by tiles of keys."""
        p, tiles = self.problem, self.tuning.dkv
        B, heads, n_k, _ = p.inputs[1].shape
        dk, dv = map(empty_like, p.inputs[1:3])
        launch(
            kernels.dkv_kernel, (ceil_div(n_k, tiles.keys), B * heads),
            *self.inputs, dk, dv, *self.strides, *p.numbers, self.scale,
            **tiles.options, **p.options,
        )  # fmt: skip
        return dk, dv

    def diagonals(
        self, bias: Tensor | None, gain: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Sums of dS and of P G along diagonals, like the vectors, in a fixed order."""
        if bias is None and gain is None:
            return None, None
        p, tiles = self.problem, self.tuning.diagonal
        B, H, n_q, n_k = p.sizes
        T = tiles.queries
        tiles_q, tiles_k = ceil_div(n_q, T), ceil_div(n_k, T)
        programs, lowest = 2 * max(tiles_q, tiles_k) - 1, 1 - tiles_k
        if p.options["CAUSAL"]:  # its last offset, (lowest + 1) T - 1, is seen
            lowest = max(lowest, -((p.offset + T - 1) // T))
            programs = max(1, tiles_q - lowest)
        splits = min(B, max(1, ENOUGH_PROGRAMS // (programs * H)))
        share = ceil_div(B, splits)
        splits = ceil_div(B, share)
        width = tiles_q + tiles_k - 1
        needs = {"NEEDS_BIAS": bias is not None, "NEEDS_GAIN": gain is not None}
        strips, found = list[Tensor](), list[Tensor]()
        for vector in (bias, gain):
            shape = (1,) if vector is None else (splits, H, width, 2, T)
            strips.append(torch.empty(shape, dtype=torch.float32, device=p.q.device))
            found.append(strips[-1] if vector is None else empty_like(vector))
        launch(
            kernels.diagonal_kernel, (programs, splits * H),
            *self.inputs, *strips, *self.strides, *p.numbers, B, share, lowest,
            T=T, num_warps=tiles.warps, num_stages=tiles.stages, **needs, **p.options,
        )  # fmt: skip
        length = n_q + n_k - 1
        rows = [0 if vector is None else vector.shape[0] for vector in (bias, gain)]
        launch(
            kernels.fold_kernel, (ceil_div(length, ENTRIES), max(rows)),
            *strips, *found, *rows, length, tiles_k * T - (n_k - 1), splits, H, width,
            lowest + tiles_k - 1, T=T, BLOCK=ENTRIES, **needs,
        )  # fmt: skip
        dbias, dgain = found
        return None if bias is None else dbias, None if gain is None else dgain
