"""How far g is from f on parts of the grid's cells, from f at the anchors themselves.

`local` bounds g - f = E f(Y) - f by slopes and curves of f around a cell. Here g
is evaluated, by `average`: on a part B with the centre c, in spacings, t = c + y,
|y_k| <= eta = 1 / (2 parts),

    g(t) = g(c) + sum_k d_k g(c) y_k + rest,    |rest| <= (1/2) sum_kl H_kl |y_k y_l|.

**Lemma (f on a part).** f(t) = f(c) + sum_k A_k y_k + rest for all numbers A_k, where

    curves   |rest| <= sum_k |d_k f(c) - A_k| |y_k| + (1/2) sum_kl sup_B|d_kl f| |y_k y_l|
    slopes   |rest| <= sum_k sup_B|d_k f - A_k| |y_k|
    range    |rest| <= sup_B|f - f(c)|, all A_k = 0

Proof. Taylor's formula, if f is twice differentiable on B. The mean value theorem, in the
form that `derivative` states for kinks. The third is trivial: it holds for every f that is
bounded on B, with a root at 0 or a jump. There g(c) may meet f's range at once:
|g(c) - f(t)| <= max(|g(c) - inf_B f|, |g(c) - sup_B f|).

**Theorem.** Let e = g - f, l_k = d_k g(c) - A_k, and let R_k |y_k| and S_kl |y_k y_l| / 2
be what both leave. Then

    sup_B |e|  <= |e(c)| + eta sum_k (|l_k| + R_k) + (eta^2 / 2) sum_kl S_kl,
    (mean_B |e|^p)^(1/p) <= (mean |e(c) + sum_k l_k y_k|^q)^(1/q)
            + eta (q+1)^(-1/q) sum_k R_k
            + (eta^2 / 2) ((2q+1)^(-1/q) sum_k S_kk + (q+1)^(-2/q) sum_{k!=l} S_kl),

y uniform on B, for q = 2, 4, 8, 16 and p <= q. Proof. The triangle inequality, Minkowski's,
and Jensen's; the q-th moment of |y_k| is eta^q / (q+1).

So the mean of |g - f|^p over a cell is at most the mean over its parts; that over the cell
of the bound by `local` is another. The smaller counts, for each cell by itself.

Numbers are float64. Differences that may cancel have a slack of their own, 2^-50 of the
sizes; a factor 1 + 2^-40 covers the roundings of sums and products of numbers >= 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.on_cells.moments import (
    UP,
    even_exponent,
    mean_of_line,
    mean_of_sizes,
    power,
)
from everyformer.certify.partition.average import Average, average
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.lattice_field import LatticeField
from everyformer.certify.partition.local import check_finite, combined, power_sum
from everyformer.certify.partition.samples import Ends, Samples
from everyformer.certify.partition.weights import window_weights
from everyformer.numerics.curvature import pairs_of, round_up

MAX_WORK = 2**23
"""Places of all windows around all cells; with more, `local` alone is used."""

SMALLEST, LARGEST = Fraction(1, 2**400), Fraction(2**400)
"""Spacings between them: their products neither underflow nor overflow."""

FEW = 2
"""So few parts along an axis hardly help where slopes and curves give a bound."""

CLOSE = 2.0
"""A supremum up to so many times |e(c)| is good enough: other ways are not tried."""


@dataclass(frozen=True)
class PartBounds:
    """Bounds of |g - f| on the parts of cells, inf where nothing is known.

    Attributes:
        sups: (K^N, parts^N, N), sup |g - f|.
        means: Bounds of the p-th mean; equal to `sups` for the supremum.
    """

    sups: np.ndarray
    means: np.ndarray


def part_bounds(
    samples: Samples, lattice: Lattice, p: Fraction | None
) -> PartBounds | None:
    """Bounds on the parts of the grid's cells; None where they would be too much work.

    Args:
        samples: f, on the same grid and margin; any D.
        lattice: The lattice.
        p: The exponent; None for the supremum.
    """
    K, N, parts = lattice.grid.cells, lattice.size, samples.fine
    weights = window_weights(lattice.D, K, lattice.margin, parts)
    if weights is None or (K * (2 * weights.reach + 2)) ** N > MAX_WORK:
        return None
    if not all(SMALLEST <= h <= LARGEST for h in lattice.steps):
        return None
    q = None if p is None else even_exponent(p)
    side = K + 1 + 2 * lattice.margin
    count = math.prod(samples.cells) * parts**N
    sups, means = np.full((count, N), np.inf), np.full((count, N), np.inf)
    for e in range(N):
        ends = tuple(end[:, e].reshape((side,) * N) for end in samples.anchors)
        if np.isfinite(ends).all():
            with np.errstate(all="ignore"):
                g = average((ends[0], ends[1]), lattice, weights, parts, samples.rows)
                f = Known.of(samples, e)
                sups[:, e], means[:, e] = _bounds(g, f, Shape(parts, q))
    return PartBounds(*(_by_cells(found, samples.cells, parts) for found in (sups, means)))


def _by_cells(values: np.ndarray, cells: tuple[int, ...], parts: int) -> np.ndarray:
    """From (all parts, N), entry 0 slowest, to (cells, parts^N, N)."""
    N = len(cells)
    shaped = values.reshape(*(size for k in cells for size in (k, parts)), N)
    order = (*range(0, 2 * N, 2), *range(1, 2 * N, 2), 2 * N)
    return shaped.transpose(order).reshape(-1, parts**N, N)


@dataclass(frozen=True, eq=False)
class Known:
    """One entry of f on parts of cells, in spacings but for rounding.

    Attributes:
        range: Bounds of f on each part, (count,).
        slopes: Of its slopes, (count, N).
        curves: Of the sizes of its curves, (count, pairs); inf unless f is smooth there.
        centre: Of f at the centre, (count,).
        centre_slopes: Of its slopes there, (count, N).
    """

    range: Ends
    slopes: Ends
    curves: np.ndarray
    centre: Ends
    centre_slopes: Ends

    @classmethod
    def of(cls, samples: Samples, e: int) -> "Known":
        """Entry e of what was enclosed. Slopes and curves are those by t = x / h."""
        steps = np.array([round_up(h) for h in samples.lattice.steps])
        found, (centre, slopes) = samples.found, samples.centres
        curves = np.maximum(found.curve_high[:, e], -found.curve_low[:, e])
        known = np.isfinite(found.slope_low[:, e]) & np.isfinite(found.slope_high[:, e])
        squares = [steps[k] * steps[m] for k, m in pairs_of(len(steps))]
        return cls(
            (found.low[:, e], found.high[:, e]),
            (found.slope_low[:, e] * steps, found.slope_high[:, e] * steps),
            np.where(known.all(axis=-1, keepdims=True), curves * squares, np.inf) * UP,
            (centre[0][:, e], centre[1][:, e]),
            (slopes[0][:, e] * steps, slopes[1][:, e] * steps),
        )

    def at(self, where: np.ndarray) -> "Known":
        """Some of the parts."""

        def some(ends: Ends) -> Ends:
            return ends[0][where], ends[1][where]

        return Known(
            some(self.range),
            some(self.slopes),
            self.curves[where],
            some(self.centre),
            some(self.centre_slopes),
        )


@dataclass(frozen=True)
class Shape:
    """1 / (2 eta), and the even exponent q of means; None for suprema only."""

    parts: int
    q: int | None


Pair = tuple[np.ndarray, np.ndarray]
"""Bounds of suprema and of means on parts."""


def _bounds(g: Average, f: Known, shape: Shape) -> Pair:
    """The best of the three ways, for one entry on all parts."""
    sups, means = by_curves(g, f, shape)
    middle = f.centre[0] / 2 + f.centre[1] / 2
    rough = np.flatnonzero(~(sups <= CLOSE * np.abs(g.values - middle)))
    if len(rough):
        some, known = g.at(rough), f.at(rough)
        for way in (by_slopes, by_range):
            sup, mean = way(some, known, shape)
            sups[rough] = _least([sups[rough], sup])
            means[rough] = _least([means[rough], mean])
    return _least([sups]), _least([means])


def _least(bounds: Sequence[np.ndarray]) -> np.ndarray:
    """The smallest of several bounds; one that is NaN says nothing."""
    return np.min([np.where(np.isnan(b), np.inf, b) for b in bounds], axis=0)


def by_curves(g: Average, f: Known, shape: Shape) -> Pair:
    """f by its slopes at the centre, and its curves."""
    apart, off = _at_centres(g, f)
    return _theorem(apart, off, g, f.centre_slopes, g.bends + f.curves, shape)


def by_slopes(g: Average, f: Known, shape: Shape) -> Pair:
    """f by its slopes on the part: kinks."""
    apart, off = _at_centres(g, f)
    return _theorem(apart, off, g, f.slopes, g.bends, shape)


def by_range(g: Average, f: Known, shape: Shape) -> Pair:
    """f by its range on the part: roots at 0, and jumps."""
    low, high = f.range
    far = np.maximum(np.abs(g.values - low), np.abs(high - g.values))
    size = np.abs(g.values) + np.maximum(np.abs(low), np.abs(high))
    off = far + g.off + size * 2.0**-50
    still = np.zeros_like(g.slopes)
    return _theorem(np.zeros_like(off), off, g, (still, still), g.bends, shape)


def _at_centres(g: Average, f: Known) -> tuple[np.ndarray, np.ndarray]:
    """e(c), and how far it may be from that."""
    low, high = f.centre
    middle = low / 2 + high / 2
    size = np.abs(g.values) + np.abs(low) + np.abs(high)
    return g.values - middle, g.off + (high - low) + size * 2.0**-50


def _theorem(
    apart: np.ndarray,
    off: np.ndarray,
    g: Average,
    slopes: Ends,
    bends: np.ndarray,
    shape: Shape,
) -> Pair:
    """The theorem, with A_k in the middle of slopes of f that lie between two ends.

    Args:
        apart: e(c), (count,), within
        off: so much.
        g: Its slopes.
        slopes: Where d_k f lies, (count, N).
        bends: S_kl for the pairs, (count, pairs).
        shape: eta and q.
    """
    eta, (low, high) = 0.5 / shape.parts, slopes
    lines = low / 2 + high / 2
    size = np.abs(low) + np.abs(high) + np.abs(g.slopes)
    rates = (high - low) / 2 + size * 2.0**-49 + g.slopes_off
    own = np.array([k == m for k, m in pairs_of(g.slopes.shape[1])])
    squares = bends[:, own].sum(axis=1) * (eta * eta / 2)
    products = bends[:, ~own].sum(axis=1) * (eta * eta)
    tilts, rates = np.abs(g.slopes - lines) * eta, rates * eta
    sups = np.abs(apart) + off + (tilts + rates).sum(axis=1) + squares + products
    sups, q = sups * UP, shape.q
    if q is None:
        return sups, sups.copy()
    means = mean_of_line(apart, tilts, q) + mean_of_sizes(rates, q) + off
    means = means + squares * (2 * q + 1) ** (-1 / q) + products * (q + 1) ** (-2 / q)
    return sups, np.fmin(means * UP, sups)


def cell_powers(bounds: np.ndarray, parts: PartBounds | None, p: Fraction) -> np.ndarray:
    """Bounds of the mean of |g - f|^p on every cell, (K^N, N): the better of both ways.

    Args:
        bounds: (K^N, N), of sup |g - f| on cells, by `local`.
        parts: Of |g - f| on the parts of cells, or nothing.
        p: The exponent.
    """
    whole = power(bounds, p)
    if parts is None:
        return whole
    count = parts.means.shape[1]
    mean = power(parts.means, p).mean(axis=1) * (1 + count * 2.0**-52)
    return _least([whole, mean * UP])


def refined_distance(
    bounds: np.ndarray, field: LatticeField, lattice: Lattice, p: Fraction | None
) -> Bound:
    """d_p(f, g) from `local` and from this module, whichever is better on a cell.

    Args:
        bounds: (K^N, N), of sup |g - f| on cells, by `local`.
        field: f on the cells, and on their parts.
        lattice: The lattice.
        p: The exponent; None for the supremum.

    Raises:
        CertificateError: If nothing is known of a cell.
    """
    powers, _ = refined(bounds, field, lattice, p)
    check_finite(powers)
    return combined([power_sum(powers, p)], lattice, p)


def refined(
    bounds: np.ndarray, field: LatticeField, lattice: Lattice, p: Fraction | None
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the mean p-th power, the sup for None, and of the sup, on all cells."""
    samples, parts = field.samples, None
    if samples is not None and (samples.fine > FEW or not np.isfinite(bounds).all()):
        parts = part_bounds(samples, lattice, p)
    sups = bounds if parts is None else _least([bounds, parts.sups.max(axis=1)])
    return (sups if p is None else cell_powers(bounds, parts, p)), sups
