"""How far f is from what the network computes, cell by cell, and the sums of it.

On a cell with centre c and half-widths h the network is a constant g, and f is known

by an expression: enclosed with its slopes, see `distances`;

by a declared modulus: |f - g| <= |f(c) - g| + omega(h). For a Lipschitz constant L the
    p-mean of L max|y_l| is L h (N / (N + p))^(1/p).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from everyformer.certify.known import Declared, Known
from everyformer.certify.on_cells.distances import distances, float_up
from everyformer.certify.on_cells.moments import (
    UP,
    power,
    power_down,
)
from everyformer.certify.on_cells.reading import CellReading
from everyformer.certify.on_cells.values import Mode, Values
from everyformer.certify.undecided import Undecided, require_finite
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Grid
from everyformer.targets.region import Pieces, Region

SHARD = 8192
"""Representatives in a shard; never chosen by the number of workers."""


@dataclass(frozen=True)
class Cells:
    """The cells to examine: one representative for each, or for each orbit.

    Attributes:
        grid: n, K and the box.
        columns: Column numbers of multisets, sorted rows, where f and the network are
            known to be equivariant; None for all cells, in order.
        region: Over which the distance is; its pieces are examined instead of cells. None
            for the whole box.
        everywhere: Whether the distance is over all of R^(n x d), f being 0 off the box.
    """

    grid: Grid
    columns: np.ndarray | None
    region: Region | None = None
    everywhere: bool = False

    @classmethod
    def of(
        cls,
        grid: Grid,
        *,
        symmetric: bool,
        region: Region | None = None,
        everywhere: bool = False,
    ) -> "Cells":
        """All cells of a grid, up to permutations of the tokens if symmetric."""
        if not symmetric or region is not None:
            return cls(grid, None, region, everywhere)
        parts = [grid.distinct_sets(), grid.repeated_multisets()]
        return cls(grid, np.concatenate(parts), None, everywhere)

    @cached_property
    def pieces(self) -> Pieces | None:
        """What cells and region have in common; None for the whole box."""
        return None if self.region is None else self.region.pieces(self.grid)

    @property
    def volume(self) -> Fraction:
        """Of the region, or the box."""
        if self.region is not None:
            return self.region.volume
        return self.grid.box.volume(self.grid.seq_len)

    def measure(self, lengths: np.ndarray) -> Fraction:
        """The measure of the points with some coordinate on ramps, at most.

        Args:
            lengths: Of the ramps of every coordinate of every token, Fractions (n, d).
        """
        n, widths = self.grid.seq_len, self.grid.box.widths
        if self.region is not None:
            shares = sum(
                np.minimum(lengths, part) / part * math.prod(part.flat)
                for part in self.region.lengths
            )
            return sum(np.asarray(shares).flat, start=Fraction(0))
        share = sum(
            (lengths[j, i] / widths[i] for j in range(n) for i in range(len(widths))),
            start=Fraction(0),
        )
        return self.volume * share

    @property
    def count(self) -> int:
        """How many representatives."""
        if self.pieces is not None:
            return len(self.pieces.columns)
        return self.grid.sequences if self.columns is None else len(self.columns)

    @property
    def shards(self) -> int:
        """How many shards."""
        return -(-self.count // SHARD)

    def rows(self, start: int, stop: int, step: int = 1) -> np.ndarray:
        """Column numbers of representatives start .. stop - 1, shape (count, n)."""
        stop = min(stop, self.count)
        if self.pieces is not None:
            return self.pieces.columns[start:stop]
        if self.columns is not None:
            return self.columns[start:stop:step]
        V, n = self.grid.columns, self.grid.seq_len
        flat = np.arange(start, stop, step)
        return np.stack([flat // V ** (n - 1 - j) % V for j in range(n)], axis=-1)

    def weights(self, rows: np.ndarray, start: int = 0) -> np.ndarray:
        """How many cells each representative stands for; a piece for a share of one."""
        if self.pieces is not None:
            return self.pieces.shares[start : start + len(rows)]
        if self.columns is None:
            return np.ones(len(rows), dtype=np.int64)
        return self.grid.orbit_sizes(rows)

    def least_weights(self, rows: np.ndarray, start: int = 0) -> np.ndarray:
        """The same from below: a piece that is not a whole cell may be all ramp."""
        if self.pieces is not None:
            return self.pieces.whole[start : start + len(rows)].astype(np.int64)
        return self.weights(rows, start)


@dataclass(frozen=True)
class CellExamination:
    """All that a shard needs.

    Attributes:
        reading: The network.
        cells: The cells.
        known: What is known of f.
        p: The exponent.
        run: Whether to follow a float64 run as well.
        balls: Enclose f in Arb balls alone, instead of float64 intervals first.
    """

    reading: CellReading
    cells: Cells
    known: Known
    p: Fraction
    run: bool
    balls: bool = False


def examine(work: CellExamination, index: int) -> dict[str, Any]:
    """One shard: sums of powers over its cells, in units of a cell's volume.

    Returns:
        Exact numbers as strings: `cells` and `duplicates` bound the sums of |f - g|^p over
        cells with different and with repeated columns; `real` and `float64` the sums of
        (distance of the network from g)^p; `lower` is a lower bound of the sum of |f - g|^p
        over plateaus of full volume; `low`, `high` the range of f; `radius` the largest
        distance of the network from g; `undecided` a cell on which f has no bound.
    """
    rows = work.cells.rows(index * SHARD, (index + 1) * SHARD)
    weights = work.cells.weights(rows, index * SHARD)
    values = network_values(work.reading, rows, "real")
    centre = values.centre.astype(np.float64)
    radius = values.radius
    if work.reading.exact:
        radius = radius + np.abs(centre) * 2.0**-52  # rationals as float64
    _check_finite(centre, radius)
    bounds = _bounds(work, index, rows, centre)
    powers = bounds.powers
    least = power_down(np.maximum(bounds.lower - radius * UP, 0.0), work.p)
    repeated = np.zeros(len(rows), dtype=bool)
    if not work.reading.positional:
        ordered = np.sort(rows, axis=-1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    undecided = ~np.isfinite(powers)
    result: dict[str, Any] = {
        "cells": sum_up(_weighted(powers, weights)[~repeated & ~undecided]),
        "duplicates": sum_up(_weighted(powers, weights)[repeated & ~undecided]),
        "real": sum_up(_weighted(_deviation(radius, work.p), weights)),
        "radius": str(Fraction(float(radius.max(initial=0.0)))),
        "lower": _sum_down(
            least.sum(axis=(1, 2)) * work.cells.least_weights(rows, index * SHARD)
        ),
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
        result["float64"] = sum_up(_weighted(_deviation(run.radius, work.p), weights))
        result["run_radius"] = str(Fraction(float(run.radius.max(initial=0.0))))
    return result


def _check_finite(centre: np.ndarray, radius: np.ndarray) -> None:
    """Refuse to sum what is not a number.

    Raises:
        Undecided: If the network's values, or how far it is from them, are not finite.
    """
    if not (np.isfinite(centre).all() and np.isfinite(radius).all()):
        raise Undecided("weights", "numbers are too large to be followed")


def network_values(reading: CellReading, rows: np.ndarray, mode: Mode) -> Values:
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


def _weighted(powers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Powers times weights, from above: 0 where a power is 0, and nowhere else.

    The share of a piece may be so small that float64 holds no product with it.
    """
    return np.where(powers == 0, 0.0, np.maximum(powers * weights, 2.0**-1000))


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
    """|f - g| on cells, and the range of f.

    Mean p-th powers, summed over the entries, from above; least values from below.
    """

    powers: np.ndarray
    lower: np.ndarray
    low: np.ndarray
    high: np.ndarray
    by_balls: int


def _bounds(work: CellExamination, index: int, rows: np.ndarray, g: np.ndarray) -> _Bounds:
    if isinstance(work.known, Declared):
        return _declared(work.known, work, index, g)
    return _enclosed(work.known, work, index, rows, g)


def _declared(known: Declared, work: CellExamination, index: int, g: np.ndarray) -> _Bounds:
    values = known.values[index * SHARD : (index + 1) * SHARD]
    gap, omega = np.abs(values - g), float_up(known.omega)
    upper = (gap * UP + float_up(mean_slack(known, work.cells.grid, work.p))) * UP
    lower = np.maximum(gap * (2 - UP) - omega * UP, 0.0)
    low = values.min(axis=(0, 1)) - omega * UP
    high = values.max(axis=(0, 1)) + omega * UP
    size = np.maximum(np.abs(low), np.abs(high)) * 2.0**-40
    with np.errstate(over="ignore"):
        powers = power(upper, work.p).sum(axis=(1, 2)) * UP
    return _Bounds(powers, lower, low - size, high + size, 0)


def mean_slack(known: Declared, grid: Grid, p: Fraction) -> Fraction:
    """The p-mean over a cell of what is known of |f(x) - f(c)|."""
    if known.lipschitz is None:
        return known.omega
    N = grid.seq_len * grid.d_model
    return known.omega * power_up(Fraction(N) / (N + p), 1 / p)


def _enclosed(
    expression: Expression,
    work: CellExamination,
    index: int,
    rows: np.ndarray,
    g: np.ndarray,
) -> _Bounds:
    start, pieces = index * SHARD, work.cells.pieces
    weights = work.cells.weights(rows, start)
    grid = work.cells.grid
    found = distances(
        expression,
        grid,
        rows,
        weights,
        work.p,
        g,
        shards=work.cells.shards,
        balls=work.balls,
        pieces=None if pieces is None else pieces[start : start + len(rows)],
    )
    lower = np.maximum(np.maximum(found.low - g, g - found.high), 0.0) * (2 - UP)
    lower = np.where(np.isfinite(lower), lower, 0.0)
    return _Bounds(found.powers, lower, *found.ranges, found.by_balls)
