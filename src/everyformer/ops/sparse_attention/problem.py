"""What calls of the kernels have in common if their tensors have equal shapes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import power_of_two
from everyformer.ops.sparse_attention.operands import Operands
from everyformer.ops.sparse_attention.tuning import MOST_PAIRS
from everyformer.ops.sparse_attention.walks import Slots

SMALLEST_DOT = 16
"""Rows and columns that a tensor core takes."""


class Problem(NamedTuple):
    """Shapes, strides and settings; a key for all that is prepared from them.

    Attributes:
        shape: B, H, n and D.
        strides: Of q, k, v, and in the backward pass of the gradient of the output.
        dtype: Of all of them.
        scale: Of the scores.
        padded: Whether some keys do not count.
        dropout: Probability of dropping a weight.
    """

    shape: torch.Size
    strides: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    scale: float
    padded: bool
    dropout: float = 0.0

    @classmethod
    def of(cls, x: Operands, *upstream: Tensor) -> "Problem":
        """Of tensors whose last axes are contiguous; upstream the gradient, if any."""
        strides = tuple([y.stride() for y in (*x[:3], *upstream)])
        padded = x.key_padding is not None
        return cls(x.q.shape, strides, x.q.dtype, x.scale, padded, x.dropout)

    def check(self) -> None:
        """Refuse what no launch can do.

        Raises:
            InputError: If there are more sequences and heads than a GPU can launch.
        """
        if self.pairs > MOST_PAIRS:
            msg = (
                f"{self.shape[0]} sequences with {self.shape[1]} heads make {self.pairs} "
                f"pairs, but one call takes {MOST_PAIRS}. Split the batch."
            )
            raise InputError(msg)

    @property
    def pairs(self) -> int:
        """Batch times heads."""
        return self.shape[0] * self.shape[1]

    @property
    def places(self) -> tuple[int, ...]:
        """Strides of batch, head and token of each tensor, and of padding by batch."""
        found = [step for strides in self.strides for step in strides[:3]]
        return *found, self.shape[2] if self.padded else 0

    @property
    def sizes(self) -> tuple[int, int]:
        """H and n."""
        return self.shape[1], self.shape[2]

    @property
    def scales(self) -> tuple[float, ...]:
        """Of the scores in base 2; in the backward pass of the gradients; of dropping."""
        forward = len(self.strides) == 3
        scores = (self.scale * LOG2_E,) if forward else (self.scale * LOG2_E, self.scale)
        return *scores, threshold(self.dropout), growth(self.dropout)

    @property
    def widths(self) -> dict[str, int]:
        """The head size, and its power of two."""
        D = self.shape[3]
        return {"D": D, "BLOCK_D": max(SMALLEST_DOT, power_of_two(D))}

    @property
    def options(self) -> dict[str, Any]:
        """What all kernels over pairs are specialised on."""
        return {**self.widths, "HAS_PAD": self.padded, "DROP": self.dropout > 0.0}

    @property
    def tile_options(self) -> dict[str, Any]:
        """Those of the tile kernels."""
        precision = "ieee" if self.dtype == torch.float32 else "tf32"
        return self.options | {"PRECISION": precision}

    @property
    def star_options(self) -> dict[str, Any]:
        """Those of the kernels for stars; "ieee" products would spill registers."""
        precision = "tf32x3" if self.dtype == torch.float32 else "tf32"
        return self.options | {"PRECISION": precision}

    def buffer(
        self, slots: Slots | None, width: int, like: Tensor, several: int = 1
    ) -> Tensor:
        """Memory for the slots of several sums, float32; `like` itself for none."""
        if slots is None:
            return like
        shape = (several, self.pairs, slots.rows, width)
        return torch.empty(shape, dtype=torch.float32, device=like.device)
