"""Intervals of finite numbers with exact rational ends, or without an end.

Sums and products of an exact number and inf never go through float64, which holds no
number above 2^1024. The numbers of an interval are finite, so 0 times an interval without
end is 0.
"""

from fractions import Fraction
from math import inf

End = Fraction | float
"""An exact number, or -inf or inf."""

Ends = tuple[End, End]

ZERO: Ends = (Fraction(0), Fraction(0))
EVERYWHERE: Ends = (-inf, inf)


def end_plus(a: End, b: End) -> End:
    """a + b of two lower or two upper ends: inf and -inf never meet."""
    if isinstance(a, float):
        return a
    return b if isinstance(b, float) else a + b


def end_times(a: End, b: End) -> End:
    """a b; 0 times an end without bound is 0."""
    if a == 0 or b == 0:
        return Fraction(0)
    if isinstance(a, float) or isinstance(b, float):
        return inf if (a > 0) == (b > 0) else -inf
    return a * b


def plus(a: Ends, b: Ends) -> Ends:
    """a + b."""
    return end_plus(a[0], b[0]), end_plus(a[1], b[1])


def scaled(factor: Fraction, ends: Ends) -> Ends:
    """factor times an interval."""
    low, high = end_times(factor, ends[0]), end_times(factor, ends[1])
    return (low, high) if factor >= 0 else (high, low)
