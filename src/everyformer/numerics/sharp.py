"""Intervals whose ends are the nearest floats: no wider than they must be.

`intervals` widens every sum and product, exact ones too, which is quick and costs nothing
in width. But x^2 on [0, 1] then reaches a little beyond 1, and sqrt(1 - x^2) has no value
on the last cell. Here the rounding error of each sum and product is computed exactly, and
an end moves to the next float only if that error has the wrong sign:

    s = fl(a + b), t = s - a:  a + b = s + ((a - (s - t)) + (b - t))        (Knuth)
    p = fl(a b), a = a1 + a2, b = b1 + b2 with 26 bits each:
        a b = p + (((a1 b1 - p) + a1 b2 + a2 b1) + a2 b2)                   (Dekker)

The second needs products that neither overflow nor underflow; others are widened as usual.
Quotients, roots and elementary functions are those of `intervals`.
"""

import numpy as np

from everyformer.numerics.elementary import LARGEST, TINY
from everyformer.numerics.intervals import IntervalArithmetic
from everyformer.numerics.outward import Interval, by_squares

_SPLIT = 2.0**27 + 1
_SMALL, _BIG = 2.0**-900, 2.0**900
_LARGEST_FACTOR = 2.0**990


def _sum_ends(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest float <= a + b or so, and the least >= a + b."""
    s = a + b
    t = s - a
    error = (a - (s - t)) + (b - t)
    low = np.where(error < 0, np.nextafter(s, -np.inf), s)
    high = np.where(error > 0, np.nextafter(s, np.inf), s)
    # Where a finite sum overflowed the error is nan.
    return np.minimum(low, LARGEST), np.maximum(high, -LARGEST)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Veltkamp: a as a sum of two numbers of 26 bits."""
    c = _SPLIT * a
    first = c - (c - a)
    return first, a - first


def _product_ends(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats <= a b and >= a b, the nearest ones; nan for 0 inf."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    error = (((a1 * b1 - p) + a1 * b2) + a2 * b1) + a2 * b2
    size = np.abs(p)
    sure = (size >= _SMALL) & (size <= _BIG)
    sure &= (np.abs(a) <= _LARGEST_FACTOR) & (np.abs(b) <= _LARGEST_FACTOR)
    zero = ((a == 0) & np.isfinite(b)) | ((b == 0) & np.isfinite(a))
    margin = np.minimum(size, LARGEST) * 2.0**-52 + TINY
    low = np.where(error < 0, np.nextafter(p, -np.inf), p)
    high = np.where(error > 0, np.nextafter(p, np.inf), p)
    low = np.where(sure, low, np.minimum(p, LARGEST) - margin)
    high = np.where(sure, high, np.maximum(p, -LARGEST) + margin)
    same = zero | ((a >= 0) == (b >= 0))
    low = np.where(same, np.maximum(low, 0.0), low)
    high = np.where(zero | ~same, np.minimum(high, 0.0), high)
    infinite = ~(np.isfinite(a) & np.isfinite(b))
    return np.where(infinite, p, low), np.where(infinite, p, high)


class SharpArithmetic(IntervalArithmetic):
    """The operations of an `Expression` on intervals, with exact results where they exist.

    Example:
        >>> sharp = SharpArithmetic()
        >>> x = Interval(np.array([[0.5]]), np.array([[1.0]]))
        >>> square = sharp.pow(x, 2)
        >>> square.low.item(), square.high.item()
        (0.25, 1.0)
        >>> IntervalArithmetic.pow(x, 2).high.item() > 1
        True
    """

    @staticmethod
    def add(a: Interval, b: Interval) -> Interval:
        """a + b."""
        with np.errstate(all="ignore"):
            return Interval(_sum_ends(a.low, b.low)[0], _sum_ends(a.high, b.high)[1])

    @staticmethod
    def sub(a: Interval, b: Interval) -> Interval:
        """a - b."""
        with np.errstate(all="ignore"):
            return Interval(_sum_ends(a.low, -b.high)[0], _sum_ends(a.high, -b.low)[1])

    @classmethod
    def mul(cls, a: Interval, b: Interval) -> Interval:
        """a * b; a square if both are the same object."""
        if a is b:
            return cls.pow(a, 2)
        with np.errstate(all="ignore"):
            pairs = [(s, t) for s in (a.low, a.high) for t in (b.low, b.high)]
            ends = [_product_ends(*pair) for pair in pairs]
            low = np.minimum.reduce([low for low, _ in ends])
            high = np.maximum.reduce([high for _, high in ends])
        broken = np.isnan(low) | np.isnan(high)
        return Interval(low, high).unless(broken if broken.any() else None)

    @staticmethod
    def power(base: np.ndarray, exponent: int, *, up: bool) -> np.ndarray:
        """base^k for base >= 0 and k >= 2, every product rounded up, or every one down."""
        with np.errstate(all="ignore"):
            return by_squares(base, exponent, lambda s, t: _product_ends(s, t)[up])
