"""The constants of the construction of Yun et al. 2020, in units of delta.

Every id, threshold and shift of the construction is a multiple of delta (or of delta/2), so
all of them are integers here. The letters are the paper's: see docs/notation.md.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from everyformer.construct.sizes import Sizes
from everyformer.model.architecture import AttentionKind
from everyformer.papers import LUO2022, YUN2020, Paper, implements

Theorem = Literal["Theorem 1", "Theorem 2", "Theorem 3"]
"""1: of Yun et al. 2020b. 2 and 3: of Yun et al. 2020 (3: Luo et al. 2022 too)."""

RAMP_WIDTH = Fraction(1, 2**30)
"""Width of the quantiser's ramps, in box widths."""

EDGE_GUARD = Fraction(1, 2**40)
"""By how much inputs are lifted, in box widths; far below a ramp, far above 2^-52."""

WIDE_BITS = 16
"""A box at least 2^16 wide is read in by steps; below, a rounding is far below a ramp."""

FLOAT64_BITS = 53
WINDOW_BITS = 2
"""A value layer's window has its ramps at delta/4: two bits below an id."""

ONE_PASS_ROUNDING = Fraction(1, 10**12)
"""Ids are replaced by values directly where that rounds a value by no more than this."""


@dataclass(frozen=True)
class Constants(Sizes):
    """All numbers that follow from n, d, K and the theorem.

    Attributes:
        grid: n, d, K and the box (of `Sizes`).
        theorem: "Theorem 2" or "Theorem 3".
        softened: True for softmax and ReLU, False for the modified class.
        spacing: Distance of neighbouring positions in Theorem 3, in units of delta.
            The paper has K, that is E_j = (j-1) 1. There the upper edge of position j is
            the lower edge of position j+1, and x = 1 has no cell of its own; K + 1 leaves
            an empty cell between them. Differs from the paper unless spacing = K.
        attention: "dense", or "urpe": positions come from a layer instead of E.
    """

    theorem: Theorem
    softened: bool
    spacing: int
    attention: AttentionKind = "dense"

    @property
    def positional(self) -> bool:
        """True for the theorems with positions: 3, and 1 of Yun et al. 2020b."""
        return self.theorem in ("Theorem 3", "Theorem 1")

    @property
    def makes_positions(self) -> bool:
        """Whether the first layer makes the positions: URPE, with more than one token."""
        return self.attention == "urpe" and self.positional

    @property
    def paper(self) -> Paper:
        """Whose theorem it is; both call the one with positions Theorem 3."""
        return LUO2022 if self.makes_positions else YUN2020

    @property
    def u(self) -> tuple[int, ...]:
        """(1, delta^{-1}, ..., delta^{-d+1}): u^T L_j is the id of column L_j."""
        return tuple(self.K**i for i in range(self.d))

    @property
    def steps(self) -> tuple[int, ...]:
        """By how many spacings the positions move each token."""
        return tuple(range(self.n)) if self.positional else (0,) * self.n

    @property
    def position_ids(self) -> tuple[int, ...]:
        """s_j, the id that position j adds to its column's, in units of delta."""
        return tuple(step * self.spacing * sum(self.u) for step in self.steps)

    @property
    def swept_ids(self) -> tuple[int, ...]:
        """The ids l of the selective shifts, increasing, in units of delta.

        Theorem 2: 0 .. K^d - 1. Theorem 3: the union of s_j + (0 .. K^d - 1).
        """
        starts = self.position_ids if self.positional else (0,)
        return tuple(s + m for s in starts for m in range(self.V))

    @property
    def num_swept_ids(self) -> int:
        """K^d in Theorem 2, n K^d in Theorem 3."""
        return self.V * (self.n if self.positional else 1)

    @property
    @implements(YUN2020, "Lemma 6", "Appendix C.2")
    def last_coefficient(self) -> int:
        """The coefficient of psi(.; 0): delta^{-(n+1)d}, or n delta^{-(n+1)d-1}."""
        power = self.K ** ((self.n + 1) * self.d)
        return self.n * self.K * power if self.positional else power

    @property
    def out_of_range(self) -> int:
        """delta^{-nd}: coordinates outside [0, 1] are sent to minus this."""
        return self.V**self.n

    @property
    @implements(YUN2020, "Lemma 6")
    def t_l(self) -> int:
        """delta^{-2nd+1}(delta^{-d} - 1), in units of delta.

        For n = 1 there is no contextual map; ids are lifted by `lift`.
        """
        if self.n == 1:
            return self.lift
        return self.V ** (2 * self.n) * (self.V - 1)

    @property
    @implements(YUN2020, "Lemma 6")
    def t_r(self) -> int:
        """delta^{-(2n+1)d+1}(delta^{-d} - 1), in units of delta."""
        if self.n == 1:
            return self.lift + self.V
        return self.V ** (2 * self.n + 1) * (self.V - 1)

    @property
    def lift(self) -> int:
        """What n = 1 adds to every id instead of a contextual map, in units of delta."""
        return self.V**3 * self.K

    @property
    def cap(self) -> int:
        """delta^{-(2n+2)d+1}, in units: ids beside an out-of-range token are >= this."""
        return self.V ** (2 * self.n + 2) if self.n > 1 else 2 * self.t_r

    @cached_property
    def largest_id(self) -> int:
        """A bound on every id that the value map must resolve, in units of delta."""
        if not self.positional:
            return self.t_r
        return (1 + self.last_coefficient) * self.largest_swept_id

    @property
    @implements(YUN2020, "Lemma 10", "Appendix C.2")
    def largest_swept_id(self) -> int:
        """A bound on the ids after the selective shifts, in units of delta.

        Theorem 2, Lemma 10: delta^{-nd+1}(delta^{-d}-1) - delta(delta^{-d}-1)^2.
        Theorem 3: (delta^{-nd} - delta^{-d} + 1) times the largest id before them; at
        n = 2, d = 1 with the paper's spacing one token is shifted twice, which one more
        factor 1 + delta^{-d} covers.
        """
        V, n = self.V, self.n
        if not self.positional:
            return V**n * (V - 1) - (V - 1) ** 2
        largest = self.position_ids[-1] + V - 1
        bound = (V**n - V + 1) * largest
        twice = self.spacing * sum(self.u) <= V and n == 2
        return (1 + V) * bound if twice else bound

    @property
    def id_bits(self) -> int:
        """Bits of the largest id in units of delta."""
        return self.largest_id.bit_length()

    @property
    def value_passes(self) -> int:
        """1 (id to value), or 2 (id to a small code, code to value).

        One pass rounds a value by up to 2^-53 times the id: with float64 it is used only
        where that is nothing. Rationals do not round.
        """
        rounding = Fraction(self.largest_id, self.K) / 2**FLOAT64_BITS
        return 1 if not self.softened or rounding <= ONE_PASS_ROUNDING else 2

    @property
    def sharpness(self) -> int:
        """lambda = 2048 / delta^2, a power of two above 1500 / delta^2.

        Ids differ by >= delta and lie >= delta/2 from every query bias, so scores differ by
        >= lambda delta^2 / 2 = 1024, and exp(-1024) is 0.0 in float64.
        """
        return 2048 * self.K**2

    @property
    def delta(self) -> Fraction:
        """1/K, the width of a cell."""
        return Fraction(1, self.K)

    @property
    def guard(self) -> Fraction:
        """By how much a softened network lifts its input, in box widths.

        A ramp lies below every border of cells, and x is rounded on its way there. Lifted,
        a border and all float64 numbers near it belong to the cell above it, and x = low
        stays in the first cell. The paper's E (spacing = K) is kept as it is: there x = 1
        would reach the next position.
        """
        as_printed = self.positional and self.spacing == self.K and self.grid.box.is_unit
        return EDGE_GUARD if self.softened and not as_printed else Fraction(0)

    @property
    def divisions(self) -> tuple[int, ...]:
        """How often each coordinate of a wide box is divided by 16 while it is read in.

        A layer adds to its input, of the box's size w, and so rounds by 2^-53 w. If it maps
        [0, w] to [0, 1] at once, that error stays as it is: 1e-4 for w = 1e12. A layer that
        divides by 16 rounds by 2^-49 of its result, and divides all earlier errors too. So
        a first layer maps [0, w] to [0, 16^h], 16^h <= w, and h layers divide.
        """
        widths = self.grid.box.widths
        if not self.softened or self.grid.box.is_unit:
            return (0,) * self.d
        bits = (math.floor(width).bit_length() - 1 for width in widths)
        return tuple(b // 4 if b >= WIDE_BITS else 0 for b in bits)

    @property
    def lifted_by_positions(self) -> Fraction:
        """The guard where positions are what comes first; otherwise a layer adds it."""
        first = self.positional and self.grid.box.is_unit
        return self.guard if first else Fraction(0)

    @property
    def reach(self) -> int:
        """Box widths outside the domain up to which the network vanishes (Theorem 2).

        In float64 an id of size t is off by 2^-52 t; beside an out-of-range token it is
        about delta^{-(3n+1)d} times the distance, and must stay within delta^{-(2n+1)d}.
        """
        if self.positional:
            return 0
        if not self.softened:
            return 2**60
        return max(1, 2**48 // self.V ** (self.n + 1))
