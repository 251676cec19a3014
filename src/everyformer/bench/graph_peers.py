"""What `bench graphs` is compared with: Graphormer as public code has it, and GPS.

The public code looks tables up by index, has three projections where ours has one, and
runs kernel by kernel. Weights can be copied into it, so that both compute one function.
"""

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import EveryformerError
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graph import RESERVED
from everyformer.layers.graphs.graphormer import GraphormerConfig, GraphormerModel


class PublicGraphormer(nn.Module):
    """Graphormer 1.0 in plain torch: embeddings, a product for each place of a path."""

    def __init__(self, config: GraphormerConfig) -> None:
        """Of the sizes of a config; without a gain."""
        super().__init__()
        self.config = config
        d, h = config.dim, config.heads
        self.atoms = nn.Embedding(config.node_rows, d, padding_idx=0)
        self.in_degrees = nn.Embedding(config.degree_rows, d, padding_idx=0)
        self.out_degrees = nn.Embedding(config.degree_rows, d, padding_idx=0)
        self.token = nn.Embedding(1, d)
        self.spatial = nn.Embedding(RESERVED + config.max_distance + 1, h)
        self.edges = nn.Embedding(config.edge_rows, h, padding_idx=0)
        self.steps = nn.Embedding(config.distance_rows * h * h, 1)
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(PublicLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(d)
        self.read_out = nn.Linear(d, 1)

    def forward(self, batch: GraphBatch) -> Tensor:
        """One number for each graph."""
        x = self.atoms(batch.nodes.int())
        x = x + self.in_degrees(batch.in_degrees.int())
        x = x + self.out_degrees(batch.out_degrees.int())
        x = torch.cat([self.token.weight.expand(len(x), 1, -1), x], 1)
        x = self.input_dropout(x)
        bias = self._bias(batch)
        for layer in self.layers:
            x = layer(x, bias)
        return self.read_out(self.norm(x)[:, 0])[:, 0]

    def _bias(self, batch: GraphBatch) -> Tensor:
        h, n = self.config.heads, self.config.max_steps
        spatial = self.spatial(batch.distance.int()).permute(0, 3, 1, 2)
        kinds = self.edges(batch.paths.int())  # [b, m, m, n, h]
        places = kinds.permute(3, 0, 1, 2, 4).reshape(n, -1, h)
        weights = self.steps.weight.reshape(-1, h, h)[:n]
        along = torch.bmm(places, weights).reshape(n, *batch.distance.shape, h)
        length = (batch.distance.int() - RESERVED).clamp(1, n)
        edges = (along.sum(0) / length[..., None]).permute(0, 3, 1, 2)
        hidden = batch.hidden()[:, None, None, :]
        return (spatial + edges).masked_fill(hidden, -math.inf)


class PublicLayer(nn.Module):
    """Attention with three projections, then a feed-forward layer; norms before both."""

    def __init__(self, config: GraphormerConfig) -> None:
        """Of the sizes of a config."""
        super().__init__()
        d = config.dim
        self.heads, self.scale = config.heads, (d // config.heads) ** -0.5
        self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, config.ffn), nn.Linear(config.ffn, d)
        self.dropout = nn.Dropout(config.dropout)
        self.attention_dropout = nn.Dropout(config.attention_dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Mix, then transform."""
        b, m, d = x.shape
        y = self.first(x)
        q, k, v = (
            f(y).view(b, m, self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        logits = torch.matmul(q * self.scale, k.transpose(2, 3)) + bias
        weights = self.attention_dropout(torch.softmax(logits, dim=3))
        mixed = weights.matmul(v).transpose(1, 2).contiguous().view(b, m, d)
        x = x + self.dropout(self.out(mixed))
        y = self.down(nn.functional.gelu(self.up(self.second(x))))
        return x + self.dropout(y)


@torch.no_grad()
def copy_weights(ours: GraphormerModel, public: PublicGraphormer) -> None:
    """Give the public form the numbers of ours."""
    pairs: list[tuple[Tensor, Tensor]] = [
        (public.atoms.weight, ours.inputs.nodes),
        (public.in_degrees.weight, ours.inputs.in_degrees),
        (public.out_degrees.weight, ours.inputs.out_degrees),
        (public.token.weight, ours.inputs.virtual[None]),
        (public.spatial.weight, ours.pairs.bias.table.T),
        (public.edges.weight, ours.pairs.bias.edges),
        (public.steps.weight, ours.pairs.bias.steps.reshape(-1, 1)),
    ]
    for table, own in pairs:
        table.copy_(own)
    for table in (public.atoms, public.in_degrees, public.out_degrees, public.edges):
        table.weight[0] = 0.0  # of padding
    public.norm.load_state_dict(ours.norm.state_dict())
    public.read_out.load_state_dict(ours.read_out.state_dict())
    for theirs, block in zip(public.layers, ours.blocks, strict=True):
        own: Any = block
        layer: Any = theirs
        layer.first.load_state_dict(own.norms[0].state_dict())
        layer.second.load_state_dict(own.norms[1].state_dict())
        for place, part in enumerate((layer.q, layer.k, layer.v)):
            part.weight.copy_(own.attention.in_proj.weight.chunk(3)[place])
            part.bias.copy_(own.attention.in_proj.bias.chunk(3)[place])
        layer.out.load_state_dict(own.attention.out_proj.state_dict())
        layer.up.load_state_dict(own.feed_forward[0].state_dict())
        layer.down.load_state_dict(own.feed_forward[2].state_dict())


class Gps(nn.Module):
    """PyTorch Geometric's GPSConv with GINEConv inside, of the same depth and width."""

    def __init__(self, config: GraphormerConfig) -> None:
        """Of the sizes of a config.

        Raises:
            EveryformerError: If torch-geometric is not installed.
        """
        if find_spec("torch_geometric") is None:
            raise EveryformerError("torch-geometric is not installed")
        library = import_module("torch_geometric.nn")
        super().__init__()
        self.pool = library.global_add_pool
        d = config.dim
        self.atoms = nn.Embedding(config.node_rows, d)
        self.degrees = nn.Embedding(config.degree_rows, d)
        self.kinds = nn.Embedding(config.kinds + 1, d)
        convs: list[nn.Module] = []
        for _ in range(config.layers):
            inner = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
            made: Any = library.GPSConv(
                d, library.GINEConv(inner), heads=config.heads, dropout=config.dropout,
                attn_kwargs={"dropout": config.attention_dropout},
            )  # fmt: skip
            convs.append(made)
        self.convs = nn.ModuleList(convs)
        self.read_out = nn.Linear(d, 1)

    def forward(self, data: tuple[Tensor, ...]) -> Tensor:
        """One number for each graph, from what `as_lists` gives."""
        nodes, degrees, edges, kinds, graph = data
        x, e = self.atoms(nodes) + self.degrees(degrees), self.kinds(kinds)
        for conv in self.convs:
            x = conv(x, edges, graph, edge_attr=e)
        return self.read_out(self.pool(x, graph))[:, 0]


def as_lists(batch: GraphBatch) -> tuple[Tensor, ...]:
    """A batch as PyTorch Geometric has it: all nodes and edges one after the other."""
    there = batch.nodes != 0
    graph = there.nonzero()[:, 0]
    number = (there.flatten().cumsum(0) - 1).view_as(there)
    direct = (batch.distance[:, 1:, 1:] == RESERVED + 1).nonzero()
    g, i, j = direct.unbind(1)
    edges = torch.stack([number[g, i], number[g, j]])
    kinds = batch.paths[g, i + 1, j + 1, 0].long()
    return (
        batch.nodes[there].long(), batch.in_degrees[there].long(), edges, kinds, graph,
    )  # fmt: skip
