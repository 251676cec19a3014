"""How far g is from f on parts of the grid's cells, from f at the anchors themselves.

`partition_local` bounds g - f = E f(Y) - f by slopes and curves of f around a cell. Here g
is evaluated. Let B be a part of a cell with the centre c, in spacings: the point is t = c +
y with |y_k| <= eta = 1 / (2 parts). Write W(t) for the product of the weights along all axes
(`partition_weights`), and e = g - f.

**Lemma 1 (g on a part).** g(t) = g(c) + sum_k d_k g(c) y_k + rest, where

    |rest| <= (1/2) sum_kl H_kl |y_k y_l|,
    H_kl = sum_v |r(v)| sup|d_kl W_v|  +  |a_k| sup|(E Y_k)''|  (the last for k = l only)

for r(v) = f(v) - f_0 - sum_k a_k (v_k - 1/2), whatever numbers f_0 and a_k are. Proof: Taylor's
formula, and d_kl g = sum_v r(v) d_kl W_v + sum_i a_i d_kl E Y_i, because the W_v add up to 1;
E Y_i depends on t_i alone. With the a_k of the cell's corners r is of second order in h.

**Lemma 2 (f on a part).** With numbers A_k and the curves of f on B, or its slopes, or its
range, f(t) = f(c) + sum_k A_k y_k + rest, where

    curves   |rest| <= sum_k |d_k f(c) - A_k| |y_k| + (1/2) sum_kl sup_B|d_kl f| |y_k y_l|
    slopes   |rest| <= sum_k sup_B|d_k f - A_k| |y_k|
    range    |rest| <= sup_B|f - f(c)|,  all A_k = 0

The first needs f to be twice differentiable on B. The second holds for kinks, by the mean
value theorem of `derivative`. The third holds for every f that is bounded on B: roots at 0,
jumps. The range may meet g's range instead: |e| <= max(|g(c) - low|, |g(c) - high|) + what g
moves.

**Theorem.** With s = |e(c)|, l_k = d_k g(c) - A_k, and rests R_k |y_k|, S_kl |y_k y_l| from
both lemmas,

    sup_B |e|  <= s + sum_k (|l_k| + R_k) eta + (1/2) sum_kl S_kl eta^2
    (mean_B |e|^q)^(1/q) <= (mean |e(c) + sum_k l_k y_k|^q)^(1/q) + eta (q+1)^(-1/q) sum_k R_k
            + (eta^2/2) ( (2q+1)^(-1/q) sum_k S_kk + (q+1)^(-2/q) sum_{k!=l} S_kl )

for y uniform on B and q = 2, 4, 8, 16 (Minkowski); means with p <= q are no larger. The
smallest over the three ways counts, for each part by itself.

A window leaves out the share N tau_0 of all weights at most, so the true g is within
2 N tau_0 max|f| of the one with windows. Sums over windows in float64 are off by `SLACK` of
the sum of sizes, and a factor 1 + 2^-40 covers the few roundings of numbers >= 0 after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from everyformer.certify.bound import Bound
from everyformer.certify.lattice import Partition
from everyformer.certify.lattice_field import LatticeField
from everyformer.certify.moments import (
    UP,
    even_exponent,
    mean_of_line,
    mean_of_sizes,
    power,
)
from everyformer.certify.partition_local import check_finite, combined, power_sum
from everyformer.certify.partition_samples import Ends, Samples
from everyformer.certify.partition_weights import SLACK, WindowWeights, window_weights
from everyformer.numerics.curvature import pairs_of, round_up

MAX_WORK = 2**23
"""Places of all windows around all cells; more are left to the bounds of partition_local."""


@dataclass(frozen=True)
class PartBounds:
    """Bounds of |g - f| on the parts of cells, inf where nothing is known.

    Attributes:
        sups: (K^N, parts^N, N), sup |g - f|.
        means: Bounds of the p-th mean; equal to `sups` for the supremum.
    """

    sups: np.ndarray
    means: np.ndarray


@dataclass(frozen=True)
class _Average:
    """g, in spacings: (K parts,)*N arrays of values and slopes, and Lemma 1's H, (K,)*N.

    Attributes:
        values: g at the centres.
        slopes: d_k g there.
        bends: H_kl for the pairs of `pairs_of`.
        off: How far `values` may be from the true ones, and
        slopes_off: `slopes`.
    """

    values: np.ndarray
    slopes: list[np.ndarray]
    bends: list[np.ndarray]
    off: float
    slopes_off: float


def part_bounds(
    samples: Samples, partition: Partition, p: Fraction | None
) -> PartBounds | None:
    """Bounds on all parts of the grid's cells; None where they would be too much work.

    Args:
        samples: f, on the same grid and margin; any D.
        partition: The lattice.
        p: The exponent; None for the supremum.
    """
    K, N, parts = partition.grid.cells, partition.size, samples.fine
    weights = window_weights(partition.D, K, partition.margin, parts)
    if weights is None or (K * (2 * weights.reach + 2)) ** N > MAX_WORK:
        return None
    found: list[tuple[np.ndarray, np.ndarray]] = []
    side = K + 1 + 2 * partition.margin
    for e in range(N):
        low, high = (end[:, e].reshape((side,) * N) for end in samples.anchors)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            count = (K * parts) ** N
            found.append((np.full(count, np.inf), np.full(count, np.inf)))
            continue
        with np.errstate(all="ignore"):
            g = _average((low, high), partition, weights)
            found.append(_entry(g, samples, e, p))
    sups, means = (
        _by_cells(np.stack([pair[k] for pair in found], axis=-1), K, N, parts)
        for k in range(2)
    )
    return PartBounds(sups, means)


def _by_cells(values: np.ndarray, K: int, N: int, parts: int) -> np.ndarray:
    """From ((K parts)^N, N) to (K^N, parts^N, N)."""
    shaped = values.reshape(*(K, parts) * N, N)
    order = (*range(0, 2 * N, 2), *range(1, 2 * N, 2), 2 * N)
    return shaped.transpose(order).reshape(K**N, parts**N, N)


def _average(ends: Ends, partition: Partition, weights: WindowWeights) -> _Average:
    """g from enclosures of f at the anchors, (side,)*N."""
    N, (low, high) = partition.size, ends
    middle = low / 2 + high / 2
    radius = float(np.nextafter(np.maximum(high - middle, middle - low), np.inf).max())
    largest = float(np.maximum(high, -low).max(initial=0.0))
    m = partition.margin
    values, slopes = middle, [middle] * N
    for k in range(N):
        values = _along(values, k, weights.values, weights, m)
        slopes = [
            _along(part, k, weights.slopes if i == k else weights.values, weights, m)
            for i, part in enumerate(slopes)
        ]
    # The true weights' sums of sizes; each axis adds its own error to the product.
    grown = weights.sizes[0] ** N
    own = N * (weights.off[0] + SLACK) * grown
    lost = round_up(2 * N * weights.lost)
    off = (radius * grown + largest * (2 * own + lost)) * UP
    rise, rise_off = weights.sizes[1], weights.off[1]
    slopes_off = radius * grown * rise
    slopes_off += 2 * largest * grown * (rise_off + N * (weights.off[0] + SLACK) * rise)
    bends = _bends(middle, radius, largest, partition, weights)
    return _Average(values, slopes, bends, off, slopes_off * UP)


def _along(
    array: np.ndarray, k: int, rows: np.ndarray, weights: WindowWeights, margin: int
) -> np.ndarray:
    """Sums over the windows of axis k, one for each part: length K parts there."""
    windows = np.moveaxis(_windows(array, k, weights.reach, margin, 0.0), k, 0)
    shape = windows.shape[1:-1]
    flat = windows.reshape(len(windows), -1, windows.shape[-1])  # [K, others, window]
    sums = flat @ rows[weights.kinds].transpose(0, 2, 1)  # [K, others, parts]
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
    partition: Partition,
    weights: WindowWeights,
) -> list[np.ndarray]:
    """H_kl of Lemma 1 on every cell, (K,)*N, for the pairs k <= l."""
    N, R, K = partition.size, weights.reach, partition.grid.cells
    windows = middle
    for k in range(N):
        windows = _windows(windows, k, R, partition.margin, np.nan)
    centre = windows[(..., *(slice(R, R + 2),) * N)]  # the cells' corners
    axes = tuple(range(N, 2 * N))
    base = centre.mean(axis=axes)
    rises = [np.diff(centre, axis=N + k).mean(axis=axes) for k in range(N)]
    places = np.arange(-R, R + 2) - 0.5
    spread = sum((np.abs(rise) for rise in rises), start=np.abs(base))
    slack = radius + (largest + spread * (R + 1)) * (N + 4) * 2.0**-50  # [K, ..]
    expanded = (..., *(None,) * N)
    rest = windows - base[expanded]
    for k, rise in enumerate(rises):
        shape = [1] * N
        shape[k] = len(places)
        rest = rest - rise[expanded] * places.reshape(shape)
    lacking = np.isnan(windows)  # f itself is finite at all anchors
    sizes = np.where(lacking, 0.0, np.abs(rest) + slack[expanded])
    result: list[np.ndarray] = []
    for k, m in pairs_of(N):
        total = sizes
        for i in reversed(range(N)):
            total = total @ weights.largest[(i == k) + (i == m)]
        if k == m:
            total = total + np.abs(rises[k]) * weights.bend
        result.append(total.reshape((K,) * N) * UP)
    return result


@dataclass(frozen=True)
class _Rest:
    """What Lemma 2 says of f on parts: (count, ..).

    Attributes:
        lines: A_k, any numbers, (count, N).
        rates: R_k.
        bends: S_kl for the pairs, both lemmas together, (count, pairs).
    """

    lines: np.ndarray
    rates: np.ndarray
    bends: np.ndarray


def _entry(
    g: _Average, samples: Samples, e: int, p: Fraction | None
) -> tuple[np.ndarray, np.ndarray]:
    """Suprema and p-th means of |g - f| on all parts, for one entry."""
    parts, N = samples.fine, samples.partition.size
    steps = np.array([round_up(h) for h in samples.partition.steps])
    values = g.values.ravel()
    slopes = np.stack([slope.ravel() for slope in g.slopes], axis=-1)
    bends = np.stack([_spread(bend, parts).ravel() for bend in g.bends], axis=-1)
    (low, high), here = (tuple(end[:, e] for end in ends) for ends in samples.centres)
    middle = low / 2 + high / 2
    off = g.off + np.maximum(high - middle, middle - low)
    off = (off + (np.abs(values) + np.abs(middle)) * 2.0**-50) * UP
    apart = values - middle  # e(c), within off
    found = samples.found
    around = found.slope_low[:, e], found.slope_high[:, e]
    curves = np.maximum(found.curve_high[:, e], -found.curve_low[:, e])
    curves[~np.isfinite(around).all(axis=(0, -1))] = np.inf
    pairs = [steps[k] * steps[m] for k, m in pairs_of(N)]
    curved = _rest(here, steps, bends + curves * np.array(pairs) * UP)
    kinked = _rest(around, steps, bends)
    ways = [
        _on_parts(apart, off, slopes, g.slopes_off, way, parts, p)
        for way in (curved, kinked)
    ]
    flat = _rest((np.zeros_like(here[0]),) * 2, steps, bends)
    low, high = found.low[:, e], found.high[:, e]
    far = np.maximum(np.abs(values - low), np.abs(high - values))
    far = far + g.off + (np.abs(values) + np.maximum(np.abs(low), np.abs(high))) * 2.0**-50
    ways.append(_on_parts(np.zeros_like(far), far, slopes, g.slopes_off, flat, parts, p))
    return tuple(_least([way[k] for way in ways]) for k in range(2))  # pyright: ignore[reportReturnType]


def _least(bounds: Sequence[np.ndarray]) -> np.ndarray:
    """The smallest of several bounds; one that is NaN says nothing."""
    return np.min([np.where(np.isnan(b), np.inf, b) for b in bounds], axis=0)


def _rest(slopes: tuple[np.ndarray, ...], steps: np.ndarray, bends: np.ndarray) -> _Rest:
    """A_k in the middle of slopes of f, times h_k; R_k is how far they may be from it."""
    low, high = slopes
    lines = (low / 2 + high / 2) * steps
    size = np.maximum(np.abs(low), np.abs(high)) * steps
    far = np.maximum(high * steps - lines, lines - low * steps) + size * 2.0**-50
    return _Rest(lines, far, bends)


def _spread(array: np.ndarray, parts: int) -> np.ndarray:
    """The same number for all parts of a cell."""
    for axis in range(array.ndim):
        array = np.repeat(array, parts, axis=axis)
    return array


def _on_parts(
    apart: np.ndarray,
    off: np.ndarray,
    slopes: np.ndarray,
    slopes_off: float,
    rest: _Rest,
    parts: int,
    p: Fraction | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The theorem: sup and p-th mean of |e| on every part.

    Args:
        apart: e(c), (count,), within
        off: so much.
        slopes: d_k g(c), (count, N), within
        slopes_off: so much.
        rest: What both lemmas leave.
        parts: 1 / (2 eta).
        p: The exponent; None for the supremum.
    """
    eta, N = 0.5 / parts, slopes.shape[1]
    lines = slopes - rest.lines
    doubt = (np.abs(slopes) + np.abs(rest.lines)) * 2.0**-50 + slopes_off
    rates = (rest.rates + doubt) * eta
    own = np.array([k == m for k, m in pairs_of(N)])
    squares = rest.bends[:, own].sum(axis=1) * (eta * eta / 2)
    products = rest.bends[:, ~own].sum(axis=1) * (eta * eta)
    tilts = np.abs(lines) * eta
    sups = np.abs(apart) + off + (tilts + rates).sum(axis=1) + squares + products
    sups = sups * UP
    q = None if p is None else even_exponent(p)
    if q is None:
        return sups, sups
    means = mean_of_line(apart, tilts, q) + mean_of_sizes(rates, q) + off
    means = means + squares * (2 * q + 1) ** (-1 / q) + products * (q + 1) ** (-2 / q)
    return sups, np.fmin(means * UP, sups)


def cell_powers(bounds: np.ndarray, parts: PartBounds | None, p: Fraction) -> np.ndarray:
    """Bounds of the mean of |g - f|^p on every cell, (K^N, N): the better of both ways.

    Args:
        bounds: (K^N, N), of sup |g - f| on cells, by `partition_local`.
        parts: Of |g - f| on the parts of cells, or nothing.
        p: The exponent.
    """
    whole = power(bounds, p) * UP
    if parts is None:
        return whole
    count = parts.means.shape[1]
    mean = power(parts.means, p).mean(axis=1) * (1 + count * 2.0**-52)
    return _least([whole, mean * UP])


def cell_sups(bounds: np.ndarray, parts: PartBounds | None) -> np.ndarray:
    """Bounds of sup |g - f| on every cell, (K^N, N): the better of both ways."""
    if parts is None:
        return bounds
    return _least([bounds, parts.sups.max(axis=1)])


def refined_distance(
    bounds: np.ndarray, field: LatticeField, partition: Partition, p: Fraction | None
) -> Bound:
    """d_p(f, g) from `partition_local` and from this module, whichever is better on a cell.

    Args:
        bounds: (K^N, N), of sup |g - f| on cells, by `partition_local`.
        field: f on the cells, and on their parts.
        partition: The lattice.
        p: The exponent; None for the supremum.

    Raises:
        CertificateError: If nothing is known of a cell.
    """
    powers, _ = refined(bounds, field, partition, p)
    check_finite(powers)
    return combined([power_sum(powers, p)], partition, p)


def refined(
    bounds: np.ndarray, field: LatticeField, partition: Partition, p: Fraction | None
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the mean p-th power, the sup for None, and of the sup, on all cells."""
    samples = field.samples
    parts = None if samples is None else part_bounds(samples, partition, p)
    sups = cell_sups(bounds, parts)
    return (sups if p is None else cell_powers(bounds, parts, p)), sups
