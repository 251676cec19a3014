"""Normal forms: f's own program and the network's ideal program, as terms to compare.

    algebra = Algebra()
    wanted = expression.run(algebra, algebra.entry)
    wanted[j][i] is algebra.affine(...)

Both sides are built with the same operations of the same `Algebra`. If they end in the same
object, they are equal wherever both are defined (`terms`); if not, nothing is known. The
rules stand at the head of `terms` (R1, R2), `quotients` (R3, R4), `extremes`, `choices`,
`ramps` and `pieces` (R5) and `sorting` (R6); the functions of one number are here.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from everyformer.certify.compile.algebra.sorting import Sorting
from everyformer.certify.compile.algebra.terms import LIMIT, Term
from everyformer.targets.box import Box


class Algebra(Sorting):
    """The terms of one proof. Equal functions, as far as the rules see, are one object.

    Args:
        limit: Coefficients that may be written before a proof is given up.
        box: The domain of a token, on which equal terms are equal; without one, wherever
            both are defined.

    Example:
        >>> algebra = Algebra()
        >>> x, y = algebra.entry(0, 0), algebra.entry(0, 1)
        >>> both = algebra.pow(algebra.add(x, y), 2), algebra.pow(algebra.sub(x, y), 2)
        >>> quarter = algebra.constant(Fraction(1, 4))
        >>> algebra.mul(algebra.sub(*both), quarter) is algebra.mul(y, x)
        True
        >>> algebra.sqrt(algebra.pow(x, 2)) is algebra.abs(x)
        False
    """

    def __init__(self, limit: int = LIMIT, box: Box | None = None) -> None:
        """Begin with no terms but numbers."""
        super().__init__(limit, box)
        self._weights: dict[tuple[int, ...], list[Term]] = {}

    def function(self, name: str, arguments: Sequence[Term]) -> Term:
        """An operation by its name."""
        if name in {"max", "min"}:
            return self.maximum(arguments) if name == "max" else self.minimum(arguments)
        return getattr(self, name)(*arguments)

    def log(self, a: Term) -> Term:
        """The logarithm, of exp(g) b with R4's g: g + log b. b > 0 where a > 0."""
        if a is self.zero:
            return self.atom_term("log", (a,))
        _, (_, g), _ = self.content(a)
        if g is None:
            return self.zero if a is self.one else self.atom_term("log", (a,))
        rest = self.mul(a, self.exp(self.neg(g)))
        logarithm = self.zero if rest is self.one else self.atom_term("log", (rest,))
        return self.add(g, logarithm)

    def sin(self, a: Term) -> Term:
        """The sine, an odd function."""
        if a is self.zero:
            return a
        scalar, _ = self.primitive(a)
        if scalar < 0:
            return self.neg(self.atom_term("sin", (self.neg(a),)))
        return self.atom_term("sin", (a,))

    def cos(self, a: Term) -> Term:
        """The cosine, an even function."""
        if a is self.zero:
            return self.one
        scalar, _ = self.primitive(a)
        return self.atom_term("cos", (self.neg(a) if scalar < 0 else a,))

    def tanh(self, a: Term) -> Term:
        """The hyperbolic tangent, 1 - 2 / (1 + exp(2 a))."""
        half = self.inverse(self.add(self.one, self.exp(self.scaled(a, Fraction(2)))))
        return self.affine([(Fraction(-2), half)], Fraction(1))

    def logistic(self, a: Term) -> Term:
        """1 / (1 + exp(-a))."""
        return self.inverse(self.add(self.one, self.exp(self.neg(a))))

    def xlogx(self, a: Term) -> Term:
        """A log a, and 0 at a = 0. Not the product a log a, which is not defined there."""
        return self.atom_term("xlogx", (a,))

    def sqrt(self, a: Term) -> Term:
        """The root; rational factors stand outside of it.

        Both sides are defined where p >= 0. The squares of small primes in c, and c itself
        if it is a square, become a number.
        """
        if a is self.zero:
            return a
        number, p = self.primitive(a)
        if number < 0:
            number, p = -number, self.neg(p)
        whole, rest = _square_part(number)
        root = super().sqrt(p)
        if rest != 1:
            root = self.mul(super().sqrt(self.constant(rest)), root)
        return self.scaled(root, whole)

    def power(self, a: Term, s: Fraction) -> Term:
        """a^s for integers s; sqrt(a)^(2 s) if 2 s is an integer.

        Raises:
            ValueError: If 2 s is not an integer.
        """
        if s.denominator == 1:
            return self.pow(a, s.numerator)
        if s.denominator != 2:
            msg = f"The power {s} has no term: give a multiple of 1/2."
            raise ValueError(msg)
        return self.pow(self.sqrt(a), s.numerator)

    def softmax_average(self, scores: Sequence[Term], values: Sequence[Term]) -> Term:
        """sum_k e^(s_k) v_k / sum_k e^(s_k).

        The weights of the same scores are made once. Values that are all equal are the
        average.
        """
        if all(value is values[0] for value in values):
            return values[0]
        key = tuple(score.serial for score in scores)
        weights = self._weights.get(key)
        if weights is None:
            powers = [self.exp(score) for score in scores]
            total = self.affine([(Fraction(1), power) for power in powers], Fraction(0))
            weights = self._weights[key] = [self.div(power, total) for power in powers]
        one = Fraction(1)
        pairs = zip(weights, values, strict=True)
        return self.affine([(one, self.mul(w, v)) for w, v in pairs], Fraction(0))


def _square_part(value: Fraction) -> tuple[Fraction, Fraction]:
    """The parts q, r of q^2 r = value > 0; r is an integer, and 1 if value is a square.

    Example:
        >>> _square_part(Fraction(8, 9)), _square_part(Fraction(1, 2))
        ((Fraction(2, 3), Fraction(2, 1)), (Fraction(1, 2), Fraction(2, 1)))
    """
    parts: list[tuple[int, int]] = []
    for number in (value.numerator, value.denominator):
        root = math.isqrt(number)
        if root * root == number:
            parts.append((root, 1))
            continue
        outside, inside = 1, number
        for prime in (2, 3, 5, 7):
            while inside % (prime * prime) == 0:
                outside, inside = outside * prime, inside // (prime * prime)
        parts.append((outside, inside))
    (top, over), (bottom, under) = parts
    return Fraction(top, bottom * under), Fraction(over * under)
