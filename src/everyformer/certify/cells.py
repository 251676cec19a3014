"""How far f is from what the network computes, cell by cell, and the sums of it.

On a cell with centre c and half-widths h the network is a constant g, and f is known

by an expression: f(c + y) = f(c) + sum_l s_l y_l with every s_l in the enclosure of a
    slope, gamma_l +- rho_l. So, with u = y/h uniform on [-1, 1]^N, for p-means

        ||f - g|| <= || |f(c) - g| + sum gamma_l h_l u_l || + || sum rho_l h_l |u_l| ||,

    and never more than the largest |f - g| that the enclosure of f allows;

by a declared modulus: |f - g| <= |f(c) - g| + omega(h). For a Lipschitz constant L the
    p-mean of L max|y_l| is L h (N / (N + p))^(1/p).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.hypotheses import VALUES, Hypothesis, modulus
from everyformer.certify.moments import (
    UP,
    even_exponent,
    mean_of_line,
    mean_of_sizes,
    power,
    power_down,
)
from everyformer.certify.realise import Reading
from everyformer.certify.registers import RegisterReading
from everyformer.certify.undecided import Undecided, require_finite
from everyformer.certify.values import Mode, Values
from everyformer.errors import CertificateError
from everyformer.numerics.enclosure import Enclosure, enclose, enclose_with_balls
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Grid

SPLITTING_DEPTH = 8
SPLITTING_BALLS = 2**18
"""Operations on balls, for all boxes of a call, up to which boxes are split."""

MOST_BALLS = 2**22
"""Operations on balls up to which they are tried on boxes where float64 fails."""

BALL_PRECISION = 64
SHARD = 8192
"""Representatives in a shard; never chosen by the number of workers."""


@dataclass(frozen=True)
class Declared:
    """What is known of f by declaration.

    Attributes:
        values: f at the centre of every representative, as computed, (count, n, d).
        omega: Bound on |f(x) - f(c)| on a cell.
        lipschitz: The constant, if that is what was declared.
        radius: Half a cell: omega = omega(radius).
    """

    values: np.ndarray
    omega: Fraction
    lipschitz: Fraction | None
    radius: Fraction

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """What a proof that uses it rests on."""
        declared = modulus(self.omega, self.radius, lipschitz=self.lipschitz)
        return (declared, VALUES)

    def __post_init__(self) -> None:
        """See that f has values.

        Raises:
            CertificateError: If one is not finite.
        """
        if not np.isfinite(self.values).all():
            at = [int(k) for k in np.argwhere(~np.isfinite(self.values))[0]]
            msg = (
                f"f has the value {self.values[tuple(at)]} at the centre of cell {at[0]}: "
                "nothing is proved of functions that are not finite. Restrict the domain."
            )
            raise CertificateError(msg)

    @property
    def sha256(self) -> str:
        """A hash of all of it."""
        digest = hashlib.sha256(np.ascontiguousarray(self.values).tobytes())
        known = (self.values.shape, self.omega, self.lipschitz, self.radius)
        digest.update(repr(known).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Cells:
    """The cells to examine: one representative for each, or for each orbit.

    Attributes:
        grid: n, K and the box.
        columns: Column numbers of multisets, sorted rows, where f and the network are
            known to be equivariant; None for all cells, in order.
    """

    grid: Grid
    columns: np.ndarray | None

    @classmethod
    def of(cls, grid: Grid, *, symmetric: bool) -> "Cells":
        """All cells of a grid, up to permutations of the tokens if symmetric."""
        if not symmetric:
            return cls(grid, None)
        parts = [grid.distinct_sets(), grid.repeated_multisets()]
        return cls(grid, np.concatenate(parts))

    @property
    def count(self) -> int:
        """How many representatives."""
        return self.grid.sequences if self.columns is None else len(self.columns)

    @property
    def shards(self) -> int:
        """How many shards."""
        return -(-self.count // SHARD)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Column numbers of representatives start .. stop - 1, shape (count, n)."""
        stop = min(stop, self.count)
        if self.columns is not None:
            return self.columns[start:stop]
        V, n = self.grid.columns, self.grid.seq_len
        flat = np.arange(start, stop)
        return np.stack([flat // V ** (n - 1 - j) % V for j in range(n)], axis=-1)

    def weights(self, rows: np.ndarray) -> np.ndarray:
        """How many cells each representative stands for."""
        if self.columns is None:
            return np.ones(len(rows), dtype=np.int64)
        return self.grid.orbit_sizes(rows)


@dataclass(frozen=True)
class Examination:
    """All that a shard needs.

    Attributes:
        reading: The network.
        cells: The cells.
        known: What is known of f.
        p: The exponent.
        run: Whether to follow a float64 run as well.
        balls: Enclose f in Arb balls alone, instead of float64 intervals first.
    """

    reading: Reading | RegisterReading
    cells: Cells
    known: Expression | Declared
    p: Fraction
    run: bool
    balls: bool = False


def examine(work: Examination, index: int) -> dict[str, Any]:
    """One shard: sums of powers over its cells, in units of a cell's volume.

    Returns:
        Exact numbers as strings: `cells` and `duplicates` bound the sums of |f - g|^p over
        cells with different and with repeated columns; `real` and `float64` the sums of
        (distance of the network from g)^p; `lower` is a lower bound of the sum of |f - g|^p
        over plateaus of full volume; `low`, `high` the range of f; `radius` the largest
        distance of the network from g; `undecided` a cell on which f has no bound.
    """
    rows = work.cells.rows(index * SHARD, (index + 1) * SHARD)
    weights = work.cells.weights(rows)
    values = network_values(work.reading, rows, "real")
    centre = values.centre.astype(np.float64)
    radius = values.radius
    if work.reading.exact:
        radius = radius + np.abs(centre) * 2.0**-52  # rationals as float64
    _check_finite(centre, radius)
    bounds = _bounds(work, index, rows, centre)
    with np.errstate(over="ignore"):
        powers = power(bounds.upper, work.p).sum(axis=(1, 2)) * UP
    least = power_down(np.maximum(bounds.lower - radius * UP, 0.0), work.p)
    least = np.minimum(least, 2.0**900)
    repeated = np.zeros(len(rows), dtype=bool)
    if not work.reading.positional:
        ordered = np.sort(rows, axis=-1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    undecided = ~np.isfinite(powers)
    result: dict[str, Any] = {
        "cells": sum_up((powers * weights)[~repeated & ~undecided]),
        "duplicates": sum_up((powers * weights)[repeated & ~undecided]),
        "real": sum_up(_deviation(radius, work.p) * weights),
        "radius": str(Fraction(float(radius.max(initial=0.0)))),
        "lower": _sum_down(least.sum(axis=(1, 2)) * weights),
        "low": [],
        "high": [],
        "by_balls": bounds.by_balls,
        "undecided": None,
        "worst": [],
    }
    if undecided.any():
        result["undecided"] = rows[int(np.argmax(undecided))].tolist()
    else:
        result["low"] = [str(Fraction(float(v))) for v in bounds.low]
        result["high"] = [str(Fraction(float(v))) for v in bounds.high]
        worst = int(np.argmax(powers))
        result["worst"] = [rows[worst].tolist(), str(Fraction(float(powers[worst])))]
    if work.run:
        run = network_values(work.reading, rows, "float64")
        _check_finite(run.centre.astype(np.float64), run.radius)
        result["float64"] = sum_up(_deviation(run.radius, work.p) * weights)
        result["run_radius"] = str(Fraction(float(run.radius.max(initial=0.0))))
    return result


def _check_finite(centre: np.ndarray, radius: np.ndarray) -> None:
    """Refuse to sum what is not a number.

    Raises:
        Undecided: If the network's values, or how far it is from them, are not finite.
    """
    if not (np.isfinite(centre).all() and np.isfinite(radius).all()):
        raise Undecided("weights", "numbers are too large to be followed")


def network_values(
    reading: Reading | RegisterReading, rows: np.ndarray, mode: Mode
) -> Values:
    """The network's values on cells given in any order of their tokens.

    Without positions the network is equivariant: cells are sorted, each sorted one is run
    once, and the values are put back in order.
    """
    if reading.positional:
        return reading.values(rows, mode)
    order = np.argsort(rows, axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=-1)
    unique, back = np.unique(ordered, axis=0, return_inverse=True)
    found = reading.values(unique, mode)
    inverse = np.argsort(order, axis=-1)[..., None]
    back = back.reshape(-1)
    return Values(
        np.take_along_axis(found.centre[back], inverse, axis=1),
        np.take_along_axis(found.radius[back], inverse, axis=1),
    )


def _deviation(radius: np.ndarray, p: Fraction) -> np.ndarray:
    return power(radius, p).sum(axis=(1, 2)) * UP


def sum_up(terms: np.ndarray) -> str:
    """The sum of numbers >= 0, rounded up: `fsum` rounds once, whatever the order.

    Raises:
        Undecided: If it is not finite.
    """
    total = math.fsum((terms * UP).tolist())
    require_finite("bound", "a sum over cells", total)
    return str(Fraction(math.nextafter(total, math.inf)) if total else Fraction(0))


def _sum_down(terms: np.ndarray) -> str:
    total = math.fsum((terms * (2 - UP)).tolist())
    require_finite("bound", "a sum over cells", total)
    return str(Fraction(math.nextafter(total, 0.0)))


@dataclass(frozen=True)
class _Bounds:
    """|f - g| on cells: p-means from above, least values from below; and f's range."""

    upper: np.ndarray
    lower: np.ndarray
    low: np.ndarray
    high: np.ndarray
    by_balls: int


def _bounds(work: Examination, index: int, rows: np.ndarray, g: np.ndarray) -> _Bounds:
    if isinstance(work.known, Declared):
        return _declared(work.known, work, index, g)
    return _enclosed(work.known, work, rows, g)


def _declared(known: Declared, work: Examination, index: int, g: np.ndarray) -> _Bounds:
    values = known.values[index * SHARD : (index + 1) * SHARD]
    gap, omega = np.abs(values - g), float_up(known.omega)
    upper = (gap * UP + float_up(mean_slack(known, work.cells.grid, work.p))) * UP
    lower = np.maximum(gap * (2 - UP) - omega * UP, 0.0)
    low = values.min(axis=(0, 1)) - omega * UP
    high = values.max(axis=(0, 1)) + omega * UP
    size = np.maximum(np.abs(low), np.abs(high)) * 2.0**-40
    return _Bounds(upper, lower, low - size, high + size, 0)


def mean_slack(known: Declared, grid: Grid, p: Fraction) -> Fraction:
    """The p-mean over a cell of what is known of |f(x) - f(c)|."""
    if known.lipschitz is None:
        return known.omega
    N = grid.seq_len * grid.d_model
    return known.omega * power_up(Fraction(N) / (N + p), 1 / p)


def _enclosed(
    expression: Expression, work: Examination, rows: np.ndarray, g: np.ndarray
) -> _Bounds:
    grid = work.cells.grid
    found, by_balls = enclose_cells(expression, grid, rows, balls=work.balls)
    upper = mean_distance(found, grid, work.p, g)
    lower = np.maximum(np.maximum(found.low - g, g - found.high), 0.0) * (2 - UP)
    low, high = found.low.min(axis=(0, 1)), found.high.max(axis=(0, 1))
    return _Bounds(upper, np.where(np.isfinite(lower), lower, 0.0), low, high, by_balls)


def enclose_cells(
    expression: Expression, grid: Grid, rows: np.ndarray, *, balls: bool = False
) -> tuple[Enclosure, int]:
    """f on cells, and on how many of them by Arb balls: all, or where float64 fails."""
    ends = cell_ends(grid, rows)
    if balls:
        return _by_balls(expression, ends), len(rows)
    found = enclose(expression, *ends)
    finite = np.isfinite(found.low) & np.isfinite(found.high)
    hard = ~np.asarray(finite.all(axis=(1, 2)))
    if int(hard.sum()) * _ball_operations(expression) > MOST_BALLS:
        return found, 0  # they stay undecided
    if hard.any():
        again = _by_balls(expression, tuple(end[hard] for end in ends))
        _intersect(found, hard, again)
    return found, int(hard.sum())


def _by_balls(expression: Expression, ends: tuple[np.ndarray, ...]) -> Enclosure:
    room = SPLITTING_BALLS // max(len(ends[0]) * _ball_operations(expression), 1)
    depth = min(SPLITTING_DEPTH, max(room.bit_length() - 1, 0))
    return enclose_with_balls(expression, *ends, precision=BALL_PRECISION, depth=depth)


def _ball_operations(expression: Expression) -> int:
    """About how many operations on balls one run takes; a power is several products."""
    return sum(8 if node.op == "pow" else 1 for node in expression.nodes)


def _intersect(found: Enclosure, where: np.ndarray, again: Enclosure) -> None:
    """What both tiers say of some boxes."""
    for low, high in (
        ("low", "high"),
        ("centre_low", "centre_high"),
        ("slope_low", "slope_high"),
    ):
        lows, highs = getattr(found, low), getattr(found, high)
        lows[where] = np.maximum(lows[where], getattr(again, low))
        highs[where] = np.minimum(highs[where], getattr(again, high))


def mean_distance(found: Enclosure, grid: Grid, p: Fraction, g: np.ndarray) -> np.ndarray:
    """The p-mean of |f - g| over each cell, for each entry: (count, n, d)."""
    count, n, d = g.shape
    farthest = np.maximum(found.high - g, g - found.low) * UP
    q = even_exponent(p)
    if q is None:
        return farthest
    halves = np.array([float_up(w / (2 * grid.cells)) for w in grid.box.widths])
    steps = np.broadcast_to(halves, (n, d)).reshape(-1)  # [N]
    slope_low = found.slope_low.reshape(count, n, d, n * d)
    slope_high = found.slope_high.reshape(count, n, d, n * d)
    finite = np.isfinite(slope_low) & np.isfinite(slope_high)
    known = np.asarray(finite.all(axis=-1))
    with np.errstate(invalid="ignore", over="ignore"):
        gamma = np.where(known[..., None], slope_low / 2 + slope_high / 2, 0.0)
        rho = np.maximum(slope_high - gamma, gamma - slope_low) * UP
        beta = np.maximum(found.centre_high - g, g - found.centre_low) * UP
        mean = mean_of_line(np.abs(beta), gamma * steps, q) + mean_of_sizes(rho * steps, q)
        mean = np.where(known & np.isfinite(beta), mean * UP, np.inf)
    return np.minimum(farthest, np.where(np.isnan(mean), np.inf, mean))


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
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def float_down(value: Fraction) -> float:
    """The largest float64 number that is not above."""
    return -float_up(-value)
