"""Gaussian weights on the integers: how far the random anchor is from the point, proved.

Y is an integer with weight e^(-D (x-k)^2) on k, and delta = Y - x. Sought are

    b = sup |E delta|      m1 = sup E|delta|      m2 = sup E delta^2
    least_m2 = inf E delta^2      tails[r-1][j] = sup E(|delta|^j; |delta| > r), j = 0, 1, 2

over all real x; upper bounds, and a lower bound for least_m2. Two ways; the better counts.

**Theta series.** theta(x) = sum_k e^(-D (x-k)^2) has theta' = 2 D theta E delta and
theta'' = theta (4 D^2 E delta^2 - 2 D). Poisson summation gives, with q = e^(-pi^2 / D),
theta = sqrt(pi / D) (1 + 2 sum_{r>=1} q^(r^2) cos(2 pi r x)). With s_k = sum r^k q^(r^2),
and if 2 s_0 < 1,

    b <= (2 pi / D) s_1 / (1 - 2 s_0)
    |E delta^2 - 1/(2D)| <= (2 pi^2 / D^2) s_2 / (1 - 2 s_0).

**Enclosure.** All five are even in x and have period 1, so x in [0, 1/2] is enough. Divided
by its largest, the weight of k is e^(-D k (k - 2x)); that of 0 is 1. The sums over |k| <= M
are enclosed on pieces of [0, 1/2], in the mean value form. There |k - x| <= |k| + 1/2 and
the weight of k is at most e^(-D |k| (|k|-1)). So the numerators lack at most

    rest_j = 2 sum_{k>M} (k + 1/2)^j e^(-D k (k-1)),

and the denominator is at least what was enclosed, and at least 1. For 0 <= x <= 1/2,
|k - x| > r implies k > r or k <= -r.

**A margin.** Anchors from -m to K + m are left. For x in [0, K] those beyond are at
distances >= m+1, m+2, .. on either side, and the nearest one is at most 1/2 away. So what
is lost of E|delta|^j is at most tau_j = 2 e^(D/4) sum_{r>m} r^j e^(-D r^2), j <= 2, if
u^j e^(-D u^2) decreases for u >= m+1, which (m+1)^2 >= 1/D gives. Hence (b + tau_1) /
(1 - tau_0) for b, least_m2 - tau_2 for least_m2, and X / (1 - tau_0) for all others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from everyformer.errors import CertificateError
from everyformer.numerics.derivative import Differentiated
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.rationals import power_up

RADII = 6
"""Tails are known beyond 1, 2, .. up to this distance."""

PIECES = 1024
"""Of [0, 1/2]: a power of two. Eight times as many for sharp weights, D > 20."""

_PI = (
    Fraction(31415926535897932384626433832795028841, 10**37),
    Fraction(31415926535897932384626433832795028842, 10**37),
)
_SMALL = 45
"""Sums stop at terms of about e^-45; the rest is bounded."""


class Intervals(IntervalArithmetic):
    """Intervals, with what else the constants ask of an arithmetic."""

    @staticmethod
    def pieces(D: Fraction) -> list[tuple[Interval, Interval, Interval]]:
        """Pieces of [0, 1/2], their centres, and how far they reach from these."""
        count = PIECES if D <= 20 else 8 * PIECES
        ends = np.linspace(0.0, 0.5, count + 1)[None]
        centres = (ends[:, :-1] + ends[:, 1:]) / 2
        reach = np.full_like(centres, 0.25 / count)  # powers of two: all of it is exact
        whole = Interval(ends[:, :-1], ends[:, 1:])
        return [(whole, Interval(centres, centres), Interval(-reach, reach))]

    @classmethod
    def between(cls, low: Fraction, high: Fraction) -> Interval:
        """All numbers from low to high."""
        return Interval(cls.constant(low).low, cls.constant(high).high)

    @staticmethod
    def meet(a: Interval, b: Interval) -> Interval:
        """What both enclosures allow."""
        return Interval(np.maximum(a.low, b.low), np.minimum(a.high, b.high))

    @staticmethod
    def ends(a: Interval) -> tuple[float, float]:
        """The least lower and the greatest upper end."""
        return float(a.low.min()), float(a.high.max())


INTERVALS = Intervals()


@dataclass(frozen=True)
class LatticeConstants:
    """What is proved of delta, in units of the lattice's spacing.

    Attributes:
        D: The weights are e^(-D delta^2).
        margin: m, for a lattice that ends m anchors beyond the points; None for all of Z.
        b: Bound on |E delta|.
        m1: Bound on E|delta|.
        m2: Bound on E delta^2.
        least_m2: Lower bound of E delta^2.
        tails: For r = 1, 2, .. bounds on E(|delta|^j; |delta| > r), j = 0, 1, 2.
    """

    D: Fraction
    margin: int | None
    b: Fraction
    m1: Fraction
    m2: Fraction
    least_m2: Fraction
    tails: tuple[tuple[Fraction, Fraction, Fraction], ...]


@lru_cache(maxsize=256)
def lattice_constants(
    D: Fraction, margin: int | None = None, *, on: Any = INTERVALS
) -> LatticeConstants:
    """The constants for one D, and a margin.

    Args:
        D: A number > 0.
        margin: m >= 1, or None for a lattice without end.
        on: The arithmetic; tests compare with another one.

    Returns:
        Proved bounds, as exact rationals.

    Raises:
        CertificateError: If D or the margin is too small for the proof.

    Example:
        >>> one = lattice_constants(Fraction(1))
        >>> float(one.b) < 3.2504e-4, float(one.m2) < 0.50104, float(one.m1) < 0.6234
        (True, True, True)
    """
    if not (0 < D <= 10**5):
        msg = f"D={D} is not a number in (0, 100000]. Use for example D = 1."
        raise CertificateError(msg)
    if margin is not None:
        margin_terms(D, margin, on=on)  # refuses a tiny D before the long work
        return _with_margin(lattice_constants(D, on=on), margin, on=on)
    ways = [_enclosed(on, D)]
    series = theta_series(D, on=on)
    if series is not None:
        b, excess = series
        half = 1 / (2 * D)
        ways.append(replace(ways[0], b=b, m2=half + excess, least_m2=half - excess))
    m2 = min(way.m2 for way in ways)
    return replace(
        ways[0],
        b=min(way.b for way in ways),
        m1=min(ways[0].m1, power_up(m2, Fraction(1, 2))),
        m2=m2,
        least_m2=max(Fraction(0), *(way.least_m2 for way in ways)),
    )


def _with_margin(whole: LatticeConstants, m: int, *, on: Any) -> LatticeConstants:
    lost = margin_terms(whole.D, m, on=on)
    share = 1 / (1 - lost[0])
    return LatticeConstants(
        D=whole.D,
        margin=m,
        b=(whole.b + lost[1]) * share,
        m1=whole.m1 * share,
        m2=whole.m2 * share,
        least_m2=max(Fraction(0), whole.least_m2 - lost[2]),
        tails=tuple((t[0] * share, t[1] * share, t[2] * share) for t in whole.tails),
    )


@lru_cache(maxsize=256)
def margin_terms(D: Fraction, m: int, *, on: Any = INTERVALS) -> tuple[Fraction, ...]:
    """tau_0, tau_1, tau_2: how much of E|delta|^j a margin of m anchors may lose.

    Raises:
        CertificateError: If m < 1, (m+1)^2 < 1/D, or all of the weight might be lost.

    Example:
        >>> float(margin_terms(Fraction(1), 3)[0]) < 3e-7
        True
    """
    if m < 1 or (m + 1) ** 2 * D < 1:
        msg = (
            f"A margin of {m} anchors is too small for D = {D}: the proof needs "
            "m >= 1 and (m+1)^2 >= 1/D. Use a larger margin, or a larger D."
        )
        raise CertificateError(msg)
    found: list[Fraction] = []
    for j in range(3):
        total = _gaussian_tail(on, D, m + 1, j)
        twice = on.mul(on.constant(Fraction(2)), on.exp(on.constant(D / 4)))
        found.append(_upper(on, on.mul(twice, total)))
    if found[0] >= 1:
        msg = f"A margin of {m} anchors may lose all weight at D = {D}. Use a larger one."
        raise CertificateError(msg)
    return tuple(found)


def _gaussian_tail(on: Any, D: Fraction, start: int, j: int) -> Any:
    """sum_{r >= start} r^j e^(-D r^2), for D start^2 >= 1."""
    stop = start + 1 + _ceil_root(_SMALL / D)
    return _series(on, j, lambda k: on.exp(on.constant(-D * k)), start, stop)


def _series(on: Any, j: int, q: Callable[[int], Any], start: int, stop: int) -> Any:
    """sum_{r >= start} r^j q(r^2), q(k) = q^k; from stop on as a geometric series.

    For r >= R the ratio of neighbours is at most ((R+1)/R)^j q^(2R+1).
    """

    def term(base: Fraction, exponent: int) -> Any:
        return on.mul(on.constant(base**j), q(exponent))

    ratio = term(Fraction(stop + 1, stop), 2 * stop + 1)
    rest = on.sub(on.constant(Fraction(1)), ratio)
    total = on.div(term(Fraction(stop), stop * stop), rest)
    for r in range(start, stop):
        total = on.add(total, term(Fraction(r), r * r))
    return total


def theta_series(D: Fraction, *, on: Any = INTERVALS) -> tuple[Fraction, Fraction] | None:
    """Bounds on b and on |E delta^2 - 1/(2D)|; None unless 2 s_0 < 1 is certain.

    Example:
        >>> b, excess = theta_series(Fraction(2)) or (None, None)
        >>> float(b) < 0.022924, float(excess) < 0.03601
        (True, True)
    """
    pi = on.between(*_PI)
    rate = on.div(on.mul(pi, pi), on.constant(-D))  # log q
    stop = 2 + _ceil_root(_SMALL * D / 9)

    def power(exponent: int) -> Any:
        return on.exp(on.mul(rate, on.constant(Fraction(exponent))))

    sums = [_series(on, k, power, 1, stop) for k in range(3)]
    one, two = on.constant(Fraction(1)), on.constant(Fraction(2))
    rest = on.sub(one, on.mul(two, sums[0]))
    if _lower(on, rest) <= 0:
        return None
    turn = on.div(on.mul(two, pi), on.constant(D))  # 2 pi / D
    b = on.div(on.mul(turn, sums[1]), rest)
    half = on.constant(Fraction(1, 2))
    excess = on.div(on.mul(on.mul(on.mul(turn, turn), half), sums[2]), rest)
    return _upper(on, b), _upper(on, excess)


def _enclosed(on: Any, D: Fraction) -> LatticeConstants:
    """All five by enclosure on pieces of [0, 1/2]."""
    M = max(_ceil_root(_SMALL / D), RADII) + 2
    rests = [_rest(on, D, M, j) for j in range(3)]
    found = [_on_piece(on, D, M, *piece) for piece in on.pieces(D)]
    highest = [max(_upper(on, values[k]) for values in found) for k in range(3 + 3 * RADII)]
    least = min(_lower(on, values[2]) for values in found)
    b = highest[0] + rests[1]
    m1 = highest[1] + rests[1]
    m2 = highest[2] + rests[2]
    tails = [
        (
            highest[3 + 3 * r] + rests[0],
            highest[4 + 3 * r] + rests[1],
            highest[5 + 3 * r] + rests[2],
        )
        for r in range(RADII)
    ]
    least_m2 = max(Fraction(0), least * (1 - rests[0]))
    return LatticeConstants(D, None, b, m1, m2, least_m2, tuple(tails))


def _rest(on: Any, D: Fraction, M: int, j: int) -> Fraction:
    """2 sum_{k>M} (k + 1/2)^j e^(-D k (k-1)); neighbours' ratio: (1 + 1/k)^j e^(-2 D k)."""
    first = Fraction(2) * (Fraction(M + 1) + Fraction(1, 2)) ** j
    lead = on.mul(on.constant(first), on.exp(on.constant(-D * M * (M + 1))))
    ratio = on.mul(
        on.constant(Fraction(M + 2, M + 1) ** j), on.exp(on.constant(-2 * D * (M + 1)))
    )
    return _upper(on, on.div(lead, on.sub(on.constant(Fraction(1)), ratio)))


def _on_piece(
    on: Any, D: Fraction, M: int, piece: Any, centre: Any, step: Any
) -> list[Any]:
    """|E delta|, E|delta|, E delta^2 and the tails on a piece, sums over |k| <= M."""
    jets = Differentiated(on)
    x = jets.variable(piece, "x")
    weights = _weights(jets, x, D, M)
    wide = _means(jets, x, weights)
    middle = _means(on, centre, _weights(on, centre, D, M))
    result: list[Any] = []
    for jet, value in zip(wide, middle, strict=True):
        slope = jet.slopes.get("x", on.constant(Fraction(0)))
        result.append(on.meet(jet.value, on.add(value, on.mul(slope, step))))
    result[0] = on.abs(result[0])
    return result + _tails(on, piece, {k: jet.value for k, jet in weights.items()})


def _weights(on: Any, x: Any, D: Fraction, M: int) -> dict[int, Any]:
    """e^(-D k (k - 2x)) for |k| <= M."""
    weights = {
        k: on.exp(on.sub(on.mul(on.constant(2 * D * k), x), on.constant(D * k * k)))
        for k in range(-M, M + 1)
        if k
    }
    weights[0] = on.constant(Fraction(1))
    return weights


def _means(on: Any, x: Any, weights: dict[int, Any]) -> list[Any]:
    """E delta, E|delta|, E delta^2, in any arithmetic."""
    total = _sum(on, weights.values())
    signed: list[Any] = []
    sizes: list[Any] = []
    squares: list[Any] = []
    for k, weight in weights.items():
        gap = on.sub(on.constant(Fraction(k)), x)
        term = on.mul(gap, weight)
        signed.append(term)
        sizes.append(term if k > 0 else on.neg(term))
        squares.append(on.mul(on.pow(gap, 2), weight))
    return [on.div(_sum(on, terms), total) for terms in (signed, sizes, squares)]


def _tails(on: Any, x: Any, weights: dict[int, Any]) -> list[Any]:
    """E(|delta|^j; k > r or k <= -r) for r = 1, .., RADII and j = 0, 1, 2."""
    total = _sum(on, weights.values())
    result: list[list[Any]] = [[] for _ in range(RADII)]
    for j in range(3):
        terms = {
            k: on.mul(on.pow(on.abs(on.sub(on.constant(Fraction(k)), x)), j), weight)
            if j
            else weight
            for k, weight in weights.items()
            if k not in {0, 1}
        }
        beyond = _sum(on, (terms[k] for k in terms if k > RADII + 1 or k < -RADII))
        for r in range(RADII, 0, -1):
            beyond = on.add(beyond, on.add(terms[r + 1], terms[-r]))
            result[r - 1].append(on.div(beyond, total))
    return [tail for row in result for tail in row]


def _sum(on: Any, terms: Any) -> Any:
    total = None
    for term in terms:
        total = term if total is None else on.add(total, term)
    return total


def _upper(on: Any, a: Any) -> Fraction:
    """The upper end of an enclosure, the greatest of an array."""
    return _finite(on.ends(a)[1])


def _lower(on: Any, a: Any) -> Fraction:
    return _finite(on.ends(a)[0])


def _finite(end: float) -> Fraction:
    if not np.isfinite(end):
        raise CertificateError("A constant of the lattice has no finite enclosure.")
    return Fraction(end)


def _ceil_root(value: Fraction) -> int:
    """An integer that is at least the root."""
    root = power_up(value, Fraction(1, 2))
    return -(-root.numerator // root.denominator)
