"""ALiBi: logits fall linearly with the distance, at a fixed slope for each head."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.layers.encodings.encoding import Encoding, check_sizes
from everyformer.layers.offsets import check_positive, first_and_last
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Alibi(Encoding):
    """b_ij = -slope_h |i - j|, for any length, without parameters.

    Under a causal mask only i >= j occurs, where this is -slope_h (i - j).
    """

    name = "alibi"
    fixed = True

    def __init__(self, num_heads: int) -> None:
        """Slopes for this number of heads; see `alibi_slopes`."""
        super().__init__()
        check_positive(num_heads=num_heads)
        self.slopes = alibi_slopes(num_heads)

    def check_layer(self, num_heads: int, head_dim: int) -> None:
        """One slope for each head."""
        check_sizes(self.name, {"num_heads": len(self.slopes)}, {"num_heads": num_heads})

    def offset_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        n_k: int | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "h r"] | None:
        """-slope_h |k| for all offsets k."""
        first, last = first_and_last(q.shape[-2], n_k, offset)
        dtype = torch.promote_types(q.dtype, torch.float32)
        distance = torch.arange(first, last + 1, dtype=dtype, device=q.device).abs()
        slopes = torch.tensor(self.slopes, dtype=dtype, device=q.device)
        return -slopes[:, None] * distance


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2^(-8 h / H) for h = 1..H if H is a power of two, as in the paper of ALiBi.

    Otherwise, with P the largest power of two below H: the slopes of P heads, then every
    second one of 2 P heads, from the first, until there are H.

    Example:
        >>> alibi_slopes(3)
        (0.0625, 0.00390625, 0.25)
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: num_heads - power])
