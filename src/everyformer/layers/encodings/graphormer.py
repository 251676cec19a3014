"""Graphormer: scalars for distances of nodes, and edges along the shortest path."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.graphs.graph import RESERVED, Graph, distance_entries
from everyformer.layers.offsets import check_positive
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Graphormer(Encoding):
    """b_ij = m_{distance(i, j)} + (1/N) sum_{t=1..N} x_{e_t} . w_t for each head.

    e_1, .., e_N are the edges of the shortest path from i to j, as `Graph.path_edges` holds
    them; paths longer than max_steps count as their first max_steps edges. Pairs with the
    virtual node and unreachable pairs have a scalar of their own and no edges.

    `table[h]` holds the scalars of virtual pairs, unreachable pairs, and the distances
    0, 1, .., max_distance; `edge_table[t, :, h]` is w_{t+1}.

    Args:
        num_heads: Number of heads.
        max_distance: The largest distance with its own scalar.
        edge_dim: Number of features of an edge; 0 for none.
        max_steps: Number of edges of a path that count.
        clamp: Whether larger distances count as max_distance, or are refused.
        device: As in torch.
        dtype: As in torch.
    """

    name = "graphormer"
    relative_to = "graph"
    pairwise = True
    whole = True
    no_decay = ("table", "edge_table")
    made_for = (("num_heads", "table", 0),)

    def __init__(
        self,
        num_heads: int,
        max_distance: int,
        *,
        edge_dim: int = 0,
        max_steps: int = 5,
        clamp: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, max_distance=max_distance, max_steps=max_steps)
        self.max_distance = max_distance
        self.clamp = clamp
        self.table = table(
            num_heads, RESERVED + max_distance + 1, device=device, dtype=dtype
        )
        self.edge_table: nn.Parameter | None = None
        if edge_dim:
            check_positive(edge_dim=edge_dim)
            self.edge_table = table(
                max_steps, edge_dim, num_heads, device=device, dtype=dtype
            )

    def pair_bias(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b_or_1 h n n"] | None:
        """The scalars of all pairs, and the means over their paths."""
        n = q.shape[-2]
        entries = distance_entries(graph, n, self.max_distance, self.clamp)
        bias = torch.nn.functional.embedding(entries, self.table.T)  # [b, n, n, h]
        if self.edge_table is not None and graph is not None:
            bias = bias + self._edge_means(self.edge_table, graph, n)
        return bias.movedim(-1, 1)

    @staticmethod
    def _edge_means(weights: Tensor, graph: Graph, n: int) -> Float[Tensor, "b n n h"]:
        steps, edge_dim, _ = weights.shape
        edges = graph.path_edges
        if edges is None or edges.shape[-1] != edge_dim or edges.shape[-2] < steps:
            msg = (
                f"path_edges is {None if edges is None else tuple(edges.shape)}, but the "
                f"layer reads {steps} edges of each path with {edge_dim} features. Pass "
                f"shortest_paths(adjacency, edge_features, max_steps={steps})."
            )
            raise InputError(msg)
        edges = edges.reshape(-1, n, n, *edges.shape[-2:])[..., :steps, :]
        length = graph.distance.reshape(-1, n, n)
        used = torch.arange(steps, device=length.device) < length[..., None]
        edges = edges.to(weights.dtype) * used[..., None]
        total = torch.einsum("bijte,teh->bijh", edges, weights)
        return total / length.clamp(1, steps)[..., None]
