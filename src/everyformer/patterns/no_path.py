"""Obstacles that exclude every Hamiltonian path of a directed graph, in words."""

from collections import Counter
from importlib import import_module
from typing import Any

import numpy as np

from everyformer.patterns.rows import Rows

SHOWN = 6


def obstacle(followers: Rows) -> str | None:
    """Why there is no Hamiltonian path, or None if nothing is known against one.

    Args:
        followers: The tokens k with an arc j -> k, for every j.
    """
    return incomparable(followers) or too_few_followers(followers) or falls_apart(followers)


def incomparable(followers: Rows) -> str | None:
    """Two tokens such that neither reaches the other.

    A path meets one before the other. The strong components in topological order must
    follow each other by an arc: then each reaches all later ones.
    """
    n = followers.n
    j, k = followers.listeners(), followers.indices
    from scipy.sparse.csgraph import connected_components  # slow to import

    components, label = connected_components(followers.matrix(), connection="strong")
    if components == 1:
        return None
    between = label[j] != label[k]
    arcs = np.unique(np.stack([label[j[between]], label[k[between]]], axis=1), axis=0)
    waiting = np.bincount(arcs[:, 1], minlength=components)
    later: dict[int, list[int]] = {}
    for source, target in arcs.tolist():
        later.setdefault(source, []).append(target)
    ready = [component for component in range(components) if not waiting[component]]
    for _ in range(components):
        if len(ready) > 1:
            a, b = sorted(int(np.argmax(label == one)) + 1 for one in ready[:2])
            return (
                f"there is no gamma: token {a} does not reach token {b}, nor {b} token "
                f"{a}, so no path meets both (1-based, n = {n})"
            )
        done = ready.pop()
        for target in later.get(done, []):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return None


def too_few_followers(followers: Rows) -> str | None:
    """Tokens that have to be followed by too few others (Hall's condition).

    On a path all tokens but the last are followed by different tokens. If a matching of
    tokens with followers leaves two out, the tokens that alternating paths reach from
    there, U, have at most |U| - 2 followers in all.
    """
    from scipy.sparse.csgraph import maximum_bipartite_matching

    follower_of = maximum_bipartite_matching(followers.matrix(), perm_type="column")
    left_out = np.flatnonzero(follower_of < 0)
    if len(left_out) < 2:
        return None
    matched_to = np.full(followers.n, -1)
    matched_to[follower_of[follower_of >= 0]] = np.flatnonzero(follower_of >= 0)
    reached, heads = set(left_out.tolist()), set[int]()
    waiting = list(reached)
    while waiting:
        for k in followers.row(waiting.pop()).tolist():
            heads.add(k)
            before = int(matched_to[k])
            if before not in reached:
                reached.add(before)
                waiting.append(before)
    return (
        f"there is no gamma: the {len(reached)} tokens {_listed(reached)} can only be "
        f"followed by {_listed(heads) if heads else 'none'} (1-based), and all but one "
        "need a follower of their own"
    )


def falls_apart(followers: Rows) -> str | None:
    """A token without which the others fall into three or more parts.

    A path visits it once: what comes before lies in one part, what comes after in one.
    In a connected graph a token lies in as many blocks as parts remain without it.
    """
    arcs = zip(followers.listeners().tolist(), followers.indices.tolist(), strict=True)
    nx = import_module("networkx")  # slow to import
    blocks: Any = nx.biconnected_components(nx.Graph(arcs))
    parts_without = Counter[int]()
    for block in blocks:
        parts_without.update(block)
    token = max(parts_without, key=lambda one: (parts_without[one], -one))
    parts = parts_without[token]
    if parts < 3:
        return None
    return (
        f"there is no gamma: without token {token + 1} (1-based) the others fall into "
        f"{parts} parts, and a path joins two at most"
    )


def _listed(tokens: set[int]) -> str:
    shown = ", ".join(str(token + 1) for token in sorted(tokens)[:SHOWN])
    return shown + ", .." * (len(tokens) > SHOWN)
