"""Interval arithmetic in float64, on whole arrays at once.

Each operation returns, entry by entry, an interval that contains every result for operands
in the given intervals, in real arithmetic. It trusts IEEE float64 with rounding to nearest
for + - * / sqrt (see `outward`), and the proved bounds of `elementary`.

[-inf, inf] says that nothing is known, not even that the value exists: division by an
interval with 0 in it, log or sqrt of one that leaves the domain, inf * 0. It stays so in
every further operation: tanh(1 / x) around 0 is [-inf, inf] and not [-1, 1].
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from everyformer.numerics import elementary
from everyformer.numerics.elementary import LARGEST
from everyformer.numerics.outward import Interval as Interval
from everyformer.numerics.outward import extremes, lower_end, power, upper_end, wave

P = ParamSpec("P")
R = TypeVar("R")

LEAST_PLACE = (0.36787944117144229, 0.36787944117144239)
"""Around 1/e, where t log t has its least value, -1/e."""


def _quiet(function: Callable[P, R]) -> Callable[P, R]:
    """Without numpy's warnings of overflow and NaN: here both have a meaning."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return run


class IntervalArithmetic:
    """The operations of an `Expression` on intervals.

    Example:
        >>> arithmetic = IntervalArithmetic()
        >>> x = Interval(np.array([-1.0, 1.0]), np.array([2.0, 4.0]))
        >>> square = arithmetic.pow(x, 2)
        >>> square.low.round(9).tolist(), square.high.round(9).tolist()
        ([0.0, 1.0], [4.0, 16.0])
        >>> arithmetic.log(x).low.tolist()
        [-inf, 0.0]
    """

    power = staticmethod(power)

    @staticmethod
    def constant(value: Fraction) -> Interval:
        """The number, or the two floats around it."""
        if abs(value) > Fraction(LARGEST):
            low, high = (LARGEST, np.inf) if value > 0 else (-np.inf, -LARGEST)
        else:
            low = high = value.numerator / value.denominator  # Python rounds to nearest.
            if Fraction(low) > value:
                low = math.nextafter(low, -math.inf)
            elif Fraction(high) < value:
                high = math.nextafter(high, math.inf)
        return Interval(np.array([low]), np.array([high]))

    @staticmethod
    def neg(a: Interval) -> Interval:
        """-a, exactly."""
        return Interval(-a.high, -a.low)

    @staticmethod
    def abs(a: Interval) -> Interval:
        """|a|, exactly."""
        low = np.maximum(np.maximum(a.low, -a.high), 0.0)
        return Interval(low, np.maximum(-a.low, a.high)).unless(a.undefined)

    @staticmethod
    @_quiet
    def add(a: Interval, b: Interval) -> Interval:
        """a + b; the sign of each end is exact."""
        if a.is_exactly(0) or b.is_exactly(0):
            return b if a.is_exactly(0) else a
        return Interval(lower_end(a.low + b.low), upper_end(a.high + b.high))

    @staticmethod
    @_quiet
    def sub(a: Interval, b: Interval) -> Interval:
        """a - b; the sign of each end is exact."""
        if b.is_exactly(0):
            return a
        return Interval(lower_end(a.low - b.high), upper_end(a.high - b.low))

    @classmethod
    @_quiet
    def mul(cls, a: Interval, b: Interval) -> Interval:
        """a * b; a square if both are the same object."""
        if a is b:
            return cls.pow(a, 2)
        for one, other in ((a, b), (b, a)):
            if one.is_exactly(1):
                return other
            if one.is_exactly(-1):
                return cls.neg(other)
        one_sign = a.nonnegative or a.nonpositive
        return extremes(np.multiply, b, a) if one_sign else extremes(np.multiply, a, b)

    @classmethod
    @_quiet
    def div(cls, a: Interval, b: Interval) -> Interval:
        """a / b; [-inf, inf] where b contains 0."""
        if b.is_exactly(1):
            return a
        quotient = extremes(np.divide, a, b)
        if b.low.min() > 0.0 or b.high.max() < 0.0:
            return quotient
        return quotient.unless((b.low <= 0.0) & (b.high >= 0.0))

    @staticmethod
    def min(a: Interval, b: Interval) -> Interval:
        """The smaller of both, exactly."""
        result = Interval(np.minimum(a.low, b.low), np.minimum(a.high, b.high))
        return result.unless(a.undefined).unless(b.undefined)

    @staticmethod
    def max(a: Interval, b: Interval) -> Interval:
        """The larger of both, exactly."""
        result = Interval(np.maximum(a.low, b.low), np.maximum(a.high, b.high))
        return result.unless(a.undefined).unless(b.undefined)

    @classmethod
    @_quiet
    def pow(cls, a: Interval, exponent: int) -> Interval:
        """a^k. Even powers increase in |a|, odd ones in a. 0^0 = 1; 1 / a^-k if k < 0."""
        if exponent < 0:
            return cls.div(cls.constant(Fraction(1)), cls.pow(a, -exponent))
        if exponent == 1:
            return a
        if exponent == 0:
            return Interval(np.ones_like(a.low), np.ones_like(a.low)).unless(a.undefined)
        if exponent % 2 == 0 or a.nonnegative:
            size = cls.abs(a)
            low = cls.power(size.low, exponent, up=False)
            high = cls.power(size.high, exponent, up=True)
            return Interval(low, high).unless(a.undefined)
        left, right = np.abs(a.low), np.abs(a.high)
        low, low_far = (cls.power(left, exponent, up=up) for up in (False, True))
        high_near, high = (cls.power(right, exponent, up=up) for up in (False, True))
        low = np.where(a.low < 0.0, -low_far, low)
        return Interval(low, np.where(a.high < 0.0, -high_near, high))

    @staticmethod
    @_quiet
    def exp(a: Interval) -> Interval:
        """e^a."""
        low, high = elementary.exp_bounds(a.low)[0], elementary.exp_bounds(a.high)[1]
        return Interval(low, high).unless(a.undefined)

    @staticmethod
    @_quiet
    def log(a: Interval) -> Interval:
        """The natural logarithm; [-inf, inf] where a <= 0 is possible."""
        low, high = elementary.log_bounds(a.low)[0], elementary.log_bounds(a.high)[1]
        high = np.where(a.low > 0.0, high, np.inf)
        return Interval(low, high).unless(a.undefined)

    @staticmethod
    @_quiet
    def sqrt(a: Interval) -> Interval:
        """The square root; [-inf, inf] where a < 0 is possible."""
        roots = Interval(lower_end(np.sqrt(a.low)), upper_end(np.sqrt(a.high)))
        return roots if a.nonnegative else roots.unless(a.low < 0.0)

    @staticmethod
    @_quiet
    def tanh(a: Interval) -> Interval:
        """The hyperbolic tangent."""
        low, high = elementary.tanh_bounds(a.low)[0], elementary.tanh_bounds(a.high)[1]
        return Interval(low, high).unless(a.undefined)

    @staticmethod
    @_quiet
    def xlogx(a: Interval) -> Interval:
        """a log a, which is 0 at 0; [-inf, inf] where a < 0 is possible.

        It decreases up to 1/e, where it is -1/e, and increases from there.
        """
        ends = [elementary.xlogx_bounds(end) for end in (a.low, a.high)]
        least = (a.low <= LEAST_PLACE[1]) & (a.high >= LEAST_PLACE[0])
        low = np.where(least, -LEAST_PLACE[1], np.minimum(ends[0][0], ends[1][0]))
        high = np.maximum(ends[0][1], ends[1][1])
        return Interval(low, high).unless(~(a.low >= 0.0)).unless(a.undefined)

    @staticmethod
    @_quiet
    def sin(a: Interval) -> Interval:
        """sin; maxima at 1/4 turn, minima at -1/4 turn."""
        return wave(elementary.sin_bounds, a, 0.25, -0.25)

    @staticmethod
    @_quiet
    def cos(a: Interval) -> Interval:
        """cos; maxima at whole turns, minima between them."""
        return wave(elementary.cos_bounds, a, 0.0, 0.5)

    @classmethod
    def where(cls, c: Interval, a: Interval, b: Interval) -> Interval:
        """a where c > 0, b where c <= 0, the hull of both where the box does not decide."""
        return cls.select(c.low > 0.0, c.high <= 0.0, a, b).unless(c.undefined)

    @staticmethod
    def below(a: Interval, b: Interval) -> np.ndarray:
        """Where a <= b is certain."""
        return a.high <= b.low

    @staticmethod
    def select(first: np.ndarray, second: np.ndarray, a: Interval, b: Interval) -> Interval:
        """a where first, else b where second, else the hull of both."""
        low = np.where(second, b.low, np.minimum(a.low, b.low))
        high = np.where(second, b.high, np.maximum(a.high, b.high))
        return Interval(np.where(first, a.low, low), np.where(first, a.high, high))
