"""Bounds as short rationals: exact arithmetic, rounded outward where numbers grow long."""

from fractions import Fraction
from math import frexp

from everyformer.certify.undecided import Undecided
from everyformer.numerics.rationals import short_up

BITS = 72
"""Of a numerator, where a number is shortened; denominators are then powers of two."""

LARGEST = Fraction(2**200)
"""No number of a network that is followed is larger."""

UNDERFLOW = Fraction(1, 2**600)
"""More than underflows and silenced tokens add to one register in one slot.

A silenced token has a weight below e^-760 < 2^-1096, there are at most 2^21 of them, and
what they say and what it is multiplied by is at most 2^200.
"""

SILENT = 800
"""Scores so far below the largest are silent: e^-760 with room for what scores lose."""


def up(value: Fraction) -> Fraction:
    """The number, or a shorter one that is a little larger.

    Example:
        >>> up(Fraction(1, 3)) == Fraction(1, 3)
        True
        >>> q = Fraction(10**40 + 1, 3**60)
        >>> q < up(q) < q * (1 + Fraction(1, 2**64))
        True
    """
    return short_up(value, BITS)


def down(value: Fraction) -> Fraction:
    """The number, or a shorter one that is a little smaller."""
    return -up(-value)


def scales_exactly(factor: float) -> bool:
    """Whether float64 multiplies with it without rounding: +-2^k.

    Example:
        >>> scales_exactly(-0.25), scales_exactly(3.0)
        (True, False)
    """
    return abs(frexp(factor)[0]) == 0.5


def bounded(value: Fraction, what: str) -> Fraction:
    """A size that is followed, shortened.

    Raises:
        Undecided: If it is larger than what is followed.
    """
    if not value <= LARGEST:
        raise Undecided("registers", f"{what} may exceed 2^200")
    return up(value)
