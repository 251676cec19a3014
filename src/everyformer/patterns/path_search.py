"""A search for a Hamiltonian path of a directed graph, with a time limit.

First in depth, the token with the fewest ways on first (Warnsdorff's rule); then paths
that are extended at both ends, take tokens in, and turn around a cycle at their end.
Every path returned is checked by the caller's rules of arcs: it is built of arcs alone.
"""

from collections.abc import Iterator
from itertools import count
from time import monotonic

import numpy as np

from everyformer.patterns.rows import Rows

FIRST_BUDGET = 20
"""Steps for each token before the search starts elsewhere."""


def search(followers: Rows, time_limit: float) -> tuple[int, ...] | None:
    """A Hamiltonian path, or None if none was found in time.

    Args:
        followers: The tokens k with an arc j -> k, for every j.
        time_limit: Seconds.
    """
    n, deadline = followers.n, monotonic() + time_limit
    after = [set(followers.row(j).tolist()) for j in range(n)]
    before: list[set[int]] = [set() for _ in range(n)]
    for j, ways_on in enumerate(after):
        for k in ways_on:
            before[k].add(j)
    starts = sorted(range(n), key=lambda token: len(before[token]))
    rng = np.random.default_rng(0)
    for attempt in count():
        start = starts[attempt % n] if attempt < n else int(rng.integers(n))
        budget = FIRST_BUDGET * n * (1 + attempt // 2)
        found = (
            depth_first(after, start, budget, deadline)
            if attempt % 2 == 0
            else extended(after, before, start, rng, budget, deadline)
        )
        if found is not None:
            return tuple(found)
        if monotonic() > deadline:
            return None
    return None


def depth_first(
    after: list[set[int]], start: int, budget: int, deadline: float
) -> list[int] | None:
    """A path from a token, by depth; fewest ways on first."""
    n, path, free = len(after), [start], set(range(len(after))) - {start}

    def ways(token: int) -> Iterator[int]:
        open_ones = after[token] & free
        return iter(sorted(open_ones, key=lambda k: (len(after[k] & free), k)))

    waiting = [ways(start)]
    for step in range(budget):
        if len(path) == n:
            return path
        if step % 256 == 0 and monotonic() > deadline:
            return None
        token = next(waiting[-1], None)
        if token is not None:
            path.append(token)
            free.discard(token)
            waiting.append(ways(token))
            continue
        waiting.pop()
        free.add(path.pop())
        if not path:
            return None
    return None


def extended(
    after: list[set[int]],
    before: list[set[int]],
    start: int,
    rng: np.random.Generator,
    budget: int,
    deadline: float,
) -> list[int] | None:
    """A path that grows at both ends and in between, and turns where it is stuck.

    A turn: v_1 .. v_i v_(i+1) .. v_m with arcs v_m -> v_(i+1) and v_i -> w, w among the
    last ones, becomes v_1 .. v_i w .. v_m v_(i+1) .. before w, with a new end.
    """
    n, path, free = len(after), [start], set(range(len(after))) - {start}
    for _ in range(budget):
        if not free:
            return path
        if monotonic() > deadline:
            return None
        grown = _grown(path, free, after, before)
        if grown is not None:
            free.discard(grown)
            continue
        if not _turned(path, after, rng):
            return None
    return path if len(path) == n else None


def _grown(
    path: list[int], free: set[int], after: list[set[int]], before: list[set[int]]
) -> int | None:
    """Take a free token in at the end, at the start or in between; which one."""
    for token in sorted(after[path[-1]] & free, key=lambda k: len(after[k] & free)):
        path.append(token)
        return token
    for token in sorted(before[path[0]] & free, key=lambda k: len(before[k] & free)):
        path.insert(0, token)
        return token
    for place in range(len(path) - 1):
        between = after[path[place]] & before[path[place + 1]] & free
        if between:
            token = min(between)
            path.insert(place + 1, token)
            return token
    return None


def _turned(path: list[int], after: list[set[int]], rng: np.random.Generator) -> bool:
    """Turn around a random cycle at the end; whether there was one."""
    place_of = {token: place for place, token in enumerate(path)}
    turns = [
        (place_of[first], place_of[w])
        for first in after[path[-1]]
        if place_of.get(first, 0) > 0
        for w in after[path[place_of[first] - 1]]
        if place_of.get(w, -1) > place_of[first]
    ]
    if not turns:
        return False
    cut, enter = turns[int(rng.integers(len(turns)))]
    path[cut:] = path[enter:] + path[cut:enter]
    return True
