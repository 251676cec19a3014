"""Balls of arbitrary precision (Arb, by python-flint): the slow, independent second way.

A ball is a midpoint and a radius; it contains the number it stands for. What has no
value is nan and stays nan. The traps of python-flint 0.9.0, avoided here:

    x ** k            nan for balls around 0: powers are products of the ends
    tanh, wide ball   nan or far too wide: increasing functions are taken at both ends
    abs(x)            may reach below 0: abs_lower and abs_upper
    bool(x), x == y   never used; x <= y is True only where it is certain
    union             its radius has 30 bits, so [0, h] reaches below 0 again; the
                      non-negative part of it does not
    float(x)          rounds to nearest: ends go through integers, then down or up
"""

import importlib
import math
import operator
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

from everyformer.errors import CertificateError


def _load_flint() -> Any:
    try:
        return importlib.import_module("flint")
    except ImportError as error:
        msg = (
            "Balls were asked for, and the package python-flint, which computes with them, "
            "is not installed. Install it: pip install python-flint."
        )
        raise CertificateError(msg) from error


MAX_EXPONENT = 16384
"""Of two: larger numbers have no ball, and smaller ones one around 0."""


class BallArithmetic:
    """The operations of an `Expression` on Arb balls.

    The precision is a setting of python-flint that all threads share. `working` sets it; an
    operation outside of it is still an enclosure, of another width.

    Args:
        precision: Bits of the midpoints.

    Raises:
        CertificateError: If python-flint is not installed.

    Example:
        >>> arithmetic = BallArithmetic(64)
        >>> x = arithmetic.box(-1.0, 2.0)
        >>> low, high = arithmetic.ends(arithmetic.mul(x, x))
        >>> low, round(high, 6)
        (0.0, 4.0)
        >>> arithmetic.ends(arithmetic.log(x))
        (-inf, inf)
    """

    def __init__(self, precision: int = 64) -> None:
        self._flint = _load_flint()
        self.precision = precision
        power = self._flint.arb(self._flint.fmpz(2) ** MAX_EXPONENT)
        self._huge, self._tiny = power, (1 / power).upper()

    def working(self) -> AbstractContextManager[Any]:
        """A context in which the operations have the precision asked for."""
        return self._flint.ctx.workprec(self.precision)

    def box(self, low: float, high: float) -> Any:
        """A ball that contains [low, high]; nan if an end is not finite."""
        arb = self._flint.arb
        if not (math.isfinite(low) and math.isfinite(high)):
            return arb("nan")
        return self._hull(arb(low), arb(high), nonnegative=low >= 0.0)

    @staticmethod
    def ends(ball: Any) -> tuple[float, float]:
        """The ball's ends as float64, rounded outward; -inf and inf if it is not finite."""
        if not ball.is_finite():
            return -math.inf, math.inf
        low, low_exponent = ball.lower().man_exp()
        high, high_exponent = ball.upper().man_exp()
        return (
            _float_below(int(low), int(low_exponent)),
            -_float_below(-int(high), int(high_exponent)),
        )

    @staticmethod
    def _hull(low: Any, high: Any, *, nonnegative: bool = False) -> Any:
        """A ball around two, without the points below 0 if none of them counts."""
        both = low.union(high) if not (low.is_exact() and (low - high).is_zero()) else low
        return both.nonnegative_part() if nonnegative else both

    def constant(self, value: Fraction) -> Any:
        """A ball around a rational."""
        return self._flint.arb(self._flint.fmpq(value.numerator, value.denominator))

    neg = staticmethod(operator.neg)
    add = staticmethod(operator.add)
    sub = staticmethod(operator.sub)
    """-a, a + b and a - b, as the balls have them."""

    def abs(self, a: Any) -> Any:
        """|a|."""
        return self._hull(a.abs_lower(), a.abs_upper(), nonnegative=True)

    def mul(self, a: Any, b: Any) -> Any:
        """a * b; a square if both are the same object."""
        return self.pow(a, 2) if a is b else self._within(a * b)

    def div(self, a: Any, b: Any) -> Any:
        """a / b; nan if b contains 0."""
        return self._within(a / b)

    def _within(self, ball: Any) -> Any:
        """The ball; nan beyond 2^16384, and all of +-2^-16384 below that.

        Exponents of Arb have no end: without this, a tower of powers would have numbers
        whose exponents alone fill the memory.
        """
        size = ball.abs_upper()
        if size < self._tiny:
            return self._flint.arb(0, self._tiny)
        return ball if size < self._huge else self._flint.arb("nan")

    @staticmethod
    def min(a: Any, b: Any) -> Any:
        """The smaller of both."""
        return a.min(b)

    @staticmethod
    def max(a: Any, b: Any) -> Any:
        """The larger of both."""
        return a.max(b)

    def pow(self, a: Any, exponent: int) -> Any:
        """a^k, from the ends: even powers increase in |a|, odd ones in a."""
        if exponent < 0:
            return self._within(1 / self.pow(a, -exponent))
        if exponent == 1 or not a.is_finite():
            return a
        even = exponent % 2 == 0
        ends = (a.abs_lower(), a.abs_upper()) if even else (a.lower(), a.upper())
        low, high = (self.product(end, exponent) for end in ends)
        return self._within(self._hull(low, high, nonnegative=even))

    def product(self, a: Any, count: int) -> Any:
        """The product of so many a, by squares."""
        result = self._flint.arb(1)
        while count:
            if count % 2:
                result = result * a
            a, count = a * a, count // 2
        return result

    def exp(self, a: Any) -> Any:
        """e^a."""
        if not a.is_finite():
            return a
        ends = a.lower().exp(), a.upper().exp()
        return self._within(self._hull(*ends, nonnegative=True))

    def log(self, a: Any) -> Any:
        """The natural logarithm; nan if a reaches 0."""
        return self._hull(a.lower().log(), a.upper().log())

    def sqrt(self, a: Any) -> Any:
        """The square root; nan if a reaches below 0."""
        return self._hull(a.lower().sqrt(), a.upper().sqrt(), nonnegative=True)

    def tanh(self, a: Any) -> Any:
        """The hyperbolic tangent."""
        return self._hull(a.lower().tanh(), a.upper().tanh())

    def xlogx(self, a: Any) -> Any:
        """a log a, which is 0 at 0; nan if a reaches below 0. Least at 1/e: -1/e."""
        low, high = a.lower(), a.upper()
        if not (a.is_finite() and low >= 0):
            return self._flint.arb("nan")
        left, right = (end if end.is_zero() else end * end.log() for end in (low, high))
        both = self._hull(left, right)
        least = self._flint.arb(-1).exp()
        return both if low > least or high < least else self._hull(both, -least)

    @staticmethod
    def sin(a: Any) -> Any:
        """sin a."""
        return a.sin()

    @staticmethod
    def cos(a: Any) -> Any:
        """cos a."""
        return a.cos()

    def where(self, c: Any, a: Any, b: Any) -> Any:
        """a if c > 0 is certain, b if c <= 0 is, else a ball around both; nan if c is."""
        if not c.is_finite():
            return self._flint.arb("nan")
        return self.select(c > 0, c <= 0, a, b)

    @staticmethod
    def below(a: Any, b: Any) -> bool:
        """True if a <= b is certain."""
        return a <= b

    def select(self, first: bool, second: bool, a: Any, b: Any) -> Any:
        """a if first, else b if second, else a ball around both."""
        if first or second:
            return a if first else b
        if not (a.is_finite() and b.is_finite()):
            return self._flint.arb("nan")
        return self._hull(a, b)


def _float_below(mantissa: int, exponent: int) -> float:
    """The largest float64 that is at most mantissa * 2^exponent.

    Example:
        >>> _float_below(2**60 + 1, -60), _float_below(-(2**60) - 1, -60)
        (1.0, -1.0000000000000002)
        >>> _float_below(-1, -5000), _float_below(1, 5000)
        (-5e-324, 1.7976931348623157e+308)
    """
    # Drop bits that float64 has no room for. >> rounds down, for negative numbers too.
    shift = max(mantissa.bit_length() - 53, -1074 - exponent, 0)
    mantissa, exponent = mantissa >> shift, exponent + shift
    if mantissa.bit_length() + exponent > 1024 and mantissa != 0:
        return -math.inf if mantissa < 0 else math.ldexp(2.0**53 - 1.0, 971)
    return math.ldexp(mantissa, exponent)
