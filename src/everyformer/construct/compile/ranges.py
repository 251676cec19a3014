"""Where the values of a program lie, and about how far off they will be.

Natural interval arithmetic in rationals, rounded outward to 60 bits. Products have the
product of the intervals, even powers are >= 0, normalised entries are at most sqrt(d). The
errors are estimates: they say how much room the knots of a unary head should leave, and no
proof rests on them. Lifting asks for the intervals alone, with gadgets of accuracy 0.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import inf, isfinite, sqrt

from everyformer.construct.compile import program as ir
from everyformer.errors import ToleranceError
from everyformer.numerics.rationals import short_up
from everyformer.targets.box import Box

ZERO, ONE = Fraction(0), Fraction(1)
BITS = 60
ROOM = Fraction(1, 2**20)
"""Part of an interval's size that knots leave for errors of arguments."""


TINY = 2000
"""Numbers below 2^-2000 are 0, or that."""

LOWEST = 600
"""Scores below its negative are those of a mask: their exponentials count as 0."""


class Range:
    """An interval and an estimate of the error of what lies in it."""

    __slots__ = ("error", "high", "low")

    def __init__(self, low: Fraction, high: Fraction, error: Fraction = ZERO) -> None:
        """[low, high]."""
        self.low, self.high, self.error = low, high, error

    @property
    def size(self) -> Fraction:
        """The largest absolute value, errors included."""
        return max(abs(self.low), abs(self.high)) + self.error

    @property
    def wide(self) -> tuple[Fraction, Fraction]:
        """The interval with room for errors of the argument; above 0 if they are small."""
        room = ROOM * self.size
        below = min(room, self.low / 2) if self.low > 0 else room
        return self.low - below - 2 * self.error, self.high + room + 2 * self.error

    def __add__(self, other: "Range") -> "Range":
        """The sum."""
        return outward(
            self.low + other.low, self.high + other.high, self.error + other.error
        )

    def __mul__(self, factor: Fraction | int) -> "Range":
        """A multiple."""
        ends = sorted((self.low * factor, self.high * factor))
        return outward(ends[0], ends[1], self.error * abs(factor))

    __rmul__ = __mul__

    def times(self, other: "Range", error: Fraction) -> "Range":
        """The product, off by `error` more than its factors make it."""
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        spread = self.size * other.error + other.size * self.error
        return outward(min(ends), max(ends), spread + error)


def outward(low: Fraction, high: Fraction, error: Fraction) -> Range:
    """An interval whose ends have about 60 bits."""
    return Range(-short_up(-low, BITS), short_up(high, BITS), short_up(error, BITS))


def hull(ranges: Iterable[Range]) -> Range:
    """The smallest interval around all."""
    kept = list(ranges)
    return Range(
        min(r.low for r in kept), max(r.high for r in kept), max(r.error for r in kept)
    )


def power_of_two_above(value: Fraction) -> Fraction:
    """The least power of two >= a positive number."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - 1
    while Fraction(2) ** exponent < value:
        exponent += 1
    return Fraction(2) ** exponent


class Ranges:
    """The range of every step of a program, for gadgets of one accuracy."""

    def __init__(self, box: Box, seq_len: int, accuracy: Fraction = ZERO) -> None:
        """The ranges of steps over a box."""
        self._box, self._n, self._accuracy = box, seq_len, accuracy
        self._known: dict[ir.Step, Range] = {}

    def of(self, form: ir.Form) -> Range:
        """The range of a form."""
        total = outward(form.offset, form.offset, ZERO)
        for step, coefficient in form.terms.items():
            total = total + self.step(step) * coefficient
        return total

    def step(self, step: ir.Step) -> Range:
        """The range of a step, from those of what it reads."""
        known = self._known.get(step)
        if known is None:
            known = self._known[step] = self._range(step)
        return known

    def know(self, step: ir.Step, known: Range) -> None:
        """Take the range of a step as given."""
        self._known[step] = known

    def _range(self, step: ir.Step) -> Range:
        match step:
            case ir.Input(channel=i):
                return Range(Fraction(self._box.lows[i]), Fraction(self._box.highs[i]))
            case ir.Constant(values=values):
                return outward(min(values), max(values), Fraction(0))
            case ir.Mean(value=v) | ir.Gather(value=v) | ir.Exchange(value=v):
                return self.of(v)
            case ir.Attend():
                v, moved = self.of(step.value), min(ONE, self.scores(step).error)
                return outward(v.low, v.high, v.error + moved * (v.high - v.low))
            case ir.ExponentialSum():
                return self._summed(self.of(step.value), self.scores(step))
            case ir.Mix(value=v, matrix=A):
                t = self.of(v)
                return hull(_mixed(t, row) for row in set(A))
            case ir.Maximum(first=a, second=b) | ir.Minimum(first=a, second=b):
                one, two = self.of(a), self.of(b)
                pick = max if isinstance(step, ir.Maximum) else min
                error = max(one.error, two.error)
                return Range(pick(one.low, two.low), pick(one.high, two.high), error)
            case ir.Absolute(value=v):
                t = self.of(v)
                low = max(Fraction(0), t.low, -t.high)
                return Range(low, max(-t.low, t.high), t.error)
            case ir.Relu(value=v):
                t = self.of(v)
                return Range(max(t.low, Fraction(0)), max(t.high, Fraction(0)), t.error)
            case ir.Scale(value=v, factors=factors):
                t = self.of(v)
                return hull(t * c for c in sorted(set(factors)))
            case ir.Product(first=a, second=b):
                return self.of(a).times(self.of(b), self._accuracy)
            case ir.Normalise(group=group):
                return self._normalised(group)
            case ir.Unary(value=v, function=function):
                return function_range(function, self.of(v), self._accuracy)
            case _:
                msg = f"{type(step).__name__} is not a step of a program."
                raise TypeError(msg)

    def scores(self, step: ir.OfScores) -> Range:
        """The range of q_j . k_k; what depends on positions alone, pair by pair."""
        total, fixed = Range(ZERO, ZERO), [[ZERO] * self._n for _ in range(self._n)]
        for query, key in zip(step.queries, step.keys, strict=True):
            q, k = (form.by_tokens(self._n) for form in (query, key))
            if q is None or k is None:
                total = total + self.of(query).times(self.of(key), ZERO)
                continue
            fixed = [
                [c + a * b for c, b in zip(row, k, strict=True)]
                for row, a in zip(fixed, q, strict=True)
            ]
        return total + outward(min(map(min, fixed)), max(map(max, fixed)), ZERO)

    def _summed(self, v: Range, s: Range) -> Range:
        """sum_k e^(s_k) v_k, n terms."""
        exp = ir.Function("exp")
        most = self._n * image(exp, s.high, True)
        least = self._n * image(exp, s.low, False) if s.low >= -LOWEST else ZERO
        low = v.low * (least if v.low > 0 else most)
        high = v.high * (most if v.high > 0 else least)
        error = most * (v.error + v.size * s.error) + self._accuracy
        return outward(low, high, error)

    def _normalised(self, group: ir.Normalised) -> Range:
        d = len(group.parts)
        spread = max(self.of(c).error for c in group.parts)
        steep = Fraction(sqrt(d / float(group.delta)) * 1.001)
        top = short_up(Fraction(sqrt(d)) * (1 + Fraction(1, 2**50)), BITS)
        return outward(-top, top, steep * spread + 3 * self._accuracy)


def _mixed(t: Range, row: tuple[Fraction, ...]) -> Range:
    """The range of a sum of multiples, the signs of the factors apart."""
    up, down = (sum((max(s * c, ZERO) for c in row), ZERO) for s in (1, -1))
    return t * up + t * -down


def function_range(function: ir.Function, t: Range, accuracy: Fraction) -> Range:
    """The range of fn(t), an error of t multiplied by the largest slope.

    Raises:
        ToleranceError: If the argument, errors included, may leave the domain of fn.
    """
    name, s = function.name, function.power
    low, high = t.wide
    if name in ("sin", "cos"):
        return outward(Fraction(-1), Fraction(1), t.error + accuracy)
    if name == "pow" and s is not None and s.denominator == 1 and s >= 0:
        p = int(s)
        ends = [t.low**p, t.high**p]
        bottom = Fraction(0) if p % 2 == 0 and t.low < 0 < t.high else min(ends)
        slope = p * t.size ** max(p - 1, 0)
        return outward(bottom, max(ends), slope * t.error + accuracy)
    ends = sorted([image(function, t.low, False), image(function, t.high, False)])
    rounding = max(map(abs, ends)) / 2**52
    if name in ("tanh", "logistic"):
        bottom = Fraction(-1 if name == "tanh" else 0)
        least, most = max(bottom, ends[0] - rounding), min(ONE, ends[1] + rounding)
        return outward(least, most, t.error + accuracy)
    slope = Fraction(0)
    if t.error:
        if low <= 0 and name != "exp" and not (s is not None and s > 0):
            msg = (
                f"{name} of a number in [{float(t.low):g}, {float(t.high):g}] that is off "
                f"by {float(t.error):.1e} may be asked for at 0. Ask for more accuracy, or "
                "add a positive number to the argument."
            )
            raise ToleranceError(msg)
        start = max(low, (accuracy / 4) ** 2)
        slope = max(abs(_slope(function, start)), abs(_slope(function, high)))
    error = slope * t.error
    if error and s is not None and 0 < s < 1:  # |(t + e)^s - t^s| <= e^s
        error = min(error, image(function, t.error, True))
    error += accuracy
    return outward(ends[0] - rounding, ends[1] + rounding, error)


def steepness(function: ir.Function, t: Range) -> float:
    """sup |fn'| on the interval of an argument; infinity for a root that begins at 0."""
    name, s = function.name, function.power
    if name in ("sin", "cos", "tanh"):
        return 1.0
    if name == "logistic":
        return 0.25
    if s is not None and s >= 1:
        return float(s * max(abs(t.low), abs(t.high)) ** int(s - 1))
    if name != "exp" and t.low <= 0:
        return inf
    return max(abs(float(_slope(function, end))) for end in (t.low, t.high))


def _slope(function: ir.Function, t: Fraction) -> Fraction:
    if function.name == "exp":
        return image(function, t, True)
    if function.name == "log":
        return 1 / t
    s = function.power or Fraction(0)
    return s * image(ir.Function("pow", s - 1), t, True)


def image(function: ir.Function, t: Fraction, up: bool) -> Fraction:
    """fn(t) of a monotone function, to about 60 bits."""
    from flint import arb, ctx, fmpq

    saved, ctx.prec = ctx.prec, 100
    try:
        x = arb(fmpq(t.numerator, t.denominator))
        if function.name in ("exp", "log", "tanh"):
            ball = getattr(x, function.name)()
        elif function.name == "logistic":
            ball = 1 / (1 + (-x).exp())
        else:
            s = function.power or Fraction(0)
            if t == 0 and s > 0:
                return Fraction(0)
            ball = x ** arb(fmpq(s.numerator, s.denominator))
        if not ball.is_finite() or not isfinite(float(ball.mid())):
            msg = (
                f"{function.name} at {float(t):g} is not a number that float64 holds. "
                "Narrow the domain."
            )
            raise ToleranceError(msg)
        mantissa, exponent = ball.mid().man_exp()
    finally:
        ctx.prec = saved
    if exponent < -TINY:  # e^-1e9 has a billion digits
        return Fraction(1, 2**TINY) if up else ZERO
    value = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return short_up(value, BITS) if up else -short_up(-value, BITS)
