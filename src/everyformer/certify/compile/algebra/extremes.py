"""Maxima, minima, absolute values and choices: rule R5.

    max and min   of flattened sets: max(max(a, b), c) = max{a, b, c}
                  max{t_k + h} = max{t_k} + h, with h as in R4, if the set is short
                  max{s t_k} = s max{t_k} for rational s > 0
                  max{t, t + c} = t + c for rational c >= 0
                  max{t, t + p, t - q p} = max{t + p, t - q p} for rational q > 0
                  min{t, c} = t + c - max{t, c} for rational c
    |t|           max{t, -t};  relu(t) = max{t, 0}
    products of ramps, and maxima of broken lines of one number: see `ramps`
    where(c, a, b)   a if c > 0, else b: see `choices`

So relu(-t) = relu(t) - t, |t| = 2 relu(t) - t and max{a, b} = a + relu(b - a) are seen, and
a clip is relu(t) - relu(t - 1). All of these hold wherever all elements are defined; f
computes all elements of a maximum.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from everyformer.certify.compile.algebra.choices import Choices
from everyformer.certify.compile.algebra.ramps import MAX_LENGTH
from everyformer.certify.compile.algebra.terms import Term, common_denominator

MAX_DEPTH = 4
"""How often a set is flattened anew after what its elements have in common was removed."""

MAX_SHIFTED = 512
"""What all elements have in common is taken out of sets of at most so many monomials."""

MAX_COMPARED = 24
"""Elements of a set that are looked for between each two others."""


class Extremes(Choices):
    """Quotients with maxima, minima and choices."""

    def max(self, a: Term, b: Term) -> Term:
        """The larger one."""
        return self._extreme("max", (a, b))

    def min(self, a: Term, b: Term) -> Term:
        """The smaller one."""
        return self._extreme("min", (a, b))

    def maximum(self, terms: Sequence[Term]) -> Term:
        """The largest one, of one or more."""
        return self._extreme("max", terms)

    def minimum(self, terms: Sequence[Term]) -> Term:
        """The smallest one, of one or more."""
        return self._extreme("min", terms)

    def relu(self, a: Term) -> Term:
        """max{a, 0}."""
        return self._extreme("max", (a, self.zero))

    def abs(self, a: Term) -> Term:
        """max{a, -a}."""
        return self._extreme("max", (a, self.neg(a)))

    def _extreme(self, kind: str, terms: Sequence[Term], depth: int = 0) -> Term:
        found: dict[Term, None] = {}
        for t in terms:
            found.update(dict.fromkeys(self._leaves(kind, t)))
        leaves = self._outermost(self._undominated(kind, list(found)))
        self.spend(len(leaves))
        if len(leaves) == 1:
            return leaves[0]
        broken = self._broken(kind, leaves)
        if broken is not None:
            return broken
        if kind == "min" and len(leaves) == 2:
            a, b = leaves
            if self.rational(a) is not None or self.rational(b) is not None:
                return self.sub(self.add(a, b), self.max(a, b))
        shift, scale, leaves = self.without_common(leaves)
        if depth < MAX_DEPTH and any(len(self._leaves(kind, t)) > 1 for t in leaves):
            rest = self._extreme(kind, leaves, depth + 1)  # what was taken out hid a max
            return self.affine([(scale, rest), (Fraction(1), shift)], Fraction(0))
        if kind == "min" and len(leaves) == 2:
            a, b = leaves
            if self.rational(a) is not None or self.rational(b) is not None:
                smaller = self.sub(self.add(a, b), self.max(a, b))
                return self.add(shift, self.scaled(smaller, scale))
        leaves.sort(key=lambda t: t.serial)
        if kind == "max" and len(leaves) == 2:
            atom = self.maximum_of_two(*leaves)
        else:
            atom = self.atom_term(kind, tuple(leaves))
        return self.affine([(scale, atom), (Fraction(1), shift)], Fraction(0))

    def _broken(self, kind: str, leaves: list[Term]) -> Term | None:
        """The maximum or minimum of broken lines of one number, if that is what it is."""
        if len(leaves[0]) + len(leaves[1]) > MAX_LENGTH:
            return None
        if kind == "max":
            return self.largest_line(leaves)
        largest = self.largest_line([self.neg(t) for t in leaves])
        return None if largest is None else self.neg(largest)

    def ramp(self, number: Term, knot: Fraction) -> Term:
        """relu(P - k)."""
        return self.relu(self.sub(number, self.constant(knot)))

    def without_common(self, leaves: list[Term]) -> tuple[Term, Fraction, list[Term]]:
        """The parts h, s and t_k of terms h + s t_k, s > 0; h = 0 for long lists."""
        shift = self.zero
        if sum(map(len, leaves)) <= MAX_SHIFTED:
            shift = self.common(leaves)
            if shift is not self.zero:
                leaves = [self.sub(t, shift) for t in leaves]
        scale = self._scale(leaves)
        if scale != 1:
            leaves = [self.scaled(t, 1 / scale) for t in leaves]
        return shift, scale, leaves

    def _leaves(self, kind: str, t: Term) -> Sequence[Term]:
        """The set of which t is the maximum: r + s e, for r + s max{e}, s > 0.

        A term with several maxima, or a set that would become long, is one element.
        """
        places: list[tuple[int, tuple[Term, ...]]] = []
        for m in t.numerators:
            atom = self.single_atom(m)
            if atom is not None and self.atom_parts(atom)[0] == kind:
                places.append((m, self.atom_parts(atom)[1]))
        if len(places) != 1:
            pieces = self.straight_pieces(t) if kind == "max" and places else None
            return pieces or (t,)
        ((m, arguments),) = places
        scale = t.coefficient(m)
        if scale == 1 and len(t) == 1:
            return arguments
        if scale < 0 or (len(t) + max(map(len, arguments))) * len(arguments) > MAX_SHIFTED:
            return (t,)
        numerators = {n: c for n, c in t.numerators.items() if n != m}
        rest = self.term(numerators, t.denominator)
        return [self.add(rest, self.scaled(e, scale)) for e in arguments]

    def _undominated(self, kind: str, leaves: list[Term]) -> list[Term]:
        """Of elements that differ by a number only the largest, or smallest."""
        if not any(0 in t.numerators for t in leaves):
            return leaves
        best: dict[Term, Fraction] = {}
        for t in leaves:
            number = t.coefficient(0)
            rest = self.sub(t, self.constant(number))
            if rest in best:
                choose = max if kind == "max" else min
                number = choose(number, best[rest])
            best[rest] = number
        return [self.add(t, self.constant(number)) for t, number in best.items()]

    def _outermost(self, leaves: list[Term]) -> list[Term]:
        """The elements that do not lie between two others, as 0 does between t and -t.

        At every x an element is a linear function of its coefficients, and the largest and
        the smallest of a finite set of points are taken at corners of its convex hull. No
        corner lies between two points of the set: leaving out all that do, at once, changes
        neither maximum nor minimum.
        """
        few = 2 < len(leaves) <= MAX_COMPARED
        if not few or sum(map(len, leaves)) > MAX_SHIFTED:
            return leaves
        return [t for t in leaves if not self._is_between(t, leaves)]

    def _is_between(self, t: Term, others: Sequence[Term]) -> bool:
        """Whether t + p and t - q p are there, for some p and a rational q > 0."""
        seen: dict[Term, bool] = {}
        for other in others:
            if other is not t:
                scalar, direction = self.primitive(self.sub(other, t))
                if seen.setdefault(direction, scalar > 0) != (scalar > 0):
                    return True
        return False

    @staticmethod
    def _scale(leaves: list[Term]) -> Fraction:
        """The largest s > 0 such that all coefficients are integer multiples of s."""
        denominator = common_denominator(t.denominator for t in leaves)
        numbers = (
            c * (denominator // t.denominator)
            for t in leaves
            for c in t.numerators.values()
        )
        return Fraction(math.gcd(*numbers) or denominator, denominator)
