"""Tile sizes of the kernels, by dtype and head size."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from everyformer.ops.launching import Tiles, power_of_two

LONGEST_SMALL = 64
"""Keys that one tile holds; queries of a problem with as many go 16 or 32 at a time."""

WIDEST_SMALL = {torch.float32: 32, torch.float16: 128, torch.bfloat16: 128}
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
    64: replace(_alike(Tiles(32, 32, 4, 2)), dkv=Tiles(32, 32, 8, 2)),
    128: _alike(Tiles(32, 32, 8, 2)),
    256: _alike(Tiles(16, 16, 8, 1)),
}
"""For float32, whose tiles are twice as large and whose products use no tensor cores."""


def tuning_for(q: Tensor) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    table = FULL if q.dtype == torch.float32 else HALF
    return table[max(64, power_of_two(q.shape[-1]))]


def is_small(q: Tensor, k: Tensor) -> bool:
    """Whether one program has all gradients of a head."""
    return (
        max(q.shape[2], k.shape[2]) <= LONGEST_SMALL and q.shape[3] <= WIDEST_SMALL[q.dtype]
    )


def small_tiles(q: Tensor, k: Tensor) -> Tiles:
    """All keys and few queries: as few warps as registers allow, so that many run at once.

    What such a program does is short, and it mostly waits for memory.
    """
    keys = max(16, power_of_two(k.shape[2]))
    size = max(16, power_of_two(q.shape[3]))
    if q.dtype == torch.float32:
        return Tiles(16, keys, 4, 1)
    return Tiles(16 if size <= 64 else 32, keys, size // 16, 1)
