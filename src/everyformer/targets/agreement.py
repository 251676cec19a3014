"""Whether a function does what its trace says, at many points and in many batches.

The comparison proves nothing: the certificate is about the trace. It finds functions that
depend on more than the sequence, or that do something else for numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.errors import CertificateError, ExpressionError
from everyformer.numerics.conditions import compared_by_terms
from everyformer.numerics.enclosure import enclose_with_balls
from everyformer.numerics.expression import Expression
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.targets.points import INSIDE, SPECIAL, inside, special

BATCHES = (1, 64, 2, 1, 3, 1)
"""Sizes of batches, beside all points at once and a size drawn at random."""

WORK = 1 << 22
"""Lines times points; longer programs are compared at fewer points, but never fewer than"""
FEWEST = 128

TOLERANCE = 1e-9
"""Relative and absolute: float64 adds in another order, and no more than that."""

ROUNDING = 2.0**-45
"""Relative, in each line, where the tolerance does not suffice: rounding that grows."""

UNCLEAR = 1e-3
"""Inside the box rounding may grow to this much, relative and absolute."""

ROUNDED_AT = 256
"""Points at which rounding is bounded."""

DECIDED = 4
"""Of these, points where balls decide if intervals are wide."""

BALL_BITS = 2048

Evaluate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Points:
    """Sequences, and what the trace has there.

    Attributes:
        x: (count, n, d).
        ours: The values of the trace, in float64.
        inside: How many of the first are inside the box; there f must be finite.
    """

    x: np.ndarray
    ours: np.ndarray
    inside: int


def compare(
    expression: Expression, evaluate: Evaluate, low: np.ndarray, high: np.ndarray
) -> None:
    """Compare a function with its trace.

    All points at once, again in another order, and in small batches. The points follow from
    the trace, so that they are the same every time.

    Args:
        expression: The trace.
        evaluate: f; takes (batch, n, d) and returns float64 of that shape.
        low: (n, d), the lower ends of the box.
        high: The upper ends.

    Raises:
        ExpressionError: At the first point where they differ.
    """
    rng = np.random.default_rng(int(expression.sha256[:16], 16))
    most = max(FEWEST, WORK // len(expression.nodes))
    regular = inside(rng, min(INSIDE, most // 2), low, high)
    x = np.concatenate([regular, special(rng, min(SPECIAL, most // 16), low, high)])
    points = Points(x, expression(x), len(regular))
    for order in _batches(rng, len(x)):
        _agree(expression, points, order, evaluate(x[order]))
    _is_computed(expression, points)


def _batches(rng: np.random.Generator, count: int) -> Iterator[np.ndarray]:
    yield np.arange(count)
    for size in (*BATCHES, int(rng.integers(4, 64))):
        yield rng.permutation(count)[:size]
    yield rng.permutation(count)
    yield rng.permutation(count)[:1]


def _agree(
    expression: Expression, points: Points, order: np.ndarray, theirs: np.ndarray
) -> None:
    ours = points.ours[order]
    finite = np.isfinite(theirs) & np.isfinite(ours)
    agrees = finite & np.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    doubtful = np.flatnonzero(~agrees.all(axis=(-2, -1)))
    if len(doubtful) == 0:
        return
    low, high = _rounded(expression, points.x[order[doubtful]])
    known, given = ours[doubtful], theirs[doubtful]
    slack = TOLERANCE * (1 + np.abs(given))
    near = (low - slack <= given) & (given <= high + slack)
    near |= (low == -np.inf) & (high == np.inf)  # the trace is not defined there
    clear = finite[doubtful] & (high - low <= UNCLEAR * (1 + np.abs(known)))
    is_special = (order[doubtful] >= points.inside)[:, None, None]
    wrong = ~(agrees[doubtful] | (near & (clear | is_special))).all(axis=(-2, -1))
    if wrong.any():
        index = int(doubtful[np.argmax(wrong)])
        x = points.x[order[index]]
        msg = (
            f"At x = {x.tolist()}, in a batch of {len(order)}, the function returns "
            f"{theirs[index].tolist()} and its trace {ours[index].tolist()}. To be an "
            "expression it must depend on x alone, without state or random numbers, treat "
            "every sequence of the batch alike, and be finite. Repair the function, or "
            "declare lipschitz= or modulus=."
        )
        raise ExpressionError(msg)


def _is_computed(expression: Expression, points: Points) -> None:
    """See that float64 computes the trace: (x + 1e17) - 1e17 is x, and float64 has 0.

    A certificate is about the trace in real arithmetic. Intervals bound how far float64 is
    from it; where they are wide, balls of many bits decide at the widest points.

    Raises:
        ExpressionError: At a point inside the box where they are far apart.
    """
    x, ours = points.x[:ROUNDED_AT], points.ours[:ROUNDED_AT]
    low, high = _rounded(expression, x)
    known = np.isfinite(ours) & np.isfinite(low) & np.isfinite(high)
    most = UNCLEAR * np.abs(np.where(known, ours, 0)).max() + TOLERANCE
    with np.errstate(invalid="ignore"):
        off = np.where(known, np.maximum(high - ours, ours - low), 0.0).max(axis=(1, 2))
    for index in np.argsort(-off, kind="stable")[:DECIDED]:
        if off[index] <= most:
            return
        exact = _exactly(expression, x[index])
        if exact is not None and np.all(np.abs(exact - ours[index]) <= most):
            continue
        msg = (
            f"At x = {x[index].tolist()} float64 computes {ours[index].tolist()}, and "
            f"rounding may be off by {off[index]:.3g}: a certificate is about real "
            "numbers, not about what the function then returns. Write it so that large "
            "numbers do not cancel, or declare lipschitz= or modulus=."
        )
        raise ExpressionError(msg)


def _exactly(expression: Expression, x: np.ndarray) -> np.ndarray | None:
    """f at a point, from balls of many bits; None where they are not installed.

    An entry may be the maximum that it is compared with: see `conditions`.
    """
    f, one = compared_by_terms(expression), x[None]
    try:
        found = enclose_with_balls(f, one, one, one, one, precision=BALL_BITS)
    except CertificateError:
        return None
    return found.centre_low[0] / 2 + found.centre_high[0] / 2


class _Rounding:
    """Intervals that allow for the rounding of float64 in every line."""

    constant = staticmethod(IntervalArithmetic.constant)

    def __getattr__(self, op: str) -> Callable[..., Interval]:
        exact = getattr(IntervalArithmetic, op)

        def rounded(*args: Any) -> Interval:
            with np.errstate(all="ignore"):
                a = exact(*args)
                return Interval(
                    a.low - ROUNDING * np.abs(a.low), a.high + ROUNDING * np.abs(a.high)
                )

        return rounded


def _rounded(expression: Expression, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What float64 may make of the trace, whatever the order of its sums: low, high."""
    entries = np.ascontiguousarray(np.moveaxis(x, 0, -1)[:, :, None])
    with np.errstate(all="ignore"):
        rows = expression.run(
            _Rounding(), lambda j, i: Interval(entries[j, i], entries[j, i])
        )
    low, high = np.empty_like(x), np.empty_like(x)
    for j, i in np.ndindex(x.shape[1:]):
        low[:, j, i], high[:, j, i] = rows[j][i].low, rows[j][i].high
    return low, high
