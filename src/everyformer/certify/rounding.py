"""What float64 does to exact numbers: when nothing, and otherwise how much at most.

The hypotheses are IEEE float64, round to nearest, no flush to zero that matters.
"""

from fractions import Fraction

import numpy as np

PRECISION = 53
UNIT_ROUNDOFF = Fraction(1, 2**PRECISION)


def gamma(operations: int) -> Fraction:
    """Higham's gamma_k = k u / (1 - k u): k roundings move a sum by at most this share."""
    return operations * UNIT_ROUNDOFF / (1 - operations * UNIT_ROUNDOFF)


def lowest_bits(values: np.ndarray) -> np.ndarray:
    """The exponent of the lowest bit of each float64 number; large for 0.

    Example:
        >>> lowest_bits(np.array([1.0, 6.0, 0.75])).tolist()
        [0, 1, -2]
    """
    mantissas, exponents = np.frexp(values)
    numbers = np.abs(np.ldexp(mantissas, PRECISION)).astype(np.int64)
    trailing = np.frexp((numbers & -numbers).astype(np.float64))[1] - 1
    return np.where(numbers == 0, 1 << 20, trailing + exponents - PRECISION)


def sums_exactly(terms: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Whether float64 adds numbers without rounding, in whatever order; last axis.

    If all are multiples of 2^g, and neither the positive nor the negative ones add up to
    2^(53+g), every partial sum is a multiple of 2^g below that, and so a float64 number;
    so are the terms themselves, if they are products.

    Args:
        terms: The numbers, as float64 has them after one rounding.
        lowest: A lower bound on the exponent of the lowest bit of each, large for 0.
    """
    g = lowest.min(axis=-1)
    with np.errstate(over="ignore"):
        limit = np.ldexp(1.0, np.minimum(PRECISION + g, 1 << 19))
        up = np.maximum(terms, 0.0).sum(axis=-1)
        down = np.maximum(-terms, 0.0).sum(axis=-1)
    return (np.maximum(up, down) < limit) & (g > -1022)
