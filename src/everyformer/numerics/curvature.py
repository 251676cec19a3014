"""First and second derivatives of an expression on many boxes.

The entries of a sequence are numbered x_k, k = j d + i for coordinate i of token j; so are
the entries of f. N = n d. The first way uses float64 intervals on whole arrays, the second
Arb balls, one box after the other; see `second_order` for the rules.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from everyformer.errors import InputError
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.enclosure import entries_of
from everyformer.numerics.expression import Expression
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.second_order import SecondJet, TwiceDifferentiated
from everyformer.numerics.sharp import SharpArithmetic

CHUNK = 4096
"""Boxes at a time."""

LARGEST = Fraction(np.finfo(np.float64).max.item())

EXTREMES = (np.min, np.max) * 3
"""What makes a hull of each of the `arrays` of a `Curvature`."""


def pairs_of(size: int) -> list[tuple[int, int]]:
    """All pairs k <= l of variables, in the order in which curves are stored.

    Example:
        >>> pairs_of(2)
        [(0, 0), (0, 1), (1, 1)]
    """
    return list(combinations_with_replacement(range(size), 2))


@dataclass(frozen=True)
class Curvature:
    """Bounds of f, its slopes and its curves on boxes.

    Every array is float64, rounded outward and never NaN; what is not decided is -inf, inf.
    Slopes may be finite where curves are not: at a kink.

    Attributes:
        low: (count, N), lower bounds of f's entries on each box.
        high: Upper bounds.
        slope_low: (count, N, N), lower bounds of the derivative of entry e by x_k; where f
            has a kink, of its generalised derivative.
        slope_high: Upper bounds.
        curve_low: (count, N, N (N+1) / 2), lower bounds of the second derivatives of entry
            e by the pairs of `pairs_of`.
        curve_high: Upper bounds.
    """

    low: np.ndarray
    high: np.ndarray
    slope_low: np.ndarray
    slope_high: np.ndarray
    curve_low: np.ndarray
    curve_high: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them, in this order: lower ends and upper ends in turn."""
        return tuple(getattr(self, one.name) for one in fields(self))

    @classmethod
    def of_size(cls, count: int, size: int) -> "Curvature":
        """All zero: to be filled in."""
        pairs = len(pairs_of(size))
        shapes = [(count, size), (count, size, size), (count, size, pairs)]
        return cls(*(np.zeros(shape) for shape in shapes for _ in range(2)))


def enclose_curvature(
    expression: Expression, low: np.ndarray, high: np.ndarray, *, balls: bool = False
) -> Curvature:
    """Enclose f and its first and second derivatives on boxes.

    Args:
        expression: f.
        low: (count, n, d), the boxes' lower ends, finite.
        high: Their upper ends.
        balls: Use Arb balls, one box after the other, instead of float64 intervals.

    Returns:
        The bounds.

    Raises:
        InputError: If the shapes differ, a box is empty, or an end is not finite.
        CertificateError: If balls are asked for and python-flint is not installed.

    Example:
        >>> from everyformer.numerics.expression import Node
        >>> cube = Expression(1, 1, (Node("x", (0, 0)), Node("pow", (0, 3))), ((1,),))
        >>> low, high = np.full((1, 1, 1), 1.0), np.full((1, 1, 1), 1.5)
        >>> found = enclose_curvature(cube, low, high)
        >>> found.curve_low.round(6).item(), found.curve_high.round(6).item()
        (6.0, 9.0)
    """
    n, d = expression.seq_len, expression.d_model
    if low.shape != high.shape or low.shape[1:] != (n, d):
        msg = (
            f"Boxes have ends of shapes {low.shape}, {high.shape}; give (count, {n}, {d})."
        )
        raise InputError(msg)
    if not (np.isfinite(low) & np.isfinite(high) & (low <= high)).all():
        raise InputError("A box is empty or not finite. Give finite ends, low <= high.")
    count = len(low)
    result = Curvature.of_size(count, n * d)
    step = 1 if balls else CHUNK
    for start in range(0, count, step):
        here = slice(start, start + step)
        with np.errstate(all="ignore"):
            (_by_balls if balls else _by_intervals)(
                expression, low[here], high[here], result, here
            )
    open_ended = ~(np.isfinite(result.low) & np.isfinite(result.high)).all(axis=1)
    hard = np.flatnonzero(open_ended)
    for start in range(0, 0 if balls else len(hard), step):
        here = hard[start : start + step]
        with np.errstate(all="ignore"):
            _by_intervals(expression, low[here], high[here], result, here, sharp=True)
    return result


def _by_intervals(
    expression: Expression,
    low: np.ndarray,
    high: np.ndarray,
    result: Curvature,
    here: slice | np.ndarray,
    *,
    sharp: bool = False,
) -> None:
    """With the intervals of `sharp` where a hair's breadth decides if f has a value."""
    jets = TwiceDifferentiated(SharpArithmetic() if sharp else IntervalArithmetic())
    # For each entry an array of shape (1, count), in contiguous memory.
    left, right = (
        np.ascontiguousarray(np.moveaxis(end.astype(np.float64), 0, -1)[:, :, None])
        for end in (low, high)
    )
    rows: list[list[SecondJet]] = expression.run(
        jets, lambda j, i: jets.variable(Interval(left[j, i], right[j, i]), (j, i))
    )
    _fill(expression, rows, lambda value: (value.low, value.high), result, here)


def _by_balls(
    expression: Expression,
    low: np.ndarray,
    high: np.ndarray,
    result: Curvature,
    here: slice,
) -> None:
    balls = BallArithmetic()
    with balls.working():
        jets = TwiceDifferentiated(balls)
        entry = entries_of((low[0], high[0]), balls)
        rows: list[list[SecondJet]] = expression.run(
            jets, lambda j, i: jets.variable(entry(j, i), (j, i))
        )
        _fill(expression, rows, balls.ends, result, here)


def _fill(
    expression: Expression,
    rows: list[list[SecondJet]],
    ends: Callable[[Any], tuple[Any, Any]],
    result: Curvature,
    here: slice | np.ndarray,
) -> None:
    """Put jets into arrays. Nothing is claimed of curves where a slope is undecided."""
    d = expression.d_model
    place = {pair: k for k, pair in enumerate(pairs_of(expression.seq_len * d))}
    for e, jet in enumerate(jet for row in rows for jet in row):
        low, high = ends(jet.value)
        result.low[here, e], result.high[here, e] = low, high
        unknown = np.isneginf(low) & np.isposinf(high)
        for (j, i), slope in jet.slopes.items():
            low, high = ends(slope)
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
            k = j * d + i
            result.slope_low[here, e, k], result.slope_high[here, e, k] = low, high
        slopes = (result.slope_low[here, e], result.slope_high[here, e])
        unknown = unknown | ~np.isfinite(slopes).all(axis=(0, -1))
        for pair, curve in jet.curves.items():
            low, high = ends(curve)
            at = place[tuple(j * d + i for j, i in pair)]  # pyright: ignore[reportArgumentType]
            result.curve_low[here, e, at] = np.where(unknown, -np.inf, low)
            result.curve_high[here, e, at] = np.where(unknown, np.inf, high)


def round_down(value: Fraction) -> float:
    """The largest float64 number that is not above, or -inf.

    Example:
        >>> round_down(Fraction(1, 10)) < Fraction(1, 10) < round_up(Fraction(1, 10))
        True
    """
    if abs(value) > LARGEST:
        return float(LARGEST) if value > 0 else -math.inf
    near = value.numerator / value.denominator
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def round_up(value: Fraction) -> float:
    """The least float64 number that is not below, or inf."""
    return -round_down(-value)
