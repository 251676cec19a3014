"""Whether a function is 0 outside a box, by its expression.

Outside the box some coordinate x_ji is at most low_i, or at least high_i, and all others
are any real numbers: 2 n d half-spaces. On each of them the expression is followed with
intervals whose ends may be infinite. The numbers themselves are finite, so 0 times an
interval without end is 0. If every entry of f comes out as [0, 0] on every half-space, f is
0 outside.

What may not even be defined (a root of numbers below 0, a quotient by 0) proves nothing.
"""

from fractions import Fraction
from math import inf

from everyformer.certify.half_lines import EVERYWHERE, ZERO, End, Ends, end_times, plus
from everyformer.certify.known import Known
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box

Maybe = Ends | None
"""An interval that holds the value; None where it may not even be defined."""

SIGNED: Ends = (Fraction(-1), Fraction(1))

MOST_BITS = 4096
"""Of an end; a longer one is replaced by one without bound, outward."""

LARGEST_POWER = 64
"""Of a larger power the sign is kept, and no size."""

MOST_LINES = 2**22
"""Half-spaces times lines that are followed: a long program is not."""


def vanishes_outside(known: Known, box: Box) -> bool:
    """Whether f is proved to be 0 at every point outside the box, its border included."""
    if not isinstance(known, Expression):
        return False
    n, d = known.seq_len, known.d_model
    if 2 * n * d * len(known.nodes) > MOST_LINES:
        return False
    sides = [
        (j, i, ends)
        for j in range(n)
        for i in range(d)
        for ends in ((-inf, Fraction(box.lows[i])), (Fraction(box.highs[i]), inf))
    ]
    return all(_is_zero(known, j, i, ends) for j, i, ends in sides)


def _is_zero(f: Expression, j: int, i: int, ends: Ends) -> bool:
    def entry(token: int, coordinate: int) -> Maybe:
        return ends if (token, coordinate) == (j, i) else EVERYWHERE

    return all(value == ZERO for row in f.run(Unbounded(), entry) for value in row)


def _short(low: End, high: End) -> Ends:
    """The interval, or a wider one whose ends are not too long."""
    return (-inf if _is_long(low) else low), (inf if _is_long(high) else high)


def _is_long(end: End) -> bool:
    if not isinstance(end, Fraction):
        return False
    return end.numerator.bit_length() + end.denominator.bit_length() > MOST_BITS


class Unbounded:
    """The operations on intervals of finite numbers, with ends that may be infinite."""

    @staticmethod
    def constant(value: Fraction) -> Maybe:
        """The interval of a single number."""
        return _short(value, value)

    @staticmethod
    def neg(a: Maybe) -> Maybe:
        """-a."""
        return None if a is None else (-a[1], -a[0])

    @staticmethod
    def abs(a: Maybe) -> Maybe:
        """|a|."""
        return None if a is None else (max(a[0], -a[1], Fraction(0)), max(-a[0], a[1]))

    @staticmethod
    def add(a: Maybe, b: Maybe) -> Maybe:
        """a + b; a lower end is never inf, an upper end never -inf."""
        return None if a is None or b is None else _short(*plus(a, b))

    @classmethod
    def sub(cls, a: Maybe, b: Maybe) -> Maybe:
        """a - b."""
        return cls.add(a, cls.neg(b))

    @staticmethod
    def mul(a: Maybe, b: Maybe) -> Maybe:
        """a b."""
        if a is None or b is None:
            return None
        ends = [end_times(x, y) for x in a for y in b]
        return _short(min(ends), max(ends))

    @staticmethod
    def min(a: Maybe, b: Maybe) -> Maybe:
        """The smaller of two, by their ends."""
        return None if a is None or b is None else (min(a[0], b[0]), min(a[1], b[1]))

    @staticmethod
    def max(a: Maybe, b: Maybe) -> Maybe:
        """The larger of two, by their ends."""
        return None if a is None or b is None else (max(a[0], b[0]), max(a[1], b[1]))

    @staticmethod
    def where(c: Maybe, a: Maybe, b: Maybe) -> Maybe:
        """a where c > 0, b where c <= 0; the branch not taken need not be defined."""
        if c is None:
            return None
        if c[0] > 0:
            return a
        if c[1] <= 0:
            return b
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))

    @classmethod
    def pow(cls, a: Maybe, exponent: int) -> Maybe:
        """Powers with exponents >= 1."""
        if a is None or exponent < 1:
            return None
        base = cls.abs(a) if exponent % 2 == 0 else a
        if base is None:
            return None
        if exponent > LARGEST_POWER:
            low = Fraction(0) if base[0] >= 0 else -inf
            return low, Fraction(0) if base[1] <= 0 else inf
        result = base
        for _ in range(exponent - 1):
            result = cls.mul(result, base)
        return result

    @staticmethod
    def sin(a: Maybe) -> Maybe:
        """Within [-1, 1]; sin 0 = 0."""
        return a if a in (None, ZERO) else SIGNED

    @staticmethod
    def cos(a: Maybe) -> Maybe:
        """Within [-1, 1]."""
        return None if a is None else SIGNED

    @staticmethod
    def tanh(a: Maybe) -> Maybe:
        """Within [-1, 1], with the sign of its argument."""
        if a is None:
            return None
        return Fraction(-int(a[0] < 0)), Fraction(int(a[1] > 0))

    @staticmethod
    def exp(a: Maybe) -> Maybe:
        """Above 0, and at most 1 where a <= 0."""
        return None if a is None else (Fraction(0), Fraction(1) if a[1] <= 0 else inf)

    @staticmethod
    def sqrt(a: Maybe) -> Maybe:
        """Of numbers that are certainly >= 0."""
        if a is None or a[0] < 0:
            return None
        return a if a == ZERO else (Fraction(0), inf)

    @staticmethod
    def log(a: Maybe) -> Maybe:
        """Of numbers that are certainly > 0."""
        return None if a is None or a[0] <= 0 else EVERYWHERE

    @staticmethod
    def xlogx(a: Maybe) -> Maybe:
        """Of numbers that are certainly >= 0; 0 at 0."""
        if a is None or a[0] < 0:
            return None
        return a if a == ZERO else EVERYWHERE

    @staticmethod
    def div(a: Maybe, b: Maybe) -> Maybe:
        """By numbers that are certainly not 0."""
        if a is None or b is None or b[0] <= 0 <= b[1]:
            return None
        return a if a == ZERO else EVERYWHERE
