"""Launch the Triton kernels: shapes, tile sizes, buffers."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.ops.attention_rules import without_one_key
from everyformer.ops.captured import is_captured
from everyformer.ops.disentangled_attention import kernels as jitted
from everyformer.ops.disentangled_attention.operands import Incoming, Operands
from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import (
    LARGEST_TILE,
    Tiles,
    addressable,
    ceil_div,
    empty_like,
    launch,
    power_of_two,
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
    64: Tuning(Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 3)),
    128: Tuning(Tiles(64, 64, 4, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2)),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

FULL = Tuning(Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2))
"""For float32."""

BAND_BYTES = 2**28
"""Of near dS that are stored before they are added up; then the next programs run."""

FEWEST_PROGRAMS = 256
"""That run at once all the same, where the distances of a bucket are very many."""

SUM_ROWS, SUM_BUCKETS = 16, 128
"""Of a program that adds up."""

_TABLES = Recalled()
"""Of the index vectors."""


class Table(NamedTuple):
    """An index vector as the kernels want it.

    Attributes:
        buckets: Four numbers about the buckets, and those of all offsets; see `kernels`.
        edges: The first offset of each bucket, and the end of the last one.
        near: At least how many offsets are neither in the first nor in the last bucket;
            None where a CUDA graph is captured, which cannot tell.
    """

    buckets: Tensor
    edges: Tensor
    near: int | None


def tuning_for(q: Tensor) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    if q.dtype == torch.float32:
        return FULL
    return HALF[64] if q.shape[-1] <= 64 else HALF[128]


def table_of(x: Operands) -> Table:
    """The buckets as the kernels want them; kept as long as the index vector lives."""
    return _TABLES.get(x.bucket_of, (x.k.shape[2], x.buckets), lambda: _table(x))


def _table(x: Operands) -> Table:
    index = x.bucket_of.detach().clamp(0, x.buckets - 1).to(torch.int32)
    offsets, before = index.shape[0], x.k.shape[2] - 1
    low = (index == index[0]).sum() - 1 - before
    high = offsets - (index == index[-1]).sum() - before
    every = torch.arange(x.buckets + 1, dtype=torch.int32, device=index.device)
    edges = torch.searchsorted(index, every).to(torch.int32)
    head = torch.stack([low, high, index[0].long(), index[-1].long()])
    ends = index[:1].expand(PAD), index[-1:].expand(PAD)
    return Table(
        torch.cat([head.to(torch.int32), ends[0], index, ends[1]]),
        edges,
        None if is_captured(index) else max(0, int(high - low)),
    )


@dataclass(frozen=True)
class Problem:
    """The inputs as kernels want them, and the sizes that follow.

    Attributes:
        q, k, v: Shape (B, H, n, D), last axis contiguous.
        inputs: These, the terms, the buckets, the seed and the padding; q stands for what
            is missing.
        table: What is known of the buckets.
        options: What all kernels are specialised on.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    inputs: tuple[Tensor, ...]
    table: Table
    scale: float
    dropout: float
    options: dict[str, Any]

    @classmethod
    def of(cls, x: Operands) -> "Problem":
        """Make what has to be so contiguous, and collect the options."""
        q, k, v = map(addressable, x[:3])
        c2p, p2c = (q if y is None else y.contiguous() for y in (x.c2p, x.p2c))
        padding, seed = x.key_padding, q if x.seed is None else x.seed
        padded = q if padding is None else padding.to(torch.int8).contiguous()
        table = table_of(x)
        D, lengths = q.shape[-1], (q.shape[2], k.shape[2])
        return cls(
            q, k, v, (q, k, v, c2p, p2c, table.buckets, seed, padded), table,
            x.scale, x.dropout,
            options={
                "D": D,
                "R": x.buckets,
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
        sizes = H, n_q, self.k.shape[2]
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
    do, out = addressable(incoming.grad_out), incoming.out.contiguous()
    lse = incoming.lse.contiguous()
    ready = torch.empty(B, H, n_q, 2, dtype=torch.float32, device=x.q.device)
    dq, dk, dv = map(empty_like, x[:3])
    inputs = (*p.inputs, do, ready)
    numbers = (*p.numbers(p.q, p.k, p.v, do), x.scale * LOG2_E, x.scale)
    by_query = Pass(p, kernels.dq_kernel, tuning.dq, by_query=True)
    by_key = Pass(p, kernels.dkv_kernel, tuning.dkv, by_query=False)
    # The first fills in what is ready: LSE and Delta.
    dc2p = by_query((*inputs, lse, out, dq), numbers, x.c2p if incoming.needs_c2p else None)
    dp2c = by_key((*inputs, dk, dv), numbers, x.p2c if incoming.needs_p2c else None)
    without_one_key(x.k, dq, dk, dc2p, dp2c)
    return dq, dk, dv, dc2p, dp2c


@dataclass(frozen=True)
class Pass:
    """A pass backward, over all programs, or some after others if it keeps dS of theirs.

    Attributes:
        p: What is computed.
        kernel: Of dQ, or of dK and dV.
        tiles: Of this kernel.
        by_query: Whether a program owns queries; else keys.
    """

    p: Problem
    kernel: Any
    tiles: Tiles
    by_query: bool

    def __call__(
        self, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], like: Tensor | None
    ) -> Tensor | None:
        """The gradient of a term, shaped like it; None where none is wanted."""
        q = self.p.q
        n_own, n_other = q.shape[2], self.p.k.shape[2]
        own, other = self.tiles.queries, self.tiles.keys
        if not self.by_query:
            n_own, n_other, own, other = n_other, n_own, other, own
        in_all = ceil_div(n_own, own) * q.shape[0] * q.shape[1]
        options = {**self.tiles.options, **self.p.options}
        if like is None:
            launch(
                self.kernel, (in_all,), *tensors, q, q, *numbers, 0, 0,
                NEEDS=False, **options,
            )  # fmt: skip
            return None
        found, near = empty_like(like), self.p.table.near
        width = ceil_div(n_other, other) * other
        if near is not None:  # near tiles begin and end before and after their offsets
            width = min(width, ceil_div(near + own + 2 * other, own) * own)
        at_once = BAND_BYTES // (own * width * q.element_size())
        at_once = min(in_all, max(at_once, FEWEST_PROGRAMS))
        band = torch.empty(at_once * own, width, dtype=q.dtype, device=q.device)
        far = torch.empty(at_once * own, 2, dtype=torch.float32, device=q.device)
        for first in range(0, in_all, at_once):
            programs = min(at_once, in_all - first)
            launch(
                self.kernel, (programs,), *tensors, band, far, *numbers, first, width,
                NEEDS=True, **options,
            )  # fmt: skip
            R = self.p.options["R"]
            launch(
                kernels.sums_kernel,
                (programs * own // SUM_ROWS, ceil_div(R, SUM_BUCKETS)),
                self.p.table.buckets, self.p.table.edges, band, far, found, first,
                ceil_div(n_own, own), n_own, n_other, self.p.k.shape[2], width,
                self.p.scale, R=R, BM=self.tiles.queries, BN=self.tiles.keys,
                BY_QUERY=self.by_query, ROWS=SUM_ROWS, BUCKETS=SUM_BUCKETS,
                ENDS=power_of_two(own + other),
            )  # fmt: skip
        return found
