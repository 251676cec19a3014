"""What an encoding of relative positions says to an attention layer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.graphs.graph import Graph

TABLE_STD = 0.02
"""Standard deviation of the tables of an encoding at the start."""


class Encoding(nn.Module):
    """Changes the logits of attention, and maybe its values.

        logits_ij = scale rotate(q)_i rotate(k)_j + offset_bias[i - j] + pair_bias_ij
        o_i = sum_j a_ij (v_j + r_{i-j})

    A subclass overrides what it needs. One object may serve several layers. Query i of n_q
    stands at place i + offset, key j of n_k at place j, and i - j above is the difference
    of the places. By default offset = n_k - n_q: the queries are the last of the tokens.

    Attributes:
        name: As `AttentionSpec` names it.
        relative_to: "offset" or "graph", as in `AttentionSpec`.
        query_bias: Whether the logits have a learnable multiple of a linear form of keys.
        pairwise: Whether there is a `pair_bias`: the layer then needs O(n^2) memory.
        fixed: Whether the logits hold numbers that no parameter can make vanish.
        rotates: Whether queries and keys are rotated.
        terms: Number of products in the logits; the scale is 1 / sqrt(terms d_head).
        whole: Whether it is about all tokens at once, as a window or a graph is: then
            queries and keys are the same tokens.
        no_decay: Names of the parameters to keep out of weight decay.
        made_for: Sizes of a layer, `num_heads` or `head_dim`, that it must have; each with
            the name of a table and the axis that tells it.
    """

    name = "none"
    relative_to = "offset"
    query_bias = False
    pairwise = False
    fixed = False
    rotates = False
    terms = 1
    whole = False
    no_decay: tuple[str, ...] = ()
    made_for: tuple[tuple[str, str, int], ...] = ()

    @property
    def has_values(self) -> bool:
        """Whether there are vectors r added to the values."""
        return False

    def check_layer(self, num_heads: int, head_dim: int) -> None:
        """Refuse a layer whose sizes do not fit."""
        own = {size: getattr(self, name).shape[axis] for size, name, axis in self.made_for}
        check_sizes(self.name, own, {"num_heads": num_heads, "head_dim": head_dim})

    def rotate(
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h_k n_k d"],
        first_query: int = 0,
        first_key: int = 0,
    ) -> tuple[Float[Tensor, "b h n_q d"], Float[Tensor, "b h_k n_k d"]]:
        """Queries and keys as they enter the logits, the first of each at these places."""
        return q, k

    def offset_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        n_k: int | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "h_or_1 r"] | None:
        """b_{i-j} as a vector of n_q + n_k - 1 numbers, as `by_offset` orders them.

        None adds nothing. Of q only the length, the device and the dtype count.
        """
        return None

    def pair_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h n_k d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b_or_1 h n_q n_k"] | None:
        """b_ij where it is not a function of i - j alone; scaled already."""
        return None

    def bucket_terms(
        self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`pair_bias` as `disentangled_attention` takes it: c2p, p2c and index.

        None if it is not made of such terms.
        """
        return None

    def offset_values(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Float[Tensor, "r d"] | None:
        """r_{i-j}, added to the values, as `by_offset` orders them."""
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
