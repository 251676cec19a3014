"""Patterns of the user's own: masks, edge lists, graphs. Nothing is mended in silence."""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from everyformer.errors import PatternError
from everyformer.patterns.kinds import Gathered
from everyformer.patterns.part import check_whole, whole_numbers
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.rows import Rows

SHOWN = 4


def from_masks(masks: np.ndarray | Sequence[np.ndarray], name: str = "masks") -> Pattern:
    """The pattern of boolean masks: True in row k, column j where token k attends to j.

    Args:
        masks: One mask (n, n), or one for each part, (p, n, n): arrays, tensors or lists.
        name: What to call it.

    Raises:
        PatternError: If they are not boolean, not square, of different sizes, or a token
            attends to nothing.
    """
    given: list[Any] = list(masks)
    if getattr(masks, "ndim", 0) == 2 or (given and np.ndim(given[0]) == 1):
        given = [masks]
    parts: list[Gathered] = []
    for place, mask in enumerate(given):
        array = np.asarray(mask)
        what = f"Mask {place + 1} of {len(given)} (1-based)"
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
            msg = (
                f"{what} has shape {array.shape}: a square (n, n) with n >= 1 is needed, "
                "row k for what token k attends to."
            )
            raise PatternError(msg)
        if array.dtype != np.bool_:
            msg = (
                f"{what} has dtype {array.dtype}, and numbers may mean scores, distances "
                "or weights. Say which entries are kept: mask != 0, or mask == 0 for "
                "additive masks with -inf."
            )
            raise PatternError(msg)
        parts.append(Gathered(len(array), Rows.of_pairs(len(array), *np.nonzero(array))))
    return Pattern(name, tuple(parts))


def from_edges(
    n: int,
    edges: Iterable[tuple[int, int]],
    *,
    self_loops: bool = False,
    first: int = 0,
    name: str = "edges",
) -> Pattern:
    """The pattern of a list of edges (j, k): j -> k, token k attends to token j.

    Args:
        n: Number of tokens.
        edges: Pairs (j, k).
        self_loops: Whether every token attends to itself too, as Assumption 1.1 asks; else
            only where the list has (k, k).
        first: Number of the first token: 0, or 1 as in the paper.
        name: What to call it.

    Raises:
        PatternError: If a number is out of range, an edge is repeated, or a token is
            isolated: without an edge from or to another one.
    """
    check_whole("from_edges", 1, n=n)
    numbering = f"{first}-based"
    pairs = [_pair(edge) for edge in edges]
    if not pairs:
        msg = "The list of edges is empty: no token would hear another. Give edges (j, k)"
        raise PatternError(f"{msg}: token k attends to token j ({numbering}).")
    for place, (j, k) in enumerate(pairs):
        if not (first <= j < n + first and first <= k < n + first):
            msg = (
                f"Edge {place + 1} is ({j}, {k}), but with n={n} the tokens are "
                f"{first}..{n - 1 + first} ({numbering}). Correct n, the edge, or whether "
                "numbers begin with 0 or 1."
            )
            raise PatternError(msg)
    repeated = [edge for edge, times in Counter(pairs).items() if times > 1]
    if repeated:
        shown = ", ".join(map(str, repeated[:SHOWN])) + (", .." * (len(repeated) > SHOWN))
        msg = (
            f"{len(repeated)} edges are repeated: {shown} ({numbering}). A token attends "
            "to another or it does not: leave each edge in once."
        )
        raise PatternError(msg)
    met = {token for j, k in pairs if j != k for token in (j, k)}
    lonely = [token for token in range(first, n + first) if token not in met]
    if lonely and n > 1:
        shown = ", ".join(map(str, lonely[:SHOWN])) + (", .." * (len(lonely) > SHOWN))
        msg = (
            f"n={n}, but no edge joins token {shown} ({numbering}) to another one, "
            f"{len(lonely)} isolated in all: nothing could reach it or come from it. "
            "Correct n, or give it an edge; if it is meant, give masks."
        )
        raise PatternError(msg)
    k = np.arange(n if self_loops else 0)
    heard, listeners = (np.array(pairs) - first).T
    rows = Rows.of_pairs(n, np.concatenate([listeners, k]), np.concatenate([heard, k]))
    return Pattern(name, (Gathered(n, rows),))


def _pair(edge: Iterable[Any]) -> tuple[int, int]:
    """The tokens j and k of an edge."""
    numbers = whole_numbers("An edge", edge)
    if len(numbers) != 2:
        msg = f"An edge is {numbers}: two numbers (j, k) are needed, token k attends to j."
        raise PatternError(msg)
    return numbers[0], numbers[1]


def from_graph(graph: Any, *, self_loops: bool = False, name: str = "graph") -> Pattern:
    """The pattern of a networkx graph with the nodes 0..n-1.

    An arc j -> k lets token k attend to token j; an edge of an undirected graph both.

    Args:
        graph: A networkx.Graph or DiGraph.
        self_loops: Whether every token attends to itself too.
        name: What to call it.

    Raises:
        PatternError: If this is not such a graph, or `from_edges` would refuse it.
    """
    if not isinstance(graph, import_module("networkx").Graph):
        msg = f"A networkx graph is needed, not {type(graph).__name__}. For pairs of"
        raise PatternError(f"{msg} tokens there is from_edges, for arrays from_masks.")
    nodes = set(graph.nodes)
    if nodes != set(range(len(nodes))):
        shown = ", ".join(sorted(map(repr, nodes))[:SHOWN])
        msg = (
            f"The graph's nodes are {shown}, ..: the tokens 0..{len(nodes) - 1} (0-based) "
            "are needed. networkx.convert_node_labels_to_integers makes them."
        )
        raise PatternError(msg)
    edges = [(int(edge[0]), int(edge[1])) for edge in graph.edges()]
    if not graph.is_directed():
        edges += [(k, j) for j, k in edges if j != k]
    return from_edges(len(nodes), edges, self_loops=self_loops, name=name)
