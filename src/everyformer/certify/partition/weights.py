"""The anchors' weights around a cell as functions of the point, with two derivatives.

In spacings, a cell is [0, 1] and its anchors are the integers j of a window, -R <= j <=
R + 1, as far as the lattice goes. For t in the cell let Y = j have the probability

    W_j(t) = e^(-D (j-t)^2) / sum_i e^(-D (i-t)^2).

This is an exponential family with the parameter 2 D t: its cumulants k_1 = E Y, k_2, k_3
are each other's derivatives, k_i' = 2 D k_{i+1}. So

    W_j' = 2 D W_j (j - E Y)        W_j'' = 4 D^2 W_j ((j - E Y)^2 - Var Y)
    (E Y)'' = 4 D^2 E (Y - E Y)^3.

At the centres of a cell's parts W and W' are enclosed in narrow intervals. The largest
|W_j|, |W_j'|, |W_j''| and |(E Y)''| over the cell are those of `PIECES` pieces of it. What
the window leaves out has at most the share tau_0 of `margin_terms`, for a margin of R: the
same proof, with anchors that the window lacks instead of the lattice.

Divided by that of the nearest anchor, j_0 = 0 for t <= 1/2 and else 1, a weight is
e^(-D (j - j_0) (j + j_0 - 2 t)): no sum of weights underflows.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from everyformer.certify.partition.lattice_constants import margin_terms
from everyformer.errors import CertificateError
from everyformer.numerics.curvature import round_down, round_up
from everyformer.numerics.intervals import Interval, IntervalArithmetic

ON = IntervalArithmetic()

PIECES = 64
"""Of a cell, an even number: weights are enclosed on each to find their largest sizes."""

WIDEST = 64
"""Windows reach so far at most."""

NEGLIGIBLE = Fraction(47, 2)
"""What a window leaves out weighs about e^-23.5 of the whole."""

SLACK = 2.0**-44
"""More than gamma_k for k <= 2 WIDEST + 2, the share that sums over a window lose."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Weights in windows of several kinds: those near faces lack places.

    Attributes:
        values: (kinds, parts, 2 R + 2), W at the parts' centres, 0 for places that lack.
        slopes: W' there.
        off: Bounds on how far rows of both are from the true ones, as sums of sizes.
        sizes: Bounds on the sums of sizes of rows of both, the true ones too.
        largest: (3, 2 R + 2), bounds of |W|, |W'|, |W''| over the cell, for all windows.
        bend: A bound of |(E Y)''|.
    """

    values: np.ndarray
    slopes: np.ndarray
    off: tuple[float, float]
    sizes: tuple[float, float]
    largest: np.ndarray
    bend: float


@dataclass(frozen=True, eq=False)
class WindowWeights:
    """Weights in the windows of all cells along an axis.

    Attributes:
        reach: R; a window has 2 R + 2 places.
        kinds: (K,), which of the rows belong to a cell.
        rows: The weights.
        lost: A bound on the share of the anchors that a window leaves out.
    """

    reach: int
    kinds: np.ndarray
    rows: Rows
    lost: Fraction


def window_weights(
    D: Fraction, cells: int, margin: int, parts: int
) -> WindowWeights | None:
    """The weights along an axis; None if a window would be too wide for them.

    Args:
        D: The weights are e^(-D delta^2).
        cells: K.
        margin: m, anchors beyond the cells on either side.
        parts: Equal parts of a cell, at whose centres weights are wanted.

    Example:
        >>> found = window_weights(Fraction(1), 8, 2, 4)
        >>> found.reach, found.rows.values.shape, found.lost < 1e-10
        (4, (5, 4, 10), True)
        >>> bool(abs(found.rows.values.sum(axis=-1) - 1).max() < 1e-14)
        True
    """
    reach = reach_of(D, cells + margin)
    if reach is None:
        return None
    lost = Fraction(0)
    if reach < cells + margin:
        try:
            lost = margin_terms(D, reach)[0]
        except CertificateError:
            return None
    numbers = np.arange(cells)
    ends = np.stack([numbers, cells - 1 - numbers], axis=-1) + margin
    found, kinds = np.unique(np.minimum(ends, reach), axis=0, return_inverse=True)
    present = tuple((int(left), int(right)) for left, right in found)
    return WindowWeights(reach, kinds.reshape(-1), _rows(D, reach, present, parts), lost)


@lru_cache(maxsize=64)
def _rows(
    D: Fraction, reach: int, present: tuple[tuple[int, int], ...], parts: int
) -> Rows:
    """The rows for windows that go so far to the left of 0 and to the right of 1."""
    places = np.arange(-reach, reach + 2)
    left, right = np.array(present).T[:, :, None]
    there = (places >= -left) & (places <= 1 + right)  # [kinds, places]
    centres = [Fraction(2 * k + 1, 2 * parts) for k in range(parts)]
    values, slopes, _, _ = _enclosed(D, places, there, centres, centres)
    edges = [Fraction(k, PIECES) for k in range(PIECES + 1)]
    *wide, bend = _enclosed(D, places, there, edges[:-1], edges[1:])
    return Rows(
        _middle(values),
        _middle(slopes),
        (_row_sum(_radius(values)), _row_sum(_radius(slopes))),
        (_row_sum(_size(values)), _row_sum(_size(slopes))),
        np.stack([_size(sup).max(axis=(0, 1)) for sup in wide]),
        float(_size(bend).max()),
    )


def reach_of(D: Fraction, whole: int) -> int | None:
    """R: beyond it weights are negligible, or there are no anchors; None if too far."""
    for reach in range(1, WIDEST + 1):
        if reach >= whole or D * ((reach + 1) ** 2 - Fraction(1, 4)) >= NEGLIGIBLE:
            return reach
    return None


def _enclosed(
    D: Fraction,
    places: np.ndarray,
    present: np.ndarray,
    lows: list[Fraction],
    highs: list[Fraction],
) -> tuple[Interval, Interval, Interval, Interval]:
    """W, W', W'' and (E Y)'' for t from low to high; (kinds, pieces, places or 1)."""
    near = np.array([float(high > Fraction(1, 2)) for high in highs])[:, None]  # j_0
    t = Interval(
        np.array([round_down(a) for a in lows])[:, None],
        np.array([round_up(b) for b in highs])[:, None],
    )
    j = places.astype(np.float64)[None]
    rate = ON.mul(ON.constant(D), _exactly(j - near))
    power = ON.mul(rate, ON.sub(ON.mul(ON.constant(Fraction(2)), t), _exactly(j + near)))
    raw = ON.exp(power)
    mask = present[:, None, :].astype(np.float64)
    raw = Interval(raw.low * mask, raw.high * mask)
    W = ON.div(raw, _sum(raw))
    step = ON.sub(_exactly(j), t)
    gap = ON.sub(step, _sum(ON.mul(W, step)))  # j - E Y
    square = ON.pow(gap, 2)
    spread = _sum(ON.mul(W, square))
    third = _sum(ON.mul(W, ON.mul(square, gap)))
    first = ON.mul(W, ON.mul(ON.constant(2 * D), gap))
    twice = ON.constant(4 * D * D)
    second = ON.mul(W, ON.mul(twice, ON.sub(square, spread)))
    return W, first, second, ON.mul(twice, third)


def _exactly(values: np.ndarray) -> Interval:
    return Interval(values, values)


def _sum(terms: Interval) -> Interval:
    """Over the places, rounded outward."""
    slack = _size(terms).sum(axis=-1, keepdims=True) * SLACK
    low, high = (end.sum(axis=-1, keepdims=True) for end in (terms.low, terms.high))
    return Interval(low - slack, high + slack)


def _size(terms: Interval) -> np.ndarray:
    return np.maximum(np.abs(terms.low), np.abs(terms.high))


def _middle(terms: Interval) -> np.ndarray:
    return terms.low / 2 + terms.high / 2


def _radius(terms: Interval) -> np.ndarray:
    """How far the computed middle may be from any number between the ends."""
    middle = _middle(terms)
    far = np.maximum(terms.high - middle, middle - terms.low)
    return np.nextafter(far, np.inf)


def _row_sum(sizes: np.ndarray) -> float:
    """The largest sum over the places, rounded up."""
    return float(sizes.sum(axis=-1).max()) * (1 + SLACK)
