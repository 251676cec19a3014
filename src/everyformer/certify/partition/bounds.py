"""Softmax over anchors at finite temperature: how far g is from f, as a tree of bounds.

In coordinates u of the unit cube, x_k = low_k + w_k u_k for the N = n d entries, anchors v
lie on a lattice of spacing h = 1/K that goes m steps beyond the cube, beta = D / h^2, and

    g(x) = sum_v f(v) e^(-beta |u-v|^2) / sum_v e^(-beta |u-v|^2) = E f(Y).

The weights are a product over coordinates, so the coordinates of Y are independent, and
Y_k - x_k = h_k delta_k with h_k = w_k / K and delta_k as in `theta`. Hence, for one entry
of f and every x in the box,

    first order    |g - f| <= m1 sum_k h_k sup|d_k f|
    second order   |g - f| <= b sum_k h_k sup|d_k f| + (m2/2) sum_k h_k^2 sup|d_kk f|
                              + m1^2 sum_{k<l} h_k h_l sup|d_kl f|
    declared       |g - f| <= L min(m1 sum_k h_k, (m2 sum_k h_k^2)^(1/2)),
                   |g - f| <= (1 + (m2 sum_k h_k^2)^(1/2) / r) omega(r), any r > 0

Proof. First order: |f(Y) - f(x)| <= sum_k sup|d_k f| |Y_k - x_k|. Second order: Taylor's
formula at x, with y = Y - x,

    f(Y) = f(x) + sum_k d_k f(x) y_k + sum_kl y_k y_l int_0^1 (1-t) d_kl f(x + t y) dt;

|E delta_k| is at most b, E delta_k^2 at most m2, E|delta_k delta_l| = E|delta_k| E|delta_l|
at most m1^2. Declared: L is a constant for the maximum norm, and E max_k|y_k| is at most
the sum of means, and at most the root of the sum of squares. For a modulus, the least one
has omega(s) <= (1 + s/r) omega(r), because the box is convex; s = max_k|y_k|.

f must be known where the anchors are. f after clipping to the box always is; it keeps L and
omega, and has kinks on the box's faces: it has no second-order bound of this kind.
`partition_local` has one that holds cell by cell, for any traced f, and is sharper.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.partition.lattice import SOURCE, Lattice
from everyformer.certify.rounding import UNIT_ROUNDOFF
from everyformer.errors import CertificateError
from everyformer.numerics.curvature import pairs_of
from everyformer.numerics.rationals import power_up


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


def from_lipschitz(partition: Lattice, lipschitz: Fraction) -> Bound:
    """sup |g - f| in every entry, for a declared constant L of the maximum norm."""
    mean = partition.constants.m1 * sum(partition.steps, start=Fraction(0))
    return Bound(
        lipschitz * min(mean, partition.radius),
        f"sup |g - f|: Lipschitz constant {lipschitz} declared, clipped to the box",
        SOURCE,
    )


def from_modulus(partition: Lattice, omega: Fraction, radius: Fraction) -> Bound:
    """sup |g - f| in every entry, for a declared modulus, omega = omega(radius)."""
    reason = "sup |g - f|: modulus of continuity declared, clipped to the box"
    return Bound((1 + partition.radius / radius) * omega, reason, SOURCE)


def leak(partition: Lattice, largest: Fraction, suppression: Fraction) -> Bound:
    """What the data tokens' share of the softmax moves g, at most.

    An anchor is within h/2 of the point in every coordinate, so the best logit is at least
    -D N / 4. The n data tokens have the logit -B, and values of size `largest` at most. So
    their share is at most n e^(D N / 4 - B), and g moves by at most twice `largest` times
    that.

    Args:
        partition: The lattice.
        largest: A bound on |f(v)| over the anchors.
        suppression: B, as the weights have it.
    """
    gap = suppression - partition.D * partition.size / 4
    share = min(partition.grid.seq_len * _exp_up(-gap), Fraction(1))
    return Bound(2 * largest * share, "leak: data tokens in the softmax", SOURCE)


def _exp_up(exponent: Fraction) -> Fraction:
    """A power of two that is at least e^x, x <= 0: log 2 < 0.6931471806."""
    halvings = math.floor(-exponent / Fraction(6931471806, 10**10))
    return Fraction(2) ** -min(halvings, 5000)  # small enough, and soon computed


def reweighting(eta: Fraction, largest: Fraction, why: str) -> Bound:
    """What logits that are off by eta at most do to g.

    Every weight is multiplied by a factor in [e^-eta, e^eta], every share by one in
    [e^(-2 eta), e^(2 eta)], so g moves by at most (e^(2 eta) - 1) max|f|; and never by more
    than 2 max|f|, because both are averages. e^t - 1 <= t + t^2 for t <= 1.
    """
    t = 2 * eta
    share = t + t * t if t <= 1 else Fraction(2)
    return Bound(min(share, Fraction(2)) * largest, why, SOURCE)


def logit_rounding(partition: Lattice, unit: Fraction = UNIT_ROUNDOFF) -> Fraction:
    """eta: how far a computed logit, less the computed maximum, is from the true one.

    With S = `logit_size` and u the unit roundoff. A logit is a sum of N + 1 products whose
    sizes add up to 3 S at most. A product carries at most three roundings in its key (beta,
    v or |v|^2, their product) and one of its own, then N additions. The point is off by at
    most (32 + 8 c) u in each entry (docs/constructions/partition.md), c = 0 for the unit
    box and else the largest |x_k| / w_k, which moves a logit by 2 beta |v_k| times that
    each. Subtracting the maximum rounds a number of size 2 S. So

        eta <= 3 S gamma_{N+6} + (64 + 16 c) u D K^2 N (1 + m/K).
    """
    operations = (partition.size + 6) * unit
    reach = 1 + Fraction(partition.margin, partition.grid.cells)
    box, off = partition.grid.box, Fraction(64)
    if not box.is_unit:
        ends = zip(box.lows, box.highs, box.widths, strict=True)
        off += 16 * max(Fraction(max(abs(low), abs(high))) / w for low, high, w in ends)
    moved = off * unit * partition.D * partition.grid.cells**2 * partition.size * reach
    return 3 * partition.logit_size * operations / (1 - operations) + moved


def rounding(
    partition: Lattice, largest: Fraction, unit: Fraction = UNIT_ROUNDOFF
) -> Bound:
    """What a run in floating point adds to |g - f|, in every entry.

    Three parts: logits off by eta; exp within 4 ulp and the sums of P + n terms, in the
    denominator and in the average of values (Higham's gamma, any order); the last layer,
    which adds and subtracts R <= 2 max|f| for each of n tokens.
    """
    n = partition.grid.seq_len
    eta = logit_rounding(partition, unit)
    operations = (2 * (partition.anchors + n) + 24) * unit
    if operations >= 1:
        raise CertificateError("There are more anchors than this precision can add up.")
    terms = [
        reweighting(eta, largest, "logits: rounded keys, queries and products"),
        Bound(largest * operations / (1 - operations), "exp, sums and the average", SOURCE),
        Bound(16 * n * unit * largest, "the entry of its own token", SOURCE),
    ]
    return Bound.total(terms, "rounding, in every entry")


def distance(partition: Lattice, entries: Sequence[Bound], p: Fraction | None) -> Bound:
    """d_p(f, g) from bounds of sup |g - f| for each entry; the largest, for p = infinity.

    The p-th power of an entry's distance is at most the box's volume times that of its sup.
    For equal entries it is (N vol)^(1/p) times the sup.
    """
    if p is None:
        return max(entries, key=lambda entry: entry.value)
    factor = power_up(partition.volume, 1 / p)
    parts = [_scaled(entry, factor) for entry in entries]
    return Bound.p_norm(parts, p, f"all entries, times volume^(1/{p})")


def everywhere(partition: Lattice, bound: Bound, p: Fraction | None) -> Bound:
    """The p-norm over the box of something that every entry has at most: (N vol)^(1/p)."""
    if p is None:
        return bound
    return _scaled(bound, power_up(partition.size * partition.volume, 1 / p))


def _scaled(bound: Bound, factor: Fraction) -> Bound:
    """A bound or a sum of bounds, times a factor."""
    if bound.terms:
        return Bound.total([_scaled(term, factor) for term in bound.terms], bound.reason)
    return Bound(bound.value * factor, bound.reason, bound.source)


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


def named(p: Fraction | None) -> str:
    """The distance in words."""
    return "sup |f - g|" if p is None else f"d_p(f, g), p = {p}"
