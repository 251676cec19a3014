"""Launch the Triton kernels: shapes, tile sizes, buffers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.attention_rules import without_one_key
from everyformer.ops.disentangled_attention import kernels as jitted
from everyformer.ops.disentangled_attention.operands import Incoming, Operands
from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import (
    LARGEST_TILE,
    Tiles,
    ceil_div,
    empty_like,
    launch,
    power_of_two,
    side_by_side,
)
from everyformer.ops.recalled import Recalled
from everyformer.ops.toeplitz_attention.kernels.tiles import PAD

kernels: Any = jitted  # their calls have a grid and options that no signature shows


@dataclass(frozen=True)
class Tuning:
    """Tile sizes of all kernels."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles


HALF = {
    64: Tuning(Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 2)),
    128: Tuning(Tiles(64, 64, 4, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2)),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

FULL = Tuning(Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2))
"""For float32."""

_TABLES = Recalled()
"""Of the index vectors."""


def tuning_for(q: Tensor) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    if q.dtype == torch.float32:
        return FULL
    return HALF[64] if q.shape[-1] <= 64 else HALF[128]


def table_of(x: Operands) -> Tensor:
    """The buckets as the kernels want them; kept as long as the index vector lives."""
    return _TABLES.get(x.bucket_of, (x.k.shape[2], x.buckets), lambda: _table(x))


def _table(x: Operands) -> Tensor:
    """Ends of the first and last bucket, these buckets, and all, repeated at both ends."""
    index = x.bucket_of.detach().clamp(0, x.buckets - 1).to(torch.int32)
    offsets, before = index.shape[0], x.k.shape[2] - 1
    low = (index == index[0]).sum() - 1 - before
    high = offsets - (index == index[-1]).sum() - before
    head = torch.stack([low, high, index[0].long(), index[-1].long()]).to(torch.int32)
    ends = index[:1].expand(PAD), index[-1:].expand(PAD)
    return torch.cat([head, ends[0], index, ends[1]])


@dataclass(frozen=True)
class Problem:
    """The inputs as kernels want them, and the sizes that follow.

    Attributes:
        q, k, v: Shape (B, H, n, D), last axis contiguous.
        inputs: These, the terms, the table, the seed and the padding; q stands for what
            is missing.
        options: What all kernels are specialised on.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    inputs: tuple[Tensor, ...]
    scale: float
    buckets: int
    dropout: float
    options: dict[str, Any]

    @classmethod
    def of(cls, x: Operands) -> "Problem":
        """Make what has to be so contiguous, and collect the options."""
        q, k, v = map(side_by_side, x[:3])
        c2p, p2c = (q if y is None else y.contiguous() for y in (x.c2p, x.p2c))
        padding, seed = x.key_padding, q if x.seed is None else x.seed
        padded = q if padding is None else padding.to(torch.int8).contiguous()
        D, lengths = q.shape[-1], (q.shape[2], k.shape[2])
        return cls(
            q, k, v, (q, k, v, c2p, p2c, table_of(x), seed, padded),
            x.scale, x.buckets, x.dropout,
            options={
                "D": D,
                "BLOCK_D": max(16, power_of_two(D)),
                "HAS_C2P": x.c2p is not None,
                "HAS_P2C": x.p2c is not None,
                "HAS_PAD": padding is not None,
                "DROPS": x.seed is not None and x.dropout > 0.0,
                "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
                "LEAD": PAD,
                "ASSEMBLY": q.is_cuda,
                "EVEN": all(n % LARGEST_TILE == 0 for n in lengths),
            },
        )  # fmt: skip

    def numbers(self, *tensors: Tensor) -> list[float]:
        """Strides of batch, head and token of each, of the padding; sizes; dropout."""
        padded = self.inputs[-1].stride(0) if self.options["HAS_PAD"] else 0
        strides = [stride for x in tensors for stride in x.stride()[:3]]
        _, H, n_q, _ = self.q.shape
        sizes = H, n_q, self.k.shape[2], self.buckets
        return [*strides, padded, *sizes, threshold(self.dropout), growth(self.dropout)]


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output and the base-2 logarithm of each query's sum of exponentials."""
    p, tiles = Problem.of(x), tuning_for(x.q).forward
    B, H, n_q, _ = x.q.shape
    out = empty_like(x.q)
    lse = torch.empty(B, H, n_q, dtype=torch.float32, device=x.q.device)
    launch(
        kernels.forward_kernel, (ceil_div(n_q, tiles.queries), B * H),
        *p.inputs, out, lse, *p.numbers(p.q, p.k, p.v), x.scale * LOG2_E,
        **tiles.options, **p.options,
    )  # fmt: skip
    return out, lse


def backward(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of q, k, v, and of c2p and p2c where they are needed."""
    p, tuning = Problem.of(x), tuning_for(x.q)
    B, H, n_q, _ = x.q.shape
    n_k = x.k.shape[2]
    do, out = side_by_side(incoming.grad_out), incoming.out.contiguous()
    delta = torch.empty(B, H, n_q, dtype=torch.float32, device=x.q.device)
    dq, dk, dv = map(empty_like, x[:3])
    dc2p = _zeros(x.c2p, incoming.needs_c2p)
    dp2c = _zeros(x.p2c, incoming.needs_p2c)
    inputs = (*p.inputs, do, incoming.lse.contiguous(), delta)
    numbers = (*p.numbers(p.q, p.k, p.v, do), x.scale * LOG2_E, x.scale)
    launch(  # first: it fills in Delta
        kernels.dq_kernel, (ceil_div(n_q, tuning.dq.queries), B * H),
        *inputs, out, dq, dq if dc2p is None else dc2p, *numbers,
        NEEDS=dc2p is not None, **tuning.dq.options, **p.options,
    )  # fmt: skip
    launch(
        kernels.dkv_kernel, (ceil_div(n_k, tuning.dkv.keys), B * H),
        *inputs, dk, dv, dk if dp2c is None else dp2c, *numbers,
        NEEDS=dp2c is not None, **tuning.dkv.options, **p.options,
    )  # fmt: skip
    without_one_key(x.k, dq, dk, dc2p, dp2c)
    return dq, dk, dv, dc2p, dp2c


def _zeros(like: Tensor | None, needed: bool) -> Tensor | None:
    """Contiguous; a bucket without offsets gets nothing stored."""
    if like is None or not needed:
        return None
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
