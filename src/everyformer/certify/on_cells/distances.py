"""How far an expression is from a constant on a cell: p-means of |f - g|, rounded up.

On a box with centre c and half-widths h, f(c + y) = f(c) + sum_l s_l y_l with every s_l in
the enclosure of a slope, gamma_l +- rho_l. So, with u = y/h uniform on [-1, 1]^N,

    ||f - g|| <= || |f(c) - g| + sum gamma_l h_l u_l || + || sum rho_l h_l |u_l| ||

in p-means, and never more than the largest |f - g| that the enclosure of f allows. Where
slopes are not known, at a jump or the end of a root, that is all there is.

The second term is what the enclosure loses. Where it is large, cells are bisected
(`refinement`): the mean over a cell is at most that over its parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import inf, nextafter

import numpy as np

from everyformer.certify.on_cells.moments import (
    UP,
    even_exponent,
    mean_of_line,
    mean_of_sizes,
    power,
)
from everyformer.certify.on_cells.refinement import Boxes, Measured, refine
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.conditions import compared_by_terms
from everyformer.numerics.enclosure import Enclosure, enclose, enclose_with_balls
from everyformer.numerics.entropy import with_entropies
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Grid
from everyformer.targets.region import Pieces

SPLITTING_DEPTH = 8
SPLITTING_BALLS = 2**18
"""Operations on balls, for all boxes of a call, up to which boxes are split."""

MOST_BALLS = 2**22
"""Operations on balls up to which they are tried on boxes where float64 fails."""

BALL_PRECISION = 64


@dataclass(frozen=True)
class Distances:
    """|f - g| on cells.

    Attributes:
        powers: (count,), the mean of |f - g|^p over each cell, summed over the entries, at
            most; infinite where f has no bound.
        low: (count, n, d), lower bounds of f on each cell.
        high: Upper bounds.
        ranges: For each coordinate, lower and upper bounds of f on all cells.
        by_balls: On how many cells f is enclosed in Arb balls.
    """

    powers: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ranges: tuple[np.ndarray, np.ndarray]
    by_balls: int


def distances(
    expression: Expression,
    grid: Grid,
    rows: np.ndarray,
    weights: np.ndarray,
    p: Fraction,
    g: np.ndarray | None,
    *,
    shards: int = 1,
    balls: bool = False,
    pieces: Pieces | None = None,
) -> Distances:
    """Bound the distance of f from a constant on every cell.

    Args:
        expression: f.
        grid: n, K and the box.
        rows: (count, n), column numbers of the cells.
        weights: (count,), how much each cell counts; decides which are bisected.
        p: The exponent.
        g: (count, n, d), the constants; None for f at the centres.
        shards: Into how many calls the cells are divided; fewer are bisected in each.
        balls: In Arb balls on every cell, instead of float64 intervals first.
        pieces: What is looked at instead of the whole cells, one for each.
    """
    ends = cell_ends(grid, rows) if pieces is None else pieces.ends
    f = prepared(expression)
    found, by_balls = _enclose_cells(expression, ends, balls=balls)
    if g is None:
        with np.errstate(invalid="ignore"):
            g = found.centre_low / 2 + found.centre_high / 2
        g = np.where(np.isfinite(g), g, 0.0)
    halves = np.array([float_up(w / (2 * grid.cells)) for w in grid.box.widths])
    halves = halves if pieces is None else pieces.halves
    cells = Boxes(np.arange(len(rows)), ends[0], ends[1])
    steps = np.broadcast_to(halves, ends[0].shape)
    whole = measure(found, steps, p, g)
    if f != expression and not whole.good_enough(weights, p):
        written = _by_balls(expression, ends) if balls else enclose(expression, *ends)
        _intersect(found, np.ones(len(rows), dtype=bool), written)
        whole = measure(found, steps, p, g)

    def part(boxes: Boxes) -> Measured:
        ends = (boxes.low, boxes.high, *boxes.centres)
        inside = _in_balls(f, ends) if balls else _enclose_boxes(expression, ends)
        return measure(inside, boxes.halves, p, g[boxes.cell])

    widths = np.array([-float_up(-w / grid.cells) for w in grid.box.widths])
    widths = widths if pieces is None else pieces.widths
    refined = refine(cells, whole, part, weights, widths, p, f, shards)
    axes = (0, 1)
    ranges = (
        np.maximum(found.low.min(axis=axes), refined.low),
        np.minimum(found.high.max(axis=axes), refined.high),
    )
    return Distances(refined.powers, found.low, found.high, ranges, by_balls)


@lru_cache(maxsize=8)
def prepared(expression: Expression) -> Expression:
    """The same function almost everywhere, in lines that are enclosed more tightly."""
    return without_cancelling_maxima(compared_by_terms(with_entropies(expression)))


def _enclose_cells(
    expression: Expression, ends: tuple[np.ndarray, ...], *, balls: bool
) -> tuple[Enclosure, int]:
    """f on cells, and on how many of them by Arb balls: all, or where float64 fails."""
    f = prepared(expression)
    if balls:
        return _by_balls(f, ends), len(ends[0])
    found = _enclose_boxes(expression, ends)
    hard = _is_hard(found)
    if int(hard.sum()) * _ball_operations(f) > MOST_BALLS:
        return found, 0  # they stay undecided
    if hard.any():
        again = _by_balls(f, tuple(end[hard] for end in ends))
        _intersect(found, hard, again)
    return found, int(hard.sum())


def _enclose_boxes(expression: Expression, ends: tuple[np.ndarray, ...]) -> Enclosure:
    """f on boxes; where it has no bound, with sharper ends, and as it was written.

    Without its maximum, softmax of scores beyond 700 has no bound.
    """
    f = prepared(expression)
    found = enclose(f, *ends)
    for again, sharp in ((f, True), (expression, False)):
        hard = _is_hard(found)
        if hard.any() and (sharp or f is not expression):
            part = tuple(end[hard] for end in ends)
            _intersect(found, hard, enclose(again, *part, sharp=sharp))
    return found


def _is_hard(found: Enclosure) -> np.ndarray:
    finite = np.isfinite(found.low) & np.isfinite(found.high)
    return ~np.asarray(finite.all(axis=(1, 2)))


def _by_balls(expression: Expression, ends: tuple[np.ndarray, ...]) -> Enclosure:
    room = SPLITTING_BALLS // max(len(ends[0]) * _ball_operations(expression), 1)
    depth = min(SPLITTING_DEPTH, max(room.bit_length() - 1, 0))
    return _in_balls(expression, ends, depth)


def _in_balls(
    expression: Expression, ends: tuple[np.ndarray, ...], depth: int = 0
) -> Enclosure:
    return enclose_with_balls(expression, *ends, precision=BALL_PRECISION, depth=depth)


def _ball_operations(expression: Expression) -> int:
    """About how many operations on balls one run takes; a power is several products."""
    return sum(8 if node.op == "pow" else 1 for node in expression.nodes)


def _intersect(found: Enclosure, where: np.ndarray, again: Enclosure) -> None:
    """What both tiers say of some boxes."""
    for what in ("", "centre_", "slope_"):
        low, high = f"{what}low", f"{what}high"
        lows, highs = getattr(found, low), getattr(found, high)
        lows[where] = np.maximum(lows[where], getattr(again, low))
        highs[where] = np.minimum(highs[where], getattr(again, high))


def measure(found: Enclosure, halves: np.ndarray, p: Fraction, g: np.ndarray) -> Measured:
    """The p-th powers of |f - g| on boxes, from an enclosure of f.

    Args:
        found: f on the boxes.
        halves: (count, n, d), half their widths, rounded up.
        p: The exponent.
        g: (count, n, d), the constants.
    """
    upper, guess, lost = mean_distance(found, halves, p, g)
    with np.errstate(over="ignore"):
        powers = power(upper, p).sum(axis=(1, 2)) * UP
        guesses = power(guess, p).sum(axis=(1, 2))
    return Measured(powers, guesses, lost, found.low.min(axis=1), found.high.max(axis=1))


def mean_distance(
    found: Enclosure, halves: np.ndarray, p: Fraction, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The p-mean of |f - g| over each box, for each entry.

    Returns:
        An upper bound, (count, n, d); a guess of the true value, which is at most as large;
        and (count, N), how much is lost to the slope along each axis.
    """
    count, n, d = g.shape
    farthest = np.maximum(found.high - g, g - found.low) * UP
    steps = halves.reshape(count, 1, 1, n * d)
    slope_low = found.slope_low.reshape(count, n, d, n * d)
    slope_high = found.slope_high.reshape(count, n, d, n * d)
    finite = np.isfinite(slope_low) & np.isfinite(slope_high)
    known = np.asarray(finite.all(axis=-1))
    q = even_exponent(p)
    with np.errstate(invalid="ignore", over="ignore"):
        gamma = np.where(known[..., None], slope_low / 2 + slope_high / 2, 0.0)
        rho = np.maximum(slope_high - gamma, gamma - slope_low) * UP
        beta = np.abs(np.maximum(found.centre_high - g, g - found.centre_low) * UP)
        lost = np.where(finite, rho, inf) * steps
        lost = np.where(np.isnan(lost), inf, lost).sum(axis=(1, 2))
        line = mean_of_line(beta, gamma * steps, q or 2)
        spread = mean_of_sizes(rho * steps, q or 2)
        # Products of slopes and half-widths below 2^-1022 may have been lost.
        moving = np.asarray(((gamma != 0) | (rho != 0)).any(axis=-1))
        mean = line + spread + np.where(moving, 2.0**-1000, 0.0)
        mean = np.where(known & np.isfinite(beta), mean * UP, inf)
        mean = np.where(np.isnan(mean) | (q is None), inf, mean)
        guess = line * np.maximum(1 - (spread / line) ** 2, 0.0)  # a bad one, if they agree
    upper = np.minimum(farthest, mean)
    guess = np.where(np.isfinite(guess), np.minimum(guess, upper), 0.0)
    return upper, guess, lost


def cell_ends(grid: Grid, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Lower and upper ends, and lower and upper bounds of the centre, rounded outward."""
    digits = grid.digits(rows)  # [count, n, d]
    ends: list[np.ndarray] = []
    places: Sequence[tuple[int, Callable[[Fraction], float]]] = (
        (0, float_down),
        (2, float_up),
        (1, float_down),
        (1, float_up),
    )
    for halves, rounded in places:
        table = np.array(
            [
                [
                    rounded(Fraction(low) + (2 * k + halves) * width / (2 * grid.cells))
                    for k in range(grid.cells)
                ]
                for low, width in zip(grid.box.lows, grid.box.widths, strict=True)
            ]
        )
        ends.append(table[np.arange(grid.d_model), digits])
    return tuple(ends)


def float_up(value: Fraction) -> float:
    """The least float64 number that is not below."""
    near = float(value)
    return near if Fraction(near) >= value else nextafter(near, inf)


def float_down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    return -float_up(-value)
