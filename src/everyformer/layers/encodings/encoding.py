"""What an encoding of relative positions says to an attention layer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.graph import Graph

TABLE_STD = 0.02
"""Standard deviation of the tables of an encoding at the start."""


class Encoding(nn.Module):
    """Changes the logits of attention, and maybe its values.

        logits_ij = scale rotate(q)_i rotate(k)_j + offset_bias[i - j] + pair_bias_ij
        o_i = sum_j a_ij (v_j + r_{i-j})

    A subclass overrides what it needs. One object may serve several layers.

    Attributes:
        name: As `AttentionSpec` names it.
        relative_to: "offset" or "graph", as in `AttentionSpec`.
        query_bias: Whether the logits have a learnable multiple of a linear form of keys.
        pairwise: Whether there is a `pair_bias`: the layer then needs O(n^2) memory.
        fixed: Whether the logits hold numbers that no parameter can make vanish.
        rotates: Whether queries and keys are rotated.
        terms: Number of products in the logits; the scale is 1 / sqrt(terms d_head).
        no_decay: Names of the parameters to keep out of weight decay.
    """

    name = "none"
    relative_to = "offset"
    query_bias = False
    pairwise = False
    fixed = False
    rotates = False
    terms = 1
    no_decay: tuple[str, ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether there are vectors r added to the values."""
        return False

    def check_layer(self, num_heads: int, head_dim: int) -> None:
        """Refuse a layer whose sizes do not fit."""

    def rotate(
        self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
        """Queries and keys as they enter the logits."""
        return q, k

    def offset_bias(
        self, q: Float[Tensor, "b h n d"]
    ) -> Float[Tensor, "h_or_1 2*n-1"] | None:
        """b_{i-j} as a vector, offset -(n - 1) first; None adds nothing.

        Of q only the length, the device and the dtype count.
        """
        return None

    def pair_bias(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        scale: float,
        graph: Graph | None,
    ) -> Float[Tensor, "b_or_1 h n n"] | None:
        """b_ij where it is not a function of i - j alone; scaled already."""
        return None

    def bucket_terms(
        self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`pair_bias` as `disentangled_attention` takes it: c2p, p2c and index.

        None if it is not made of such terms.
        """
        return None

    def offset_values(self, n: int) -> Float[Tensor, "{2*n-1} d"] | None:
        """r_{i-j}, added to the values, offset -(n - 1) first."""
        return None


def table(
    *shape: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Parameter:
    """A parameter that starts as N(0, 0.02^2)."""
    return nn.Parameter(
        nn.init.normal_(torch.empty(shape, device=device, dtype=dtype), std=TABLE_STD)
    )


def check_sizes(name: str, own: dict[str, int], layer: dict[str, int]) -> None:
    """Refuse an encoding made for other sizes than those of the layer."""
    wrong = [
        f"{key}={value} (the layer has {layer[key]})"
        for key, value in own.items()
        if value != layer[key]
    ]
    if wrong:
        msg = (
            f"The encoding {name} was made for {', '.join(wrong)}, so its tables do not "
            "fit the heads of the layer. Give both the same sizes."
        )
        raise InputError(msg)
