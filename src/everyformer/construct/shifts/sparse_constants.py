"""The constants of the sparse construction, in units of delta.

The theorem is Theorem 1 of Yun et al. 2020b; its proof is this project's, in
docs/constructions/sparse.md. Letters: a = K^d, D = 1 + K + .. + K^(d-1), gamma the
Hamiltonian path, s the number of hops.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Literal

from everyformer.construct.shifts.constants import FLOAT64_BITS, WINDOW_BITS, Constants
from everyformer.construct.shifts.value import largest_projection
from everyformer.construct.table import Table
from everyformer.papers import YUN2020B, Paper
from everyformer.patterns.pattern import Pattern

SparseVariant = Literal["wide", "sweep"]
"""One window for each token of the path, or one for each token and column."""


def stated_coefficient(n: int, d: int, K: int, s: int) -> int:
    """C = 2 s n K^(nd+1), enough for positions that are 1 apart."""
    return 2 * s * n * K ** (n * d + 1)


def least_coefficient(largest: int, s: int) -> int:
    """The least integer C with ((1 + 1/C)^s - 1) L_max < delta, L_max in units of delta.

    Then s all-max-shifts keep sequences apart (B2); and C delta > L_max, so that they keep
    the tokens of a sequence apart (B3).

    Example:
        >>> least_coefficient(largest=8, s=1), least_coefficient(largest=8, s=2)
        (9, 17)
    """
    low, high = 1, 1
    while not _keeps_apart(high, largest, s):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _keeps_apart(middle, largest, s):
            high = middle
        else:
            low = middle + 1
    return low


def _keeps_apart(C: int, largest: int, s: int) -> bool:
    return ((C + 1) ** s - C**s) * largest < C**s


@dataclass(frozen=True, kw_only=True)
class SparseConstants(Constants):
    """All numbers that follow from n, d, K, the pattern, the path and the hops.

    Nothing here asks whether the pattern satisfies Assumption 1: `plan_sparse` does.

    Attributes:
        pattern: A^1, .., A^p.
        gamma: The path, 0-based: token gamma[i-1] is heard by token gamma[i].
        s: Hops: after s blocks every token has heard every token.
        variant: How Stage A finds its token.
        chain_factor: c, the coefficient of Stage A; None for a = K^d.
        max_factor: C, the coefficient of Stage B; None for one that is large enough.
    """

    pattern: Pattern
    gamma: tuple[int, ...]
    s: int
    variant: SparseVariant = "wide"
    chain_factor: int | None = None
    max_factor: int | None = None

    @property
    def paper(self) -> Paper:
        """Whose theorem it is."""
        return YUN2020B

    @property
    def steps(self) -> tuple[int, ...]:
        """E_gamma(1) = n - 1 and E_gamma(i) = i - 2, i = 2 .. n, in spacings."""
        steps = [0] * self.n
        for i, token in enumerate(self.gamma):
            steps[token] = (i - 1) % self.n
        return tuple(steps)

    @property
    def D(self) -> int:
        """u^T 1_d = 1 + K + .. + K^(d-1)."""
        return sum(self.u)

    @property
    def c(self) -> int:
        """The coefficient of Stage A: a = K^d."""
        return self.V if self.chain_factor is None else self.chain_factor

    @property
    def _rise(self) -> int:
        """D P in spacings, P = (n-1) a^(n-1) - sum_{k=0..n-2} a^k + (n-1)."""
        a, n = self.V, self.n
        P = (n - 1) * a ** (n - 1) - sum(a**k for k in range(n - 1)) + (n - 1)
        return self.spacing * self.D * P

    @property
    def L_max(self) -> int:
        """The largest L_n: D P + delta a^(n-1) (a-1) (A4)."""
        a, n = self.V, self.n
        return self._rise + a ** (n - 1) * (a - 1)

    @property
    def L_min(self) -> int:
        """The least L_n: D P - delta (a-1) (a^(n-1) - 1) (A4)."""
        a, n = self.V, self.n
        return self._rise - (a - 1) * (a ** (n - 1) - 1)

    @cached_property
    def C(self) -> int:
        """The coefficient of Stage B.

        2 s n K^(nd+1) in rationals; in float64, where bits are few, the least that will do.
        """
        if self.max_factor is not None:
            return self.max_factor
        least = least_coefficient(self.L_max, self.s)
        if self.softened:
            return least
        return max(stated_coefficient(self.n, self.d, self.K, self.s), least)

    @property
    def t_l(self) -> int:
        """C^s L_min: no id is smaller (B4)."""
        return self.C**self.s * self.L_min

    @property
    def t_r(self) -> int:
        """(1+C)^s L_max: no id is larger (B4)."""
        return (1 + self.C) ** self.s * self.L_max

    @cached_property
    def largest_id(self) -> int:
        """A bound on every id, in units of delta."""
        return self.t_r

    @property
    def blocks_before(self) -> int:
        """Blocks in front of the attention: the quantiser, and the read-in of a box."""
        read_in = 0 if self.grid.box.is_unit else self.d + sum(self.divisions)
        return self.d * self.n * self.K + read_in

    @property
    def padding(self) -> int:
        """Identity blocks until the next one has pattern 1."""
        return -self.blocks_before % self.pattern.p

    @property
    def chain_layers(self) -> int:
        """p (n-1) layers of Stage A; p (n-1) a in the sweep."""
        windows = self.V if self.variant == "sweep" else 1
        return self.pattern.p * (self.n - 1) * windows


def lifted(c: SparseConstants, table: Table) -> SparseConstants:
    """C >= ceil(max |u^T A|) + 1, so that no written value lies in a window (Section 5.5).

    Every id is at least C^s L_min >= C. Where the lifted ids do not fit float64, C stays,
    and the values are scaled down instead, as in the dense construction.
    """
    needed = ceil(largest_projection(c, table.values)) + 1
    if needed <= c.C:
        return c
    raised = replace(c, max_factor=needed)
    fits = not c.softened or raised.id_bits + WINDOW_BITS <= FLOAT64_BITS
    return raised if fits else c
