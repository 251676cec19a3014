"""Forward differentiation over intervals or balls: a value and its slopes.

A `Jet` holds an enclosure of f on a box and one of each partial derivative there:

    (a + b)' = a' + b'          (a b)' = a' b + a b'       (a / b)' = (a' - (a / b) b') / b
    (a^k)' = k a^(k-1) a'       exp(a)' = exp(a) a'        log(a)' = a' / a
    sin(a)' = cos(a) a'         cos(a)' = -sin(a) a'       sqrt(a)' = a' / (2 sqrt(a))
    tanh(a)' = (1 - tanh(a)^2) a'                          (a log a)' = (1 + log(a)) a'
    |a|', min(a, b)', max(a, b)': the branch where the box decides it, else the hull of both
    where(c, a, b)': the branch where the box decides it, else nothing is known

What the slopes are for: for x and y in the box,

    f(x) - f(y)  is in  sum_k slope_k * (x_k - y_k).

Why this holds with abs, min and max. Where the box decides, f equals the branch on the
whole box, ends included. Elsewhere f is locally Lipschitz. Its generalised gradient
(Clarke) is a convex set with rules that are inclusions: that of max(a, b) lies in the hull
of those of a and b, that of g(a) in g' times that of a, that of a product or a quotient in
the formulas above (Clarke, Optimization and Nonsmooth Analysis, Section 2.3). So each slope
contains the k-th component of every generalised gradient on the box. Lebourg's mean value
theorem (there, 2.3.7) gives f(x) - f(y) = g . (x - y) for one such g on the segment from x
to y. Where f is not Lipschitz (sqrt at 0, division by 0), a slope is infinite or nan, and
nothing is claimed.

`where` may jump. A closed box decides it only if c > 0 at all of its points, or c <= 0 at
all of them; there it equals its branch, and the above holds for the branches. On every
other box the slopes by all variables of a, b *and* c are undecided. Slopes of several
closed boxes may still be joined. If the boxes together make up a box, a segment from x to y
is cut where it passes from one to the next; f has one value at the cut, and the differences
add up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

APART = Fraction(1, 2**1000)
"""Two numbers at least this far apart are different, whatever rounding did."""


@dataclass(frozen=True)
class Jet:
    """A value and its slopes.

    Attributes:
        value: An enclosure of the value on the box.
        slopes: For each variable's number, an enclosure of the partial derivative on the
            box. A variable that is missing has slope 0, exactly.
    """

    value: Any
    slopes: Mapping[Any, Any] = field(default_factory=dict[Any, Any])


class Parts:
    """Parts of jets, slopes or curves, by the numbers of their variables."""

    def __init__(self, arithmetic: Any) -> None:
        self._on = arithmetic
        self._zero = arithmetic.constant(Fraction(0))
        self._one = arithmetic.constant(Fraction(1))
        self._half = arithmetic.constant(Fraction(1, 2))
        self._apart = arithmetic.constant(APART)
        self._undecided = arithmetic.log(arithmetic.constant(Fraction(-1)))

    def _sum(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> dict[Any, Any]:
        both = {k: self._on.add(a[k], b[k]) for k in a if k in b}
        return {**a, **b, **both}

    def _scaled(self, factor: Any, parts: Mapping[Any, Any]) -> dict[Any, Any]:
        return {k: self._on.mul(factor, part) for k, part in parts.items()}

    def _negated(self, parts: Mapping[Any, Any]) -> dict[Any, Any]:
        return {k: self._on.neg(part) for k, part in parts.items()}

    def _decided(
        self,
        first: Any,
        second: Any,
        numbers: Iterable[Any],
        a: Mapping[Any, Any],
        b: Mapping[Any, Any],
    ) -> dict[Any, Any]:
        """The parts of a where first, of b where second, else undecided."""
        decided = first | second
        found: dict[Any, Any] = {}
        for k in numbers:
            ends = (parts.get(k, self._zero) for parts in (a, b))
            chosen = self._on.select(first, second, *ends)
            found[k] = self._on.select(decided, decided, chosen, self._undecided)
        return found


class Differentiated(Parts):
    """The operations of an `Expression` on jets.

    Args:
        arithmetic: The operations on values and slopes: those of an `Expression`,
            `below(a, b)`, where a <= b is certain, and `select(first, second, a, b)`:
            a where first, else b where second, else the hull of both.

    Example:
        >>> from everyformer.numerics.balls import BallArithmetic
        >>> balls = BallArithmetic()
        >>> jets = Differentiated(balls)
        >>> x = jets.variable(balls.box(3.0, 3.0), "x")
        >>> balls.ends(jets.mul(x, x).slopes["x"])
        (6.0, 6.0)
    """

    def constant(self, value: Fraction) -> Jet:
        """A rational; no slopes."""
        return Jet(self._on.constant(value))

    def variable(self, value: Any, number: Any) -> Jet:
        """The variable with this number; its slope is 1."""
        return Jet(value, {number: self._one})

    def _chain(self, value: Any, factor: Any, a: Jet) -> Jet:
        """g(a), where factor encloses g' on a."""
        return Jet(value, self._scaled(factor, a.slopes))

    def _branch(self, value: Any, first: Any, second: Any, a: Jet, b: Jet) -> Jet:
        """The slopes of a where first, of b where second, else the hull of both."""
        numbers = {**a.slopes, **b.slopes}
        if not numbers:
            return Jet(value)
        slopes = {
            k: self._on.select(
                first, second, a.slopes.get(k, self._zero), b.slopes.get(k, self._zero)
            )
            for k in numbers
        }
        return Jet(value, slopes)

    def decides(self, c: Any) -> tuple[Any, Any]:
        """Where c > 0 is certain on all of the box, and where c <= 0 is."""
        return self._on.below(self._apart, c), self._on.below(c, self._zero)

    def where(self, c: Jet, a: Jet, b: Jet) -> Jet:
        """a where c > 0, b where c <= 0."""
        first, second = self.decides(c.value)
        value = self._on.where(c.value, a.value, b.value)
        numbers = {**a.slopes, **b.slopes, **c.slopes}
        return Jet(value, self._decided(first, second, numbers, a.slopes, b.slopes))

    def neg(self, a: Jet) -> Jet:
        """-a."""
        return Jet(self._on.neg(a.value), self._negated(a.slopes))

    def add(self, a: Jet, b: Jet) -> Jet:
        """a + b."""
        return Jet(self._on.add(a.value, b.value), self._sum(a.slopes, b.slopes))

    def sub(self, a: Jet, b: Jet) -> Jet:
        """a - b."""
        value = self._on.sub(a.value, b.value)
        return Jet(value, self._difference(a.slopes, b.slopes))

    def _difference(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> dict[Any, Any]:
        result = dict(a)
        for k, slope in b.items():
            result[k] = self._on.sub(a[k], slope) if k in a else self._on.neg(slope)
        return result

    def mul(self, a: Jet, b: Jet) -> Jet:
        """a * b; a square if both are the same object."""
        if a is b:
            return self.pow(a, 2)
        value = self._on.mul(a.value, b.value)
        left, right = self._scaled(b.value, a.slopes), self._scaled(a.value, b.slopes)
        return Jet(value, self._sum(left, right))

    def div(self, a: Jet, b: Jet) -> Jet:
        """a / b."""
        quotient = self._on.div(a.value, b.value)
        if not a.slopes and not b.slopes:
            return Jet(quotient)
        inverse = self._on.div(self._one, b.value)
        slopes = self._difference(a.slopes, self._scaled(quotient, b.slopes))
        return Jet(quotient, self._scaled(inverse, slopes))

    def pow(self, a: Jet, exponent: int) -> Jet:
        """a^k."""
        value = self._on.pow(a.value, exponent)
        if exponent == 0:
            return Jet(value)
        if exponent == 1:
            return Jet(value, a.slopes)
        lower = self._on.pow(a.value, exponent - 1)
        factor = self._on.mul(lower, self._on.constant(Fraction(exponent)))
        return self._chain(value, factor, a)

    def exp(self, a: Jet) -> Jet:
        """e^a."""
        value = self._on.exp(a.value)
        return self._chain(value, value, a)

    def log(self, a: Jet) -> Jet:
        """The natural logarithm."""
        return self._chain(self._on.log(a.value), self._on.div(self._one, a.value), a)

    def xlogx(self, a: Jet) -> Jet:
        """a log a."""
        factor = self._on.add(self._one, self._on.log(a.value))
        return self._chain(self._on.xlogx(a.value), factor, a)

    def sqrt(self, a: Jet) -> Jet:
        """The square root."""
        value = self._on.sqrt(a.value)
        return self._chain(value, self._on.div(self._half, value), a)

    def tanh(self, a: Jet) -> Jet:
        """The hyperbolic tangent."""
        value = self._on.tanh(a.value)
        return self._chain(value, self._on.sub(self._one, self._on.pow(value, 2)), a)

    def sin(self, a: Jet) -> Jet:
        """sin a."""
        value = self._on.sin(a.value)
        return self._chain(value, self._on.cos(a.value), a) if a.slopes else Jet(value)

    def cos(self, a: Jet) -> Jet:
        """cos a."""
        value = self._on.cos(a.value)
        if not a.slopes:
            return Jet(value)
        return self._chain(value, self._on.neg(self._on.sin(a.value)), a)

    def abs(self, a: Jet) -> Jet:
        """|a|."""
        plus = self._on.below(self._zero, a.value)
        minus = self._on.below(a.value, self._zero)
        return self._branch(self._on.abs(a.value), plus, minus, a, self.neg(a))

    def min(self, a: Jet, b: Jet) -> Jet:
        """The smaller of both."""
        first, second = self._on.below(a.value, b.value), self._on.below(b.value, a.value)
        return self._branch(self._on.min(a.value, b.value), first, second, a, b)

    def max(self, a: Jet, b: Jet) -> Jet:
        """The larger of both."""
        first, second = self._on.below(b.value, a.value), self._on.below(a.value, b.value)
        return self._branch(self._on.max(a.value, b.value), first, second, a, b)
