"""The average g over anchors on the parts of a grid's cells, evaluated at their centres.

In spacings, let c be the centre of a part of a cell, and t = c + y a point of the part.
Write W_v(t) for the product of the weights along all axes (`weights`).

**Lemma.** g(t) = g(c) + sum_k d_k g(c) y_k + rest, where

    |rest| <= (1/2) sum_kl H_kl |y_k y_l|,
    H_kl = sum_v |r(v)| sup|d_kl W_v|  +  |a_k| sup|(E Y_k)''|  (the last for k = l only)

for r(v) = f(v) - f_0 - sum_k a_k (v_k - 1/2), whatever numbers f_0 and a_k are.

Proof. Taylor's formula. The W_v add up to 1 and E Y = sum_v v W_v, so that d_kl g =
sum_v r(v) d_kl W_v + sum_i a_i d_kl E Y_i, and E Y_i depends on t_i alone. Suprema of
products are at most products of suprema along the axes.

With f_0 and a_k from the cell's corners r is of second order in the spacing, as g - f is.

A window leaves out the share N tau_0 of all weights at most, so the true g is within
2 N tau_0 max|f| of the one with windows, for which the lemma is used. A sum over a window
in float64 is off by `SLACK` of the sum of sizes. With rows of weights whose sizes add up to
S and that are off by eps, N sums in a row are off by N (eps + SLACK) S^N max|f|, up to
terms of second order, which a factor 2 covers. What underflows is less than `TINY`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from everyformer.certify.on_cells.moments import UP
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.samples import Ends
from everyformer.certify.partition.weights import SLACK, WindowWeights
from everyformer.numerics.curvature import pairs_of, round_up

TINY = 2.0**-900
"""More than all products together lose below 2^-1022."""


@dataclass(frozen=True, eq=False)
class Average:
    """One entry of g on parts of cells, in spacings.

    Attributes:
        values: g at the centres, (count,).
        slopes: d_k g there, (count, N).
        bends: H_kl for the pairs of `pairs_of`, (count, pairs).
        off: How far `values` may be from the true ones, and
        slopes_off: `slopes`.
    """

    values: np.ndarray
    slopes: np.ndarray
    bends: np.ndarray
    off: float
    slopes_off: float

    def at(self, where: np.ndarray) -> "Average":
        """Some of the parts."""
        values, slopes, bends = (a[where] for a in (self.values, self.slopes, self.bends))
        return replace(self, values=values, slopes=slopes, bends=bends)


def average(
    ends: Ends,
    lattice: Lattice,
    weights: WindowWeights,
    parts: int,
    meant: tuple[int, int],
) -> Average:
    """g on the parts of the grid's cells, entry 0 slowest.

    Args:
        ends: Finite enclosures of f at the anchors, (side,)*N.
        lattice: The lattice.
        weights: Of its windows, for
        parts: so many parts of a cell along an axis.
        meant: The first number of cells along the first axis, and the first behind.
    """
    N, (low, high) = lattice.size, ends
    middle = low / 2 + high / 2
    radius = float(np.nextafter(np.maximum(high - middle, middle - low), np.inf).max())
    largest = float(np.maximum(high, -low).max(initial=0.0))
    m, rows = lattice.margin, weights.rows
    values, slopes = middle, [middle] * N
    for k in range(N):
        cells = slice(*meant) if k == 0 else slice(None)
        values = _along(values, k, rows.values, weights, m, cells)
        slopes = [
            _along(part, k, rows.slopes if i == k else rows.values, weights, m, cells)
            for i, part in enumerate(slopes)
        ]
    # The true weights' sums of sizes; each axis adds its own error to the product.
    grown = rows.sizes[0] ** N
    own = N * (rows.off[0] + SLACK) * grown
    lost = round_up(2 * N * weights.lost)
    off = (radius * grown + largest * (2 * own + lost)) * UP + TINY
    rise, rise_off = rows.sizes[1], rows.off[1]
    slopes_off = radius * grown * rise
    slopes_off += 2 * largest * grown * (rise_off + N * (rows.off[0] + SLACK) * rise)
    bends = _bends(middle, radius, largest, lattice, weights, slice(*meant))
    return Average(
        values.ravel(),
        np.stack([slope.ravel() for slope in slopes], axis=-1),
        np.stack([_spread(bend, parts).ravel() for bend in bends], axis=-1),
        off,
        slopes_off * UP,
    )


def _spread(array: np.ndarray, parts: int) -> np.ndarray:
    """The same number for all parts of a cell."""
    for axis in range(array.ndim):
        array = np.repeat(array, parts, axis=axis)
    return array


def _along(
    array: np.ndarray,
    k: int,
    rows: np.ndarray,
    weights: WindowWeights,
    margin: int,
    cells: slice,
) -> np.ndarray:
    """Sums over the windows of cells along axis k, one for each part."""
    windows = np.moveaxis(_windows(array, k, weights.reach, margin, 0.0), k, 0)[cells]
    shape = windows.shape[1:-1]
    flat = windows.reshape(len(windows), -1, windows.shape[-1])  # [K, others, window]
    sums = flat @ rows[weights.kinds[cells]].transpose(0, 2, 1)  # [K, others, parts]
    merged = sums.transpose(0, 2, 1).reshape(-1, *shape)
    return np.moveaxis(merged, 0, k)


def _windows(
    array: np.ndarray, k: int, reach: int, margin: int, beyond: float
) -> np.ndarray:
    """The windows of all cells along axis k, as a last axis; a number where none is."""
    more = reach - margin
    if more > 0:
        pad = [(more, more) if i == k else (0, 0) for i in range(array.ndim)]
        array = np.pad(array, pad, constant_values=beyond)
    elif more < 0:
        array = np.moveaxis(np.moveaxis(array, k, 0)[-more:more], 0, k)
    return sliding_window_view(array, 2 * reach + 2, axis=k)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _bends(
    middle: np.ndarray,
    radius: float,
    largest: float,
    lattice: Lattice,
    weights: WindowWeights,
    cells: slice,
) -> list[np.ndarray]:
    """H_kl of the lemma on every cell, (K,)*N or fewer, for the pairs k <= l."""
    N, R = lattice.size, weights.reach
    windows = middle
    for k in range(N):
        windows = _windows(windows, k, R, lattice.margin, np.nan)
    windows = windows[cells]
    centre = windows[(..., *(slice(R, R + 2),) * N)]  # the cells' corners
    axes = tuple(range(N, 2 * N))
    base = centre.mean(axis=axes)
    rises = [np.diff(centre, axis=N + k).mean(axis=axes) for k in range(N)]
    places = np.arange(-R, R + 2) - 0.5
    spread = np.abs(np.stack([base, *rises])).sum(axis=0)
    slack = radius + (largest + spread * (R + 1)) * (N + 4) * 2.0**-50  # [K, ..]
    expanded = (..., *(None,) * N)
    rest = windows - base[expanded]
    for k, rise in enumerate(rises):
        shape = [1] * N
        shape[k] = len(places)
        rest = rest - rise[expanded] * places.reshape(shape)
    lacking = np.isnan(windows)  # f itself is finite at all anchors
    sizes = np.where(lacking, 0.0, np.abs(rest) + slack[expanded])
    for _ in range(N):  # sums over the first window that is left, for W, W' and W''
        sizes = np.tensordot(sizes, weights.rows.largest, axes=(N, 1))
    result: list[np.ndarray] = []
    for k, m in pairs_of(N):
        total = sizes[(..., *((i == k) + (i == m) for i in range(N)))]
        if k == m:
            total = total + np.abs(rises[k]) * weights.rows.bend
        result.append(total * UP)
    return result
