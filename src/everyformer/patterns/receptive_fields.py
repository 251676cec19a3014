"""Assumption 1.3: how many layers until every token has heard every token.

    S_k^1 = A_k^1,   S_k^t = union of S_j^(t-1) over j in A_k^((t-1) mod p + 1),
    s = min{u : S_k^u = [n] for all k}

s depends on which pattern is numbered 1. It is counted, never looked up.
"""

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from everyformer.errors import PatternError
from everyformer.numerics.limits import check_limit
from everyformer.papers import YUN2020B, implements
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.rows import Rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FEW = 8
"""Layers that are tried before anything else."""

MOST_BITS = 2**34
"""n^2, the bits of all sets, up to which s is counted: two tables of 2 GiB."""


@dataclass(frozen=True)
class Fields:
    """How receptive fields grow.

    Attributes:
        hops: s; None if no s suffices, or it was not counted for want of time or memory.
        never: Tokens (k, j), 0-based, such that k never hears j, whatever the depth and
            with the residual connection; None if every token hears every token.
    """

    hops: int | None
    never: tuple[int, int] | None


@implements(YUN2020B, "Assumption 1")
def receptive_fields(pattern: Pattern, time_limit: float = 10.0) -> Fields:
    """Count s, and find a pair that never meets.

    With the self-loops of the residual connection the fields only grow, and every edge of
    every part is used again and again: they fill iff the union is strongly connected.
    Without self-loops the sets of 1.3 may shrink, and s is looked for up to the cap of
    primitive matrices (Wielandt 1950), (n - 1)^2 + 1 rounds of p layers: for p = 1 there
    is no s beyond it.

    Args:
        pattern: The patterns.
        time_limit: Seconds after which s is left open; whether it exists never is. Beyond
            n = 131,072 it is not counted: the sets would fill the memory.

    Raises:
        InputError: If the limit is not a number of seconds.
    """
    check_limit("time_limit", time_limit, "seconds", zero=True)
    counted = pattern.n**2 <= MOST_BITS
    if counted:
        _compile(pattern)
    deadline = monotonic() + time_limit
    hops = count_hops(pattern, FEW, deadline) if counted else None
    if hops is not None:
        return Fields(hops, None)
    never = never_meet(union_rows(pattern).matrix())
    if never is not None or not counted:
        return Fields(None, never)
    most = pattern.p * ((pattern.n - 1) ** 2 + 1)
    return Fields(count_hops(pattern, most, deadline), None)


def _compile(pattern: Pattern) -> None:
    """Load what counts s, for one token: on a busy machine that alone takes seconds."""
    from everyformer.patterns import bitsets

    rows = pattern.parts[0].rows()
    indptr = np.array([0, 1], dtype=rows.indptr.dtype)
    indices = np.zeros(1, dtype=rows.indices.dtype)
    one = bitsets.sets_of(indptr, indices)
    bitsets.hear(indptr, indices, one, np.empty_like(one))
    bitsets.full_rows(one)


def count_hops(pattern: Pattern, most: int, deadline: float) -> int | None:
    """s, by iteration; None after so many layers, or at the deadline."""
    from everyformer.patterns import bitsets  # numba is slow to import

    n, p, rows = pattern.n, pattern.p, [part.rows() for part in pattern.parts]
    old = bitsets.sets_of(rows[0].indptr, rows[0].indices)
    new = np.empty_like(old)
    for t in range(1, most + 1):
        if bitsets.full_rows(old) == n:
            return t
        if monotonic() > deadline:
            return None
        bitsets.hear(rows[t % p].indptr, rows[t % p].indices, old, new)
        old, new = new, old
    return None


def never_meet(heard: "csr_array") -> tuple[int, int] | None:
    """Tokens (k, j), 0-based, such that k never hears j; None if all hear all.

    Row k of `heard` has ones at the tokens that k attends to. j is a token of a component
    that nobody outside listens to, k one outside.
    """
    from scipy.sparse.csgraph import connected_components  # slow to import

    components, label = connected_components(heard, connection="strong")
    if components == 1:
        return None
    k, j = heard.nonzero()
    outside = label[k] != label[j]
    listened_to = np.zeros(components, dtype=bool)
    listened_to[label[j[outside]]] = True
    silent = ~listened_to[label]
    token = int(np.argmax(silent))
    return int(np.argmax(label != label[token])), token


def deaf_to_the_last(pattern: Pattern) -> int | None:
    """Of a causal pattern: the first token k that never hears k - 1, 0-based, or None.

    Without the future a path from k to k - 1 has no token between, so that k hears k - 1 if
    and only if k - 1 is in some A^l_k. If all do, then by steps of one every token hears
    every earlier one: all that a causal function may depend on.

    Raises:
        PatternError: If the pattern is not causal.
    """
    if not all(part.is_causal for part in pattern.parts):
        raise PatternError(f"{pattern.name!r} is not causal. Take pattern.causal_part().")
    rows = union_rows(pattern)
    k, j = rows.listeners(), rows.indices
    hears = np.zeros(pattern.n, dtype=bool)
    hears[k[j == k - 1]] = True
    hears[0] = True
    return None if hears.all() else int(np.argmin(hears))


def union_rows(pattern: Pattern) -> Rows:
    """union_l A_k^l for every k."""
    return pattern.union().parts[0].rows()
