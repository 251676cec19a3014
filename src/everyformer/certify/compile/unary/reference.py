"""The functions that a unary head stands for, as Taylor polynomials with a remainder.

Around c, with t = c + R s and |s| <= 1, Lagrange's form of the remainder says

    g(t) = g(c) + sum_{1 <= j <= n} g^(j)(c) R^j / j! s^j + rest s^(n+1),
    |rest| <= sup |g^(n+1)| R^(n+1) / (n+1)!

where the supremum is taken over [c - R, c + R]. tanh and the logistic function need no
series, since they are heads with two tokens themselves (`Reference.as_head`).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from everyformer.certify.undecided import Undecided
from everyformer.numerics.balls import BallArithmetic

LARGEST = 2**256
"""Rationals in size."""

LARGEST_POWER = 256
"""Of t, in size."""

LARGEST_EXPONENT = 4096
"""Of e, in size."""

_NAMES = frozenset({"pow", "exp", "log", "sin", "cos", "tanh", "logistic"})


@cache
def balls() -> BallArithmetic:
    """The balls of these proofs; python-flint is loaded when they are first asked for."""
    return BallArithmetic(128)


def exact(value: Fraction) -> Any:
    """A ball around a rational."""
    return balls().constant(value)


@dataclass(frozen=True)
class Reference:
    """g(t) = fn(inner[0] t + inner[1]).

    Attributes:
        name: fn: pow, exp, log, sin, cos, tanh or logistic.
        power: The exponent s of pow, twice of which is an integer; None for all others.
        inner: Two rationals.
    """

    name: str
    power: Fraction | None
    inner: tuple[Fraction, Fraction]

    def require_defined(self, low: Fraction, high: Fraction) -> None:
        """Stop where g is unknown, has no value somewhere on [low, high], or is too large.

        Raises:
            Undecided: In these cases.
        """
        if self.name not in _NAMES:
            raise Undecided("unary", f"no head is proved to compute {self.name[:40]!r}")
        if (self.power is not None) != (self.name == "pow"):
            raise Undecided("unary", f"{self.name} has the power {self.power}")
        if not max(map(abs, (*self.inner, low, high))) <= LARGEST:
            raise Undecided("unary", f"an interval or {self.name} beyond 2^256")
        ends = self._argument(low), self._argument(high)
        least, most = min(ends), max(ends)
        if self.name == "log" and not least > 0:
            raise Undecided("unary", f"log has the argument {float(least):.3g}")
        if self.name == "exp" and not max(abs(least), abs(most)) <= LARGEST_EXPONENT:
            raise Undecided("unary", "exp has an argument of more than 4096")
        if self.power is None:
            return
        if self.power.denominator > 2 or abs(self.power) > LARGEST_POWER:
            why = f"the power {float(self.power):.6g} is not half an integer up to 256"
            raise Undecided("unary", why)
        polynomial = self.power.denominator == 1 and self.power >= 0
        if not (polynomial or least > 0 or (least >= 0 and self.power > 0)):
            why = f"the power {self.power} has the argument {float(least):.3g}"
            raise Undecided("unary", why)

    def _argument(self, t: Fraction) -> Fraction:
        return self.inner[0] * t + self.inner[1]

    def as_head(self) -> list[tuple[Fraction, Fraction, int]] | None:
        """(a, b, v) of the two tokens with which g is a head; None if it is not.

        1 / (1 + e^-x) = (e^x 1 + e^0 0) / (e^x + e^0)
        tanh x = (e^(2x) 1 + e^0 (-1)) / (e^(2x) + e^0)
        """
        if self.name not in {"tanh", "logistic"}:
            return None
        factor, other = (2, -1) if self.name == "tanh" else (1, 0)
        slope, offset = self.inner
        return [(factor * slope, factor * offset, 1), (Fraction(0), Fraction(0), other)]

    def gap(self, c: float) -> float:
        """About how far from c g is analytic; only how intervals are cut depends on it."""
        slope, offset = map(float, self.inner)
        polynomial = self.power is not None and self.power.denominator == 1
        if slope == 0.0 or self.name not in {"pow", "log"}:
            return float("inf")
        if polynomial and self.power is not None and self.power >= 0:
            return float("inf")
        return abs(c + offset / slope)

    def expand(self, c: Fraction, radius: Fraction, order: int) -> list[Any]:
        """Balls around g(c) and the other coefficients in s, the last with the remainder.

        Args:
            c: The centre.
            radius: R. g is defined on [c - R, c + R], but for what rounding adds to R.
            order: n.

        Returns:
            n + 2 balls. Where a derivative has no bound (the square root at 0), g(c) and
            a ball that contains g(t) - g(c) in place of the coefficient of s^0: then the
            list is [g(c) + that ball] alone.
        """
        x, y = self._argument(c), abs(self.inner[0]) * radius
        # Only sin, cos, exp and pow of both signs see the sign of the slope.
        step = exact(self.inner[0] * radius)
        if self.name in {"sin", "cos"}:
            return _wave(exact(x), step, order, cosine=self.name == "cos")
        if self.name == "exp":
            return _exponential(exact(x), step, order)
        if self.name == "log":
            return _logarithm(x, y, step, order)
        return _power_series(self.power or Fraction(0), x, y, step, order)


def _factorials(step: Any, order: int) -> list[Any]:
    """step^j / j! for j = 0 .. order + 1."""
    terms = [exact(Fraction(1))]
    for j in range(1, order + 2):
        terms.append(terms[-1] * step / j)
    return terms


def around_zero(bound: Any) -> Any:
    """A ball with the numbers of at most this size."""
    size = bound.abs_upper()
    return size.union(-size)


def _wave(x: Any, step: Any, order: int, *, cosine: bool) -> list[Any]:
    """sin or cos: derivatives in a cycle of four, all at most 1."""
    sine, other = x.sin(), x.cos()
    cycle = [other, -sine, -other, sine] if cosine else [sine, other, -sine, -other]
    terms = _factorials(step, order)
    series = [terms[j] * cycle[j % 4] for j in range(order + 1)]
    return [*series, around_zero(terms[-1])]


def _exponential(x: Any, step: Any, order: int) -> list[Any]:
    """e^x: every derivative is at most e^(x + |step|)."""
    value, terms = x.exp(), _factorials(step, order)
    rest = terms[-1] * (x + step.abs_upper()).exp()
    return [*(value * term for term in terms[:-1]), around_zero(rest)]


def _logarithm(x: Fraction, y: Fraction, step: Any, order: int) -> list[Any]:
    """log x: derivative j, over j!, is (-1)^(j+1) x^-j / j, largest at the lower end."""
    if not x - y > 0:
        return [balls().box(math.inf, math.inf)]  # nan
    ratio = step / exact(x)
    series, term = [exact(x).log()], -ratio
    for j in range(1, order + 1):
        series.append(-term / j)
        term = -term * ratio
    rest = _whole_power(exact(y / (x - y)), order + 1) / (order + 1)
    return [*series, around_zero(rest)]


def _whole_power(x: Any, k: int) -> Any:
    """x^k for an integer k; nan for 1/0."""
    result = balls().product(x, abs(k))
    return 1 / result if k < 0 else result


def _half_power(x: Fraction, s: Fraction) -> Any:
    """x^s for x >= 0 and 2s an integer, or any x and an integer s."""
    ball = exact(x)
    if s.denominator == 1:
        return _whole_power(ball, int(s))
    return _whole_power(ball.sqrt(), int(2 * s))


@cache
def _binomials(s: Fraction, order: int) -> list[Fraction]:
    """binom(s, j) for j = 0 .. order."""
    binomials = [Fraction(1)]
    for j in range(1, order + 1):
        binomials.append(binomials[-1] * (s - j + 1) / j)
    return binomials


def _power_series(
    s: Fraction, x: Fraction, y: Fraction, step: Any, order: int
) -> list[Any]:
    """x^s: derivative j, over j!, is binom(s, j) x^(s-j).

    |x|^(s-j) is largest at an end of [x - y, x + y]: for s < j at the one next to 0, which
    must not be 0 then; else at the other. If binom(s, j) = 0 the derivative vanishes.
    """
    binomials = _binomials(s, order + 1)
    last = s - order - 1
    if binomials[-1] == 0:
        rest = exact(Fraction(0))
    elif last >= 0:
        rest = _half_power(abs(x) + y, last)
    elif x - y > 0:
        rest = _half_power(x - y, last)
    else:
        low, high = _half_power(max(x - y, Fraction(0)), s), _half_power(x + y, s)
        return [low.union(high)]
    if x == 0:
        values = [exact(Fraction(int(s == j))) for j in range(order + 1)]
    else:
        values, inverse = [_half_power(x, s)], 1 / exact(x)
        for _ in range(order):
            values.append(values[-1] * inverse)
    series, scale = list[Any](), exact(Fraction(1))
    for binomial, value in zip(binomials, values, strict=False):
        series.append(scale * exact(binomial) * value)
        scale = scale * step
    return [*series, around_zero(scale * exact(binomials[-1]) * rest)]
