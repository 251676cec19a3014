"""Sharp intervals: exact where float64 is, otherwise the float next to the exact number."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.numerics.elementary import LARGEST
from everyformer.numerics.intervals import IntervalArithmetic
from everyformer.numerics.outward import Interval
from everyformer.numerics.sharp import SharpArithmetic

SPECIAL = (0.0, 1.0, -1.0, 0.1, 5e-324, -5e-324, 2.0**-1022, 2.0**-530, LARGEST, -LARGEST)
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(SPECIAL),
    st.integers(-(2**30), 2**30).map(lambda k: k / 2**10),
)
SHARP = SharpArithmetic()


def interval(low: float, high: float) -> Interval:
    return Interval(np.array([[low]]), np.array([[high]]))


def holds(found: Interval, exact: Fraction) -> bool:
    low, high = found.low.item(), found.high.item()
    below = low == -math.inf or Fraction(low) <= exact
    return below and (high == math.inf or exact <= Fraction(high))


def is_float(exact: Fraction) -> bool:
    try:
        return Fraction(float(exact)) == exact
    except OverflowError:
        return False


@settings(max_examples=400, deadline=None)
@given(NUMBERS, NUMBERS, st.sampled_from(["add", "sub", "mul"]))
def test_sums_and_products_of_points(a: float, b: float, op: str) -> None:
    """They hold the exact result, and nothing else where it is a normal float64 number."""
    exact = {
        "add": Fraction(a) + Fraction(b),
        "sub": Fraction(a) - Fraction(b),
        "mul": Fraction(a) * Fraction(b),
    }[op]
    found = getattr(SHARP, op)(interval(a, a), interval(b, b))
    assert holds(found, exact)
    low, high = found.low.item(), found.high.item()
    normal = op != "mul" or exact == 0 or 2.0**-900 <= abs(exact) <= 2.0**900
    if normal and max(abs(a), abs(b)) <= 2.0**990:
        next_to = low if is_float(exact) else math.nextafter(low, math.inf)
        assert high == next_to


@settings(max_examples=300, deadline=None)
@given(
    st.lists(NUMBERS, min_size=2, max_size=2).map(sorted),
    st.lists(NUMBERS, min_size=2, max_size=2).map(sorted),
    st.integers(2, 9),
    st.floats(0, 1),
)
def test_products_and_powers_of_intervals(
    a: list[float], b: list[float], k: int, share: float
) -> None:
    """At the ends, between them, and next to them."""
    product = SHARP.mul(interval(*a), interval(*b))
    power = SHARP.pow(interval(*a), k)
    inner = Fraction(a[0]) + Fraction(share) * (Fraction(a[1]) - Fraction(a[0]))
    beside = min(max(math.nextafter(a[0], math.inf), a[0]), a[1])
    for s in (Fraction(a[0]), Fraction(a[1]), inner, Fraction(beside)):
        assert holds(power, s**k)
        assert all(holds(product, s * Fraction(t)) for t in b)


def test_what_is_unknown_stays_unknown() -> None:
    nothing, zero = interval(-math.inf, math.inf), interval(0.0, 0.0)
    for found in (
        SHARP.add(nothing, zero),
        SHARP.sub(zero, nothing),
        SHARP.mul(nothing, zero),
        SHARP.mul(zero, nothing),
        SHARP.pow(nothing, 2),
        SHARP.pow(nothing, 3),
    ):
        assert (found.low.item(), found.high.item()) == (-math.inf, math.inf)


def test_the_root_of_one_minus_a_square_has_a_value_at_the_end() -> None:
    """The usual intervals reach a hair's breadth below 0 there."""
    x, one = interval(0.9375, 1.0), SHARP.constant(Fraction(1))
    wide = IntervalArithmetic.sqrt(
        IntervalArithmetic.sub(one, IntervalArithmetic.pow(x, 2))
    )
    assert wide.low.item() == -math.inf
    sharp = SHARP.sqrt(SHARP.sub(one, SHARP.pow(x, 2)))
    assert sharp.low.item() == 0.0
    assert sharp.high.item() == pytest.approx(math.sqrt(1 - 0.9375**2))
