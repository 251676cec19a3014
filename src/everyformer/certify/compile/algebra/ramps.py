"""Ramps of one number: rule R5 for products of them, and for maxima of broken lines.

A maximum of two terms is a multiple of a ramp, in one way: with P = p - q less its number,
divided so that its coefficients are coprime integers, the first one positive,

    max{p, q} = B + s relu(P - k),   s > 0 and k rational, B = p or q.

Ramps with the same P are functions of one number, and P - j > 0 where P - k > 0, j <= k:

    relu(P - j) relu(P - k) = (P - j) relu(P - k)   for j <= k
    max{a + b P + sum_k c_k relu(P - k), ..}        the broken line that is the largest

So sums of c_k (P - k)^m for P > k, which are the piecewise polynomials that are continuous,
are written in one way: p + sum_k p_k relu(P - k), p and p_k polynomials. Both sides are
defined where P is.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from everyformer.certify.compile.algebra.quotients import Product, Quotients
from everyformer.certify.compile.algebra.terms import Term, merged

ONE = Fraction(1)

MAX_LENGTH = 12
"""Monomials of p and q together; ramps of longer sums are not multiplied out."""

MAX_KNOTS = 64
"""Of a broken line."""


@dataclass(frozen=True)
class Ramp:
    """max{p, q} = base + scale relu(number - knot)."""

    base: Term
    scale: Fraction
    number: Term
    knot: Fraction


@dataclass(frozen=True)
class BrokenLine:
    """offset + slope t + sum of bends[k] relu(t - k), a function of the number t."""

    offset: Fraction
    slope: Fraction
    bends: dict[Fraction, Fraction]

    def at(self, t: Fraction) -> Fraction:
        """The value."""
        ramps = sum((c * max(t - k, 0) for k, c in self.bends.items()), Fraction(0))
        return self.offset + self.slope * t + ramps

    def from_(self, t: Fraction) -> Fraction:
        """The slope just above t."""
        return self.slope + sum((c for k, c in self.bends.items() if k <= t), Fraction(0))


class Ramps(Quotients, ABC):
    """Quotients, with products of ramps."""

    def __init__(self, *limit: int) -> None:
        """Begin without any."""
        super().__init__(*limit)
        self._ramps: dict[int, Ramp] = {}
        self._ramp_products: dict[tuple[int, int], Term] = {}

    def maximum_of_two(self, p: Term, q: Term) -> Term:
        """The atom max{p, q}, p and q in the order of their numbers."""
        atom = self.atom("max", (p, q))
        if atom not in self._ramps and len(p) + len(q) <= MAX_LENGTH:
            gap = self.sub(p, q)
            number = gap.coefficient(0)
            rest = self.sub(gap, self.constant(number))
            if rest is not self.zero:
                s, P = self.primitive(rest)
                self._ramps[atom] = Ramp(q if s > 0 else p, abs(s), P, -number / s)
                self.simplified_atoms.add(atom)
        return self.power_of(atom)

    def opened_product(self, product: Product) -> Sequence[Product] | None:
        """A sum in place of two ramps of one number, or what quotients make of it."""
        opened = super().opened_product(product)
        if opened is not None:
            return opened
        scalar, factors, exponent = product
        first: dict[Term, int] = {}
        for atom, k in factors:
            ramp = self._ramps.get(atom)
            if ramp is None or k <= 0:
                continue
            other = atom if k > 1 else first.setdefault(ramp.number, atom)
            if other == atom and k == 1:
                continue
            both = ((atom, -2),) if other == atom else ((other, -1), (atom, -1))
            rest = merged(factors, tuple(sorted(both)))
            by = self._ramp_product(other, atom)
            return self.expanded((scalar, rest, exponent), by)
        return None

    def _ramp_product(self, first: int, second: int) -> Term:
        """U V = B V + C (U - B) + s (P - j) (V - C), U = B + s relu(P - j), V = C + .."""
        found = self._ramp_products.get((first, second))
        if found is None:
            pair = sorted((first, second), key=lambda atom: self._ramps[atom].knot)
            (u, v) = (self._ramps[atom] for atom in pair)
            U, V = map(self.power_of, pair)
            over = self.scaled(self.sub(u.number, self.constant(u.knot)), u.scale)
            parts = [
                self.mul(u.base, V),
                self.mul(v.base, self.sub(U, u.base)),
                self.mul(over, self.sub(V, v.base)),
            ]
            found = self.affine([(Fraction(1), part) for part in parts], Fraction(0))
            self._ramp_products[first, second] = found
        return found

    def largest_line(self, terms: Sequence[Term]) -> Term | None:
        """The maximum, if the terms differ by broken lines of one number; else None.

        None too for two that differ by a straight line: that is a ramp.
        """
        number: Term | None = None
        lines: list[BrokenLine] = [BrokenLine(Fraction(0), Fraction(0), {})]
        for t in terms[1:]:
            gap = self.sub(t, terms[0])
            found = self._broken_line(gap, number)
            if found is None:
                return None
            own, line = found
            number = number or own
            lines.append(line)
        knots = {k for line in lines for k in line.bends}
        if number is None or len(knots) > MAX_KNOTS or (len(terms) == 2 and not knots):
            return None
        largest = lines[0]
        for line in lines[1:]:
            largest = _larger(largest, line)
        ramps = [
            (c, self.ramp(number, knot)) for knot, c in sorted(largest.bends.items()) if c
        ]
        parts = [(Fraction(1), terms[0]), (largest.slope, number), *ramps]
        return self.affine(parts, largest.offset)

    def straight_pieces(self, t: Term) -> list[Term] | None:
        """The terms of which t is the maximum, if it is r + c_j relu(P - j) + .., c_j > 0.

        Between knots these are straight lines, and t is the largest of those everywhere.
        """
        found = [(ramp.knot, m, ramp) for m, ramp in self._ramps_in(t)]
        if any(ramp.number is not found[0][2].number for _, _, ramp in found):
            return None
        if len(found) < 2 or min(t.coefficient(m) for _, m, _ in found) < 0:
            return None
        found.sort(key=lambda each: each[0])
        pieces = [self.affine([(ONE, t), *self._flattened(t, found)], Fraction(0))]
        for knot, m, ramp in found:
            steep = t.coefficient(m) * ramp.scale
            line = [(ONE, pieces[-1]), (steep, ramp.number)]
            pieces.append(self.affine(line, -steep * knot))
        return pieces

    def _ramps_in(self, t: Term) -> Iterator[tuple[int, Ramp]]:
        """The monomials of a term that are ramps as they are, each with its ramp."""
        for m in self.special_among(t.numerators):
            atom = self.single_atom(m)
            if atom in self._ramps:
                yield m, self._ramps[atom]

    def _flattened(
        self, t: Term, ramps: list[tuple[Fraction, int, Ramp]]
    ) -> list[tuple[Fraction, Term]]:
        """What takes s relu(P - k) out of B + s relu(P - k), for each of these in t."""
        parts: list[tuple[Fraction, Term]] = []
        for _, m, ramp in ramps:
            c = t.coefficient(m)
            parts += [(-c, self.term({m: 1}, 1)), (c, ramp.base)]
        return parts

    @abstractmethod
    def ramp(self, number: Term, knot: Fraction) -> Term:
        """relu(P - k)."""

    def _broken_line(
        self, t: Term, number: Term | None
    ) -> tuple[Term | None, BrokenLine] | None:
        """A term as a broken line of a number; which one, if that is not yet known."""
        bends: dict[Fraction, Fraction] = {}
        parts: list[tuple[Fraction, Term]] = [(Fraction(1), t)]
        for m, ramp in self._ramps_in(t):
            number = number or ramp.number
            if ramp.number is not number:
                return None
            c = t.coefficient(m)
            bends[ramp.knot] = bends.get(ramp.knot, Fraction(0)) + c * ramp.scale
            parts += [(-c, self.term({m: 1}, 1)), (c, ramp.base)]
        rest = self.affine(parts, Fraction(0)) if bends else t
        offset = rest.coefficient(0)
        rest = self.sub(rest, self.constant(offset))
        slope = Fraction(0)
        if rest is not self.zero:
            slope, own = self.primitive(rest)
            number = number or own
            if own is not number:
                return None
        return number, BrokenLine(offset, slope, bends)


def _larger(a: BrokenLine, b: BrokenLine) -> BrokenLine:
    """The larger of two broken lines, exactly.

    Between neighbouring knots both are straight, so they cross at most once there. With all
    crossings among the knots the larger one is straight between them too.
    """
    knots = sorted(a.bends.keys() | b.bends.keys())
    crossings: list[Fraction] = []
    ends = [knots[0] - 1, *knots] if knots else [Fraction(0)]
    for i, start in enumerate(ends):
        gap = a.at(start) - b.at(start)
        steep = a.from_(start) - b.from_(start)
        if steep == 0:
            continue
        t = start - gap / steep
        after = ends[i + 1] if i + 1 < len(ends) else None
        if (t > start or i == 0) and (after is None or t < after):
            crossings.append(t)
    places = sorted({*knots, *crossings})
    if not places:  # parallel, or equal
        return a if a.at(Fraction(0)) >= b.at(Fraction(0)) else b
    middle = [(s + t) / 2 for s, t in pairwise(places)]
    probes = [places[0] - 1, *middle, places[-1] + 1]
    above = [a if a.at(t) >= b.at(t) else b for t in probes]
    slopes = [line.from_(t) for line, t in zip(above, probes, strict=True)]
    bends = {
        place: after - before
        for place, (before, after) in zip(places, pairwise(slopes), strict=True)
        if after != before
    }
    first = above[0]
    offset = first.at(probes[0]) - slopes[0] * probes[0]
    return BrokenLine(offset, slopes[0], bends)
