"""Shaw et al. 2018: learnable vectors for offsets, added to keys and to values."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.offsets import Exact, by_offset, check_positive, spread_offsets
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Shaw(Encoding):
    """logits_ij = scale q_i . (k_j + r_{i-j}); with `values` also v_j + r^V_{i-j}.

    The vectors are shared by the heads, as in the paper of Shaw et al. The term on the
    values tells positions apart where all tokens are equal; that on the keys does not.

    `key_table[k + max_len - 1]` and `value_table[k + max_len - 1]` belong to k = i - j.

    Args:
        head_dim: Size of a head.
        max_len: Longest sequence; 2 max_len - 1 vectors.
        values: Whether there are vectors for the values.
        clamp: Clip the offsets of longer sequences instead of refusing them. The clipping
            distance of Shaw et al. is max_len - 1.
        device: As in torch.
        dtype: As in torch.
    """

    pairwise = True
    no_decay = ("key_table", "value_table")
    made_for = (("head_dim", "key_table", 1),)

    def __init__(
        self,
        head_dim: int,
        max_len: int = 512,
        *,
        values: bool = False,
        clamp: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim)
        self.index = Exact(max_len, clamp)
        self.name = "shaw-values" if values else "shaw"
        size = self.index.size
        self.key_table = table(size, head_dim, device=device, dtype=dtype)
        self.value_table: nn.Parameter | None = None
        if values:
            self.value_table = table(size, head_dim, device=device, dtype=dtype)

    @property
    def has_values(self) -> bool:
        """Whether the values have vectors too."""
        return self.value_table is not None

    def pair_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h n_k d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b h n_q n_k"] | None:
        """scale q_i . r_{i-j}."""
        n_q, n_k = q.shape[-2], k.shape[-2]
        vectors = by_offset(self.key_table.T, self.index, n_q, n_k, offset)  # [d, r]
        return spread_offsets((q * scale) @ vectors.to(q.dtype), n_k)

    def offset_values(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Float[Tensor, "r d"] | None:
        """r^V_k for all offsets k."""
        if self.value_table is None:
            return None
        return by_offset(self.value_table.T, self.index, n_q, n_k, offset).T
