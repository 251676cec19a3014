"""Assumption 1.2: a permutation gamma with gamma(i) in union_l A^l_gamma(i+1).

With an arc j -> k wherever token k attends to token j, gamma is a Hamiltonian path. To
find one is NP-hard: closed forms and the identity are tried first, then obstacles that
exclude every path, then all subsets for n <= 15, then a search that ends at a time limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everyformer.errors import PatternError
from everyformer.numerics.limits import check_limit
from everyformer.papers import YUN2020B, implements
from everyformer.patterns.no_path import obstacle
from everyformer.patterns.part import whole_numbers
from everyformer.patterns.path_search import search
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.receptive_fields import union_rows
from everyformer.patterns.rows import Rows
from everyformer.verdict import Verdict

MOST_SUBSETS = 15
"""Up to this n all subsets of the tokens are gone through."""


@dataclass(frozen=True)
class HamiltonianPath:
    """Whether there is a path, and which.

    Attributes:
        verdict: PROVED with the path, REFUTED if there is none, UNKNOWN at the time limit.
        path: gamma, 0-based.
        reason: In words.
    """

    verdict: Verdict
    path: tuple[int, ...] | None
    reason: str


@implements(YUN2020B, "Assumption 1")
def hamiltonian_path(
    pattern: Pattern, path: Sequence[int] | None = None, time_limit: float = 10.0
) -> HamiltonianPath:
    """Find gamma, or verify the one given.

    Args:
        pattern: The patterns.
        path: A gamma to verify, 0-based; nothing is searched then.
        time_limit: Seconds for the search; 0 for none.

    Raises:
        PatternError: If what is given is not such a path, with its first broken edge.
        InputError: If the limit is not a number of seconds.
    """
    check_limit("time_limit", time_limit, "seconds", zero=True)
    n, rows = pattern.n, union_rows(pattern)
    if path is not None:
        given = whole_numbers("gamma", path)
        _refuse_broken(n, rows, given)
        return HamiltonianPath(Verdict.PROVED, given, "gamma as given, verified")
    identity = tuple(range(n))
    candidates = {
        "gamma = identity": identity,
        "gamma in closed form": pattern.path,
        "gamma = n, .., 1": identity[::-1],
    }
    for reason, candidate in candidates.items():
        if candidate is not None and first_broken(rows, candidate) is None:
            return HamiltonianPath(Verdict.PROVED, candidate, reason)
    followers = arcs(rows)
    why_not = obstacle(followers)
    if why_not is not None:
        return HamiltonianPath(Verdict.REFUTED, None, why_not)
    if n <= MOST_SUBSETS:
        found = by_subsets(followers)
        if found is not None:
            return HamiltonianPath(Verdict.PROVED, found, "gamma found, the first of all")
        reason = f"there is no gamma: all {2**n:,} subsets of the tokens were gone through"
        return HamiltonianPath(Verdict.REFUTED, None, reason)
    if time_limit <= 0:
        reason = "gamma was not searched for, and none was excluded"
        return HamiltonianPath(Verdict.UNKNOWN, None, reason)
    found = search(followers, time_limit)
    if found is not None:
        return HamiltonianPath(Verdict.PROVED, found, "gamma found by a search")
    reason = (
        f"no gamma was found in {time_limit:g} s, and none was excluded: give one if you "
        "know it, or more time"
    )
    return HamiltonianPath(Verdict.UNKNOWN, None, reason)


def first_broken(rows: Rows, path: Sequence[int]) -> int | None:
    """The first i, 0-based, such that path[i] is not in A_path[i+1]; None if all are."""
    order = np.array(path, dtype=np.int64)
    kept = rows.listeners() * rows.n + rows.indices  # pairs (k, j) as numbers, ascending
    wanted = order[1:] * rows.n + order[:-1]
    place = np.minimum(np.searchsorted(kept, wanted), len(kept) - 1)
    broken = np.flatnonzero(kept[place] != wanted)
    return int(broken[0]) if len(broken) else None


def _refuse_broken(n: int, rows: Rows, path: tuple[int, ...]) -> None:
    if sorted(path) != list(range(n)):
        shown = ", ".join(str(token + 1) for token in path[:16])
        msg = (
            f"gamma = {shown}{', ..' * (len(path) > 16)} (1-based) is not a permutation of "
            f"1..{n}: every token must be there once."
        )
        raise PatternError(msg)
    i = first_broken(rows, path)
    if i is not None:
        before, after = path[i] + 1, path[i + 1] + 1
        heard = ", ".join(str(token + 1) for token in rows.row(path[i + 1])[:8])
        msg = (
            f"gamma breaks at step {i + 1}: gamma({i + 1}) = {before} is not among the "
            f"tokens that gamma({i + 2}) = {after} attends to in any part, {heard}"
            f"{', ..' * (len(rows.row(path[i + 1])) > 8)} (1-based). Correct gamma, or "
            "leave it out to have one searched for."
        )
        raise PatternError(msg)


def arcs(rows: Rows) -> Rows:
    """The tokens k != j with an arc j -> k, for every j."""
    listeners, heard = rows.listeners(), rows.indices
    other = listeners != heard
    return Rows.of_pairs(rows.n, heard[other], listeners[other])


def by_subsets(followers: Rows) -> tuple[int, ...] | None:
    """The first path in lexicographic order, by dynamic programming over subsets.

    starts[M] holds the tokens of M at which a path through exactly M can start.
    """
    n = followers.n
    after = [sum(1 << int(k) for k in followers.row(j)) for j in range(n)]
    masks = np.arange(2**n, dtype=np.int64)
    starts = np.zeros(2**n, dtype=np.int64)
    starts[1 << np.arange(n)] = 1 << np.arange(n)
    sizes = sum((masks >> j) & 1 for j in range(n))
    for size in range(2, n + 1):
        level = masks[sizes == size]
        for j in range(n):
            within = level[level & (1 << j) != 0]
            goes_on = starts[within ^ (1 << j)] & after[j]
            starts[within] |= (goes_on != 0).astype(np.int64) << j
    path: list[int] = []
    rest, allowed = 2**n - 1, 2**n - 1
    while rest:
        possible = int(starts[rest]) & allowed
        if not possible:
            return None
        token = (possible & -possible).bit_length() - 1
        path.append(token)
        rest, allowed = rest ^ (1 << token), after[token]
    return tuple(path)
