"""Second-order forward differentiation over intervals or balls: value, slopes, curves.

A `SecondJet` holds an enclosure of f on a box, one of each partial derivative, and one of
each second partial derivative (a curve). Slopes follow `derivative`; curves follow

    (a + b)_kl = a_kl + b_kl        (a b)_kl = a_kl b + a_k b_l + a_l b_k + a b_kl
    (a / b)_kl = (a_kl - q_k b_l - q_l b_k - q b_kl) / b,  q = a / b
    g(a)_kl = g''(a) a_k a_l + g'(a) a_kl

        g      a^k                exp    log       sqrt              tanh           sin
        g'     k a^(k-1)          exp    1 / a     1 / (2 sqrt a)    1 - tanh^2     cos
        g''    k (k-1) a^(k-2)    exp    -1 / a^2  -g' / (2 a)       -2 tanh g'     -sin

    and (a log a)' = 1 + log a, (a log a)'' = 1 / a

    |a|, min(a, b), max(a, b): the curves of the branch that the box decides *strictly*
    (a > 0, a < b, by 2^-1000 at least); else nothing is known of them.
    where(c, a, b): the curves of the branch that the box decides; else nothing is known.

Why strictly. |x| equals x on [0, 1] and -x on [-1, 0], so both boxes decide it and both
curves are 0; on their union |x| is not twice differentiable. Where a > 0 on a closed box it
is so around the box: |a| = a near every point of it, and two boxes that share a point have
the same branch there. So if a set of closed boxes covers a box, and no curve of any is
undecided, then f is twice continuously differentiable on all of it (a composition of smooth
functions near every point), and its second derivatives lie in the hull of the curves.

For `where` c <= 0 need not be strict. If two closed boxes decide it, they decide alike at
the points that they share, and so everywhere: on both f is the same branch, which is smooth
near both.

Undecided is [-inf, inf] or nan: a kink, a root or a logarithm at 0, a division by 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

from everyformer.numerics.derivative import Differentiated, Jet, Parts

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class SecondJet:
    """A value, its slopes and its curves.

    Attributes:
        first: The value and the slopes.
        curves: For each pair of variables' numbers, smaller first, an enclosure of the
            second partial derivative on the box. A pair that is missing has 0, exactly.
    """

    first: Jet
    curves: Mapping[Pair, Any] = field(default_factory=dict[Pair, Any])

    @property
    def value(self) -> Any:
        """An enclosure of the value on the box."""
        return self.first.value

    @property
    def slopes(self) -> Mapping[Any, Any]:
        """Enclosures of the partial derivatives."""
        return self.first.slopes


class TwiceDifferentiated(Parts):
    """The operations of an `Expression` on second-order jets.

    Args:
        arithmetic: As for `Differentiated`. The variables' numbers must be comparable.

    Example:
        >>> from everyformer.numerics.balls import BallArithmetic
        >>> balls = BallArithmetic()
        >>> jets = TwiceDifferentiated(balls)
        >>> x = jets.variable(balls.box(3.0, 3.0), "x")
        >>> y = jets.variable(balls.box(5.0, 5.0), "y")
        >>> product = jets.mul(jets.mul(x, x), y)
        >>> [balls.ends(product.curves[pair])[0] for pair in (("x", "x"), ("x", "y"))]
        [10.0, 6.0]
        >>> zero = jets.variable(balls.box(-1.0, 1.0), "x")
        >>> balls.ends(jets.abs(zero).curves["x", "x"])
        (-inf, inf)
    """

    def __init__(self, arithmetic: Any) -> None:
        super().__init__(arithmetic)
        self._jets = Differentiated(arithmetic)

    def constant(self, value: Fraction) -> SecondJet:
        """A rational; no slopes, no curves."""
        return SecondJet(self._jets.constant(value))

    def variable(self, value: Any, number: Any) -> SecondJet:
        """The variable with this number; its slope is 1."""
        return SecondJet(self._jets.variable(value, number))

    def _products(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> dict[Pair, Any]:
        """a_k b_l + a_l b_k for all pairs."""
        result: dict[Pair, Any] = {}
        for k, slope in a.items():
            for other, b_slope in b.items():
                pair = (k, other) if k <= other else (other, k)
                term = self._on.mul(slope, b_slope)
                term = self._on.add(term, term) if k == other else term
                result[pair] = self._on.add(result[pair], term) if pair in result else term
        return result

    def _chain(
        self, first: Jet, factor: Any, second: Callable[[], Any], a: SecondJet
    ) -> Any:
        """g(a), where factor encloses g' on a, and second() g''."""
        if not a.slopes:
            return SecondJet(first)
        bend = second()
        squares = {
            (k, m): self._on.mul(bend, self._on.mul(a.slopes[k], a.slopes[m]))
            for k, m in combinations_with_replacement(sorted(a.slopes), 2)
        }
        return SecondJet(first, self._sum(squares, self._scaled(factor, a.curves)))

    def _branch(
        self, first: Jet, above: Any, below: Any, a: SecondJet, b: SecondJet
    ) -> SecondJet:
        """The curves of a where above, of b where below, else undecided."""
        pairs = combinations_with_replacement(sorted({**a.slopes, **b.slopes}), 2)
        return SecondJet(first, self._decided(above, below, pairs, a.curves, b.curves))

    def where(self, c: SecondJet, a: SecondJet, b: SecondJet) -> SecondJet:
        """a where c > 0, b where c <= 0."""
        first, second = self._jets.decides(c.value)
        value = self._jets.where(c.first, a.first, b.first)
        everything = SecondJet(Jet(c.value, {**c.slopes, **b.slopes}), b.curves)
        return self._branch(value, first, second, a, everything)

    def _exceeds(self, a: Any, b: Any) -> Any:
        """Where a > b is certain, strictly."""
        return self._on.below(self._apart, self._on.sub(a, b))

    def neg(self, a: SecondJet) -> SecondJet:
        """-a."""
        return SecondJet(self._jets.neg(a.first), self._negated(a.curves))

    def add(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """a + b."""
        return SecondJet(self._jets.add(a.first, b.first), self._sum(a.curves, b.curves))

    def sub(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """a - b."""
        curves = self._sum(a.curves, self._negated(b.curves))
        return SecondJet(self._jets.sub(a.first, b.first), curves)

    def mul(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """a * b; a square if both are the same object."""
        if a is b:
            return self.pow(a, 2)
        bent = self._sum(self._scaled(b.value, a.curves), self._scaled(a.value, b.curves))
        curves = self._sum(bent, self._products(a.slopes, b.slopes))
        return SecondJet(self._jets.mul(a.first, b.first), curves)

    def div(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """a / b."""
        quotient = self._jets.div(a.first, b.first)
        moved = self._sum(
            self._products(quotient.slopes, b.slopes),
            self._scaled(quotient.value, b.curves),
        )
        curves = self._sum(a.curves, self._negated(moved))
        if not curves:
            return SecondJet(quotient)
        inverse = self._on.div(self._one, b.value)
        return SecondJet(quotient, self._scaled(inverse, curves))

    def pow(self, a: SecondJet, exponent: int) -> SecondJet:
        """a^k."""
        first = self._jets.pow(a.first, exponent)
        if exponent == 0:
            return SecondJet(first)
        if exponent == 1:
            return SecondJet(first, a.curves)
        k = Fraction(exponent)
        lower = self._on.pow(a.value, exponent - 1)
        factor = self._on.mul(lower, self._on.constant(k))
        if exponent == 2:
            return self._chain(first, factor, lambda: self._on.constant(k), a)
        lowest = self._on.pow(a.value, exponent - 2)
        twice = self._on.constant(k * (k - 1))
        return self._chain(first, factor, lambda: self._on.mul(lowest, twice), a)

    def exp(self, a: SecondJet) -> SecondJet:
        """e^a."""
        first = self._jets.exp(a.first)
        return self._chain(first, first.value, lambda: first.value, a)

    def log(self, a: SecondJet) -> SecondJet:
        """The natural logarithm."""
        inverse = self._on.div(self._one, a.value)
        first = self._jets.log(a.first)
        return self._chain(first, inverse, lambda: self._on.neg(self._square(inverse)), a)

    def xlogx(self, a: SecondJet) -> SecondJet:
        """a log a."""
        factor = self._on.add(self._one, self._on.log(a.value))
        inverse = self._on.div(self._one, a.value)
        return self._chain(self._jets.xlogx(a.first), factor, lambda: inverse, a)

    def _square(self, a: Any) -> Any:
        return self._on.pow(a, 2)

    def sqrt(self, a: SecondJet) -> SecondJet:
        """The square root."""
        first = self._jets.sqrt(a.first)
        factor = self._on.div(self._half, first.value)

        def second() -> Any:
            return self._on.neg(self._on.div(self._on.mul(self._half, factor), a.value))

        return self._chain(first, factor, second, a)

    def tanh(self, a: SecondJet) -> SecondJet:
        """The hyperbolic tangent."""
        first = self._jets.tanh(a.first)
        factor = self._on.sub(self._one, self._square(first.value))
        twice = self._on.constant(Fraction(-2))

        def second() -> Any:
            return self._on.mul(self._on.mul(twice, first.value), factor)

        return self._chain(first, factor, second, a)

    def sin(self, a: SecondJet) -> SecondJet:
        """sin a."""
        first = self._jets.sin(a.first)
        factor = self._on.cos(a.value) if a.slopes else self._zero
        return self._chain(first, factor, lambda: self._on.neg(first.value), a)

    def cos(self, a: SecondJet) -> SecondJet:
        """cos a."""
        first = self._jets.cos(a.first)
        factor = self._on.neg(self._on.sin(a.value)) if a.slopes else self._zero
        return self._chain(first, factor, lambda: self._on.neg(first.value), a)

    def abs(self, a: SecondJet) -> SecondJet:
        """|a|."""
        plus = self._exceeds(a.value, self._zero)
        minus = self._exceeds(self._zero, a.value)
        return self._branch(self._jets.abs(a.first), plus, minus, a, self.neg(a))

    def min(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """The smaller of both."""
        first, second = self._exceeds(b.value, a.value), self._exceeds(a.value, b.value)
        return self._branch(self._jets.min(a.first, b.first), first, second, a, b)

    def max(self, a: SecondJet, b: SecondJet) -> SecondJet:
        """The larger of both."""
        first, second = self._exceeds(a.value, b.value), self._exceeds(b.value, a.value)
        return self._branch(self._jets.max(a.first, b.first), first, second, a, b)
