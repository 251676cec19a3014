"""The kind of number a weight is made of: exact rationals, or float64.

The functions of `construct/` write their weights as integers over one denominator. What
such a quotient becomes is decided here: a rational (an object array of ints and
Fractions), or a float64. float64 is used only where the quotient is exact, that is, for
dyadic grids inside 52 bits; `plan` refuses everything else before a weight is made.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.numerics.rationals import exact_array


@dataclass(frozen=True)
class NumberKind:
    """A kind of number, and how quotients of integers become arrays of it.

    Attributes:
        exact: True when quotients are stored without rounding.
    """

    exact: bool

    def quotient(self, numerator: Any, denominator: int = 1) -> np.ndarray:
        """The array numerator / denominator, in this kind of number."""
        numerator = np.asarray(numerator)
        if not self.exact:
            return numerator.astype(np.float64) / denominator
        scale = Fraction(1, denominator)
        return exact_array(numerator.astype(object) * scale)

    def array(self, values: Any) -> np.ndarray:
        """Given numbers (floats, ints, Fractions) as an array of this kind."""
        if self.exact:
            return exact_array(values)
        return np.asarray(values, dtype=object).astype(np.float64)


EXACT = NumberKind(exact=True)
FLOAT64 = NumberKind(exact=False)
