"""Many graphs as dense tensors of one size, with a virtual node in front of each.

Everything that attention asks of a graph is found once, when a batch is made: distances,
edges along shortest paths, degrees. Afterwards nothing is checked again, so that nothing
waits for the device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from everyformer.errors import InputError, refuse
from everyformer.layers.graphs.graph import RESERVED, UNREACHABLE, VIRTUAL
from everyformer.layers.graphs.search import (
    along_paths,
    distances,
    nodes_before,
)

PADDING = 0
"""The id of a node that only fills up a graph, of its degree, and of an absent edge."""

AT_ONCE = 256
"""Graphs that are searched at once."""

MOST_NODES = 252
"""So that distances and their reserved entries fit into one byte."""


class GraphBatch(NamedTuple):
    """Graphs of at most n nodes; token 0 of the n + 1 tokens is the virtual node.

    Attributes:
        nodes: The id of each node, `PADDING` behind the last.
        in_degrees: Edges that end in a node, plus 1; `PADDING` behind the last node.
        out_degrees: Edges that begin in it, plus 1.
        distance: Entry of each pair of tokens in a table by distance: 0 for pairs with the
            virtual node, 1 for unreachable ones, 2 + d for distance d.
        paths: The kinds of the first edges of the shortest path, `PADDING` after the last.
    """

    nodes: Integer[Tensor, "b n"]
    in_degrees: Integer[Tensor, "b n"]
    out_degrees: Integer[Tensor, "b n"]
    distance: Integer[Tensor, "b m m"]
    paths: Integer[Tensor, "b m m steps"]

    def take(self, places: Integer[Tensor, " graphs"]) -> "GraphBatch":
        """Some of the graphs, in any order."""
        return GraphBatch(*(part[places] for part in self))

    def hidden(self) -> Bool[Tensor, "b m"]:
        """True for the tokens that nobody sees: those that only fill up."""
        return torch.nn.functional.pad(self.nodes == PADDING, (1, 0), value=False)

    def without_structure(self) -> "GraphBatch":
        """The same nodes and degrees, every distance 1, and no edges on any path.

        What a model says of this it says from counts alone.
        """
        return self._replace(
            distance=torch.where(self.distance >= RESERVED, RESERVED + 1, self.distance),
            paths=torch.zeros_like(self.paths),
        )


def graph_batch(
    nodes: Integer[Tensor, "b n"],
    kinds: Integer[Tensor, "b n n"],
    *,
    max_steps: int = 20,
) -> GraphBatch:
    """Dense graphs from node ids and the kinds of their edges.

    Where shortest paths tie, the one is taken whose every step backwards goes to the node
    of the lowest number; distances and degrees do not depend on the numbering.

    Args:
        nodes: Ids from 1 on; `PADDING` behind the last node of a graph.
        kinds: Entry [g, i, j] is the kind of the edge from i to j, from 1 on, or 0.
        max_steps: Edges of a path that are kept.

    Raises:
        InputError: If shapes do not fit, a graph has no node, an edge ends in padding, or
            nodes, kinds or distances do not fit into a byte.

    Example:
        >>> path = torch.tensor([[[0, 1, 0], [1, 0, 2], [0, 2, 0]]])
        >>> made = graph_batch(torch.tensor([[6, 7, 6]]), path, max_steps=2)
        >>> (made.distance[0, 1:, 1:] - 2).tolist(), made.paths[0, 1, 3].tolist()
        ([[0, 1, 2], [1, 0, 1], [2, 1, 0]], [1, 2])
    """
    _check(nodes, kinds, max_steps)
    parts = [
        _searched(*some, max_steps)
        for some in zip(nodes.split(AT_ONCE), kinds.split(AT_ONCE), strict=True)
    ]
    joined = (torch.cat([part[place] for part in parts]) for place in range(2))
    edges = kinds > 0
    there = nodes != PADDING
    degrees = ((edges.sum(axis) + 1) * there for axis in (1, 2))
    return GraphBatch(nodes.byte(), *(own.byte() for own in degrees), *joined)


def joined_graphs(
    graphs: Sequence[tuple[Sequence[int], Sequence[tuple[int, int, int]]]],
    *,
    max_nodes: int | None = None,
    max_steps: int = 20,
) -> GraphBatch:
    """A batch from lists: the node ids of each graph, and its undirected edges.

    Args:
        graphs: Node ids, and edges as (node, node, kind).
        max_nodes: Nodes that every graph is filled up to; by default the most of a graph.
        max_steps: Edges of a path that are kept.

    Raises:
        InputError: If a graph has more nodes, or is not a graph: which one.
    """
    most = max((len(own) for own, _ in graphs), default=0)
    width = most if max_nodes is None else max_nodes
    nodes = torch.zeros(len(graphs), max(width, 1), dtype=torch.long)
    kinds = torch.zeros(len(graphs), max(width, 1), max(width, 1), dtype=torch.long)
    for place, (own, edges) in enumerate(graphs):
        refuse_large(place, len(own), width)
        nodes[place, : len(own)] = torch.tensor(own, dtype=torch.long)
        for i, j, kind in edges:
            if not (0 <= i < len(own) and 0 <= j < len(own)):
                msg = (
                    f"Graph {place} has an edge from node {i} to node {j}, and nodes 0 to "
                    f"{len(own) - 1}. Number the nodes from 0 on."
                )
                raise InputError(msg)
            kinds[place, i, j] = kinds[place, j, i] = kind
    return graph_batch(nodes, kinds, max_steps=max_steps)


def refuse_large(place: int, count: int, most: int) -> None:
    """Refuse a graph that does not fit.

    Raises:
        InputError: If it has more nodes.
    """
    if count > most:
        msg = (
            f"Graph {place} has {count} nodes, and the model reads at most {most}. Leave "
            f"it out, or set max_nodes={count} or more."
        )
        raise InputError(msg)


def _searched(nodes: Tensor, kinds: Tensor, max_steps: int) -> tuple[Tensor, Tensor]:
    """Distances and paths of some graphs, virtual node included."""
    adjacency = kinds > 0
    found = distances(adjacency)
    along = along_paths(found, nodes_before(adjacency, found), kinds.byte(), max_steps)
    # A node that only fills up has not even itself.
    there = nodes != PADDING
    found = found.where(there[:, :, None] & there[:, None, :], UNREACHABLE)
    pad = torch.nn.functional.pad
    entries = pad(found, (1, 0, 1, 0), value=VIRTUAL) + RESERVED
    return entries.byte(), pad(along, (0, 0, 1, 0, 1, 0))


def _check(nodes: Tensor, kinds: Tensor, max_steps: int) -> None:
    count, n = nodes.shape
    wrong: list[str] = []
    if kinds.shape != (count, n, n):
        wrong.append(f"kinds have shape {tuple(kinds.shape)}, not {(count, n, n)}")
    if not count or not 1 <= n <= MOST_NODES:
        wrong.append(f"{count} graphs of {n} nodes; give at least 1 of 1 .. {MOST_NODES}")
    if max_steps < 1:
        wrong.append(f"max_steps={max_steps} must be 1 or more")
    if not wrong:
        there = nodes != PADDING
        lone = kinds.bool() & ~(there[:, :, None] & there[:, None, :])
        for what, part in (("Node ids", nodes), ("Kinds", kinds)):
            if int(part.min()) < 0 or int(part.max()) > 255:
                wrong.append(f"{what} run to {int(part.max())}; use 0 .. 255")
        if not bool(there.any(1).all()):
            empty = int((~there.any(1)).nonzero()[0])
            wrong.append(f"graph {empty} has no node; leave it out")
        if bool((there[:, 1:] & ~there[:, :-1]).any()):
            wrong.append("padding stands before a node; put it behind the last")
        if bool(lone.any()):
            graph, i, j = lone.nonzero()[0].tolist()
            wrong.append(f"graph {graph} has an edge from {i} to {j}, which is padding")
    refuse("These graphs cannot be used", wrong)
