"""Suprema of |f|, its slopes and its curves over a box, by subdivision."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.numerics.curvature import (
    Curvature,
    enclose_curvature,
    round_down,
    round_up,
)
from everyformer.numerics.expression import Expression


@dataclass(frozen=True)
class Suprema:
    """Upper bounds of sizes over a whole box.

    Attributes:
        values: (N,), sup |f_e|.
        slopes: (N, N), sup |d_k f_e|.
        curves: (N, N (N+1) / 2), sup |d_kl f_e|; inf where f_e is not known to be twice
            continuously differentiable on the whole box.
        cells: On how many cells it was enclosed.
    """

    values: np.ndarray
    slopes: np.ndarray
    curves: np.ndarray
    cells: int


def suprema(
    expression: Expression,
    lows: Sequence[Fraction],
    highs: Sequence[Fraction],
    *,
    excess: float = 0.02,
    max_cells: int = 20_000,
    balls: bool = False,
) -> Suprema:
    """Bound |f|, its slopes and its curves over a box, by subdivision.

    Every cell has an upper bound U of each size, and a lower bound of its supremum: the
    least size that the enclosure allows. A cell is halved, across its longest side, as long
    as one of its U exceeds the greatest lower bound by more than the given share; when
    cells run out, only those that exceed it most.

    Args:
        expression: f.
        lows: Where the box begins, for each of the N entries.
        highs: Where it ends.
        excess: The share by which a supremum may be too large.
        max_cells: No further halving after this many cells.
        balls: Use Arb balls.

    Returns:
        The suprema; too large, perhaps, and never too small.

    Example:
        >>> from everyformer.numerics.expression import Node
        >>> cube = Expression(1, 1, (Node("x", (0, 0)), Node("pow", (0, 3))), ((1,),))
        >>> found = suprema(cube, [Fraction(-1)], [Fraction(2)])
        >>> found.slopes.round(3).tolist(), found.curves.round(3).tolist()
        ([[12.0]], [[12.0]])
    """
    n, d = expression.seq_len, expression.d_model
    low = np.array([[round_down(a) for a in lows]])
    high = np.array([[round_up(b) for b in highs]])
    least = np.zeros(1)
    finished: list[np.ndarray] = []
    cells = 0
    while 16 * len(low) <= max_cells:  # few cells at a time would be slow
        low, high = _halves(low, high)
    while len(low):
        shape = (len(low), n, d)
        found = enclose_curvature(
            expression, low.reshape(shape), high.reshape(shape), balls=balls
        )
        cells += len(low)
        sizes, small = _flat_sizes(found)
        here = small.max(axis=0)
        least = np.maximum(least, here)
        again = _to_halve(sizes, least * (1.0 + excess), (max_cells - cells) // 2)
        finished.append(sizes[~again].max(axis=0, initial=0.0))
        low, high = _halves(low[again], high[again])
    parts = np.split(np.max(finished, axis=0), [n * d, n * d + (n * d) ** 2])
    return Suprema(
        parts[0], parts[1].reshape(n * d, -1), parts[2].reshape(n * d, -1), cells
    )


def _flat_sizes(found: Curvature) -> tuple[np.ndarray, np.ndarray]:
    """Greatest and least sizes on each cell, (count, all that is bounded)."""
    count = len(found.low)
    lows = (found.low, found.slope_low, found.curve_low)
    highs = (found.high, found.slope_high, found.curve_high)
    low = np.concatenate([part.reshape(count, -1) for part in lows], axis=1)
    high = np.concatenate([part.reshape(count, -1) for part in highs], axis=1)
    return np.maximum(high, -low), np.maximum(np.maximum(low, -high), 0.0)


def _to_halve(sizes: np.ndarray, allowed: np.ndarray, room: int) -> np.ndarray:
    """Which cells have a size beyond what is allowed; if too many, those far beyond."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(sizes > allowed, sizes / allowed, 0.0).max(axis=1)
    again = share > 0.0
    if again.sum() > room:
        again[:] = False
        taken = room // 2 if room > 256 else max(room, 0)
        again[np.argsort(-share, kind="stable")[:taken]] = True
    return again if room > 1 else np.zeros_like(again)


def _halves(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of every cell. A cell too small to halve gives itself, twice."""
    longest = np.argmax(high - low, axis=1)[:, None]
    start, end = (np.take_along_axis(a, longest, axis=1) for a in (low, high))
    middle = np.clip(start + (end - start) / 2, start, end)
    left_high, right_low = high.copy(), low.copy()
    np.put_along_axis(left_high, longest, middle, axis=1)
    np.put_along_axis(right_low, longest, middle, axis=1)
    return np.concatenate([low, right_low]), np.concatenate([left_high, high])
