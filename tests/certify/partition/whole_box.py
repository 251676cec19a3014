"""Bounds on the whole box from suprema, first and second order: what `cell_bounds` beats.

With b, m1, m2 as in `lattice_constants`, for one entry of f and every x in the box,

    first order    |g - f| <= m1 sum_k h_k sup|d_k f|
    second order   |g - f| <= b sum_k h_k sup|d_k f| + (m2/2) sum_k h_k^2 sup|d_kk f|
                              + m1^2 sum_{k<l} h_k h_l sup|d_kl f|
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.partition.lattice import SOURCE, Lattice
from everyformer.errors import CertificateError
from everyformer.numerics.curvature import pairs_of


def first_order(partition: Lattice, slopes: np.ndarray) -> list[Bound]:
    """sup |g - f| for each entry, from Lipschitz constants for each coordinate.

    Args:
        partition: The lattice.
        slopes: (N, N), L_ek with |f_e(x) - f_e(y)| <= sum_k L_ek |x_k - y_k|, on the
            anchors' box.

    Raises:
        CertificateError: If a constant is not finite.
    """
    _check_finite(slopes, "Lipschitz constant", "Restrict the domain, or clip the target.")
    m1 = partition.constants.m1
    return [
        Bound(
            m1 * _dot(partition.steps, row),
            f"sup |g - f|, entry {e}: first order, Lipschitz constants, m1",
            SOURCE,
        )
        for e, row in enumerate(slopes)
    ]


def second_order(
    partition: Lattice, slopes: np.ndarray, curves: np.ndarray, *, clipped: bool = False
) -> list[Bound]:
    """sup |g - f| for each entry, from suprema of first and second derivatives.

    Args:
        partition: The lattice.
        slopes: (N, N), sup |d_k f_e| on the box.
        curves: (N, N (N+1) / 2), sup |d_kl f_e| on the anchors' box, in the order of
            `pairs_of`.
        clipped: Whether f is clipped to its box, and so is not twice differentiable.

    Raises:
        CertificateError: If f is clipped, or a supremum is not finite.
    """
    if clipped:
        msg = (
            "The target is clipped to its box: it has kinks on the faces and no second "
            "derivatives there, so the second-order bound says nothing. Use first_order, "
            "or the bound of partition_local."
        )
        raise CertificateError(msg)
    advice = "Use first_order, or the bound of partition_local."
    _check_finite(slopes, "slope", advice)
    _check_finite(curves, "second derivative", advice)
    known, h, pairs = partition.constants, partition.steps, pairs_of(partition.size)
    squares = [h[k] * h[m] if k == m else Fraction(0) for k, m in pairs]
    mixed = [h[k] * h[m] if k != m else Fraction(0) for k, m in pairs]
    result: list[Bound] = []
    for e, (slope, curve) in enumerate(zip(slopes, curves, strict=True)):
        terms = [
            Bound(known.b * _dot(h, slope), "slopes: b sum_k h_k sup|d_k f|", SOURCE),
            Bound(
                known.m2 / 2 * _dot(squares, curve),
                "curves: (m2/2) sum_k h_k^2 sup|d_kk f|",
                SOURCE,
            ),
            Bound(
                known.m1**2 * _dot(mixed, curve),
                "mixed curves: m1^2 sum_{k<l} h_k h_l sup|d_kl f|",
                SOURCE,
            ),
        ]
        result.append(Bound.total(terms, f"sup |g - f|, entry {e}: second order"))
    return result


def _dot(steps: Sequence[Fraction], sizes: np.ndarray) -> Fraction:
    pairs = zip(steps, sizes.tolist(), strict=True)
    return sum((step * Fraction(size) for step, size in pairs), start=Fraction(0))


def _check_finite(values: np.ndarray, what: str, advice: str) -> None:
    finite = np.isfinite(values).all(axis=-1)
    if not finite.all():
        msg = (
            f"Entry {int(np.argmin(finite))} of the target has a {what} that is not known "
            f"to be finite on the anchors' box. {advice}"
        )
        raise CertificateError(msg)
