"""Enclosures of a function and its slopes on many boxes at once.

On a box with centre c, and with half-widths h that reach every point from c,

    natural extension   f(box), operation by operation
    mean value form     f(c) + sum_k slope_k(box) * [-h_k, h_k]

both contain f on the box (for the second see `derivative`); so does their intersection. The
first way uses float64 intervals on whole arrays. The second uses Arb balls, one box after
the other: an independent check, and for boxes that the first cannot decide.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.errors import InputError
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.derivative import Differentiated, Jet
from everyformer.numerics.expression import Expression
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.sharp import SharpArithmetic

CHUNK = 8192
"""Boxes at a time: enough to hide the cost of a call, few enough to save memory."""


@dataclass(frozen=True)
class Enclosure:
    """Bounds of f and its partial derivatives on boxes.

    Every array is float64, rounded outward and never NaN; what is not decided is -inf, inf.

    Attributes:
        low: (count, n, d), lower bounds of f on each box.
        high: Upper bounds.
        centre_low: (count, n, d), lower bounds of f at the box's centre.
        centre_high: Upper bounds.
        slope_low: (count, n, d, n, d), lower bounds of the derivative of f's entry [j, i]
            by x[k, l], on the box; where f has a kink, of its generalised derivative.
        slope_high: Upper bounds. Both are 0 if the entry does not use x[k, l].
    """

    low: np.ndarray
    high: np.ndarray
    centre_low: np.ndarray
    centre_high: np.ndarray
    slope_low: np.ndarray
    slope_high: np.ndarray

    @classmethod
    def undecided(cls, count: int, n: int, d: int) -> "Enclosure":
        """Nothing known of f, every slope 0: to be filled in."""
        value, slope = (count, n, d), (count, n, d, n, d)
        low, centre_low = np.full(value, -np.inf), np.full(value, -np.inf)
        high, centre_high = np.full(value, np.inf), np.full(value, np.inf)
        return cls(low, high, centre_low, centre_high, np.zeros(slope), np.zeros(slope))


def enclose(
    expression: Expression,
    low: np.ndarray,
    high: np.ndarray,
    centre_low: np.ndarray,
    centre_high: np.ndarray,
    *,
    sharp: bool = False,
) -> Enclosure:
    """Enclose f in float64 intervals.

    Args:
        expression: f.
        low: (count, n, d), the boxes' lower ends.
        high: Their upper ends.
        centre_low: (count, n, d); the true centre, a point of the box, lies between this
        centre_high: and this.
        sharp: With the intervals of `sharp`, for boxes where a hair's breadth decides
            whether f has a value; several times slower.

    Returns:
        The enclosure.

    Raises:
        InputError: If the shapes differ or a box is empty.

    Example:
        >>> from everyformer.numerics.expression import Node
        >>> square = Expression(1, 1, (Node("x", (0, 0)), Node("mul", (0, 0))), ((1,),))
        >>> low, high = np.full((1, 1, 1), 1.0), np.full((1, 1, 1), 1.5)
        >>> found = enclose(square, low, high, (low + high) / 2, (low + high) / 2)
        >>> found.low.round(6).item(), found.high.round(6).item()
        (1.0, 2.25)
        >>> found.slope_low.round(6).item(), found.slope_high.round(6).item()
        (2.0, 3.0)
    """
    ends, result = _checked(expression, low, high, centre_low, centre_high)
    for start in range(0, len(low), CHUNK):
        here = slice(start, start + CHUNK)
        with np.errstate(all="ignore"):
            _enclose_chunk(expression, [end[here] for end in ends], result, here, sharp)
    return result


def _checked(
    expression: Expression, *ends: np.ndarray
) -> tuple[list[np.ndarray], Enclosure]:
    """The ends as float64, where a box or its centre is NaN from -inf to inf; no result."""
    shape = (ends[0].shape[0], expression.seq_len, expression.d_model)
    if any(end.shape != shape for end in ends):
        msg = (
            f"The boxes have ends of shapes {[end.shape for end in ends]}; the expression "
            f"needs (count, {shape[1]}, {shape[2]}), four times the same."
        )
        raise InputError(msg)
    low, high, centre_low, centre_high = (end.astype(np.float64) for end in ends)
    if (low > high).any() or (centre_low > centre_high).any():
        msg = "A box has a lower end above its upper end. Exchange them."
        raise InputError(msg)
    for left, right in ((low, high), (centre_low, centre_high)):
        unknown = ~(np.isfinite(left) & np.isfinite(right))
        left[unknown], right[unknown] = -np.inf, np.inf
    return [low, high, centre_low, centre_high], Enclosure.undecided(*shape)


def _enclose_chunk(
    expression: Expression,
    ends: list[np.ndarray],
    result: Enclosure,
    here: slice,
    sharp: bool,
) -> None:
    """Fill in the result for some boxes."""
    intervals = SharpArithmetic() if sharp else IntervalArithmetic()
    jets = Differentiated(intervals)
    # For each entry an array of shape (1, count), in contiguous memory.
    low, high, centre_low, centre_high = (
        np.ascontiguousarray(np.moveaxis(end, 0, -1)[:, :, None]) for end in ends
    )
    centres = expression.run(
        intervals, lambda j, i: Interval(centre_low[j, i], centre_high[j, i])
    )
    values: list[list[Jet]] = expression.run(
        jets, lambda j, i: jets.variable(Interval(low[j, i], high[j, i]), (j, i))
    )
    right = intervals.sub(Interval(high, high), Interval(centre_low, centre_low)).high
    left = intervals.sub(Interval(centre_high, centre_high), Interval(low, low)).high
    reach = np.maximum(left, right)
    for j, i in np.ndindex(*low.shape[:2]):
        natural, centre = values[j][i].value, centres[j][i]
        unknown = np.False_ if natural.undefined is None else natural.undefined
        total = centre
        for (k, m), slope in values[j][i].slopes.items():
            step = Interval(-reach[k, m], reach[k, m])
            total = intervals.add(total, intervals.mul(step, slope))
            result.slope_low[here, j, i, k, m] = np.where(unknown, -np.inf, slope.low)
            result.slope_high[here, j, i, k, m] = np.where(unknown, np.inf, slope.high)
        result.centre_low[here, j, i] = centre.low
        result.centre_high[here, j, i] = centre.high
        both_low = np.maximum(natural.low, total.low)
        both_high = np.minimum(natural.high, total.high)
        result.low[here, j, i] = np.where(unknown, -np.inf, both_low)
        result.high[here, j, i] = np.where(unknown, np.inf, both_high)


def enclose_with_balls(
    expression: Expression,
    low: np.ndarray,
    high: np.ndarray,
    centre_low: np.ndarray,
    centre_high: np.ndarray,
    *,
    precision: int = 64,
    depth: int = 0,
) -> Enclosure:
    """Enclose f in Arb balls, one box after the other.

    Args:
        expression: f.
        low: As for `enclose`.
        high: As for `enclose`.
        centre_low: As for `enclose`.
        centre_high: As for `enclose`.
        precision: Bits of the midpoints.
        depth: A box on which f is not finite is halved across its longest side, and its
            halves again, up to this many times. The result is the hull over the pieces.

    Returns:
        The enclosure.

    Raises:
        InputError: If the shapes differ or a box is empty.
        CertificateError: If python-flint is not installed.
    """
    ends, result = _checked(expression, low, high, centre_low, centre_high)
    balls = BallArithmetic(precision)
    with balls.working():
        for number in range(len(low)):
            box, centre = (
                (ends[0][number], ends[1][number]),
                (ends[2][number], ends[3][number]),
            )
            at_centre = expression.run(balls, entries_of(centre, balls))
            for j, i in np.ndindex(low.shape[1:]):
                found = balls.ends(at_centre[j][i])
                result.centre_low[number, j, i], result.centre_high[number, j, i] = found
            # If f has no finite bound at the centre, nor does it on the piece around it.
            known = all(value.is_finite() for row in at_centre for value in row)
            piece = _enclose_piece(expression, balls, box, centre, depth if known else 0)
            result.low[number], result.high[number] = piece[:2]
            result.slope_low[number], result.slope_high[number] = piece[2:]
    return result


Box = tuple[np.ndarray, np.ndarray]


def entries_of(box: Box, balls: BallArithmetic) -> Callable[[int, int], Any]:
    """Balls around the entries of a box, from their numbers."""
    low, high = box
    return lambda j, i: balls.box(float(low[j, i]), float(high[j, i]))


def _enclose_piece(
    expression: Expression, balls: BallArithmetic, box: Box, centre: Box, depth: int
) -> list[np.ndarray]:
    """(low, high, slope_low, slope_high) of f on one box."""
    shape = (expression.seq_len, expression.d_model)
    whole = Enclosure.undecided(1, *shape)
    piece = [whole.low[0], whole.high[0], whole.slope_low[0], whole.slope_high[0]]
    jets = Differentiated(balls)
    middle, entry = entries_of(centre, balls), entries_of(box, balls)
    values: list[list[Jet]] = expression.run(
        jets, lambda j, i: jets.variable(entry(j, i), (j, i))
    )
    total = expression.run(balls, middle)
    inside, around = (
        {at: ball(*at) for at in np.ndindex(*shape)} for ball in (middle, entry)
    )
    for at in np.ndindex(*shape):
        jet, mean = values[at[0]][at[1]], total[at[0]][at[1]]
        known = jet.value.is_finite()
        for k, slope in jet.slopes.items():
            mean = mean + slope * (around[k] - inside[k])
            found = balls.ends(slope) if known else (-math.inf, math.inf)
            piece[2][at + k], piece[3][at + k] = found
        if known:
            natural, other = balls.ends(jet.value), balls.ends(mean)
            piece[0][at] = max(natural[0], other[0])
            piece[1][at] = min(natural[1], other[1])
    if depth == 0 or np.isfinite(piece[:2]).all() or not np.isfinite(box).all():
        return piece
    return _enclose_halves(expression, balls, box, depth - 1)


def _enclose_halves(
    expression: Expression, balls: BallArithmetic, box: Box, depth: int
) -> list[np.ndarray]:
    """The hull over the two halves of a box."""
    low, high = box
    longest = np.unravel_index(np.argmax(high - low), low.shape)
    cut = low[longest] + (high[longest] - low[longest]) / 2
    left_high, right_low = high.copy(), low.copy()
    left_high[longest] = right_low[longest] = cut
    pieces: list[list[np.ndarray]] = []
    for half in ((low, left_high), (right_low, high)):
        middle = half[0] + (half[1] - half[0]) / 2
        pieces.append(_enclose_piece(expression, balls, half, (middle, middle), depth))
    first, second = pieces
    return [(np.minimum, np.maximum)[k % 2](first[k], second[k]) for k in range(len(first))]
