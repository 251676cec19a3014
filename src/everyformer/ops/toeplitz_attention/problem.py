"""What calls of the kernels have in common if their tensors are alike."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import LARGEST_TILE, power_of_two
from everyformer.ops.toeplitz_attention.kernels.tiles import PAD
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.tuning import Tuning, tuning_for


class Layout(NamedTuple):
    """What a launch depends on of one tensor beside its numbers."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor | None) -> "Layout | None":
        """None where nothing is given."""
        return None if x is None else cls(x.shape, x.stride(), x.dtype)

    @property
    def broadcast(self) -> tuple[int, ...]:
        """The strides, 0 along axes of 1."""
        sizes = zip(self.strides, self.shape, strict=True)
        return tuple(stride if size > 1 else 0 for stride, size in sizes)


class Problem(NamedTuple):
    """Layouts and settings; a key for all that is prepared from them.

    Attributes:
        device: Of all tensors.
        q: Queries, rows contiguous.
        k: Keys, likewise.
        of_values: Strides of v.
        of_incoming: Strides of the gradient of the output; empty in the forward pass.
        bias: The bias, if any.
        gain: The gain, if any.
        mask: The mask, if any, as numbers with four axes.
        padded: Whether some keys do not count.
        packed: Whether sequences follow one another.
        causal: As the operator has it.
        scale: Of the scores.
        offset: The place of the first query.
        dropout: The share of weights that are dropped; 0 without a seed.
        needs: Whether the gradients of bias and gain are wanted.
    """

    device: torch.device
    q: Layout
    k: Layout
    of_values: tuple[int, ...]
    of_incoming: tuple[int, ...]
    bias: Layout | None
    gain: Layout | None
    mask: Layout | None
    padded: bool
    packed: bool
    causal: bool
    scale: float
    offset: int
    dropout: float
    needs: tuple[bool, bool]

    @classmethod
    def of(cls, x: Operands, incoming: Incoming | None = None) -> "Problem":
        """Of operands as `tidied` leaves them, and of what comes back."""
        q, k, bias, gain = x.q, x.k, x.bias, x.gain
        of_incoming, needs = (), (False, False)
        if incoming is not None:
            of_incoming = incoming.grad_out.stride()
            needs = (
                bias is not None and incoming.needs_bias,
                gain is not None and incoming.needs_gain,
            )
        return cls(
            q.device,
            Layout(q.shape, q.stride(), q.dtype),
            Layout(k.shape, k.stride(), k.dtype),
            x.v.stride(), of_incoming,
            Layout.of(bias), Layout.of(gain), Layout.of(x.attn_mask),
            x.key_padding is not None, x.sequences is not None,
            x.causal, x.scale, x.offset, 0.0 if x.seed is None else x.dropout, needs,
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, n_q, n_k."""
        B, H, n_q, _ = self.q.shape
        return B, H, n_q, self.k.shape[2]

    @property
    def tuning(self) -> Tuning:
        """The tile sizes."""
        masked = self.mask is not None
        return tuning_for(self.q.dtype, self.q.shape[3], masked=masked)

    @property
    def shift(self) -> int:
        """The offset; beyond these bounds it changes nothing."""
        _, _, n_q, n_k = self.sizes
        return max(-n_q, min(self.offset, n_k))

    @property
    def table(self) -> tuple[int, int]:
        """Rows and entries of the table of pairs (bias, gain); none without vectors.

        Between PAD zeros on both sides.
        """
        given = [y.shape for y in (self.bias, self.gain) if y is not None]
        if not given:
            return 0, 0
        return max(rows for rows, _ in given), given[0][1] + 2 * PAD

    def strides(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Of batch, head and token of q, k, v and these rows; then all others."""
        heads, width = self.table
        four = (self.q.strides, self.k.strides, self.of_values, rows)
        return (
            *(stride for strides in four for stride in strides[:3]),
            2 * width if heads > 1 else 0,
            self.k.shape[2] if self.padded else 0,
            *((0, 0, 0, 0) if self.mask is None else self.mask.broadcast),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """What follows all strides in every kernel over pairs."""
        _, H, n_q, n_k = self.sizes
        drops = threshold(self.dropout), growth(self.dropout)
        return H, n_q, n_k, self.scale * LOG2_E, self.shift, *drops

    @property
    def options(self) -> dict[str, Any]:
        """What all kernels over pairs are specialised on."""
        D, (_, _, n_q, n_k) = self.q.shape[3], self.sizes
        return {
            "D": D,
            "BLOCK_D": max(16, power_of_two(D)),
            "CAUSAL": self.causal,
            "SHIFTED": self.causal and self.shift != 0,
            "HAS_BIAS": self.bias is not None,
            "HAS_GAIN": self.gain is not None,
            "HAS_PAD": self.padded,
            "HAS_MASK": self.mask is not None,
            "ADDS": self.mask is not None and self.mask.dtype != torch.int8,
            "PACKED": self.packed,
            "DROPS": self.dropout > 0.0,
            "GROUP": self.q.shape[1] // self.k.shape[1],
            "PRECISION": "ieee" if self.q.dtype == torch.float32 else "tf32",
            "LEAD": PAD,
            "ASSEMBLY": self.device.type == "cuda",
            "EVEN": n_q % LARGEST_TILE == 0 and n_k % LARGEST_TILE == 0,
        }
