"""Tile sizes of the Triton kernels, by dtype and head size."""

from dataclasses import dataclass

import torch

from everyformer.ops.launching import Tiles


@dataclass(frozen=True)
class Tuning:
    """Tile sizes of all kernels. Measured on an H200 (`everyformer bench attention`)."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles
    diagonal: Tiles


HALF = {
    64: Tuning(
        forward=Tiles(64, 64, 4, 3),
        dq=Tiles(64, 128, 4, 3),
        dkv=Tiles(64, 64, 4, 3, registers=255),
        diagonal=Tiles(128, 64, 8, 3),
    ),
    128: Tuning(
        forward=Tiles(128, 128, 8, 3),
        dq=Tiles(64, 64, 4, 2),
        dkv=Tiles(64, 64, 4, 2),
        diagonal=Tiles(128, 64, 8, 2),
    ),
    256: Tuning(
        forward=Tiles(64, 64, 4, 2),
        dq=Tiles(64, 32, 4, 2),
        dkv=Tiles(32, 64, 8, 2),
        diagonal=Tiles(64, 64, 8, 1),
    ),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

WITH_MASK = {
    64: Tuning(
        forward=Tiles(128, 64, 4, 2),
        dq=Tiles(64, 64, 4, 2),
        dkv=Tiles(64, 64, 4, 2),
        diagonal=Tiles(64, 64, 4, 2),
    ),
    128: Tuning(
        forward=Tiles(64, 128, 4, 2),
        dq=Tiles(64, 128, 4, 2),
        dkv=Tiles(32, 64, 4, 2),
        diagonal=Tiles(64, 64, 8, 2),
    ),
    256: HALF[256],
}
"""The same with a mask, whose tiles go through shared memory, too."""

FULL = {
    128: Tuning(
        forward=Tiles(64, 32, 4, 2),
        dq=Tiles(32, 32, 4, 2),
        dkv=Tiles(32, 32, 4, 2),
        diagonal=Tiles(32, 32, 4, 2),
    ),
    256: Tuning(
        forward=Tiles(32, 32, 8, 1),
        dq=Tiles(16, 16, 4, 1),
        dkv=Tiles(16, 16, 4, 1),
        diagonal=Tiles(32, 32, 8, 1),
    ),
}
"""For float32, whose tiles are twice as large and whose products use no tensor cores."""


def tuning_for(dtype: torch.dtype, head_size: int, *, masked: bool) -> Tuning:
    """The tile sizes for a dtype, a head size, and with a mask or not."""
    by_size = FULL if dtype == torch.float32 else WITH_MASK if masked else HALF
    return next(tuning for size, tuning in by_size.items() if head_size <= size)
