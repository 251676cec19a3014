"""Graphormer (Ying et al. 2021), with URPE on top of it (Luo et al. 2022).

A virtual node is read out; nodes enter as the sum of vectors for their type and degrees; B
and C of `GraphPairs` are computed once a forward pass. Parameters are laid out as in the
public code, version 1.0: the slim model of ZINC has 489,481 of them.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import refuse
from everyformer.layers.encodings.encoding import TABLE_STD, table
from everyformer.layers.gains import Gain, GraphGain, HeadGain
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graph import RESERVED
from everyformer.layers.graphs.pairs import GraphPairs, PathBias, one_hot
from everyformer.layers.offsets import check_positive
from everyformer.ops import pairwise_attention

GAINS = ("none", "urpe", "c1")
"""No C; a number for each head and distance; the control, one number for each head."""

MOST_COLUMNS = 256
"""Larger tables are looked up by index instead of by products with ones and zeros."""


@dataclass(frozen=True)
class GraphormerConfig:
    """A model, complete but for its numbers; by default the slim one of ZINC.

    Attributes:
        gain: One of `GAINS`.
        layers: Blocks.
        dim: Width of a token, d.
        heads: Heads of attention, h.
        ffn: Hidden width of the feed-forward layers.
        node_rows: Vectors of node ids; 0 is padding.
        degree_rows: Vectors of in-degrees, and of out-degrees.
        edge_rows: Vectors of kinds of edges; 0 means no edge.
        kinds: Kinds of edges that occur.
        max_distance: The largest distance of two nodes.
        distance_rows: Matrices for places on a path.
        max_steps: Edges of a path that count.
        dropout: On states, before they are added.
        attention_dropout: On weights, after the gain.
        input_dropout: On what enters the first block.
        final_norm: Whether there is a norm after the last block.
        fused: Whether attention is `pairwise_attention`, one kernel, where no weight is
            dropped; else plain torch, which `torch.compile` fuses in part.

    Raises:
        InputError: If the settings do not fit; all reasons at once.
    """

    gain: str = "none"
    layers: int = 12
    dim: int = 80
    heads: int = 8
    ffn: int = 80
    node_rows: int = 64
    degree_rows: int = 64
    edge_rows: int = 64
    kinds: int = 3
    max_distance: int = 38
    distance_rows: int = 40
    max_steps: int = 20
    dropout: float = 0.1
    attention_dropout: float = 0.1
    input_dropout: float = 0.1
    final_norm: bool = True
    fused: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that do not fit."""
        sizes = {n: v for n, v in asdict(self).items() if type(v) is int}
        check_positive(**sizes)
        wrong: list[str] = []
        if self.gain not in GAINS:
            wrong.append(f"gain={self.gain!r} is not one of {', '.join(GAINS)}")
        if self.dim % self.heads:
            wrong.append(f"dim={self.dim} is not a multiple of heads={self.heads}")
        wrong += [
            f"{name}={getattr(self, name)} must be from 0 to below 1"
            for name in ("dropout", "attention_dropout", "input_dropout")
            if not 0 <= getattr(self, name) < 1
        ]
        refuse("Such a Graphormer cannot be made", wrong)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


SMALL = GraphormerConfig(
    layers=6, dim=512, heads=32, ffn=512, node_rows=4609, degree_rows=512, edge_rows=1537,
    max_distance=510, distance_rows=128, max_steps=5, input_dropout=0.0,
)  # fmt: skip
"""The model that Ying et al. call Small, of PCQM4M: 12,550,721 parameters."""


class GraphormerModel(nn.Module):
    """One number for each graph.

    Args:
        config: Its sizes.

    Example:
        >>> sum(p.numel() for p in GraphormerModel(GraphormerConfig()).parameters())
        489481
    """

    compiled_too = ("inputs", "pairs")
    """What `torch.compile` may compile beside the blocks."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.config = config
        self.inputs = GraphInputs(config)
        bias = PathBias(
            config.heads, config.max_distance, edge_rows=config.edge_rows,
            kinds=config.kinds, distance_rows=config.distance_rows,
            max_steps=config.max_steps,
        )  # fmt: skip
        self.pairs = GraphPairs(bias, _gain(config))
        self.dropout = nn.Dropout(config.input_dropout)
        self.blocks = nn.ModuleList(GraphBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim) if config.final_norm else nn.Identity()
        self.read_out = nn.Linear(config.dim, 1)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                std = TABLE_STD / math.sqrt(config.layers)
                nn.init.normal_(part.weight, std=std)
                nn.init.zeros_(part.bias)

    def check(self, batch: GraphBatch) -> None:
        """Refuse graphs that have no place in the tables; to be called once, after loading.

        Raises:
            InputError: With all that does not fit.
        """
        config = self.config
        furthest = int(batch.distance.max()) - RESERVED
        degree = max(int(batch.in_degrees.max()), int(batch.out_degrees.max())) - 1
        steps = batch.paths.shape[-1]
        wrong: list[str] = []
        if int(batch.nodes.max()) >= config.node_rows:
            wrong.append(
                f"the node id {int(batch.nodes.max())} is beyond the {config.node_rows} "
                "rows of its table; raise node_rows"
            )
        if degree + 1 >= config.degree_rows:
            wrong.append(f"a node has degree {degree}; raise degree_rows")
        if int(batch.paths.max()) > config.kinds:
            wrong.append(
                f"an edge is of kind {int(batch.paths.max())}; kinds={config.kinds}"
            )
        if furthest > config.max_distance:
            wrong.append(
                f"two nodes are at distance {furthest}; max_distance={config.max_distance}"
            )
        if steps != config.max_steps:
            wrong.append(
                f"paths have {steps} edges, the model reads {config.max_steps}; make the "
                f"batch with max_steps={config.max_steps}"
            )
        refuse("These graphs do not fit the model", wrong)

    def states(self, batch: GraphBatch) -> Float[Tensor, "b m d"]:
        """The states of the virtual node and of all nodes."""
        x = self.dropout(self.inputs(batch))
        bias, gain = self.pairs(batch)
        for block in self.blocks:
            x = block(x, bias, gain)
        return self.norm(x)

    def forward(self, batch: GraphBatch) -> Float[Tensor, " b"]:
        """What the virtual node says."""
        return self.read_out(self.states(batch)[:, 0])[:, 0]


class GraphInputs(nn.Module):
    """The vector of the virtual node, then node + in-degree + out-degree of each node."""

    def __init__(self, config: GraphormerConfig) -> None:
        """Tables of the sizes of the config."""
        super().__init__()
        self.nodes = table(config.node_rows, config.dim)
        self.in_degrees = table(config.degree_rows, config.dim)
        self.out_degrees = table(config.degree_rows, config.dim)
        self.virtual = table(config.dim)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "b m d"]:
        """What enters the first block."""
        x = looked_up(self.nodes, batch.nodes)
        x = x + looked_up(self.in_degrees, batch.in_degrees)
        x = x + looked_up(self.out_degrees, batch.out_degrees)
        return torch.cat([self.virtual.expand(len(x), 1, -1), x], 1)


class GraphBlock(nn.Module):
    """x <- x + attention(LN(x)), then x <- x + W_2 gelu(W_1 LN(x) + b_1) + b_2."""

    def __init__(self, config: GraphormerConfig) -> None:
        """A block of the sizes of the config."""
        super().__init__()
        self.attention = GraphAttention(config)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.dim, config.ffn), nn.GELU(), nn.Linear(config.ffn, config.dim)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        bias: Float[Tensor, "b h m m"],
        gain: Float[Tensor, "b_or_1 h m m"] | None,
    ) -> Float[Tensor, "b m d"]:
        """Mix, then transform each token."""
        first, second = self.norms
        x = x + self.dropout(self.attention(first(x), bias, gain))
        return x + self.dropout(self.feed_forward(second(x)))


class GraphAttention(nn.Module):
    """softmax(q k^T / sqrt(d_head) + B) * C, then values; B and C are given."""

    def __init__(self, config: GraphormerConfig) -> None:
        """Projections of the sizes of the config."""
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.fused = config.fused
        self.scale = 1 / math.sqrt(config.dim // config.heads)
        self.in_proj = nn.Linear(config.dim, 3 * config.dim)
        self.out_proj = nn.Linear(config.dim, config.dim)

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        bias: Float[Tensor, "b h m m"],
        gain: Float[Tensor, "b_or_1 h m m"] | None,
    ) -> Float[Tensor, "b m d"]:
        """Attend from every token to those whose bias is finite."""
        b, m, d = x.shape
        split = self.in_proj(x).view(b, m, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if self.fused and not (self.training and self.dropout):
            mixed = pairwise_attention(q, k, v, bias, gain, scale=self.scale)
        else:
            weights = torch.softmax((q * self.scale) @ k.mT + bias, -1)
            if gain is not None:
                weights = weights * gain
            weights = nn.functional.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
        return self.out_proj(mixed.transpose(1, 2).reshape(b, m, d))


def looked_up(rows: Float[Tensor, "r d"], ids: Tensor) -> Float[Tensor, "b n d"]:
    """The row of each id, zeros for padding."""
    if len(rows) <= MOST_COLUMNS:
        return one_hot(ids, 1, len(rows) - 1, rows.dtype) @ rows[1:]
    return nn.functional.embedding(ids.int(), rows) * (ids != 0)[..., None]


def _gain(config: GraphormerConfig) -> Gain | None:
    if config.gain == "urpe":
        return GraphGain(config.heads, config.max_distance)
    return HeadGain(config.heads) if config.gain == "c1" else None
