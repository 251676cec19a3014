"""Entries of a table for keys of the past, by their distance."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from everyformer.layers.offsets import check_positive


@dataclass(frozen=True)
class Past:
    """The distance i - j, at most max_distance; later keys, which nobody sees, have 0.

    Attributes:
        max_distance: The largest distance with an entry of its own.

    Example:
        >>> import torch
        >>> Past(2)(torch.arange(-2, 5))
        tensor([0, 0, 0, 1, 2, 2, 2])
    """

    max_distance: int

    def __post_init__(self) -> None:
        """Refuse a distance below 1."""
        check_positive(max_distance=self.max_distance)

    @property
    def size(self) -> int:
        """max_distance + 1."""
        return self.max_distance + 1

    def check(self, n: int) -> None:
        """Every length has entries."""

    def __call__(self, offsets: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """The entry of each offset."""
        return offsets.clamp(0, self.max_distance)
