"""Shortest paths of many graphs at once, by breadth-first search with boolean products.

Row i of F_s marks the nodes at distance s from node i, A is the adjacency matrix:

    F_0 = I,        F_s = (F_{s-1} A > 0) without F_0, .., F_{s-1}

The path from i to j is walked backwards: the node before j is the neighbour of j with the
lowest number whose distance from i is one less.
"""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

NO_PATH = -1
"""Stands for the distance of two nodes without a path."""


def distances(adjacency: Bool[Tensor, "b n n"]) -> Int[Tensor, "b n n"]:
    """The length of the shortest path of every pair of nodes, or NO_PATH.

    Args:
        adjacency: Entry [g, i, j] says whether graph g has an edge from i to j.

    Example:
        >>> distances(torch.tensor([[[0, 1, 0], [1, 0, 0], [0, 0, 0]]]).bool())[0]
        tensor([[ 0,  1, -1],
                [ 1,  0, -1],
                [-1, -1,  0]])
    """
    count, n, _ = adjacency.shape
    edges = adjacency.float()
    border = torch.eye(n, dtype=torch.bool, device=adjacency.device).expand(count, n, n)
    found = torch.where(border, 0, NO_PATH)
    for steps in range(1, n):
        border = (torch.bmm(border.float(), edges) > 0) & (found == NO_PATH)
        if not border.any():
            break
        found = torch.where(border, steps, found)
    return found


def nodes_before(
    adjacency: Bool[Tensor, "b n n"], distance: Int[Tensor, "b n n"]
) -> Int[Tensor, "b n n"]:
    """The last node before j on the path from i to j; NO_PATH if no path leads there.

    Only neighbours are looked at: O(n^2 D) numbers a graph, D the largest in-degree.
    """
    count, n, _ = adjacency.shape
    most = int(adjacency.sum(1).max()) if adjacency.numel() else 0
    if most == 0:
        return torch.full_like(distance, NO_PATH)
    # A stable sort puts the neighbours of j first, in the order of their numbers.
    order = adjacency.mT.int().argsort(dim=-1, descending=True, stable=True)
    near = order[..., :most]  # [b, j, D]
    joined = adjacency.mT.gather(-1, near)
    places = near.flatten(1)[:, None].expand(-1, n, -1)
    far = distance.gather(-1, places).view(count, n, n, most)  # [b, i, j, D]: i to near
    one_less = joined[:, None] & (far == distance[..., None] - 1) & (far >= 0)
    first = one_less.int().argmax(-1, keepdim=True)
    found = near[:, None].expand(-1, n, -1, -1).gather(-1, first)[..., 0]
    return torch.where(distance > 0, found, NO_PATH)


def along_paths(
    distance: Int[Tensor, "b n n"],
    before: Int[Tensor, "b n n"],
    of_edges: Shaped[Tensor, "b n n *e"],
    max_steps: int,
) -> Shaped[Tensor, "b n n {max_steps} *e"]:
    """What the edges of every path have, first to last; zeros after the last.

    The path from i to j is that to the node before j and one edge more, so that each pair
    is looked at once, by growing distance. Of longer paths the first max_steps edges count.

    Args:
        distance: As `distances` gives them.
        before: As `nodes_before` gives them.
        of_edges: A number or a vector for each pair of nodes; entries without an edge are
            not read.
        max_steps: Edges that are kept.
    """
    count, n, _, *vector = of_edges.shape
    found = of_edges.new_zeros(count, n, n, max_steps, *vector)
    longest = int(distance.max()) if distance.numel() else 0
    for steps in range(1, longest + 1):
        graph, i, j = (distance == steps).nonzero(as_tuple=True)
        last = before[graph, i, j]
        walked = found[graph, i, last]
        if steps <= max_steps:
            walked[:, steps - 1] = of_edges[graph, last, j]
        found[graph, i, j] = walked
    return found
