"""Heads for functions of one number.

All functions that are smooth on the whole line share one Gauss grid on [-1, 1], all powers
and logarithms of positive numbers one Gamma grid; a function costs one register of values
more. The argument is t = half tau + mid, or t = ref tau, with half and ref powers of two.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, floor, log2
from typing import Any

from everyformer.construct.compile.lowering.constants import Constants
from everyformer.construct.compile.lowering.gadgets import (
    ONE,
    ZERO,
    Average,
    Cell,
    Head,
    Reading,
)
from everyformer.construct.compile.lowering.knots import (
    LARGEST_VALUE,
    LOGISTIC,
    TANH,
    Column,
    Knots,
    exp_constant,
    exp_knots,
    gamma_knots,
    gauss_knots,
)
from everyformer.construct.compile.program import Function
from everyformer.construct.compile.ranges import Range, power_of_two_above
from everyformer.errors import ToleranceError

QUIET = Fraction(-(2**13))
"""b of data tokens and of unused prefix tokens."""

LARGEST_C = 24
"""Largest c of exp's two knots: e^c is what prefix tokens may hold."""


@dataclass(frozen=True)
class Argument:
    """tau = (t - mid)/half in [low, high], and fn(t) = factor column(tau).

    Attributes:
        half: A power of two.
        mid: A multiple of half/8.
        column: What the head's column computes.
        factor: The entry of W_O.
    """

    half: Fraction
    mid: Fraction
    column: Column
    factor: Fraction


def is_gauss(function: Function) -> bool:
    """Whether a function is smooth on the whole line and not exact with two knots."""
    power = function.power
    whole = power is not None and power.denominator == 1 and power >= 0
    return function.name in ("sin", "cos") or whole


class UnaryHeads:
    """The grids and columns of a program."""

    def __init__(self, constants: Constants, *, shares_gauss: bool, steady: float) -> None:
        """No columns yet.

        Args:
            constants: The program's cells.
            shares_gauss: Whether exp may use a Gauss grid that is there anyway.
            steady: Most that knots may magnify rounding.
        """
        self._constants, self._steady = constants, steady
        self._shares_gauss = shares_gauss
        self._columns: dict[str, dict[tuple[Any, ...], Column]] = {"gauss": {}, "gamma": {}}
        self._cells: dict[tuple[Any, ...], Cell] = {}

    def head(
        self, function: Function, t: Reading, known: Range, accuracy: Fraction
    ) -> Head:
        """A head that writes fn(t) to a new cell."""
        name = function.name
        high = float(known.wide[1])
        c = exp_constant(high, float(accuracy)) if name == "exp" else 0
        if name in ("tanh", "logistic"):
            knots = TANH if name == "tanh" else LOGISTIC
            return self._fixed(function, knots, t)
        if name == "exp" and c <= LARGEST_C and not self._shares_gauss:
            return self._fixed(function, exp_knots(c), t)
        if name == "exp" or is_gauss(function):
            return self._shared("gauss", t, gauss_argument(function, known, accuracy))
        return self._shared("gamma", t, gamma_argument(function, known, accuracy))

    def _fixed(self, function: Function, knots: Knots, t: Reading) -> Head:
        constants, zeros = self._constants, [0] * self._constants.n
        a, v = (
            constants.constant(label, zeros, [Fraction(x) for x in row])
            for label, row in (("a", knots.a), ("v", knots.values[0]))
        )
        b = self._constants.constant(
            "b", [QUIET] * constants.n, [Fraction(x) for x in knots.b], QUIET
        )
        largest = max(abs(Fraction(x)) for x in knots.values[0])
        target = constants.work(function.name, largest)
        average = Average(Reading.of(v), ONE, target, claim(function, ONE, ZERO))
        return _head(t, a, b, average)

    def _shared(self, grid: str, t: Reading, argument: Argument) -> Head:
        column, factor = argument.column, argument.factor
        key = (grid, column.function, column.scale, column.shift)
        columns = self._columns[grid]
        if key in columns:
            old = columns[key]
            columns[key] = replace(
                old,
                low=min(old.low, column.low),
                high=max(old.high, column.high),
                accuracy=min(old.accuracy, column.accuracy),
            )
        else:
            columns[key] = column
        v, a, b = (self._cell(k) for k in (key, (grid, "a"), (grid, "b")))
        tau = (t + Reading({}, -argument.mid)) * (1 / argument.half)
        scale = max(abs(column.at_ends()), 1.0)
        garbage = abs(factor) * Fraction(LARGEST_VALUE * scale)
        target = self._constants.work(column.function.name, garbage)
        text = claim(column.function, column.scale, column.shift)
        return _head(tau, a, b, Average(Reading.of(v), factor, target, text))

    def _cell(self, key: tuple[Any, ...]) -> Cell:
        if key not in self._cells:
            self._cells[key] = self._constants.later("knots")
        return self._cells[key]

    def finish(self) -> None:
        """Find knots for all columns and give the cells their numbers."""
        for grid, columns in self._columns.items():
            if not columns:
                continue
            search = gauss_knots if grid == "gauss" else gamma_knots
            knots = search(tuple(columns.values()), self._steady)
            self._set((grid, "a"), knots.a, ZERO)
            self._set((grid, "b"), knots.b, QUIET)
            for key, values in zip(columns, knots.values, strict=True):
                self._set(key, values, ZERO)

    def _set(
        self, key: tuple[Any, ...], numbers: tuple[float, ...], rest: Fraction
    ) -> None:
        cell = self._cells[key]
        cell.data = (rest,) * self._constants.n
        cell.prefix, cell.fill = tuple(Fraction(x) for x in numbers), rest
        cell.garbage = max(map(abs, (*cell.prefix, rest)))


def claim(function: Function, scale: Fraction, shift: Fraction) -> dict[str, Any]:
    """What a column stands for: fn(scale tau + shift)."""
    power = {} if function.power is None else {"power": str(function.power)}
    return {"fn": function.name, **power, "inner": [str(scale), str(shift)]}


def _head(tau: Reading, a: Cell, b: Cell, average: Average) -> Head:
    queries = (tau, Reading({}, ONE))
    return Head({"step": "unary"}, queries, (Reading.of(a), Reading.of(b)), [average])


def gauss_argument(function: Function, known: Range, accuracy: Fraction) -> Argument:
    """[low, high] to [-1, 1]; powers about 0, unless the interval lies far from it."""
    low, high = known.wide
    about_zero = power_of_two_above(max(abs(low), abs(high), Fraction(1, 2**100)))
    half, mid = centred(low, high)
    if function.power is not None and about_zero <= 4 * half:
        p = int(function.power)
        factor = about_zero**p
        ends = float(low / about_zero), float(high / about_zero)
        wanted = float(accuracy / factor)
        return Argument(
            about_zero, ZERO, Column(function, ONE, ZERO, *ends, wanted), factor
        )
    ends = float((low - mid) / half), float((high - mid) / half)
    return Argument(half, mid, Column(function, half, mid, *ends, float(accuracy)), ONE)


def centred(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """The least power of two half, and mid in half/8 Z, with [low, high] in mid +- half."""
    half = power_of_two_above(max((high - low) / 2, Fraction(1, 2**100)))
    while True:
        step = half / 8
        mid = Fraction(round((low + high) / 2 / step)) * step
        if mid - half <= low and high <= mid + half:
            return half, mid
        half *= 2


def gamma_argument(function: Function, known: Range, accuracy: Fraction) -> Argument:
    """t = ref tau with tau >= 1; roots that reach 0 begin where they are small enough.

    Raises:
        ToleranceError: If the argument may be 0 or negative where fn is not defined.
    """
    low, high = known.wide
    power = function.power
    if power is not None and power > 0:
        start = max(exp(log2(float(accuracy) / 4) * 0.6931 / float(power)), 2.0**-40)
        low = max(low, min(Fraction(start), high / 2))
    if low <= 0:
        msg = (
            f"{function.name} of a number in [{float(known.low):g}, {float(known.high):g}] "
            f"that is off by {float(known.error):.1e} may be asked for at 0 or below. Ask "
            "for more accuracy, or add a positive number to the argument."
        )
        raise ToleranceError(msg)
    exponent = floor(log2(float(low)))
    if power is not None and power.denominator == 2:
        exponent -= exponent % 2
    ref = Fraction(2) ** exponent
    ends = float(low / ref), float(high / ref)
    if power is None:
        return Argument(ref, ZERO, Column(function, ref, ZERO, *ends, float(accuracy)), ONE)
    factor = Fraction(2) ** int(exponent * power)
    wanted = float(accuracy / factor)
    return Argument(ref, ZERO, Column(function, ONE, ZERO, *ends, wanted), factor)
