"""exp, log, sin, cos, tanh in float64, with errors that are proved.

The functions of numpy come without a guarantee. These use only what IEEE 754 fixes:
+ - * / rounded to nearest, floor, frexp, comparisons and products with powers of two.

    function   approximation is off by at most        for
    exp        ERROR * e^x                            -700 <= x <= 709
    log        ERROR * |log x|                        0 < x < inf
    sin        ERROR * min(1, |x|)                    |x| <= 2^20
    cos        ERROR                                  |x| <= 2^20
    tanh       ERROR                                  x >= 0

`*_bounds(x)` turn this into (low, high) with low <= f(x) <= high for every x, infinite ones
too. They widen by 2 * ERROR: the second half pays for the rounding of the widening.

Notation of the proofs: u = 2^-53, one rounding is a factor 1 + t with |t| <= u, and
gamma_k = k u / (1 - k u) bounds a product of k such factors (Higham, Accuracy and Stability
of Numerical Algorithms, Lemma 3.1). Horner's rule of degree n, with coefficients that are
themselves rounded, is off by at most gamma_{2n+1} * sum |c_i| |x|^i (Higham, Section 5.1).
Underflow adds less than 2^-1000 to sums that end with 1, and is left out. The proofs reach
2^-47; ERROR leaves a factor 4. Arrays need at least one axis and must not hold NaN.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

ERROR = 2.0**-45
"""The proved error, relative or absolute as the table says."""

LARGEST_ANGLE = 2.0**20
"""Beyond this size sin and cos are only known to lie in [-1, 1]."""

LARGEST = float(np.finfo(np.float64).max)
"""The largest float64."""

TINY = 2.0**-1074
"""The smallest positive float64."""

_WIDEN = 2.0 * ERROR
_LEAST_EXPONENT, _GREATEST_EXPONENT = -700.0, 709.0
_LARGEST_TANH = 20.0

# ln 2 and pi / 2, each within 2^-160.
_LN_2 = Fraction(0xB17217F7D1CF79ABC9E3B39803F2F6AF40F34326, 1 << 160)
_HALF_PI = Fraction(0x1921FB54442D18469898CC51701B839A252049C11, 1 << 160)


def _split(value: Fraction, *bits: int) -> list[float]:
    """Parts with sum close to value: multiples of 2^-bits, then the rest as one float64."""
    parts: list[float] = []
    for places in bits:
        part = Fraction(math.floor(value * 2**places), 2**places)
        parts.append(float(part))
        value -= part
    return [*parts, float(value)]


_LN_2_HIGH, _LN_2_LOW = _split(_LN_2, 42)
_HALF_PI_HIGH, _HALF_PI_MIDDLE, _HALF_PI_LOW = _split(_HALF_PI, 32, 65)
_PER_LN_2, _PER_HALF_PI = float(1 / _LN_2), float(1 / _HALF_PI)
_ROOT_HALF = 0.70710678

# Highest power first, as Horner's rule uses them.
_EXP = [float(Fraction(1, math.factorial(i))) for i in range(13, -1, -1)]
_ATANH = [float(Fraction(1, 2 * i + 1)) for i in range(10, -1, -1)]
_SIN = [float(Fraction((-1) ** i, math.factorial(2 * i + 1))) for i in range(8, -1, -1)]
_COS = [float(Fraction((-1) ** i, math.factorial(2 * i))) for i in range(8, -1, -1)]
_POWERS_OF_TWO = np.array([math.ldexp(1.0, k) for k in range(-1022, 1024)])


def _horner(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    total = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        total += coefficient
        total *= x
    total += coefficients[-1]
    return total


def exp(x: np.ndarray) -> np.ndarray:
    """e^x for -700 <= x <= 709, within ERROR * e^x.

    k = floor(x / ln 2 + 1/2), r = x - k ln 2, e^x = 2^k * sum_{i <= 13} r^i / i!

    Proof. |x / ln 2| < 1023, so the three roundings before floor are off by less than
    2^-40 and |x - k ln 2| <= 0.3466. ln 2 = L1 + L2 + e with L1 of 42 bits, 0 <= L2 < 2^-42
    and |e| <= 2^-95. |k| < 2^10, so k L1 is exact. The two subtractions give values below
    0.35, each is off by at most 0.35 u. The rest (rounding of k L2, k e) is below 2^-84.
    So r is off by at most u, and e^r by a factor within 2 u of 1.
    Taylor: the tail is at most 0.35^14 / 14! * 1.03 < 0.1 u.
    Horner, n = 13: gamma_27 * e^0.35 < 39 u. Divided by e^r >= e^-0.35: both < 56 u.
    The product with 2^k is exact: -1011 <= k <= 1023 and the sum lies in (0.7, 1.42).
    Together below 59 u < 2^-47.
    """
    k = np.floor(x * _PER_LN_2 + 0.5)
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    total = _horner(_EXP, r)
    # For nan any power will do.
    total *= np.take(_POWERS_OF_TWO, k.astype(np.int64) + 1022, mode="clip")
    return total


def exp_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= e^x <= high, for any x that is not NaN.

    exp increases: for x < -700 low is 0 and high belongs to -700; for x > 709 low belongs
    to 709 and high is infinite.

    Example:
        >>> low, high = exp_bounds(np.array([1.0]))
        >>> bool(low[0] < np.e < high[0] < low[0] * (1 + 2**-42))
        True
        >>> [float(end[0]) for end in exp_bounds(np.array([-np.inf]))][0]
        0.0
    """
    middle = exp(np.clip(x, _LEAST_EXPONENT, _GREATEST_EXPONENT))
    low, high = middle * (1.0 - _WIDEN), middle * (1.0 + _WIDEN)
    if x.min() < _LEAST_EXPONENT:
        low[x < _LEAST_EXPONENT] = 0.0
    if x.max() > _GREATEST_EXPONENT:
        high[x > _GREATEST_EXPONENT] = np.inf
    return low, high


def log(x: np.ndarray) -> np.ndarray:
    """log x for 0 < x < inf, within ERROR * |log x|.

    x = m 2^e with m in [a, 2 a), a = 0.70710678 (about sqrt(1/2)),
    s = (m - 1) / (m + 1), z = s^2,
    log x = e ln 2 + 2 s * sum_{i <= 10} z^i / (2 i + 1)

    Proof. m - 1 is exact (Sterbenz), so the computed s is s (1 + t), |t| <= gamma_2, and
    the computed z has at most five factors. |s| < 0.1716, z < 0.0295. All terms of the sum
    are positive. The sum's part after its first term is below 0.011; its powers of z carry
    at most gamma_50, which moves the sum by less than u. Horner, n = 10: gamma_21. The
    product with 2 s: three factors more. The tail is below 0.0295^11 / 22 < 0.01 u.
    So l = log m (1 + t) with |t| <= 26 u.
    If e = 0 the rest adds exact zeros. Else |e| < 2^11 and e L1 is exact (42 bits; L1, L2
    as for exp), e L2 and its errors are below 2^-30 and 2^-82, and |log m| <= 0.34658: the
    inner sum is off by at most 26 u * 0.347 + 0.35 u + 2^-82 < 9.5 u. The outer sum is off
    by u times itself more. |log x| >= ln 2 - 0.34658 > 0.346, so together below
    9.5 u / 0.346 + 1.1 u < 29 u < 2^-48, relative. Nothing underflows: |log x| >= 2^-53
    unless x = 1, where the result is 0, exactly.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < _ROOT_HALF
    m = np.where(small, 2.0 * mantissa, mantissa)
    e = exponent.astype(np.float64) - small
    s = (m - 1.0) / (m + 1.0)
    log_m = (2.0 * s) * _horner(_ATANH, s * s)
    return e * _LN_2_HIGH + (log_m + e * _LN_2_LOW)


def log_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= log x <= high for x > 0; -inf and inf for x <= 0.

    Example:
        >>> low, high = log_bounds(np.array([1.0, 2.0, -1.0]))
        >>> float(low[0]), float(high[0]), bool(low[1] < math.log(2) < high[1])
        (0.0, 0.0, True)
        >>> float(low[2]), float(high[2])
        (-inf, inf)
    """
    regular = (x > 0.0) & (x <= LARGEST)
    middle = log(x if regular.all() else np.where(regular, x, LARGEST))
    margin = np.abs(middle) * _WIDEN
    low, high = middle - margin, middle + margin
    if not regular.all():
        low[x <= 0.0] = -np.inf
        high[~regular] = np.inf
    return low, high


def xlogx_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= x log x <= high for x >= 0, with 0 log 0 = 0; -inf and inf for x < 0.

    The product of x with a bound of log x is rounded once, and then widened by a margin of
    2^-51 of its size, and by 2^-1074 for products that underflow.

    Example:
        >>> low, high = xlogx_bounds(np.array([0.0, 1.0, 2.0, -1.0]))
        >>> [float(low[k]) for k in (0, 1, 3)], [float(high[k]) for k in (0, 1, 3)]
        ([0.0, -5e-324, -inf], [0.0, 5e-324, inf])
        >>> bool(low[2] < 2 * math.log(2) < high[2])
        True
    """
    positive = np.where(x > 0.0, x, 1.0)
    low, high = (positive * end for end in log_bounds(positive))
    low = np.minimum(low, LARGEST)  # an overflow has no margin
    low -= np.abs(low) * 2.0**-51 + TINY
    high += np.abs(high) * 2.0**-51 + TINY
    known = [np.where(x == 0.0, 0.0, end) for end in (low, high)]
    return np.where(x >= 0.0, known[0], -np.inf), np.where(x >= 0.0, known[1], np.inf)


def _quarter_turns(x: np.ndarray, shift: int) -> np.ndarray:
    """sin(x + shift * pi / 2) for |x| <= 2^20.

    k = floor(2 x / pi + 1/2), r = x - k pi / 2,
    sin r = sum_{i <= 8} (-1)^i r^(2i+1) / (2i+1)!, cos r = sum_{i <= 8} (-1)^i r^2i / (2i)!

    Proof. The roundings before floor are off by less than 2^-31, so |x - k pi/2| < 0.7855
    and |k| < 2^20. pi / 2 = P1 + P2 + P3 + e: P1 and P2 have 33 bits, so k P1 and k P2 are
    exact; P3 < 2^-65, |e| <= 2^-118. The three subtractions give values below 0.786, each
    is off by at most 0.79 u; rounding k P3 and k e is below 2^-97. So r is off by at most
    3 u, and sin r and cos r too. z = r^2 carries one factor, its powers at most eight.
    sin: Horner, n = 8, and the product with r: gamma_26 * sinh |r| <= 26.1 u * 1.11 |r|
    < 29 u |r|; tail below 0.786^19 / 19! < 0.001 u |r|.
    cos: gamma_25 * cosh 0.786 < 34 u; tail below 0.786^18 / 18! < 0.02 u.
    Together below 38 u < 2^-47.
    For sin x and |x| < 0.785, k = 0 and r = x, so sin is off by at most 30 u |x|. When a
    product underflows, |x| < 2^-500, the sum is 1 and the result is x, off by |x|^3 / 6.
    """
    k = np.floor(x * _PER_HALF_PI + 0.5)
    r = ((x - k * _HALF_PI_HIGH) - k * _HALF_PI_MIDDLE) - k * _HALF_PI_LOW
    z = r * r
    quadrant = k.astype(np.int64) + shift
    value = np.where(quadrant & 1, _horner(_COS, z), r * _horner(_SIN, z))
    np.negative(value, out=value, where=(quadrant & 2).astype(bool))
    return value


def sin(x: np.ndarray) -> np.ndarray:
    """sin x for |x| <= 2^20, within ERROR * min(1, |x|)."""
    return _quarter_turns(x, 0)


def cos(x: np.ndarray) -> np.ndarray:
    """cos x for |x| <= 2^20, within ERROR."""
    return _quarter_turns(x, 1)


def sin_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= sin x <= high in [-1, 1], and in [-|x|, |x|].

    Example:
        >>> low, high = sin_bounds(np.array([0.0, 1.0, 1e300]))
        >>> bool(low[0] == high[0] == 0), bool(low[1] < math.sin(1) < high[1])
        (True, True)
        >>> float(low[2]), float(high[2])
        (-1.0, 1.0)
    """
    size = np.minimum(np.abs(x), 1.0)
    known = np.abs(x) <= LARGEST_ANGLE
    middle = sin(x if known.all() else np.where(known, x, 0.0))
    margin = size * _WIDEN + TINY
    low, high = np.maximum(middle - margin, -size), np.minimum(middle + margin, size)
    if not known.all():
        low[~known], high[~known] = -1.0, 1.0
    return low, high


def cos_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= cos x <= high in [-1, 1]."""
    known = np.abs(x) <= LARGEST_ANGLE
    middle = cos(x if known.all() else np.where(known, x, 0.0))
    low, high = np.maximum(middle - _WIDEN, -1.0), np.minimum(middle + _WIDEN, 1.0)
    if not known.all():
        low[~known], high[~known] = -1.0, 1.0
    return low, high


def tanh(x: np.ndarray) -> np.ndarray:
    """tanh x for x >= 0, within ERROR.

    tanh x = 1 - 2 / (e^(2x) + 1); for x > 20 the value at 20 serves

    Proof. t = e^(2x) is off by a factor within 59 u of 1, see `exp`. 2 / (t + 1) has the
    slope -2 / (t + 1)^2 in t, so it moves by at most 59.1 u * 2 t / (t + 1)^2 <= 29.6 u.
    It is at most 1, so the three roundings add at most 3.1 u: together below 33 u < 2^-47.
    Beyond 20: 1 - tanh x < 2 e^-40 < 2^-56.
    """
    t = exp(2.0 * np.minimum(x, _LARGEST_TANH))
    return 1.0 - 2.0 / (t + 1.0)


def tanh_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floats low <= tanh x <= high in [-1, 1], and between 0 and x.

    Example:
        >>> low, high = tanh_bounds(np.array([0.0, -1.0, np.inf]))
        >>> float(low[0]), float(high[0]), bool(low[1] < math.tanh(-1) < high[1])
        (0.0, 0.0, True)
        >>> float(high[2])
        1.0
    """
    size = np.abs(x)
    middle = tanh(size)
    near = np.maximum(middle - _WIDEN, 0.0)
    far = np.minimum(np.minimum(middle + _WIDEN, 1.0), size)
    return np.where(x < 0.0, -far, near), np.where(x < 0.0, -near, far)
