"""Softmax over anchors at finite temperature: how far g is from f, as a tree of bounds.

In coordinates u of the unit cube, x_k = low_k + w_k u_k for the N = n d entries, anchors v
lie on a lattice of spacing h = 1/K that goes m steps beyond the cube, beta = D / h^2, and

    g(x) = sum_v f(v) e^(-beta |u-v|^2) / sum_v e^(-beta |u-v|^2) = E f(Y).

The weights are a product over coordinates, so the coordinates of Y are independent, and
Y_k - x_k = h_k delta_k with h_k = w_k / K and delta_k as in `lattice_constants`. Hence, for
every x in the box and every f with a constant L or a modulus omega of the maximum norm,

    |g - f| <= L min(m1 sum_k h_k, (m2 sum_k h_k^2)^(1/2)),
    |g - f| <= (1 + (m2 sum_k h_k^2)^(1/2) / r) omega(r), any r > 0

Proof. With y = Y - x, E max_k|y_k| is at most the sum of means, and at most the root of the
sum of squares. For a modulus, the least one has omega(s) <= (1 + s/r) omega(r), because the
box is convex; s = max_k|y_k|.

f must be known where the anchors are. f after clipping to the box always is, and it keeps L
and omega. `local` has a bound that holds cell by cell, for any traced f, and is sharper.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from everyformer.certify.bound import Bound
from everyformer.certify.partition.lattice import SOURCE, Lattice
from everyformer.certify.rounding import UNIT_ROUNDOFF
from everyformer.errors import CertificateError
from everyformer.numerics.rationals import power_up


def from_lipschitz(lattice: Lattice, lipschitz: Fraction) -> Bound:
    """sup |g - f| in every entry, for a declared constant L of the maximum norm."""
    mean = lattice.constants.m1 * sum(lattice.steps, start=Fraction(0))
    return Bound(
        lipschitz * min(mean, lattice.radius),
        f"sup |g - f|: Lipschitz constant {lipschitz} declared, clipped to the box",
        SOURCE,
    )


def from_modulus(lattice: Lattice, omega: Fraction, radius: Fraction) -> Bound:
    """sup |g - f| in every entry, for a declared modulus, omega = omega(radius)."""
    reason = "sup |g - f|: modulus of continuity declared, clipped to the box"
    return Bound((1 + lattice.radius / radius) * omega, reason, SOURCE)


def leak(lattice: Lattice, largest: Fraction, suppression: Fraction) -> Bound:
    """What the data tokens' share of the softmax moves g, at most.

    An anchor is within h/2 of the point in every coordinate, so the best logit is at least
    -D N / 4. The n data tokens have the logit -B, and values of size `largest` at most. So
    their share is at most n e^(D N / 4 - B), and g moves by at most twice `largest` times
    that.

    Args:
        lattice: The lattice.
        largest: A bound on |f(v)| over the anchors.
        suppression: B, as the weights have it.
    """
    gap = suppression - lattice.D * lattice.size / 4
    share = min(lattice.grid.seq_len * _exp_up(-gap), Fraction(1))
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


def logit_rounding(lattice: Lattice, unit: Fraction = UNIT_ROUNDOFF) -> Fraction:
    """eta: how far a computed logit, less the computed maximum, is from the true one.

    With S = `logit_size` and u the unit roundoff. A logit is a sum of N + 1 products whose
    sizes add up to 3 S at most. A product carries at most three roundings in its key (beta,
    v or |v|^2, their product) and one of its own, then N additions. The point is off by at
    most (32 + 8 c) u in each entry (docs/constructions/partition.md), c = 0 for the unit
    box and else the largest |x_k| / w_k, which moves a logit by 2 beta |v_k| times that
    each. Subtracting the maximum rounds a number of size 2 S. So

        eta <= 3 S gamma_{N+6} + (64 + 16 c) u D K^2 N (1 + m/K).
    """
    operations = (lattice.size + 6) * unit
    reach = 1 + Fraction(lattice.margin, lattice.grid.cells)
    box, off = lattice.grid.box, Fraction(64)
    if not box.is_unit:
        ends = zip(box.lows, box.highs, box.widths, strict=True)
        off += 16 * max(Fraction(max(abs(low), abs(high))) / w for low, high, w in ends)
    moved = off * unit * lattice.D * lattice.grid.cells**2 * lattice.size * reach
    return 3 * lattice.logit_size * operations / (1 - operations) + moved


def rounding(lattice: Lattice, largest: Fraction, unit: Fraction = UNIT_ROUNDOFF) -> Bound:
    """What a run in floating point adds to |g - f|, in every entry.

    Three parts: logits off by eta; exp within 4 ulp and the sums of P + n terms, in the
    denominator and in the average of values (Higham's gamma, any order); the last layer,
    which adds and subtracts R <= 2 max|f| for each of n tokens.
    """
    n = lattice.grid.seq_len
    eta = logit_rounding(lattice, unit)
    operations = (2 * (lattice.anchors + n) + 24) * unit
    if operations >= 1:
        raise CertificateError("There are more anchors than this precision can add up.")
    terms = [
        reweighting(eta, largest, "logits: rounded keys, queries and products"),
        Bound(largest * operations / (1 - operations), "exp, sums and the average", SOURCE),
        Bound(16 * n * unit * largest, "the entry of its own token", SOURCE),
    ]
    return Bound.total(terms, "rounding, in every entry")


def distance(lattice: Lattice, entries: Sequence[Bound], p: Fraction | None) -> Bound:
    """d_p(f, g) from bounds of sup |g - f| for each entry; the largest, for p = infinity.

    The p-th power of an entry's distance is at most the box's volume times that of its sup.
    For equal entries it is (N vol)^(1/p) times the sup.
    """
    if p is None:
        return max(entries, key=lambda entry: entry.value)
    factor = power_up(lattice.volume, 1 / p)
    parts = [_scaled(entry, factor) for entry in entries]
    return Bound.p_norm(parts, p, f"all entries, times volume^(1/{p})")


def everywhere(lattice: Lattice, bound: Bound, p: Fraction | None) -> Bound:
    """The p-norm over the box of something that every entry has at most: (N vol)^(1/p)."""
    if p is None:
        return bound
    return _scaled(bound, power_up(lattice.size * lattice.volume, 1 / p))


def _scaled(bound: Bound, factor: Fraction) -> Bound:
    """A bound or a sum of bounds, times a factor."""
    if bound.terms:
        return Bound.total([_scaled(term, factor) for term in bound.terms], bound.reason)
    return Bound(bound.value * factor, bound.reason, bound.source)


def named(p: Fraction | None) -> str:
    """The distance in words."""
    return "sup |f - g|" if p is None else f"d_p(f, g), p = {p}"
