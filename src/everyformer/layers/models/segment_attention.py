"""Causal attention of a segment of text to itself and to what came before it.

Transformer-XL (Dai et al. 2019): with the n tokens x of a segment and the m tokens before
it, the memory, through which no gradient flows,

    h = [memory, x],   q = x W_Q,   k, v = h W_K, h W_V
    logits_ij = scale ((q_i + u) . k_j + (q_i + v) . W_R r_{m + i - j})

where r is sinusoidal, W_R of each layer, and u, v shared by all. URPE multiplies the
weights by c_{m + i - j} after the softmax.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import Encoding
from everyformer.layers.offsets import collect_offsets, spread_offsets
from everyformer.layers.torch_options import TorchOptions


class Sinusoids(NamedTuple):
    """The positions of Transformer-XL.

    Attributes:
        r: For the distances n_k - 1, .., 1, 0.
        u: Added to queries that meet keys.
        v: Added to queries that meet positions.
    """

    r: Float[Tensor, "n_k d"]
    u: Float[Tensor, "h m"]
    v: Float[Tensor, "h m"]


class Distances(NamedTuple):
    """What layers are told of the distances of queries and keys.

    Attributes:
        hidden: True where a query does not see a key.
        positions: Of Transformer-XL; None for other encodings.
        gain: c_ij; None without.
    """

    hidden: Bool[Tensor, "b_or_1 1 n n_k"]
    positions: Sinusoids | None
    gain: Float[Tensor, "h_or_1 n n_k"] | None = None


def by_distance(rows: Float[Tensor, "*b n n_k"]) -> Float[Tensor, "*b n n_k"]:
    """M_ij = rows[i, j + n - 1 - i] for the keys j that query i sees, j <= i + n_k - n.

    A column of `rows` belongs to a distance, n_k - 1 first and 0 last; the distance of
    query i and key j is i + n_k - n - j. The rows lie one after the other in memory, so
    that one more column and another width shift each by one more than the row above. Keys
    that a causal mask hides get numbers of no meaning.

    Example:
        >>> by_distance(torch.tensor([[2.0, 1.0, 0.0], [12.0, 11.0, 10.0]])).tolist()
        [[1.0, 0.0, 0.0], [12.0, 11.0, 10.0]]
    """
    *batch, n, n_k = rows.shape
    wider = functional.pad(rows, (1, 0)).reshape(*batch, n_k + 1, n)
    return wider[..., 1:, :].reshape(*batch, n, n_k)


class SegmentAttention(nn.Module, ABC):
    """Multi-head attention to a memory and to the segment itself; no biases.

    Args:
        dim: Width of a token.
        heads: Number of heads.
        head_dim: Coordinates of a head.
        dropout: Of weights, after the gain.
        options: Device and dtype.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: TorchOptions,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout
        self.scale = head_dim**-0.5
        inner = heads * head_dim
        self.query = nn.Linear(dim, inner, bias=False, **options)
        self.key_value = nn.Linear(dim, 2 * inner, bias=False, **options)
        self.out = nn.Linear(inner, dim, bias=False, **options)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b m d"],
        distances: Distances,
    ) -> Float[Tensor, "b n d"]:
        """What every token of the segment hears."""
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        joined = torch.cat([memory.to(x.dtype), x], 1)
        both = self.key_value(joined).unflatten(-1, (2, self.heads, -1))
        k, v = both.permute(2, 0, 3, 1, 4).unbind(0)
        logits = self.logits(q, k, distances.positions)
        logits = logits.to(torch.promote_types(q.dtype, torch.float32))
        logits = logits.masked_fill(distances.hidden, float("-inf"))
        weights = torch.softmax(logits, -1)
        if distances.gain is not None:
            weights = weights * distances.gain
        weights = functional.dropout(weights.to(v.dtype), self.dropout, self.training)
        mixed = self.mixed(weights, v)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    @abstractmethod
    def logits(
        self,
        q: Float[Tensor, "b h n m"],
        k: Float[Tensor, "b h n_k m"],
        positions: Sinusoids | None,
    ) -> Float[Tensor, "b h n n_k"]:
        """Of all pairs; those of hidden keys have no meaning."""

    def mixed(
        self, weights: Float[Tensor, "b h n n_k"], v: Float[Tensor, "b h n_k m"]
    ) -> Float[Tensor, "b h n m"]:
        """sum_j a_ij v_j."""
        return weights @ v


class SinusoidalAttention(SegmentAttention):
    """With the positions of Transformer-XL; W_R is its own."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        dropout: float,
        options: TorchOptions,
    ) -> None:
        """As `SegmentAttention`."""
        super().__init__(dim, heads, head_dim, dropout, options)
        self.position = nn.Linear(dim, heads * head_dim, bias=False, **options)

    def logits(
        self,
        q: Float[Tensor, "b h n m"],
        k: Float[Tensor, "b h n_k m"],
        positions: Sinusoids | None,
    ) -> Float[Tensor, "b h n n_k"]:
        """scale ((q_i + u) . k_j + (q_i + v) . W_R r), in float32 at least.

        Raises:
            InputError: If there are no positions.
        """
        if positions is None:
            msg = "This attention needs positions. Pass Distances with Sinusoids."
            raise InputError(msg)
        wide = torch.promote_types(q.dtype, torch.float32)
        u, v = (x.to(q.dtype)[:, None] for x in (positions.u, positions.v))
        r = self.position(positions.r).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
        content = (q + u) @ k.mT
        position = by_distance((q + v) @ r)
        return (content.to(wide) + position.to(wide)) * self.scale


class EncodedAttention(SegmentAttention):
    """With any encoding of the library."""

    def __init__(
        self,
        dim: int,
        heads: int,
        encoding: Encoding,
        dropout: float,
        options: TorchOptions,
    ) -> None:
        """As `SegmentAttention`; a head has dim / heads coordinates."""
        super().__init__(dim, heads, dim // heads, dropout, options)
        encoding.check_layer(heads, dim // heads)
        self.encoding = encoding
        self.scale = (encoding.terms * self.head_dim) ** -0.5

    def logits(
        self,
        q: Float[Tensor, "b h n m"],
        k: Float[Tensor, "b h n_k m"],
        positions: Sinusoids | None,
    ) -> Float[Tensor, "b h n n_k"]:
        """scale q_i . k_j and what the encoding adds."""
        n, n_k = q.shape[-2], k.shape[-2]
        q, k = self.encoding.rotate(q, k, n_k - n, 0)
        logits = (q * self.scale) @ k.mT
        vector = self.encoding.offset_bias(q, n_k)
        if vector is not None:
            bias = vector.to(logits.dtype)[:, None].expand(-1, n, -1)
            logits = logits + spread_offsets(bias, n_k)
        pairs = self.encoding.pair_bias(q, k, self.scale, None)
        return logits if pairs is None else logits + pairs.to(logits.dtype)

    def mixed(
        self, weights: Float[Tensor, "b h n n_k"], v: Float[Tensor, "b h n_k m"]
    ) -> Float[Tensor, "b h n m"]:
        """sum_j a_ij (v_j + r_{i-j})."""
        vectors = self.encoding.offset_values(*weights.shape[-2:])
        if vectors is None:
            return weights @ v
        return weights @ v + collect_offsets(weights) @ vectors.to(v.dtype)
