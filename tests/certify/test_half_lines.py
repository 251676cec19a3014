"""Intervals without ends: nothing goes through float64, and powers keep their sign."""

from fractions import Fraction
from math import inf

import pytest

import everyformer as ef
from everyformer.certify.half_lines import EVERYWHERE, ZERO, end_times, plus, scaled
from everyformer.certify.support import LARGEST_POWER, Unbounded
from everyformer.targets.box import Grid
from everyformer.targets.region import Region

HUGE = Fraction(10**400)
"""float64 holds no such number."""


def test_numbers_beyond_float64_meet_ends_without_bound() -> None:
    assert plus((HUGE, HUGE), EVERYWHERE) == EVERYWHERE
    assert plus((-inf, -HUGE), (HUGE, HUGE)) == (-inf, 0)
    assert scaled(-HUGE, (Fraction(1), inf)) == (-inf, -HUGE)
    assert scaled(Fraction(0), EVERYWHERE) == ZERO
    assert end_times(HUGE, inf) == inf == end_times(-HUGE, -inf)
    assert Unbounded.mul((HUGE, inf), (-HUGE, Fraction(0))) == (-inf, 0)


@pytest.mark.parametrize("exponent", [2, 3, LARGEST_POWER + 1, LARGEST_POWER + 2, 10**9])
def test_powers_hold_what_they_must(exponent: int) -> None:
    half = Fraction(1, 2)
    for ends in ((half, half), (-half, half), (-half, -half), (Fraction(2), inf), ZERO):
        found = Unbounded.pow(ends, exponent)
        assert found is not None
        for base in {max(ends[0], -half), min(ends[1], Fraction(2)), ends[0]}:
            if not isinstance(base, Fraction) or not ends[0] <= base <= ends[1]:
                continue
            small = min(exponent, 66 + exponent % 2)  # of the same sign, and no smaller
            assert found[0] <= base**small <= found[1]
    assert Unbounded.pow(ZERO, exponent) == ZERO


def test_shares_of_pieces_below_float64_are_not_lost() -> None:
    """1e-200 by 1e-200 of a cell of size 1: the product is 0 in float64."""
    parts = [[[(0, 1e-200)], [(0, 1e-200)]], [[(1, 2)], [(1, 2)]]]
    region = Region.of(parts, 2, 1)
    shares = region.pieces(Grid(2, 2, region.hull)).shares
    assert Fraction(shares[0]) >= Fraction(1e-200) ** 2
    assert ef.Target(lambda x: x, 2, 1, region=parts).region == region
