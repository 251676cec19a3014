"""Gaps of random bi-linear projections, and the union bound that they must respect."""

import math
from fractions import Fraction
from itertools import combinations, product
from math import ceil, isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.experiments.random_projections.cells import (
    different_contexts,
    gap,
    gap_quantile_bound,
    measured,
)

RNG = np.random.default_rng


def test_the_gap_is_the_least_over_all_pairs_and_positions() -> None:
    x = different_contexts(5, 12, RNG(0))
    W_P = RNG(1).standard_normal((5, 5))
    pairs = [np.abs((a - b) @ (np.eye(5) + W_P)).min() for a, b in combinations(x, 2)]
    assert gap(x, W_P) == pytest.approx(min(pairs), rel=1e-9)


def test_the_bound_is_the_sum_over_all_pairs() -> None:
    x = different_contexts(5, 12, RNG(0))
    # At least the sum of 1/|x - y|:
    total = sum(1 / math.dist(a, b) for a, b in combinations(x, 2))
    exact = 0.05 / (5 * math.sqrt(2 / math.pi) * total)
    assert exact * (1 - 1e-11) <= gap_quantile_bound(x, 0.05) < exact


@given(st.lists(st.integers(-256, 256), min_size=9, max_size=9))
@settings(max_examples=20, deadline=None)
def test_the_gap_in_rationals_over_all_sequences_of_three_tokens(
    entries: list[int],
) -> None:
    x = np.array(list(product(range(4), repeat=3)), dtype=np.float64)
    W_P = np.array(entries).reshape(3, 3) / 64  # sums of multiples of 1/64 are not rounded
    exact_W = [[Fraction(W_P[i, k]) + (i == k) for i in range(3)] for k in range(3)]
    exact = min(
        abs(sum(int(a - b) * entry for a, b, entry in zip(one, other, column, strict=True)))
        for one, other in combinations(x, 2)
        for column in exact_W
    )
    assert Fraction(gap(x, W_P)) == exact


@pytest.mark.parametrize(("n", "count"), [(2, 16), (3, 64), (5, 100)])
def test_the_proved_gap_is_below_the_union_bound_in_rationals(n: int, count: int) -> None:
    x = different_contexts(n, count, RNG(0))
    squares = [int(((a - b) ** 2).sum()) for a, b in combinations(x, 2)]
    ten = 10**30
    # At least the sum of 1/|x - y|:
    total = sum(Fraction(ten, isqrt(k * ten**2)) for k in squares)
    pi = Fraction(314159265358979323846, 10**20)  # below pi
    factor = Fraction(isqrt(ceil(2 * ten**2 / pi)) + 1, ten)  # at least sqrt(2/pi)
    most = n * factor * Fraction(gap_quantile_bound(x, 0.05)) * total
    rounded = 1 - most / Fraction(0.05)  # down, by more than its sums may round
    assert Fraction(1, 2**41) < rounded < Fraction(1, 2**39)


def test_two_contexts_nearly_attain_it() -> None:
    """One pair, q small: the events are nearly disjoint, and the bound nearly sharp."""
    x = np.array([[0.0, 0.0], [3.0, 3.0]])
    rng, g = RNG(0), gap_quantile_bound(x, 0.2)
    # Entries of (x - y)(I + W_P) have mean 3 and deviation 3 sqrt(2), so that the density
    # at 0 is exp(-1/4) of its largest value.
    share = np.mean([gap(x, rng.standard_normal((2, 2))) < g for _ in range(4000)])
    assert 0.1 < share <= 0.2


@pytest.mark.parametrize("count", [2, 32])
def test_the_sampled_share_respects_the_bound(count: int) -> None:
    found = measured(8, count, 1000, 0)
    error = found.standard_error_sampled
    assert error is not None
    assert found.value_sampled <= 0.05 + 4 * error
    assert found.more["gap_quantile_bound"] <= found.more["gap_quantile_sampled"] * 1.5
    assert found.more["collisions_sampled"] == 0


def test_other_matrices_do_not() -> None:
    """Negative controls: the mean collides, and a narrow Gaussian is below too often."""
    x = different_contexts(8, 32, RNG(0))
    assert gap(x, np.full((8, 8), 1 / 8) - np.eye(8)) == 0.0
    bound, rng = gap_quantile_bound(x, 0.05), RNG(1)
    narrow = [gap(x, 0.01 * rng.standard_normal((8, 8)) - np.eye(8)) for _ in range(200)]
    assert np.mean(np.array(narrow) < bound) > 0.5


def test_contexts_are_different_and_there_must_be_enough() -> None:
    x = different_contexts(3, 64, RNG(0))
    assert len(np.unique(x, axis=0)) == 64
    with pytest.raises(ValueError, match="There are 64 sequences of 3 tokens"):
        different_contexts(3, 65, RNG(0))
