"""f on the parts of a grid's cells, at their centres and at the anchors, enclosed."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from everyformer.certify.partition.lattice import Lattice
from everyformer.numerics.curvature import (
    Curvature,
    enclose_curvature,
    round_down,
    round_up,
)
from everyformer.numerics.derivative import Differentiated, Jet
from everyformer.numerics.expression import Expression
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.sharp import SharpArithmetic

CHUNK = 8192
"""Points at a time."""

FINE = 2
"""There are so many times more fine parts than boxes may be enclosed, at most, and"""

FINEST = 64
"""so many in a cell along an axis."""

Ends = tuple[np.ndarray, np.ndarray]
"""Lower and upper bounds; -inf, inf where nothing is known, and never NaN."""


@dataclass(frozen=True, eq=False)
class Samples:
    """What `direct` knows of f.

    Cells are divided into equal parts twice: f, its slopes and curves are enclosed on
    coarse parts. Fine parts take over what is known of the coarse one that they are in, and
    have their own centres, where f and its slopes are known almost exactly. Where a coarse
    part has no curves (a kink, a root, a jump), its fine parts are enclosed by themselves.

    Attributes:
        lattice: The lattice; its D plays no part.
        coarse: Coarse parts of a cell along an axis.
        fine: Fine parts of a cell along an axis, a multiple.
        expression: f, for values.
        smooth: f, for slopes: without maxima that cancel.
        known: What is known on the coarse parts, entry 0 slowest.
        rows: The first number of cells along the first axis that are meant, and the first
            behind them.
        balls: Whether to use Arb balls.
    """

    lattice: Lattice
    coarse: int
    fine: int
    expression: Expression
    smooth: Expression
    known: Curvature
    rows: tuple[int, int]
    balls: bool = False

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells along each axis."""
        N, (first, stop) = self.lattice.size, self.rows
        return (stop - first, *(self.lattice.grid.cells,) * (N - 1))

    @cached_property
    def anchors(self) -> Ends:
        """f at the anchors, (P, N)."""
        lattice = self.lattice
        side = lattice.grid.cells + 1 + 2 * lattice.margin
        points = _grid(lattice.lows, lattice.steps, [range(side)] * lattice.size)
        return values_on(self.expression, *points)

    @cached_property
    def centres(self) -> tuple[Ends, Ends]:
        """f and its slopes at the fine parts' centres: (count, N) and (count, N, N)."""
        return _jets(self.smooth, *self._points(1))

    @cached_property
    def found(self) -> Curvature:
        """f, its slopes and its curves on the fine parts."""
        times = self.fine // self.coarse
        if times == 1:
            return self.known
        shape = [cells * self.coarse for cells in self.cells]
        numbers = np.arange(math.prod(shape)).reshape(shape)
        for axis in range(len(shape)):
            numbers = np.repeat(numbers, times, axis=axis)
        inside = numbers.ravel()
        arrays = [values[inside] for values in self.known.arrays]
        smooth = np.isfinite(self.known.curve_low) & np.isfinite(self.known.curve_high)
        rough = np.flatnonzero(~np.all(smooth, axis=(-2, -1))[inside])
        if len(rough):
            shape = (-1, self.smooth.seq_len, self.smooth.d_model)
            low = self._points(0)[0][rough].reshape(shape)
            high = self._points(2)[1][rough].reshape(shape)
            own = enclose_curvature(self.smooth, low, high, balls=self.balls)
            for values, better in zip(arrays, own.arrays, strict=True):
                values[rough] = better
        return Curvature(*arrays)

    def _points(self, halves: int) -> Ends:
        """So many halves of a part from where fine parts begin; rounded both ways."""
        lattice, whole = self.lattice, 2 * self.fine
        axes = zip(lattice.lows, lattice.steps, strict=True)
        starts = [low + lattice.margin * h for low, h in axes]
        starts[0] += self.rows[0] * lattice.steps[0]
        numbers = [range(halves, halves + whole * cells, 2) for cells in self.cells]
        return _grid(starts, [h / whole for h in lattice.steps], numbers)


def fine_parts(lattice: Lattice, coarse: int, boxes: int) -> int:
    """Fine parts of a cell along an axis, if so many boxes may be enclosed."""
    K, N = lattice.grid.cells, lattice.size
    fit = [s for s in range(coarse, FINEST + 1, coarse) if (K * s) ** N <= FINE * boxes]
    return max(fit, default=coarse)


def _grid(starts: Any, steps: Any, numbers: Any) -> Ends:
    """The points start + number * step of every axis, rounded both ways, (count, N)."""
    low, high = (
        np.meshgrid(*axes, indexing="ij") for axes in rounded(starts, steps, numbers)
    )
    return tuple(np.stack([axis.ravel() for axis in ends], axis=-1) for ends in (low, high))  # pyright: ignore[reportReturnType]


def rounded(starts: Any, steps: Any, numbers: Any) -> tuple[list[np.ndarray], ...]:
    """start + number * step on every axis, as float64 numbers below and above."""
    exact = [
        [start + k * step for k in own]
        for start, step, own in zip(starts, steps, numbers, strict=True)
    ]
    return tuple(
        [np.array([to(a) for a in axis]) for axis in exact] for to in (round_down, round_up)
    )


def values_on(expression: Expression, low: np.ndarray, high: np.ndarray) -> Ends:
    """f on boxes, (count, N); with sharp intervals where others give no finite answer."""
    result = np.empty_like(low), np.empty_like(low)
    _fill_values(expression, (low, high), result, np.arange(len(low)), IntervalArithmetic())
    known = np.isfinite(result[0]) & np.isfinite(result[1])
    hard = np.flatnonzero(~known.all(axis=1))
    _fill_values(expression, (low, high), result, hard, SharpArithmetic())
    return result


def _fill_values(
    expression: Expression, ends: Ends, result: Ends, which: np.ndarray, on: Any
) -> None:
    d = expression.d_model
    for start in range(0, len(which), CHUNK):
        here = which[start : start + CHUNK]
        left, right = (np.ascontiguousarray(end[here].T)[:, None] for end in ends)
        with np.errstate(all="ignore"):
            rows: list[list[Interval]] = expression.run(
                on, lambda j, i, a=left, b=right: Interval(a[j * d + i], b[j * d + i])
            )
        for e, entry in enumerate(entry for row in rows for entry in row):
            _put(entry, result, (here, e))


def _jets(expression: Expression, low: np.ndarray, high: np.ndarray) -> tuple[Ends, Ends]:
    """f and its slopes on boxes; slopes are unknown wherever f is."""
    d, (count, N) = expression.d_model, low.shape
    values = np.empty((count, N)), np.empty((count, N))
    slopes = np.zeros((count, N, N)), np.zeros((count, N, N))
    on = Differentiated(IntervalArithmetic())
    for start in range(0, count, CHUNK):
        here = slice(start, start + CHUNK)
        left, right = (np.ascontiguousarray(end[here].T)[:, None] for end in (low, high))
        with np.errstate(all="ignore"):
            rows: list[list[Jet]] = expression.run(
                on,
                lambda j, i, a=left, b=right: on.variable(
                    Interval(a[j * d + i], b[j * d + i]), j * d + i
                ),
            )
        for e, jet in enumerate(jet for row in rows for jet in row):
            _put(jet.value, values, (here, e))
            for k, slope in jet.slopes.items():
                _put(slope, slopes, (here, e, k))
    unknown = ~(np.isfinite(values[0]) & np.isfinite(values[1]))
    slopes[0][unknown], slopes[1][unknown] = -np.inf, np.inf
    return values, slopes


def _put(found: Interval, into: Ends, where: Any) -> None:
    """Fill in; NaN says that nothing is known."""
    unknown = np.isnan(found.low) | np.isnan(found.high)
    into[0][where] = np.where(unknown, -np.inf, found.low)
    into[1][where] = np.where(unknown, np.inf, found.high)
