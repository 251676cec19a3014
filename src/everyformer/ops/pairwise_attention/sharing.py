"""Who shares a bias or a gain, and how many programs sum up its gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

ENOUGH_WARPS = 4096
"""Warps below which those that share a matrix are split over several programs.

Each program has one tile of partial sums in float32, which are added in a fixed order: with
16 x 64 for a warp this is 16 MiB for each gradient at most, whatever the batch.
"""


@dataclass(frozen=True)
class Sharing:
    """Over which axes the gradient of a bias or a gain is summed."""

    batch: bool
    heads: bool
    queries: bool

    @classmethod
    def of(cls, pairs: Tensor, sizes: tuple[int, int, int, int]) -> "Sharing":
        """That of a matrix of shape (b or 1, h or 1, n_q or 1, n_k)."""
        shared = (has < size for has, size in zip(pairs.shape[:3], sizes[:3], strict=True))
        return cls(*shared)

    @property
    def problems(self) -> tuple[bool, bool]:
        """Whether sequences, and whether heads, share it."""
        return self.batch, self.heads


NOTHING = Sharing(batch=False, heads=False, queries=False)


@dataclass(frozen=True)
class Split:
    """Owners of a sum, the steps of each, and how many steps one program takes."""

    owners: int
    steps: int
    share: int

    @classmethod
    def of(cls, problems: tuple[bool, bool], sizes: tuple[int, ...], warps: int) -> "Split":
        """For sums over sequences, heads or both, with so many warps for one sum."""
        summed, kept = 1, 1
        for size, shared in zip(sizes, problems, strict=False):
            summed, kept = (summed * size, kept) if shared else (summed, kept * size)
        parts = min(summed, max(1, ENOUGH_WARPS // (kept * warps)))
        return cls(kept, summed, -(-summed // parts))

    @property
    def parts(self) -> int:
        """Programs of one owner."""
        return -(-self.steps // self.share)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """As the kernels take them."""
        return self.owners, self.steps, self.share

    def buffer(self, pairs: Tensor) -> Tensor:
        """Memory for a gradient, or for the partial sums of all parts."""
        if self.parts == 1:
            return torch.empty(pairs.shape, dtype=pairs.dtype, device=pairs.device)
        shape = (self.parts, *pairs.shape)
        return torch.empty(shape, dtype=torch.float32, device=pairs.device)

    def total(self, buffer: Tensor, pairs: Tensor) -> Tensor:
        """The gradient of the pairs: the parts of the buffer, summed in their order."""
        return buffer if self.parts == 1 else buffer.sum(0).to(pairs.dtype)
