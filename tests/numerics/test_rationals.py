"""Exact numbers: conversion, roots rounded up, printing rounded up."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyformer.numerics.kinds import EXACT, FLOAT64
from everyformer.numerics.rationals import (
    common_denominator,
    exact_array,
    format_up,
    power_up,
    simplest,
)

positive = st.fractions(min_value=Fraction(1, 10**30), max_value=Fraction(10**30))


@given(st.one_of(st.just(Fraction(0)), positive), st.integers(1, 8))
def test_printed_is_never_below(value: Fraction, digits: int) -> None:
    printed = Fraction(format_up(value, digits))
    assert printed >= value
    assert printed <= value * (1 + Fraction(10) ** (1 - digits))


@given(positive, st.integers(1, 8), st.integers(1, 8))
def test_power_is_rounded_up_and_close(value: Fraction, a: int, b: int) -> None:
    power = power_up(value, Fraction(a, b))
    exponent = Fraction(a, b)  # reduced
    a, b = exponent.numerator, exponent.denominator
    assert power**b >= value**a
    assert (power * (1 - Fraction(1, 2**50))) ** b < value**a


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_simplest_is_the_same_number(value: float) -> None:
    exact = simplest(value)
    assert exact == Fraction(value)
    assert isinstance(exact, int) == (Fraction(value).denominator == 1)


def test_common_denominator() -> None:
    arrays = [
        exact_array([Fraction(1, 6), 2]),
        np.array([0.75, -0.125]),
        np.array([3, 4]),
        np.empty((0,), dtype=object),
    ]
    assert common_denominator(arrays) == 24


def test_quotients_of_both_kinds() -> None:
    assert EXACT.quotient([1, 3], 3).tolist() == [Fraction(1, 3), 1]
    assert FLOAT64.quotient([1, 3], 4).tolist() == [0.25, 0.75]
    assert FLOAT64.array([Fraction(1, 2), 3]).dtype == np.float64


@pytest.mark.parametrize("bad", [Fraction(-1), Fraction(-1, 3)])
def test_negative_sizes_are_refused(bad: Fraction) -> None:
    with pytest.raises(ValueError, match="negative"):
        format_up(bad)
    with pytest.raises(ValueError, match="base >= 0"):
        power_up(bad, Fraction(2))
