"""How far g is from f, cell by cell: only derivatives near a point count for it.

Notation as in `bounds` and `lattice_constants`. Let Q be a cell of the lattice, x in Q, and
Q_r the cells up to r away. If |delta_l| <= r for all l, the segment from x to Y is in Q_r.
Slopes and curves are enclosed on every cell out to the margin; their hulls over Q_r are
gamma +- rho^(r) with one gamma, the middle of the hull for r = 1. So rho^(r) grows with r.

Let R be the least r that is >= 1 and >= all |delta_l|. Abel summation gives

    E |X| rho^(R) = rho^(1) E|X| + sum_{r>=1} (rho^(r+1) - rho^(r)) E(|X|; R > r).

Write A_X(r) for a bound on the last mean, A_X(0) on E|X|. A union bound and independence:

    A_k(r)  = t_1(r) + (N-1) t_0(r) m1                  X = delta_k
    A_kk(r) = t_2(r) + (N-1) t_0(r) m2                  X = delta_k^2
    A_kl(r) = 2 t_1(r) m1 + (N-2) t_0(r) m1^2           X = delta_k delta_l, k != l

with the tails t_j(r) = E(|delta|^j; |delta| > r) of `lattice_constants`. On Q, one entry:

first order, any f with slopes:

    |g - f| <= sum_k h_k ( b |gamma_k| + E|delta_k| rho_k^(R) )

second order, where the curves are known on Q_1 at least, with any cut c >= 1:

    |g - f| <= b sum_k h_k sup_Q|d_k f|  +  (1/2) |sum_k gamma_kk h_k^2 E delta_k^2|
               + sum_{k<l} |gamma_kl| h_k h_l b^2
               + (1/2) sum_kl h_k h_l E( |delta_k delta_l| rho_kl^(R); R <= c )
               + sum_k 2 L_k h_k A_k(c) + (1/2) sum_kl |gamma_kl| h_k h_l A_kl(c)

E delta_k^2 lies in [least_m2, m2], and E delta_k delta_l = E delta_k E delta_l for k != l.
The last line bounds, for R > c and by slopes L of the whole lattice,

    f(Y) - f(x) - sum_k d_k f(x) y_k - (1/2) sum_kl gamma_kl y_k y_l,   y_k = h_k delta_k,

and is missing without a cut. gamma_kk = 0 is another choice. The smallest over all cuts,
both choices and both orders counts. So kinks cost only the cells near them.

As h -> 0 rho vanishes, and for D <= 1, where b is tiny, the bound tends to the error, which
is (h^2 / (4 D)) |Laplacian of f| for equal spacings.

All numbers are float64, at most some hundreds of roundings each: a factor 1 + 2^-40 at the
end makes them upper bounds. Differences that may cancel have a slack of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.on_cells.cells import sum_up
from everyformer.certify.on_cells.moments import UP, power
from everyformer.certify.partition.lattice import SOURCE, Lattice
from everyformer.certify.partition.lattice_constants import RADII
from everyformer.certify.partition.lattice_field import LatticeField
from everyformer.certify.undecided import require_finite
from everyformer.errors import CertificateError
from everyformer.numerics.curvature import pairs_of, round_down, round_up
from everyformer.numerics.rationals import power_up

Pairs = list[tuple[int, int]]


def cell_bounds(field: LatticeField, lattice: Lattice) -> np.ndarray:
    """Upper bounds of sup |g - f| on every cell of the grid and for every entry.

    Args:
        field: Of the same grid and margin; any D.
        lattice: The lattice.

    Returns:
        (K^N, N), float64, rounded up; inf where nothing is known.
    """
    return all_cell_bounds(field, [lattice])[0]


def all_cell_bounds(field: LatticeField, lattices: Sequence[Lattice]) -> list[np.ndarray]:
    """`cell_bounds` of lattices that differ in D alone."""
    moments = [_Moments.of(lattice) for lattice in lattices]
    found: list[list[np.ndarray]] = [[] for _ in lattices]
    with np.errstate(invalid="ignore", over="ignore"):
        for e in range(lattices[0].size):
            hulls = _entry_hulls(field, e)
            for constants, entries in zip(moments, found, strict=True):
                entries.append(_entry(*hulls, constants))
    return [np.stack(entries, axis=-1) * UP for entries in found]


def distance_bound(bounds: np.ndarray, lattice: Lattice, p: Fraction | None) -> Bound:
    """d_p(f, g): the sum over cells of their volume times the sum of p-th powers.

    For p = None, the supremum, the largest of them.
    """
    check_finite(bounds)
    powers = bounds if p is None else power(bounds, p)
    return combined([power_sum(powers, p)], lattice, p)


def power_sum(powers: np.ndarray, p: Fraction | None) -> Fraction:
    """The sum of p-th powers over cells and entries, rounded up; the largest for None."""
    if p is None:
        require_finite("bound", "|g - f| on the cells", powers)
        return Fraction(float(powers.max(initial=0.0)))
    return Fraction(sum_up(powers.ravel()))


def combined(sums: Sequence[Fraction], lattice: Lattice, p: Fraction | None) -> Bound:
    """d_p(f, g) from the `power_sum` of parts of the grid."""
    cells = lattice.grid.sequences
    reason = f"|g - f| on {cells} cells, slopes and curves near each, D = {lattice.D}"
    if p is None:
        return Bound(max(sums), reason, SOURCE)
    mean = sum(sums, start=Fraction(0)) / cells
    return Bound(power_up(mean * lattice.volume, 1 / p), f"{reason}, p = {p}", SOURCE)


def check_finite(bounds: np.ndarray) -> None:
    """See that something is known of every cell.

    Raises:
        CertificateError: If not.
    """
    if not np.isfinite(bounds).all():
        msg = (
            "The slopes of the target are not known to be finite on the anchors' box, and "
            "its range on a cell is not known either, or there are too many cells to use "
            "it. Restrict the domain, clip the target, take a coarser grid, or declare "
            "lipschitz= or modulus=."
        )
        raise CertificateError(msg)


@dataclass(frozen=True)
class _Moments:
    """The constants as float64, rounded up, each list for r = 0, 1, .., RADII."""

    steps: list[float]
    b: float
    m2: float
    least_m2: float
    sizes: list[float]
    squares: list[float]
    products: list[float]

    @classmethod
    def of(cls, lattice: Lattice) -> "_Moments":
        N, known = lattice.size, lattice.constants
        m1, m2 = known.m1, known.m2
        sizes, squares, products = [m1], [m2], [m1 * m1]
        for t0, t1, t2 in known.tails:
            sizes.append(min(sizes[-1], t1 + (N - 1) * t0 * m1))
            squares.append(min(squares[-1], t2 + (N - 1) * t0 * m2))
            mixed = 2 * t1 * m1 + max(N - 2, 0) * t0 * m1 * m1
            products.append(min(products[-1], mixed))
        return cls(
            [round_up(h) for h in lattice.steps],
            round_up(known.b),
            round_up(m2),
            round_down(known.least_m2),
            *([round_up(a) for a in means] for means in (sizes, squares, products)),
        )


def _entry_hulls(field: LatticeField, e: int) -> tuple[list["_Hulls"], list["_Hulls"]]:
    """Slopes and curves of entry e."""
    found, whole = field.found, field.whole
    kinds = [(found.slope_low, found.slope_high), (found.curve_low, found.curve_high)]
    overall: list[tuple[np.ndarray, np.ndarray] | None] = [None, None]
    if whole is not None:
        overall = [(whole.slope_low, whole.slope_high), (whole.curve_low, whole.curve_high)]
    slopes, curves = (
        [
            _hulls(
                field,
                low[:, e, k],
                high[:, e, k],
                None
                if ends is None
                else (float(ends[0][0, e, k]), float(ends[1][0, e, k])),
            )
            for k in range(low.shape[2])
        ]
        for (low, high), ends in zip(kinds, overall, strict=True)
    )
    return slopes, curves


def _entry(slopes: list["_Hulls"], curves: list["_Hulls"], moments: _Moments) -> np.ndarray:
    """Bounds on every cell of the grid for one entry, the better of both orders."""
    h = moments.steps
    pairs = pairs_of(len(h))
    first = _total(
        h[k] * (moments.b * np.abs(hull.middle) + _means(hull, moments.sizes))
        for k, hull in enumerate(slopes)
    )
    plain = [
        hull.about_zero if k == m else hull
        for (k, m), hull in zip(pairs, curves, strict=True)
    ]
    both = [_second_order(slopes, chosen, pairs, moments) for chosen in (curves, plain)]
    # What is NaN says nothing, and one that says something is enough.
    return np.fmin(first, np.fmin(*both))


def _second_order(
    slopes: list["_Hulls"], curves: list["_Hulls"], pairs: Pairs, moments: _Moments
) -> np.ndarray:
    h = moments.steps
    gradient = _total(h[k] * moments.b * hull.size_here for k, hull in enumerate(slopes))
    mixed = _total(
        np.abs(hull.middle) * (h[k] * h[m] * moments.b**2 if k != m else 0.0)
        for (k, m), hull in zip(pairs, curves, strict=True)
    )
    middle = gradient + mixed + _laplacian(curves, pairs, moments)
    return middle + _remainder(slopes, curves, pairs, moments)


def _total(terms: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(np.add, terms)


def _laplacian(curves: list["_Hulls"], pairs: Pairs, moments: _Moments) -> np.ndarray:
    """(1/2) |sum_k gamma_kk h_k^2 E delta_k^2| for means anywhere in [least_m2, m2]."""
    plus, minus = np.zeros(1), np.zeros(1)
    for (k, m), hull in zip(pairs, curves, strict=True):
        if k == m:
            bend = hull.middle * (moments.steps[k] * moments.steps[k])
            plus = plus + np.maximum(bend, 0.0)
            minus = minus + np.maximum(-bend, 0.0)
    up = plus * moments.m2 - minus * moments.least_m2
    down = minus * moments.m2 - plus * moments.least_m2
    slack = (plus + minus) * moments.m2 * 2.0**-45
    return (np.maximum(up, down) + slack) / 2


def _remainder(
    slopes: list["_Hulls"], curves: list["_Hulls"], pairs: Pairs, moments: _Moments
) -> np.ndarray:
    """What is left of the second order: the smallest over all cuts."""
    h = moments.steps
    parts = [
        (h[k] * h[m] / 2, moments.squares, hull)
        if k == m
        else (h[k] * h[m], moments.products, hull)
        for (k, m), hull in zip(pairs, curves, strict=True)
    ]
    best = _total(weight * _means(hull, mean) for weight, mean, hull in parts)
    for cut in range(1, len(moments.sizes)):
        slope = sum(2 * h[k] * hull.largest for k, hull in enumerate(slopes))
        near = _total(
            weight * (_means(hull, mean, cut) + np.abs(hull.middle) * mean[cut])
            for weight, mean, hull in parts
        )
        best = np.fmin(best, near + slope * moments.sizes[cut])
    return best


@dataclass(frozen=True)
class _Hulls:
    """One slope or curve around every cell of the grid.

    Attributes:
        middle: gamma, any number.
        ends: Hulls for r = 1, 2, .., then over the whole lattice.
        size_here: The largest size on the cell itself.
    """

    middle: np.ndarray
    ends: list[tuple[np.ndarray, np.ndarray]]
    size_here: np.ndarray

    @cached_property
    def radii(self) -> list[np.ndarray]:
        """rho^(r) for r = 1, 2, .., then over the whole lattice."""
        middle = self.middle
        return [np.maximum(right - middle, middle - left) for left, right in self.ends]

    @property
    def largest(self) -> float:
        """The largest size on the whole lattice."""
        left, right = self.ends[-1]
        return float(max(right[0], -left[0]))

    @property
    def about_zero(self) -> "_Hulls":
        """The same with gamma = 0."""
        return _Hulls(np.zeros_like(self.middle), self.ends, self.size_here)


def _hulls(
    field: LatticeField,
    low: np.ndarray,
    high: np.ndarray,
    whole: tuple[float, float] | None,
) -> _Hulls:
    N = field.found.low.shape[1]
    start, first, last, stop = field.rows
    shape = (stop - start, *(field.cells,) * (N - 1))
    across = slice(field.margin, field.cells - field.margin)
    inside = (slice(first - start, last - start), *(across,) * (N - 1))
    low, high = low.reshape(shape), high.reshape(shape)
    size_here = np.maximum(high, -low)[inside].ravel()
    all_low, all_high = whole or (float(low.min()), float(high.max()))
    ends: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(RADII):
        low, high = _widened(low, np.minimum), _widened(high, np.maximum)
        ends.append((low[inside].ravel(), high[inside].ravel()))
    first = ends[0][0] / 2 + ends[0][1] / 2
    middle = np.where(np.isfinite(first), first, 0.0)
    ends.append((np.full_like(middle, all_low), np.full_like(middle, all_high)))
    return _Hulls(middle, ends, size_here)


def _widened(field: np.ndarray, extreme: np.ufunc) -> np.ndarray:
    """The least or largest over each cell and its neighbours, diagonal ones too."""
    found, spare = field, (np.empty_like(field), np.empty_like(field))
    for axis in range(field.ndim):
        before = (slice(None),) * axis + (slice(None, -1),)
        after = (slice(None),) * axis + (slice(1, None),)
        seen, found = found, spare[axis % 2]
        found[...] = seen
        extreme(found[after], seen[before], out=found[after])
        extreme(found[before], seen[after], out=found[before])
    return found


def _means(hull: _Hulls, mean: list[float], cut: int | None = None) -> np.ndarray:
    """E(|X| rho^(r(delta)); all |delta| <= cut), by Abel summation the other way round.

    sum_{r<cut} rho^(r) (A(r-1) - A(r)) + rho^(cut) A(cut-1): no term is negative, so that
    nothing cancels where a radius is infinite. Without a cut, the last radius is that of
    the whole lattice.
    """
    last = len(mean) if cut is None else cut
    weights = [mean[r] - mean[r + 1] for r in range(last - 1)] + [mean[last - 1]]
    used = [k for k, weight in enumerate(weights) if weight]
    return _total([hull.radii[k] * weights[k] for k in used] or [np.zeros(1)])
