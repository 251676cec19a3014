"""Bounds carry their parts and never print below their value."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyformer.certify.bound import Bound

values = st.fractions(min_value=0, max_value=1000)


@given(st.lists(values, min_size=1, max_size=4), st.integers(1, 5))
def test_p_norm_is_an_upper_bound(parts: list[Fraction], p: int) -> None:
    bound = Bound.p_norm([Bound(v, "part") for v in parts], Fraction(p), "whole")
    assert bound.value**p >= sum(v**p for v in parts)
    assert Fraction(bound.format_value()) >= bound.value


def test_the_tree_is_printed() -> None:
    leaf = Bound(Fraction(1, 3), "cells", "Lemma 8")
    text = str(Bound.p_norm([leaf, leaf], Fraction(1), "whole"))
    assert text == (
        "<= 6.667e-01  whole\n"
        "  <= 3.334e-01  cells [Lemma 8]\n"
        "  <= 3.334e-01  cells [Lemma 8]"
    )


def test_negative_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be -1"):
        Bound(Fraction(-1), "a size")
