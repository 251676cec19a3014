"""Ids by the star alone, as Zaheer et al. 2020 (BigBird, Appendix A) make them; exact.

A token 0 is added that all hear and that hears all; nothing else is heard but oneself:
N(0) = {1..n}, N(k) = {0, k}. With u = (1, K, .., K^(d-1), K^(nd)), a = K^d and positions
K^((k-1)d) in the first coordinate (0 for token 1) the scalars are

    f_0 = K^(nd),   l_1 = delta m_1,   l_k = K^((k-1)d) + delta m_k,   m_k in 0..a-1.

Phase k = 1..n: token k becomes f_k = l_k + a (f_0 - l_k), then f_0 grows by
K^(nd) (max - min over N(0)). At the end token k grows by K^(n^2 d) (max - min over N(k)).

Differs from the paper: the recursion of f_0 reads, with its signs and factors mended,
f_0 + K^(nd) (f_k - l_(k+1)) = (1 + K^((n+1)d)) f_0 - (K^((n+1)d) - K^(nd)) l_k
- K^(nd) l_(k+1) for k < n; in phase n there is no l_(n+1), and the min is f_1. The last f_0
does not tell all sequences apart (7 of 8 at n = 3, d = 1, K = 2); the ids of the tokens do
at all sizes tried.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from everyformer.errors import GridError


@dataclass(frozen=True)
class StarIds:
    """Scalars in units of delta = 1/K, exact.

    Attributes:
        centre: f_0 before the first phase and after each one.
        tokens: f_1, .., f_n after their phases.
        ids: The ids of tokens 1..n at the end.
    """

    centre: tuple[int, ...]
    tokens: tuple[int, ...]
    ids: tuple[int, ...]


def starting_scalars(columns: Sequence[int], d: int, K: int) -> tuple[int, list[int]]:
    """f_0 and l_1, .., l_n in units of delta, for the grid columns m_1, .., m_n.

    Raises:
        GridError: If a column is outside 0..K^d-1, or K < 2.
    """
    n, a = len(columns), K**d
    if K < 2 or d < 1 or not all(0 <= m < a for m in columns):
        msg = f"K={K}, d={d} and the columns {tuple(columns)}: K >= 2, d >= 1 and columns"
        raise GridError(f"{msg} in 0..K^d-1 are needed.")
    positions = [0, *(K ** (k * d) for k in range(1, n))]
    scalars = [K * place + m for place, m in zip(positions, columns, strict=True)]
    return K * K ** (n * d), scalars


def star_ids(columns: Sequence[int], d: int, K: int) -> StarIds:
    """The ids of one sequence: Lemma 3 of Zaheer et al. 2020.

    Args:
        columns: m_1, .., m_n, the numbers of the quantised tokens, each in 0..K^d-1.
        d: Width of a token.
        K: Cells per axis.

    Example:
        >>> star_ids((0, 1), d=1, K=2).ids
        (5904, 4659)
    """
    n, a = len(columns), K**d
    f_0, z = starting_scalars(columns, d, K)
    centre = [f_0]
    for k in range(n):
        z[k] += a * abs(f_0 - z[k])
        f_0 += K ** (n * d) * (max(z) - min(z))
        centre.append(f_0)
    last = K ** (n * n * d)
    ids = tuple(f_k + last * abs(f_0 - f_k) for f_k in z)
    return StarIds(tuple(centre), tuple(z), ids)


def all_star_ids(n: int, d: int, K: int) -> Iterator[StarIds]:
    """The ids of all K^(nd) sequences of the grid."""
    for columns in product(range(K**d), repeat=n):
        yield star_ids(columns, d, K)
