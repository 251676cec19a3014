"""B and C of all pairs of tokens of a graph, computed once and shared by all layers.

    b_ij = m_{distance(i, j)} + (1/N) sum_{t=1..N} x_{e_t} . M_t        for each head
    c_ij = c_{distance(i, j)}

e_1, .., e_N are the edges of the shortest path (its first `max_steps`), x_e a vector for
each kind of edge, and M_t a matrix for each place on the path (Ying et al. 2021).

Tables are looked up by products with ones and zeros: their gradients are products too, and
no two threads add to the same number.
"""

import math

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.gains import Gain, GraphGain
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graph import RESERVED, Graph
from everyformer.layers.offsets import check_positive


class PathBias(Encoding):
    """b_ij of Graphormer, its edge term as the product of two factors.

    Args:
        num_heads: Number of heads, h.
        max_distance: The largest distance with its own number.
        edge_rows: Vectors of kinds of edges; the first is that of no edge, and idle.
        kinds: Kinds of edges that occur, fewer than `edge_rows`.
        distance_rows: Matrices M_t; those beyond max_steps are idle.
        max_steps: Edges of a path that count.
    """

    name = "graphormer"
    relative_to = "graph"
    pairwise = True
    no_decay = ("table", "edges", "steps")

    def __init__(
        self,
        num_heads: int,
        max_distance: int,
        *,
        edge_rows: int,
        kinds: int,
        distance_rows: int,
        max_steps: int,
    ) -> None:
        super().__init__()
        check_positive(
            num_heads=num_heads, max_distance=max_distance, kinds=kinds, max_steps=max_steps
        )
        if edge_rows <= kinds or distance_rows < max_steps:
            msg = (
                f"{edge_rows} vectors for {kinds} kinds of edges and none, and "
                f"{distance_rows} matrices for {max_steps} steps do not suffice. Use at "
                f"least {kinds + 1} and {max_steps}."
            )
            raise InputError(msg)
        self.kinds, self.max_steps = kinds, max_steps
        self.table = table(num_heads, RESERVED + max_distance + 1)
        self.edges = table(edge_rows, num_heads)
        self.steps = table(distance_rows, num_heads, num_heads)

    def pair_bias(
        self,
        q: Tensor,
        k: Tensor,
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b h n n"] | None:
        """Not of a single layer.

        Raises:
            InputError: Always: all layers share one matrix.
        """
        msg = (
            "PathBias is computed once for all layers of a GraphormerModel. Give a single "
            "layer the encoding Graphormer."
        )
        raise InputError(msg)

    def edge_sums(self, paths: Integer[Tensor, "b m m steps"]) -> Float[Tensor, "b m m h"]:
        """sum_t x_{e_t} . M_t over the edges that are there."""
        used = self.edges[1 : self.kinds + 1]
        weights = torch.einsum("kg,tgh->tkh", used, self.steps[: self.max_steps])
        ones = one_hot(paths, 1, self.kinds, weights.dtype).flatten(-2)
        return ones @ weights.flatten(0, 1)


class GraphPairs(nn.Module):
    """B, with -inf where a token is not to be seen, and C.

    Args:
        bias: B.
        gain: C; None for none. A `GraphGain` has the distances of the bias.
    """

    def __init__(self, bias: PathBias, gain: Gain | None) -> None:
        super().__init__()
        self.bias, self.gain = bias, gain
        rows = bias.table.shape[1]
        if isinstance(gain, GraphGain) and gain.table.shape[1] != rows:
            msg = (
                f"The gain has {gain.table.shape[1]} entries and the bias {rows}. Give "
                "both the same max_distance."
            )
            raise InputError(msg)

    def forward(
        self, batch: GraphBatch
    ) -> tuple[Float[Tensor, "b h m m"], Float[Tensor, "..."] | None]:
        """B, and C as (b, h, m, m) or (1, h, m, m)."""
        bias, gain = self.bias, self.gain
        h, rows = bias.table.shape
        tables: list[Tensor] = [bias.table]
        if isinstance(gain, GraphGain):
            tables.append(gain.table)
        ones = one_hot(batch.distance, 0, rows, bias.table.dtype)
        looked_up = ones @ torch.cat(tables).T  # [b, m, m, h or 2h]
        length = (batch.distance.int() - RESERVED).clamp(1, bias.max_steps)
        edges = bias.edge_sums(batch.paths) / length[..., None]
        b = (looked_up[..., :h] + edges).movedim(-1, 1)
        b = b.masked_fill(batch.hidden()[:, None, None, :], -math.inf).contiguous()
        if isinstance(gain, GraphGain):
            return b, looked_up[..., h:].movedim(-1, 1).contiguous()
        return b, None if gain is None else gain.matrix(batch.distance.shape[-1])


def one_hot(
    numbers: Integer[Tensor, "*shape"], first: int, count: int, dtype: torch.dtype
) -> Float[Tensor, "*shape {count}"]:
    """1 where a number is first, first + 1, ..; zeros for all others.

    Example:
        >>> one_hot(torch.tensor([0, 2]), 1, 2, torch.float32).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    kinds = torch.arange(first, first + count, dtype=numbers.dtype, device=numbers.device)
    return (numbers[..., None] == kinds).to(dtype)
