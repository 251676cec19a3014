"""From a tolerance to a lattice: the fewest anchors whose proved bound meets it.

b falls very fast as D shrinks, m2 only grows like 1/(2D), so D is looked for among a few
values; likewise the margin. For each margin the least K is looked for that meets the
tolerance with one of them. That K is least if the bound decreases in K, as all formulas do;
whether or not, the bound of what is returned is proved.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import NoReturn

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.partition.bounds import (
    distance,
    everywhere,
    from_lipschitz,
    from_modulus,
    leak,
    named,
    rounding,
)
from everyformer.certify.partition.direct import refined_distance
from everyformer.certify.partition.lattice import Lattice, extensions
from everyformer.certify.partition.lattice_constants import lattice_constants
from everyformer.certify.partition.lattice_field import (
    BOXES,
    LatticeField,
    lattice_field,
    parts_of,
)
from everyformer.certify.partition.local import all_cell_bounds, distance_bound
from everyformer.certify.partition.samples import fine_parts
from everyformer.construct.partition.estimate import distance_sampled
from everyformer.errors import CertificateError, ToleranceError
from everyformer.numerics.curvature import round_up
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import format_up
from everyformer.targets.box import Box, Grid

DECAYS = tuple(Fraction(D) for D in ("3/4", "1", "3/2", "2", "3"))
"""Values of D to try."""

MARGINS = (2, 1, 3, 4)
"""Margins to try, the usual best one first."""

MAX_ANCHORS = 2**16
"""Prefix tokens at most; enclosures of f on as many cells take seconds."""

FEW_BOXES = 2**12
"""Boxes for the first look at a lattice."""

MANY_CELLS = 2**12
"""For as many cells only values of D near the best so far are tried."""

NO_HOPE = 16
"""Where slopes are infinite with as many cells per axis, they stay so."""

ALIKE = Fraction(101, 100)
"""Constants that differ by less than this factor leave a wider margin nothing to gain."""

HOPELESS = 4
"""A lattice whose bound is so many times the tolerance at first is not looked at again."""

OUT_OF_REACH = 16
"""If the finest lattice would miss the tolerance by this factor, and is not small, it is
not looked at."""

NEAR_FINEST = 0.7
"""From this share of the finest K on the finest is next: a miss there ends the search."""

ORDER_ROOM = 0.05
"""By how much the order that two lattices tell may be too small."""

SLOWEST = 0.25
"""The least order by which the next K is aimed at; a square root has 1/2 at 0."""

SHORTEST_STEP = 1.1
"""What K grows by at least; the least K is then looked for in between."""

TELLING = 8
"""Cells per axis from which on a bound tells what finer lattices can reach."""


@dataclass(frozen=True)
class Choice:
    """A lattice, and a proved bound of d_p(f, g) for it."""

    lattice: Lattice
    bound: Bound


Choices = Callable[[Sequence[Lattice], int], list[Choice]]
"""Bounds for some of the lattices given, which differ in D alone; the number is how many
boxes enclosures may take."""


@dataclass
class TracedBounds:
    """Bounds of d_p(f, g) for a traced f, for one lattice after the other.

    Where f is not known to be finite out to the margin, f after clipping to the box takes
    its place. The enclosures of f depend on K and m, not on D; those of the
    last lattice are kept.

    Attributes:
        expression: f.
        p: The exponent; None for the supremum.
        run: Whether to add what rounding in float64 may do.
    """

    expression: Expression
    p: Fraction | None
    _: KW_ONLY
    run: bool = False
    _last: tuple[object, tuple[LatticeField, bool]] | None = field(default=None, init=False)

    def field(self, lattice: Lattice, boxes: int = BOXES) -> tuple[LatticeField, bool]:
        """f, its slopes and curves on the cells of a lattice, and whether f is clipped."""
        parts = parts_of(lattice, boxes)
        key = (lattice.grid, lattice.margin, parts, fine_parts(lattice, parts, boxes))
        if self._last is None or self._last[0] != key:
            almost = self.p is not None
            found = field_or_clipped(self.expression, lattice, boxes, almost=almost)
            self._last = key, found
        return self._last[1]

    def choices(self, lattices: Sequence[Lattice], boxes: int = BOXES) -> list[Choice]:
        """Bounds for lattices that have one, the sharpest for the one that seems best.

        Which one that is, is sampled. The others have bounds by slopes and curves alone;
        with many cells, where each takes a good part of a second, they are left out.

        Raises:
            CertificateError: If f is not known to be finite, or has no bound on a cell.
        """
        field, _ = self.field(lattices[0], boxes)
        best = 0
        if field.samples is not None and len(lattices) > 1:
            sampled = [distance_sampled(field.samples, one, self.p) for one in lattices]
            best = sampled.index(min(sampled))
            if lattices[0].grid.sequences > MANY_CELLS and math.isfinite(sampled[best]):
                lattices, best = [lattices[best]], 0
        found = all_cell_bounds(field, lattices)
        sharp = refined_distance(found[best], field, lattices[best], self.p)
        result = [Choice(lattices[best], self._planned(field, lattices[best], sharp))]
        for lattice, bounds in zip(lattices, found, strict=True):
            if lattice != lattices[best] and np.isfinite(bounds).all():
                plain = distance_bound(bounds, lattice, self.p)
                result.append(Choice(lattice, self._planned(field, lattice, plain)))
        return result

    def _planned(self, field: LatticeField, lattice: Lattice, real: Bound) -> Bound:
        return planned_bound(lattice, real, field.largest, self.p, run=self.run)


def field_or_clipped(
    expression: Expression, lattice: Lattice, boxes: int = BOXES, *, almost: bool = False
) -> tuple[LatticeField, bool]:
    """f on the cells of a lattice; clipped to the box, if not known to be finite there.

    With `almost` a set of measure 0 does not count (`extensions`).

    Returns:
        The enclosures, and whether f was clipped.
    """
    ways = extensions(expression, lattice.grid.box, almost=almost)
    field = lattice_field(ways[0], lattice, boxes=boxes)
    if field.is_finite:
        return field, False
    for way in ways[1:]:
        field = lattice_field(way, lattice, boxes=boxes)
        if field.is_finite:
            break
    return field, True


@dataclass(frozen=True)
class DeclaredBounds:
    """Bounds of d_p(f, g) for an f of which a modulus of continuity is declared.

    Attributes:
        lipschitz: L for the maximum norm; or None, and
        modulus: omega, a function of the radius.
        largest: A bound on |f| on the box.
        p: The exponent; None for the supremum.
        run: Whether to add what rounding in float64 may do.
    """

    lipschitz: Fraction | None
    modulus: Callable[[Fraction], Fraction]
    largest: Fraction
    p: Fraction | None
    _: KW_ONLY
    run: bool = False

    def choices(self, lattices: Sequence[Lattice], boxes: int = BOXES) -> list[Choice]:
        """The bounds of all of them; nothing is enclosed."""
        return [Choice(lattice, self._bound(lattice)) for lattice in lattices]

    def _bound(self, lattice: Lattice) -> Bound:
        if self.lipschitz is not None:
            sup = from_lipschitz(lattice, self.lipschitz)
        else:
            half = max(lattice.steps) / 2
            sup = from_modulus(lattice, self.modulus(half), half)
        total = distance(lattice, [sup] * lattice.size, self.p)
        return planned_bound(lattice, total, self.largest, self.p, run=self.run)


def planned_bound(
    lattice: Lattice,
    real: Bound,
    largest: Fraction,
    p: Fraction | None,
    *,
    run: bool,
) -> Bound:
    """A bound of the average over anchors, with what a network adds to it."""
    leaked = leak(lattice, largest, lattice.suppression)
    terms = [real, everywhere(lattice, leaked, p)]
    if run:
        terms.append(everywhere(lattice, rounding(lattice, largest), p))
    return Bound.total(terms, named(p))


def choose(
    choices: Choices,
    seq_len: int,
    box: Box,
    tol: int | float | Fraction,
    *,
    decays: Sequence[Fraction] = DECAYS,
    margins: Sequence[int] = MARGINS,
    max_anchors: int = MAX_ANCHORS,
) -> Choice:
    """The lattice with the fewest anchors whose bound meets a tolerance.

    Args:
        choices: The bounds of lattices, such as `TracedBounds.choices`.
        seq_len: n.
        box: The domain of a token.
        tol: Allowed for the bound.
        decays: Values of D to try.
        margins: Margins m to try.
        max_anchors: More are not allowed.

    Raises:
        ToleranceError: If no lattice with so few anchors meets the tolerance.
        CertificateError: If the target has no bound at all.
    """
    search = _Search(choices, seq_len, box, Fraction(tol), decays, max_anchors)
    found: tuple[int, int] | None = None
    widest = max(margins)
    for m in margins:
        if m > widest:
            continue
        K = search.least(m)
        if K is not None:
            found = K, m
            search.points = K + 2 * m  # others must do with fewer
        if search.is_in_vain(m):
            break
        if search.is_wide_enough(m):
            widest = m
    if found is None:
        search.refuse()
    return min(search.tried(*found, BOXES), key=lambda choice: choice.bound.value)


def _is_wide(lattice: Lattice) -> bool:
    """Whether a wider margin would hardly change its constants."""
    own, ideal = lattice.constants, lattice_constants(lattice.D)
    return own.b <= ideal.b * ALIKE and own.m2 <= ideal.m2 * ALIKE


@dataclass
class _Search:
    """Lattices tried, for one tolerance."""

    choices: Choices
    seq_len: int
    box: Box
    tol: Fraction
    decays: Sequence[Fraction]
    max_anchors: int
    best: Choice | None = None
    met: Choice | None = None
    obstacle: CertificateError | None = None
    gain: tuple[int, float, float] | None = None  # if finer lattices gain little
    missed: tuple[int, float, float] | None = None  # K, bound / tol, order
    points: int = 1  # anchors along an axis, at most

    def __post_init__(self) -> None:
        N = self.seq_len * len(self.box.lows)
        while (self.points + 1) ** N <= self.max_anchors:
            self.points += 1

    def least(self, margin: int) -> int | None:
        """The least K for a margin that meets the tolerance, or None."""
        finest = self.points - 1 - 2 * margin
        if finest < 2:
            return None
        low, high = 1, 2
        order = 2.0
        before = math.inf
        if self.best is not None:  # of another margin: look at the finest first
            high = finest
        while (times := self.excess(high, margin)) > 1:
            if high == finest or (math.isinf(times) and high >= NO_HOPE):
                seen = 2.0  # the order, unless two lattices tell it
                if low >= TELLING and math.isfinite(before) and math.isfinite(times):
                    seen = math.log(before / times) / math.log(high / low)
                self.missed = high, times, seen
                return None
            # Means over anchors are of second order: finer lattices gain (finest / K)^2.
            slope = 2.0
            if math.isfinite(before):
                slope = math.log(before / times) / math.log(high / low)
                order = max(order, slope)
            gain = (finest / high) ** order
            many = finest ** (self.seq_len * len(self.box.lows)) > MANY_CELLS
            if many and high >= TELLING and times > OUT_OF_REACH * gain:
                self.gain = high, times, gain
                return None
            before = times
            # Of second order K sqrt(times) would do; at a kink the order is less.
            power = 1 / min(max(slope, SLOWEST), 2.0)
            aimed = 2.0 if math.isinf(times) else 0.85 * times**power
            step = min(max(aimed, SHORTEST_STEP), 4.0)
            aim = max(high + 1, int(high * step))
            low, high = high, finest if aim > NEAR_FINEST * finest else aim
        while high - low > 1:
            middle = (low + high) // 2
            if self.excess(middle, margin) > 1:
                low = middle
            else:
                high = middle
        return high

    def is_wide_enough(self, margin: int) -> bool:
        """Whether a wider margin would hardly change the constants of what was found.

        Or, if nothing was, of the best that failed: a wider margin leaves fewer cells.
        """
        one = self.met or self.best
        return one is not None and one.lattice.margin == margin and _is_wide(one.lattice)

    def is_in_vain(self, margin: int) -> bool:
        """Whether no other margin can help after one that failed.

        A wider one hardly changes the constants; a narrower one leaves room for 2 more
        cells per axis and step, which gain by the order that was seen.
        """
        if self.gain is not None:
            return True
        if self.missed is None or self.best is None or not _is_wide(self.best.lattice):
            return False
        K, times, order = self.missed
        finer = (K + 2 * (margin - 1)) / K
        return math.isfinite(times) and times > finer ** (order + ORDER_ROOM)

    def tried(self, K: int, margin: int, boxes: int) -> list[Choice]:
        """Values of D for a grid and a margin."""
        grid = Grid(K, self.seq_len, self.box)
        usable = [D for D in self.decays if (margin + 1) ** 2 * D >= 1]
        if self.best is not None and grid.sequences > MANY_CELLS:
            D = self.best.lattice.D
            usable = [E for E in usable if D / 2 <= E <= 3 * D / 2]
        if not usable:
            return []
        return self.choices([Lattice(grid, D, margin) for D in usable], boxes)

    def excess(self, K: int, margin: int) -> float:
        """The bound of the best D over the tolerance; infinite where there is no bound."""
        least = math.inf
        lattice = Lattice(Grid(K, self.seq_len, self.box), self.decays[0], margin)
        same = parts_of(lattice, FEW_BOXES) == parts_of(lattice)
        for boxes in (BOXES,) if same else (FEW_BOXES, BOXES):
            try:
                found = self.tried(K, margin, boxes)
            except CertificateError as error:
                self.obstacle = error
                return math.inf
            if not found:
                return math.inf
            best = min(found, key=lambda choice: choice.bound.value)
            if self.best is None or best.bound.value < self.best.bound.value:
                self.best = best
            least = round_up(best.bound.value / self.tol)
            if best.bound <= self.tol:
                self.met = best
                return min(least, 1.0)
            if least > HOPELESS:
                return least
        return max(least, math.nextafter(1.0, 2.0))

    def refuse(self) -> NoReturn:
        """Say what was asked for, what was found, and what to do.

        Raises:
            CertificateError: If no lattice had a bound.
            ToleranceError: If none was small enough.
        """
        if self.best is None and self.obstacle is not None:
            raise self.obstacle
        said = "no lattice is that small"
        if self.best is not None:
            lattice, bound = self.best.lattice, self.best.bound
            said = (
                f"the best has {lattice.anchors} anchors and the bound "
                f"{format_up(bound.value)}"
            )
            if self.gain is not None:
                K, times, gain = self.gain
                said += (
                    f". With {K} cells per axis the bound is {times:,.0f} times the "
                    f"tolerance, and finer lattices gain a factor of about {gain:.0f}"
                )
        msg = (
            f"No lattice with at most {self.max_anchors} anchors meets the tolerance "
            f"{float(self.tol):.4g}: {said}. Allow a larger tolerance, or more anchors."
        )
        raise ToleranceError(msg)
