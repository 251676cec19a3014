"""Graphs as attention sees them: distances of node pairs, and edges along the paths."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers.graphs.search import (
    NO_PATH,
    along_paths,
    distances,
    nodes_before,
)

UNREACHABLE = NO_PATH
"""Stands for the distance of two nodes without a path."""

VIRTUAL = -2
"""Stands for the distance of a pair with the virtual node."""

RESERVED = 2
"""Entries before distance 0 in a table by distance: VIRTUAL, then UNREACHABLE."""


class Graph(NamedTuple):
    """What attention knows of a graph; all of it moves with the nodes.

    Attributes:
        distance: Length of the shortest path of each pair of nodes, or UNREACHABLE, or
            VIRTUAL. Pairs with padded nodes may hold any of these.
        path_edges: For each pair the features of the edges of its path, first to last,
            zeros after the last. Only for `Graphormer` with edge features.
    """

    distance: Int[Tensor, "*batch n n"]
    path_edges: Float[Tensor, "*batch n n steps e"] | None = None


def distance_entries(
    graph: Graph | None, n: int, max_distance: int, clamp: bool
) -> Int[Tensor, "b {n} {n}"]:
    """The entry of each pair in a table of RESERVED + max_distance + 1 numbers.

    Raises:
        InputError: If there is no graph, it has other sizes, or a distance has no entry.
    """
    if graph is None:
        msg = (
            "No graph was given, but this layer looks up distances of nodes. Pass "
            "graph=shortest_paths(adjacency) to the call."
        )
        raise InputError(msg)
    distance = graph.distance
    if distance.dim() < 2 or distance.shape[-2:] != (n, n) or distance.is_floating_point():
        msg = (
            f"distance has shape {tuple(distance.shape)} and dtype {distance.dtype}; {n} "
            f"nodes need integers of shape (*batch, {n}, {n}). Give one per pair of nodes."
        )
        raise InputError(msg)
    distance = distance.reshape(-1, n, n)
    if clamp:
        distance = distance.clamp(max=max_distance)
    if not torch.compiler.is_compiling():
        low, high = int(distance.min()), int(distance.max())
        if low < VIRTUAL or high > max_distance:
            msg = (
                f"distances run from {low} to {high}, but the table has entries for "
                f"{VIRTUAL} (virtual), {UNREACHABLE} (unreachable) and 0 to "
                f"{max_distance}. Raise max_distance, or pass clamp=True to clip distances."
            )
            raise InputError(msg)
    return distance + RESERVED


def shortest_paths(
    adjacency: Bool[Tensor, "n n"],
    edge_features: Float[Tensor, "n n e"] | None = None,
    *,
    max_steps: int = 5,
    virtual_node: bool = False,
) -> Graph:
    """Distances of all pairs by breadth-first search, and edges along one path for each.

    With several shortest paths, the one whose every step backwards goes to the node of the
    lowest number is taken; edge features on it then depend on the numbering.

    Args:
        adjacency: Entry [i, j] says whether there is an edge from i to j.
        edge_features: A vector for each edge; entries without an edge are not read.
        max_steps: Longest part of a path whose edges are kept.
        virtual_node: Put a node in front that is joined to all others.

    Example:
        >>> path = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
        >>> shortest_paths(path).distance
        tensor([[ 0,  1, -1],
                [ 1,  0, -1],
                [-1, -1,  0]])
    """
    square = adjacency.dim() == 2 and adjacency.shape[0] == adjacency.shape[1]
    if adjacency.dtype != torch.bool or not square:
        msg = (
            f"adjacency has shape {tuple(adjacency.shape)} and dtype {adjacency.dtype}; a "
            "graph is a square matrix of bools. Convert it with `.bool()`."
        )
        raise InputError(msg)
    graphs = adjacency[None]
    found = distances(graphs)
    distance, edges = found[0], None
    if edge_features is not None:
        before = nodes_before(graphs, found)
        edges = along_paths(found, before, edge_features[None], max_steps)[0]
    if virtual_node:
        distance = torch.nn.functional.pad(distance, (1, 0, 1, 0), value=VIRTUAL)
        if edges is not None:
            edges = torch.nn.functional.pad(edges, (0, 0, 0, 0, 1, 0, 1, 0))
    return Graph(distance, edges)
