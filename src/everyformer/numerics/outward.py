"""Interval ends in float64, rounded outward: sums, products, quotients, powers, waves.

Let s be the float nearest to a real number t, and ulp(s) the gap between floats at s. Then
t lies between s - ulp(s) and s + ulp(s). For a normal s, 2^-52 |s| >= ulp(s), and
s - ulp(s) is a float or rounds to -inf. Rounding is monotone, so the computed s - 2^-52 |s|
is at most s - ulp(s), hence at most t. If s is zero or subnormal: sums and square roots are
then exact; products and quotients are off by at most 2^-1075, and 2^-1074 is subtracted as
well. If s overflowed to inf, t is at least the largest float, which takes its place. Upper
ends likewise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from everyformer.numerics.elementary import LARGEST, TINY

_ULP = 2.0**-52
# Ends in this range are normal, and adding 2^-1074 to their gap changes nothing.
_SMALL, _BIG = 2.0**-900, 2.0**1000
_TURNS = 0.15915494309189535  # 1 / (2 pi)
_MARGIN = 2.0**-30


@dataclass(frozen=True, eq=False)
class Interval:
    """The intervals [low, high], one for each entry.

    The shape (1,) marks constants. Boxes have another shape, even a single one: then what
    is found for a box does not depend on the others in the array.

    Attributes:
        low: Lower ends, below inf. At least one axis.
        high: Upper ends, above -inf and not below `low`. The same shape.
    """

    low: np.ndarray
    high: np.ndarray

    @property
    def is_constant(self) -> bool:
        """True for the shape of constants."""
        return self.low.shape == (1,)

    @cached_property
    def nonnegative(self) -> bool:
        """True when no interval has a negative point."""
        return bool(self.low.min() >= 0.0)

    @cached_property
    def nonpositive(self) -> bool:
        """True when no interval has a positive point."""
        return bool(self.high.max() <= 0.0)

    @cached_property
    def undefined(self) -> np.ndarray | None:
        """Where the interval is [-inf, inf], or an end is nan; None if nowhere."""
        least, most = self.low.min(), self.high.max()  # nan, if any is
        if (least > -np.inf and most <= np.inf) or (most < np.inf and least >= -np.inf):
            return None
        where = (self.low == -np.inf) & (self.high == np.inf)
        where = where | np.isnan(self.low) | np.isnan(self.high)
        return where if where.any() else None

    def is_exactly(self, value: int) -> bool:
        """True for a constant that holds only this number."""
        return self.is_constant and self.low.item() == value == self.high.item()

    def unless(self, where: np.ndarray | None) -> "Interval":
        """The same, but [-inf, inf] where told."""
        if where is None:
            return self
        return Interval(
            np.where(where, -np.inf, self.low), np.where(where, np.inf, self.high)
        )


def lower_end(s: np.ndarray) -> np.ndarray:
    """A lower bound of all sums and roots that float64 rounds to s; s is overwritten."""
    np.minimum(s, LARGEST, out=s)
    s -= np.abs(s) * _ULP
    return s


def upper_end(s: np.ndarray) -> np.ndarray:
    """An upper bound of all sums and roots that float64 rounds to s; s is overwritten."""
    np.maximum(s, -LARGEST, out=s)
    s += np.abs(s) * _ULP
    return s


def extremes(operation: Any, a: Interval, b: Interval) -> Interval:
    """The least and greatest of a * b or a / b; an end that is 0 is exact.

    For b >= 0 the least value belongs to a.low and the greatest to a.high; else both may
    belong to any pair of ends. Where b contains 0, a quotient means nothing.

    Args:
        operation: np.multiply or np.divide.
        a: The first operand.
        b: The second; quicker if all of it has one sign.

    Returns:
        The interval; [-inf, inf] where inf * 0 or inf / inf occurs.
    """
    if b.nonpositive and not b.nonnegative:
        a, b = Interval(-a.high, -a.low), Interval(-b.high, -b.low)
    low, high = operation(a.low, b.low), operation(a.high, b.low)
    if not (b.is_constant and b.low.item() == b.high.item()):
        other_low, other_high = operation(a.low, b.high), operation(a.high, b.high)
        if not b.nonnegative:
            low, high = np.minimum(low, high), np.maximum(low, high)
            other_low, other_high = (
                np.minimum(other_low, other_high),
                np.maximum(other_low, other_high),
            )
        np.minimum(low, other_low, out=low)
        np.maximum(high, other_high, out=high)
    size_low, size_high = np.abs(low), np.abs(high)
    # NaN fails these comparisons too.
    if (
        size_low.min() >= _SMALL
        and size_high.min() >= _SMALL
        and size_low.max() <= _BIG
        and size_high.max() <= _BIG
    ):
        size_low *= _ULP
        size_high *= _ULP
        low -= size_low
        high += size_high
        return Interval(low, high)
    return _irregular(low, high, a, b)


def _irregular(low: np.ndarray, high: np.ndarray, a: Interval, b: Interval) -> Interval:
    """Round outward where ends are zero, infinite, NaN, or near the limits of float64."""
    broken = np.isnan(low) | np.isnan(high)
    np.minimum(low, LARGEST, out=low)
    np.maximum(high, -LARGEST, out=high)
    low -= np.abs(low) * _ULP + TINY
    high += np.abs(high) * _ULP + TINY
    a_plus, a_minus, b_plus, b_minus = a.low >= 0, a.high <= 0, b.low >= 0, b.high <= 0
    zero = (a_plus & a_minus) | (b_plus & b_minus)
    same = zero | (a_plus & b_plus) | (a_minus & b_minus)
    opposite = zero | (a_plus & b_minus) | (a_minus & b_plus)
    low = np.where(same, np.maximum(low, 0.0), low)
    high = np.where(opposite, np.minimum(high, 0.0), high)
    return Interval(low, high).unless(broken if broken.any() else None)


def power(base: np.ndarray, exponent: int, *, up: bool) -> np.ndarray:
    """base^k for base >= 0 and k >= 2, every product rounded up, or every one down."""

    def product(s: np.ndarray, t: np.ndarray) -> np.ndarray:
        result = s * t
        if up:
            result += result * _ULP + TINY
            return result
        np.minimum(result, LARGEST, out=result)
        result -= result * _ULP + TINY
        return np.maximum(result, 0.0, out=result)

    return np.where(base == 0.0, 0.0, by_squares(base, exponent, product))


def by_squares(
    base: np.ndarray,
    exponent: int,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """base^k for k >= 1, from about 2 log2 k products of powers; base itself for k = 0."""
    result: np.ndarray | None = None
    square = base
    while exponent:
        if exponent % 2 == 1:
            result = square if result is None else product(result, square)
        exponent //= 2
        if exponent:
            square = product(square, square)
    return base if result is None else result


def wave(
    bounds: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    a: Interval,
    top: float,
    bottom: float,
) -> Interval:
    """The range of sin or cos: between the ends' values, up to 1 if there is a maximum.

    In turns, x / (2 pi), maxima lie at top + m for whole m. There is one in [l, h] only if
    floor(h - top) > floor(l - top) or l - top is whole. For |x| <= 2^20 the computed turns
    are off by less than 2^-32; the margin 2^-30 on both sides makes sure that none is
    missed. Close to a maximum, a needless 1 is too large by less than 2^-54. For larger x
    the bounds are [-1, 1] already. Minima likewise.

    Args:
        bounds: `sin_bounds` or `cos_bounds`.
        a: The operand.
        top: Where a maximum lies, in turns.
        bottom: Where a minimum lies, in turns.

    Returns:
        The interval.
    """
    (low, high), (low_right, high_right) = bounds(a.low), bounds(a.high)
    left, right = a.low * _TURNS, a.high * _TURNS

    def meets(phase: float) -> np.ndarray:
        return np.floor(right - (phase - _MARGIN)) > np.floor(left - (phase + _MARGIN))

    low = np.where(meets(bottom), -1.0, np.minimum(low, low_right))
    high = np.where(meets(top), 1.0, np.maximum(high, high_right))
    return Interval(low, high).unless(a.undefined)
