"""Tile sizes of the kernels, by dtype and head size."""

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from everyformer.ops.toeplitz_attention.launch import Tiles

LONGEST_SMALL = 64
"""Queries and keys that one tile holds."""

WIDEST_SMALL = {torch.float32: 64, torch.float16: 128, torch.bfloat16: 128}
"""Head sizes at which the gradients of a small problem fit into one program."""


@dataclass(frozen=True)
class Tuning:
    """Tile sizes of all kernels for long sequences."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles
    sums: Tiles


def _alike(tiles: Tiles) -> Tuning:
    return Tuning(forward=tiles, dq=tiles, dkv=tiles, sums=tiles)


HALF = {
    64: replace(_alike(Tiles(64, 64, 4, 2)), sums=Tiles(64, 64, 8, 2)),
    128: _alike(Tiles(64, 64, 8, 2)),
    256: _alike(Tiles(32, 32, 4, 2)),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

FULL = {
    64: _alike(Tiles(32, 32, 4, 2)),
    128: _alike(Tiles(32, 32, 4, 2)),
    256: _alike(Tiles(16, 16, 4, 1)),
}
"""For float32, whose tiles are twice as large and whose products use no tensor cores."""


def tuning_for(q: Tensor) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    table = FULL if q.dtype == torch.float32 else HALF
    return table[max(64, triton.next_power_of_2(q.shape[-1]))]


def is_small(q: Tensor, k: Tensor) -> bool:
    """Whether one tile holds all queries and keys."""
    return (
        max(q.shape[2], k.shape[2]) <= LONGEST_SMALL and q.shape[3] <= WIDEST_SMALL[q.dtype]
    )


def small_tiles(q: Tensor, k: Tensor, *, adds: bool = False) -> Tiles:
    """One tile; more warps where sums are kept in registers from step to step."""
    queries, keys = (max(16, triton.next_power_of_2(x.shape[2])) for x in (q, k))
    crowded = adds or q.dtype == torch.float32 or q.shape[3] > 64
    return Tiles(queries, keys, 8 if crowded and queries * keys > 1024 else 4, 1)
