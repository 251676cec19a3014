"""Time `pairwise_attention` on a GPU with other tile sizes than `tuning` has.

    python benchmarks/pairwise_tiles.py small      # molecules: all keys in one tile
    python benchmarks/pairwise_tiles.py tiled      # n = 512 and 2,048

One line for each size: milliseconds of the GPU for the forward pass, and for both passes.
"""

import itertools
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from everyformer.bench.pairwise import GPU_SHAPES, Shape
from everyformer.bench.timing import gpu_milliseconds
from everyformer.ops import pairwise_attention
from everyformer.ops.launching import Tiles
from everyformer.ops.pairwise_attention import launch, tuning

FORWARD = [
    (64, 64, 4, 2),
    (64, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 2),
    (64, 128, 8, 2),
]
BACKWARD = [(64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 4, 3), (32, 64, 4, 2), (64, 32, 4, 2)]
SUMS = [(64, 64, 8, 2), (64, 64, 4, 2), (64, 64, 8, 3), (128, 64, 8, 2)]


def leaves(shape: Shape) -> list[Tensor]:
    """q, k, v in bf16, bias and gain in float32."""
    sizes = (shape.batch, shape.heads, shape.n, shape.size)
    rows = [torch.randn(sizes, device="cuda", dtype=torch.bfloat16) for _ in "qkv"]
    pairs = [torch.randn(shape.pairs, device="cuda") for _ in "bc"]
    return [x.requires_grad_() for x in (*rows, *pairs)]


def timed(what: str, given: list[Tensor]) -> None:
    """Print one line."""
    upstream = torch.ones_like(given[0])

    def forward() -> Tensor:
        return pairwise_attention(*given)

    def both() -> Any:
        return torch.autograd.grad(forward(), given, upstream)

    try:
        both()
        found = f"{gpu_milliseconds(forward, 3):8.4f} {gpu_milliseconds(both, 3):8.4f}"
    except Exception as error:  # what does not fit is not chosen
        found = f"{type(error).__name__}: {str(error)[:60]}"
    sys.stdout.write(f"{what:60s} {found}\n")
    sys.stdout.flush()


def always(chosen: Any) -> Any:
    """A function that chooses the same for all tensors."""

    def choice(*_: Tensor) -> Any:
        return chosen

    return choice


def small() -> None:
    """Queries at a time and warps."""
    for shape in (s for s in GPU_SHAPES if s.n <= tuning.LONGEST_SMALL):
        given = leaves(shape)
        for queries, warps in itertools.product((16, 32, 64), (1, 2, 4, 8)):
            tiles = Tiles(queries, 64, warps, 1)
            launch.small_tiles = always(tiles)
            timed(f"{tuple(shape)} {queries} queries, {warps} warps", given)


def tiled() -> None:
    """One kernel at a time, the others as they are."""
    usual = tuning.HALF[64]
    choices = {"forward": FORWARD, "dq": BACKWARD, "dkv": BACKWARD, "sums": SUMS}
    for shape in (s for s in GPU_SHAPES if s.n > tuning.LONGEST_SMALL):
        given = leaves(shape)
        for kernel, sizes in choices.items():
            for size in sizes:
                changed = replace(usual, **{kernel: Tiles(*size)})
                launch.tuning_for = always(changed)
                timed(f"{tuple(shape)} {kernel} {size}", given)


if __name__ == "__main__":
    {"small": small, "tiled": tiled}[sys.argv[1]]()
