"""Intervals and errors of any forms of registers, as the verifier follows them."""

from collections.abc import Iterable
from fractions import Fraction

from everyformer.certify.compile.follow import Followed
from everyformer.certify.on_cells.distances import float_down, float_up

Place = tuple[int, Iterable[tuple[int, float]]]
"""A slot, and a form: registers with coefficients, read after it."""

Errors = tuple[float, float, float, float]
"""low, high, e and r."""


def errors_at(found: Followed, places: Iterable[Place]) -> list[Errors]:
    """Where the ideal values of forms lie, and how far a network is from them.

    Two registers of a product, read as (p - m)/4, have the product's error. Numbers are
    rounded outward; what a reader of the form adds is not counted.
    """
    result: list[Errors] = []
    for slot, form in places:
        value = found.states[slot + 1].form({k: Fraction(c) for k, c in form})
        low, high = float_down(value.low) + 0.0, float_up(value.high)  # not -0
        result.append((low, high, float_up(value.e), float_up(value.r)))
    return result
