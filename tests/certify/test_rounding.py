"""When float64 sums without rounding: exact rationals against every order of adding."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everyformer.certify.rounding import (
    PRECISION,
    UNIT_ROUNDOFF,
    gamma,
    lowest_bits,
    sums_exactly,
)

finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def dyadic(draw: st.DrawFn, spread: int = 60) -> float:
    """m 2^e with m of any length up to 53 bits: exact sums and inexact ones, both often."""
    bits = draw(st.integers(1, PRECISION))
    mantissa = draw(st.integers(-(2**bits) + 1, 2**bits - 1))
    return math.ldexp(mantissa, draw(st.integers(-spread, spread)))


def added(terms: list[float], order: list[int]) -> list[Fraction]:
    """Sums one after the other, backwards, in pairs, and as numpy adds."""
    moved = [terms[k] for k in order]
    forwards = backwards = 0.0
    for term in moved:
        forwards += term
    for term in moved[::-1]:
        backwards += term
    pairs = moved
    while len(pairs) > 1:
        pairs = [sum(pairs[k : k + 2]) for k in range(0, len(pairs), 2)]
    array = np.array(moved)
    sums = [
        forwards,
        backwards,
        *pairs,
        float(array.sum()),
        float(array @ np.ones(len(array))),
    ]
    return [Fraction(value) for value in sums]


def exactly(terms: list[float]) -> bool:
    rows = np.array([terms])
    return bool(sums_exactly(rows, lowest_bits(rows))[0])


@settings(deadline=None)
@given(finite)
@example(5e-324)
@example(-1.5 * 2.0**-1060)
@example(2.0**1023)
@example(-0.0)
def test_the_lowest_bit(value: float) -> None:
    (found,) = lowest_bits(np.array([value])).tolist()
    if value == 0:
        assert found > 2000
        return
    shifted = Fraction(value) / Fraction(2) ** found
    assert shifted.denominator == 1
    assert shifted.numerator % 2 == 1


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_no_order_of_adding_rounds(data: st.DataObject) -> None:
    spread = data.draw(st.sampled_from([0, 2, 20, 960]))
    terms = data.draw(st.lists(dyadic(spread), min_size=1, max_size=9))
    if exactly(terms):
        true = sum((Fraction(term) for term in terms), start=Fraction(0))
        for _ in range(4):
            order = data.draw(st.permutations(range(len(terms))))
            assert set(added(terms, list(order))) == {true}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_no_product_and_no_order_rounds(data: st.DataObject) -> None:
    """Terms that are products, as float64 has them, with bits found from the factors."""
    count = data.draw(st.integers(1, 6))
    factors = data.draw(st.lists(dyadic(12), min_size=2 * count, max_size=2 * count))
    a, b = np.array(factors[:count]), np.array(factors[count:])
    places = lowest_bits(a) + lowest_bits(b)
    if not sums_exactly((a * b)[None], places[None])[0]:
        return
    exact = [Fraction(v) * Fraction(w) for v, w in zip(a.tolist(), b.tolist(), strict=True)]
    assert [Fraction(v) for v in (a * b).tolist()] == exact
    order = data.draw(st.permutations(range(count)))
    assert set(added((a * b).tolist(), list(order))) == {sum(exact, start=Fraction(0))}


@given(
    st.lists(st.integers(-(2**49), 2**49), min_size=1, max_size=8), st.integers(-900, 900)
)
def test_short_integers_are_known_to_be_exact(numbers: list[int], exponent: int) -> None:
    """The check is of use: sums below 2^53 units pass, in any unit."""
    assert exactly([math.ldexp(number, exponent) for number in numbers])


ROUNDED = {
    "a bit lost": [1.0, 2.0**-53],
    "beyond 2^53": [2.0**53, 1.0],
    "order matters": [2.0**60, 1.0, -(2.0**60)],
    "decimals": [0.1, 0.2, 0.3],
    "one by one": [2.0**53 - 1, 1.0, 1.0, 1.0],
    "the negative half": [-(2.0**53), -1.0, 2.0**53],
    "below the normal numbers": [5e-324, 1.0],
    "overflow": [2.0**1023, 2.0**1023, -(2.0**1023)],
}


@pytest.mark.parametrize("name", ROUNDED)
def test_sums_that_round_are_not_called_exact(name: str) -> None:
    """The control: each of these does round, in one order at least, or comes too close."""
    assert not exactly(ROUNDED[name])
    if name != "overflow":
        terms = ROUNDED[name]
        true = sum((Fraction(term) for term in terms), start=Fraction(0))
        orders = [list(range(len(terms))), list(range(len(terms)))[::-1]]
        orders += [[0, *range(2, len(terms)), 1]]
        assert any(value != true for order in orders for value in added(terms, order))


def test_products_that_round_are_not_called_exact() -> None:
    a = np.array([[0.1, 1.0], [2.0**30 + 1, 1.0], [3.0, 5.0]])
    b = np.array([[0.1, 1.0], [2.0**30 + 1, 1.0], [7.0, -2.0]])
    found = sums_exactly(a * b, lowest_bits(a) + lowest_bits(b))
    assert found.tolist() == [False, False, True]


def test_nothing_to_add() -> None:
    assert exactly([0.0, -0.0])


@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_gamma_bounds_that_many_roundings(count: int) -> None:
    grown = (1 + UNIT_ROUNDOFF) ** count - 1
    assert grown <= gamma(count) <= grown * (1 + Fraction(count, 2**40))
    assert (1 - UNIT_ROUNDOFF) ** -count - 1 <= gamma(count)
