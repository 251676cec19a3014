"""Where the numbers of steps and forms lie, by natural interval arithmetic."""

import math
from collections.abc import Callable
from fractions import Fraction

from everyformer.construct.compile.program import (
    Absolute,
    Attend,
    Constant,
    Form,
    Function,
    Input,
    Maximum,
    Minimum,
    Mix,
    Normalise,
    OfOne,
    Product,
    Relu,
    Scale,
    Step,
    Unary,
)
from everyformer.targets.box import Box

Range = tuple[Fraction, Fraction]
"""low <= high."""

ROUND = 1 << 64
"""Ends are rounded outward to multiples of one over this."""
LARGE = Fraction(2) ** 1000
"""Ends stay below this."""


class Ranges:
    """The ranges of steps that have been asked for."""

    def __init__(self, n: int, box: Box) -> None:
        """Begin with the ranges of entries of x."""
        self._box = [
            (Fraction(a), Fraction(b)) for a, b in zip(box.lows, box.highs, strict=True)
        ]
        self._known: dict[Step, Range] = {}
        self._n = n

    def form(self, form: Form) -> Range:
        """The range of a form."""
        low = high = form.offset
        for step, c in form.terms.items():
            a, b = self.step(step)
            low += c * (a if c > 0 else b)
            high += c * (b if c > 0 else a)
        return _outward(low, high)

    def step(self, step: Step) -> Range:
        """The range of a step."""
        known = self._known.get(step)
        if known is None:
            known = self._known[step] = _outward(*self._compute(step))
        return known

    def _compute(self, step: Step) -> Range:
        match step:
            case Input():
                return self._box[step.channel]
            case Constant():
                return min(step.values), max(step.values)
            case Mix():
                ends = [_row(row, self.form(step.value)) for row in step.matrix]
                return min(a for a, _ in ends), max(b for _, b in ends)
            case Scale():
                ends = [_times((c, c), self.form(step.value)) for c in set(step.factors)]
                return min(a for a, _ in ends), max(b for _, b in ends)
            case Unary():
                return _image(step.function, *self.form(step.value))
            case Product():
                return _times(self.form(step.first), self.form(step.second))
            case Normalise():
                size = Fraction(math.sqrt(len(step.group.parts)) * (1 + 1e-12))
                return -size, size
            case Attend():
                return self.form(step.value)
            case Maximum() | Minimum():
                (a, b), (c, d) = self.form(step.first), self.form(step.second)
                choose = max if isinstance(step, Maximum) else min
                return choose(a, c), choose(b, d)
            case Absolute():
                return _size(*self.form(step.value))
            case Relu():
                low, high = self.form(step.value)
                return max(low, Fraction(0)), max(high, Fraction(0))
            case OfOne():  # Mean, Gather, Exchange
                return self.form(step.value)
            case _:
                msg = f"{type(step).__name__} has no range"
                raise TypeError(msg)


def _outward(low: Fraction, high: Fraction) -> Range:
    low, high = max(low, -LARGE), min(high, LARGE)
    if low.denominator > ROUND:
        low = Fraction(math.floor(low * ROUND), ROUND)
    if high.denominator > ROUND:
        high = Fraction(math.ceil(high * ROUND), ROUND)
    return low, high


def _row(row: tuple[Fraction, ...], value: Range) -> Range:
    up, down = sum(c for c in row if c > 0), sum(c for c in row if c < 0)
    return (
        Fraction(up * value[0] + down * value[1]),
        Fraction(up * value[1] + down * value[0]),
    )


def _times(a: Range, b: Range) -> Range:
    ends = [p * q for p in a for q in b]
    return min(ends), max(ends)


def _size(low: Fraction, high: Fraction) -> Range:
    least = Fraction(0) if low <= 0 <= high else min(abs(low), abs(high))
    return least, max(abs(low), abs(high))


def _image(function: Function, low: Fraction, high: Fraction) -> Range:
    match function.name:
        case "pow":
            return _power(function.power or Fraction(1), low, high)
        case "sin" | "cos":
            return Fraction(-1), Fraction(1)
        case "exp":
            return _monotone(math.exp, low, high, Fraction(0))
        case "log":
            return _monotone(math.log, low, high, None)
        case "tanh":
            return _monotone(math.tanh, low, high, Fraction(-1), Fraction(1))
        case "logistic":
            return _monotone(_logistic, low, high, Fraction(0), Fraction(1))


def _power(power: Fraction, low: Fraction, high: Fraction) -> Range:
    if power.denominator == 1 and power > 0:
        k = int(power)
        a, b = (low, high) if k % 2 else _size(low, high)
        return a**k, b**k
    if power > 0:
        return _monotone(lambda t: max(t, 0.0) ** float(power), low, high, Fraction(0))
    a, b = _monotone(
        lambda t: t ** float(power) if t > 0 else math.inf, high, low, Fraction(0)
    )
    return a, b


def _logistic(t: float) -> float:
    return 1 / (1 + math.exp(-t)) if t > -700 else 0.0


def _monotone(
    function: Callable[[float], float],
    low: Fraction,
    high: Fraction,
    least: Fraction | None,
    most: Fraction | None = None,
) -> Range:
    """The images of the ends, a little outward."""

    def image(t: Fraction, sign: int) -> Fraction:
        try:
            value = function(float(t))
        except (OverflowError, ValueError):
            return sign * LARGE
        if not math.isfinite(value):
            return sign * LARGE
        return Fraction(value) + sign * (abs(Fraction(value)) / 2**40 + Fraction(1, 2**60))

    a, b = image(low, -1), image(high, 1)
    a = a if least is None else max(a, least)
    return a, b if most is None else min(b, most)
