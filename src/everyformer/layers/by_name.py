"""Every attention layer of the library by one name, for checks and experiments."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import Encoding, Graphormer, Swin
from everyformer.layers.encodings.named import NAMES
from everyformer.layers.gains import Gain, GraphGain, ToeplitzGain, WindowGain
from everyformer.layers.graphs.graph import Graph, shortest_paths
from everyformer.layers.positions import AbsolutePositions
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself

LAYER_NAMES = (*NAMES, "swin", "graphormer", "ape", "urpe")
"""What `attention_by_name` knows; each but the last also with `+urpe`."""


def attention_by_name(
    name: str,
    *,
    seq_len: int,
    embed_dim: int,
    num_heads: int,
    causal: bool = False,
    bias: bool = True,
) -> nn.Module:
    """A layer that maps (batch, n, d) to the same shape, fresh, for one length.

    Args:
        name: One of `LAYER_NAMES`, or one of them with "+urpe"; "urpe" is "none+urpe".
            Graphormer runs on the path 1 - 2 - .. - n.
        seq_len: n; a square number for "swin".
        embed_dim: d.
        num_heads: Number of heads.
        causal: Whether a token sees only itself and earlier ones.
        bias: Whether there are biases.

    Raises:
        InputError: If there is no such layer, or the sizes do not fit it.
    """
    base, plus, gain = name.partition("+")
    if name == "urpe":
        base, gain = "none", "urpe"
    if base not in LAYER_NAMES[:-1] or gain != ("urpe" if plus or gain else ""):
        msg = (
            f"{name!r} is not a layer of the library. Use one of {', '.join(LAYER_NAMES)}, "
            "each also with +urpe, such as t5+urpe."
        )
        raise InputError(msg)
    encoding: Encoding | str | None = "none" if base == "ape" else base
    factor: Gain | None = ToeplitzGain(num_heads, seq_len) if gain else None
    if base == "swin":
        window = math.isqrt(seq_len)
        if window**2 != seq_len:
            msg = f"n={seq_len} tokens make no square window. Use n={(window + 1) ** 2}."
            raise InputError(msg)
        encoding = Swin(num_heads, window)
        factor = WindowGain(num_heads, window) if gain else None
    if base == "graphormer":
        encoding = Graphormer(num_heads, seq_len)
        factor = GraphGain(num_heads, seq_len) if gain else None
    layer = RelativeAttention(
        embed_dim,
        num_heads,
        encoding=encoding,
        gain=factor,
        max_len=seq_len,
        causal=causal,
        bias=bias,
    )
    if base == "graphormer":
        return OnPath(layer, seq_len)
    if base == "ape":
        return AbsolutePositions(layer, seq_len, embed_dim)
    return layer


@describes_itself(buffers=("distance",), layer=RelativeAttention)
class OnPath(nn.Module):
    """A layer for graphs, on the path 1 - 2 - .. - n."""

    def __init__(self, layer: RelativeAttention, seq_len: int) -> None:
        """The layer, and the number of nodes."""
        super().__init__()
        self.layer = layer
        nodes = torch.arange(seq_len)
        adjacency = (nodes[:, None] - nodes).abs() == 1
        self.register_buffer("distance", shortest_paths(adjacency).distance)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The layer on x, with the distances of the path."""
        distance = self.get_buffer("distance").long()  # a module may be cast to a float
        out = self.layer(x, graph=Graph(distance))
        assert isinstance(out, Tensor), "weights were not asked for"  # noqa: S101
        return out

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What the layer says of itself."""
        return self.layer.spec(seq_len)
