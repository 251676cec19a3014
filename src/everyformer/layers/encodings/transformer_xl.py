"""Transformer-XL: sinusoidal vectors for offsets, seen through a learnable map."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.offsets import check_positive, first_and_last, spread_offsets
from everyformer.model.own_classes import describes_itself


@describes_itself(position_proj=nn.Linear)
class TransformerXL(Encoding):
    """logits_ij = scale ((q_i + u) . k_j + (q_i + v) . W r_{i-j}).

    r_k = (sin(k w_0), sin(k w_1), .., cos(k w_0), cos(k w_1), ..) with frequencies
    w_t = 10000^(-2 t / embed_dim) is fixed; u, v (one vector per head) and the map W,
    called W~_K in the paper, are learned. For any length.

    Args:
        embed_dim: Size of r.
        num_heads: Number of heads.
        head_dim: Size of a head; embed_dim / num_heads by default.
        max_distance: Clip offsets to -max_distance .. max_distance; None clips nothing.
        device: As in torch.
        dtype: As in torch.
    """

    name = "xl"
    query_bias = True
    pairwise = True
    no_decay = ("u", "v")
    made_for = (("num_heads", "u", 0), ("head_dim", "u", 1))

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        max_distance: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % 2:
            msg = (
                f"embed_dim={embed_dim} is odd, but r holds a sine and a cosine for each "
                "frequency. Choose it even."
            )
            raise InputError(msg)
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        check_positive(head_dim=head_dim)
        self.embed_dim = embed_dim
        self.max_distance = max_distance
        self.u = table(num_heads, head_dim, device=device, dtype=dtype)
        self.v = table(num_heads, head_dim, device=device, dtype=dtype)
        self.position_proj = nn.Linear(
            embed_dim, num_heads * head_dim, bias=False, device=device, dtype=dtype
        )
        nn.init.xavier_uniform_(self.position_proj.weight)

    def sinusoids(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Float[Tensor, "r e"]:
        """r_k for the offsets k of n_q queries and n_k keys, the most negative first.

        With n_k = n_q + m the m first keys are a memory: k runs from -(n_q - 1) to n_k - 1.
        """
        first, last = first_and_last(n_q, n_k, offset)
        weight = self.position_proj.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        places = torch.arange(first, last + 1, device=weight.device)
        if self.max_distance is not None:
            places = places.clamp(-self.max_distance, self.max_distance)
        return sinusoids(places.to(dtype), self.embed_dim).to(weight.dtype)

    def pair_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h n_k d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b h n_q n_k"] | None:
        """scale (u . k_j + (q_i + v) . W r_{i-j})."""
        n_q, n_k = q.shape[-2], k.shape[-2]
        u, v = (x.to(q.dtype)[:, None] for x in (self.u, self.v))  # [h, 1, d]
        r = self.position_proj(self.sinusoids(n_q, n_k, offset)).to(q.dtype)
        r = r.unflatten(-1, (u.shape[0], -1)).permute(1, 2, 0)  # [h, d, n_q+n_k-1]
        content = (u * scale) @ k.mT  # [b, h, 1, n_k]
        return content + spread_offsets(((q + v) * scale) @ r, n_k)


def sinusoids(places: Float[Tensor, " r"], dim: int) -> Float[Tensor, "r {dim}"]:
    """r_t = (sin(t w_0), sin(t w_1), .., cos(t w_0), ..), w_s = 10000^(-2 s / dim)."""
    even = torch.arange(0, dim, 2, dtype=places.dtype, device=places.device)
    angle = places[:, None] * 10000.0 ** -(even / dim)
    return torch.cat([angle.sin(), angle.cos()], -1)
