"""Sizes of what one program of a Triton kernel does. Measured on an H200."""

from dataclasses import dataclass

import torch

from everyformer.ops.launching import Tiles


@dataclass(frozen=True)
class Tuning:
    """Tile sizes of the tile kernels, owners first."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles


HALF = {
    64: Tuning(
        forward=Tiles(64, 64, 4, 3), dq=Tiles(64, 64, 4, 3), dkv=Tiles(64, 32, 4, 4)
    ),
    128: Tuning(
        forward=Tiles(64, 64, 4, 3), dq=Tiles(64, 64, 4, 3), dkv=Tiles(64, 32, 4, 3)
    ),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

FULL = Tuning(forward=Tiles(64, 32, 4, 2), dq=Tiles(32, 32, 4, 2), dkv=Tiles(32, 32, 4, 2))
"""For float32, whose tiles are twice as large and whose products use no tensor cores."""

STRANDS = {"R": 16, "E": 4, "num_warps": 4}
"""Strands of a program, and partners of each that it reads at a time."""

RING = {"half": {64: (64, 4), 128: (64, 8)}, "full": {64: (32, 4), 128: (32, 8)}}
"""Rows of the ring that a program has, its neighbours among them, and its warps.

By precision and padded head size; so chosen that few registers or none are spilt.
"""

MOST_PAIRS = 65535 // 3
"""A grid has at most 65,535 programs in its second direction; three gradients use it."""

JOINED_AT_ONCE = 128
"""Slots of one sum, at most."""


def tuning_for(dtype: torch.dtype, head_size: int) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    if dtype == torch.float32:
        return FULL
    return HALF[64] if head_size <= 64 else HALF[128]


def ring_for(dtype: torch.dtype, head_size: int) -> dict[str, int]:
    """Rows and warps of the kernels for stars."""
    precision = "full" if dtype == torch.float32 else "half"
    rows, warps = RING[precision][64 if head_size <= 64 else 128]
    return {"T": rows, "num_warps": warps}
