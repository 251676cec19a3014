"""Upper bounds of means over a cell, in float64, for many cells at once.

All numbers are >= 0 and every formula has a few hundred roundings at most, each a share of
2^-53; a factor 1 + 2^-40 at the end makes the result an upper bound.
"""

import math
from fractions import Fraction

import numpy as np

UP = 1 + 2.0**-40
LARGEST_MOMENT = 16


def even_exponent(p: Fraction) -> int | None:
    """The least of 2, 4, 8, 16 that is at least p: means are bounded by its moments.

    Jensen: the p-mean of |g| is at most its q-mean, for p <= q. None beyond 16.
    """
    return next((q for q in (2, 4, 8, LARGEST_MOMENT) if q >= p), None)


def mean_of_line(beta: np.ndarray, steps: np.ndarray, q: int) -> np.ndarray:
    """(E |beta + sum_l steps_l u_l|^q)^(1/q), u uniform on [-1, 1]^N, rounded up.

    With S the sum, odd moments of S vanish, and even ones follow from those of u_l,
    E u^j = 1/(j+1), variable by variable:

        E (S + s u)^k = sum_{j even} binom(k, j) E S^{k-j} s^j / (j+1)

    Args:
        beta: Shape (...).
        steps: Shape (..., N), of either sign.
        q: 2, 4, 8 or 16.

    Example:
        >>> mean_of_line(np.zeros(1), np.ones((1, 1)), 2).round(6)
        array([0.57735])
    """
    squares = np.moveaxis(np.square(steps), -1, 0)
    moments = [np.ones_like(beta)] + [np.zeros_like(beta)] * (q // 2)  # E S^0, S^2, ..
    for square in squares:
        moments = [
            sum(
                (
                    math.comb(2 * k, 2 * j) / (2 * j + 1) * moments[k - j] * square**j
                    for j in range(k + 1)
                ),
                start=np.zeros_like(beta),
            )
            for k in range(q // 2 + 1)
        ]
    offset = np.square(beta)
    total = sum(
        (
            math.comb(q, 2 * k) * moments[k] * offset ** (q // 2 - k)
            for k in range(q // 2 + 1)
        ),
        start=np.zeros_like(beta),
    )
    for _ in range(q.bit_length() - 1):
        total = np.sqrt(total)
    # Products below 2^-1022 may have been lost; their roots add up to less than 2^-55.
    something = (beta != 0) | (steps != 0).any(axis=-1)
    return (total + np.where(something, 2.0**-55, 0.0)) * UP


def mean_of_sizes(steps: np.ndarray, q: int) -> np.ndarray:
    """(E (sum_l steps_l |u_l|)^q)^(1/q) <= sum_l steps_l (q+1)^(-1/q), by Minkowski."""
    return steps.sum(axis=-1) * (q + 1) ** (-1 / q) * UP


def power(base: np.ndarray, p: Fraction) -> np.ndarray:
    """base^p for base >= 0, rounded up; nan for a negative base or nan.

    Square roots where the denominator of p is a power of two. Otherwise base^p is convex in
    p, so it is at most the mean of its neighbours with whole exponents.

    Example:
        >>> power(np.array([4.0]), Fraction(3, 2)).round(6)
        array([8.])
    """
    whole = math.floor(p)
    part = p - whole
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        result = np.where(base >= 0, 1.0, np.nan)
        for _ in range(whole):
            result = result * base
        if part.denominator & (part.denominator - 1):
            share = float(part)
            result = (1 - share) * result + share * result * base
        elif part:
            root = base
            for _ in range(part.denominator.bit_length() - 1):
                root = np.sqrt(root)  # first: powers of small numbers may vanish
            for _ in range(part.numerator):
                result = result * root
    # What was lost below 2^-1022 is less than 2^-1000.
    return np.where(base == 0, 0.0, np.maximum(result, 2.0**-1000)) * UP


def power_down(base: np.ndarray, p: Fraction) -> np.ndarray:
    """A lower bound of base^p for base >= 0: with the next whole exponent below 1.

    0 for a negative base, infinity or nan; at most 2^900, so that sums stay finite.
    For base <= 1 a larger exponent gives less, for base > 1 a smaller one does.
    """
    base = np.where(np.isfinite(base) & (base > 0), base, 0.0)
    low, high = np.ones_like(base), np.ones_like(base)
    with np.errstate(under="ignore", over="ignore"):
        for _ in range(math.floor(p)):
            high = high * base
        low = high if p.denominator == 1 else high * base
    least = np.minimum(np.minimum(low, high) * (2 - UP), 2.0**900)
    return np.where(least > 2.0**-1000, least, 0.0)  # below, rounding may have added
