"""Tests, intervals and corrections: against scipy, and on noise without an effect."""

import numpy as np
import pytest
from scipy import stats

from everyformer.errors import InputError
from everyformer.experiments.statistics import (
    clustered_interval,
    difference,
    holm,
    paired_p,
    same_scores,
)

GENERATOR = np.random.default_rng(7)
FIXED = GENERATOR.normal(0.3, 1.0, (4, 300))
OTHER = GENERATOR.normal(0.0, 1.0, (4, 300))


def test_the_paired_test_is_that_of_scipy() -> None:
    apart = (FIXED - OTHER).mean(axis=1)
    wanted = stats.ttest_rel(FIXED.mean(1), OTHER.mean(1), alternative="greater").pvalue
    assert paired_p(apart)[0] == pytest.approx(wanted, rel=1e-12)
    assert sum(p or 0.0 for p in paired_p(apart)) == pytest.approx(1.0)


def test_differences_without_noise() -> None:
    assert paired_p(np.full(3, 0.5)) == (0.0, 1.0)
    assert paired_p(np.full(3, -0.5)) == (1.0, 0.0)
    assert paired_p(np.zeros(3)) == (1.0, 1.0), "nothing is seen where nothing differs"
    assert paired_p(np.array([0.5])) == (None, None)


def test_the_interval_is_that_of_scipy() -> None:
    values = (FIXED - OTHER).mean(axis=0)
    single = clustered_interval(values, np.arange(300))
    wanted = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=1
    ).confidence_interval
    assert single == pytest.approx((wanted.low, wanted.high), abs=0.004)


def test_clusters_are_drawn_whole() -> None:
    """Ten equal examples in a row say no more than one."""
    values = np.repeat(GENERATOR.normal(size=40), 10)
    low, high = clustered_interval(values, np.repeat(np.arange(40), 10) * 7 - 3)
    assert (low, high) == pytest.approx(clustered_interval(values[::10], np.arange(40)))
    alone = clustered_interval(values, np.arange(400))
    assert high - low > 2.5 * (alone[1] - alone[0])


def test_clusters_of_unequal_sizes_weigh_by_their_examples() -> None:
    values, clusters = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0, 0, 0, 1])
    low, high = clustered_interval(values, clusters)
    assert (low, high) == (0.0, 1.0)
    means = {0.0, 0.75, 1.0}
    assert clustered_interval(values, np.zeros(4, int)) == (0.75, 0.75)
    assert low in means


def test_the_order_of_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_least_effect_would_have_been_seen() -> None:
    """Added to noise around 0, both tests see it; of nine tenths, one does not."""
    noise = GENERATOR.normal(0, 1.0, (3, 400))
    zero = np.zeros_like(noise)
    noise -= noise.mean()
    found = difference(noise, zero, np.arange(400))
    least = found.least_effect(0.05)
    assert least is not None
    for share, seen in ((1.1, True), (0.9, False)):
        shifted = difference(noise + share * least, zero, np.arange(400))
        assert shifted.p_greater is not None
        assert (shifted.p_greater < 0.05 and shifted.low_sampled > 0) == seen


NULLS = {"seeds": (1.0, 0.0, 0.0), "examples": (0.0, 1.0, 0.0), "mixed": (0.1, 1.0, 1.0)}


@pytest.mark.parametrize("noise", NULLS)
def test_arms_without_a_difference_are_rarely_told_apart(noise: str) -> None:
    """At most 6.5 % false "holds"; the t-test alone is at its level on noise of seeds."""
    of_seed, of_example, of_both = NULLS[noise]
    generator = np.random.default_rng(20)
    trials, shape, clusters = 1500, (3, 60), np.arange(60)
    holds, by_seeds = 0, 0
    for _ in range(trials):
        a = (
            of_seed * generator.normal(size=(3, 1))
            + of_example * generator.normal(size=(1, 60))
            + of_both * generator.normal(size=shape)
        )
        found = difference(a, np.zeros(shape), clusters, draws=300)
        assert found.p_greater is not None
        by_seeds += found.p_greater < 0.05
        holds += found.p_greater < 0.05 and found.low_sampled > 0
    assert holds / trials <= 0.065
    if noise == "seeds":
        assert by_seeds / trials == pytest.approx(0.05, abs=0.015)
    if noise == "examples":
        assert by_seeds / trials > 0.3, "seeds alone would be deceived by a common test set"


def test_equal_scores_are_flagged() -> None:
    other = OTHER.copy()
    assert not same_scores(FIXED, other)
    other[:, :4] = FIXED[:, :4]
    assert same_scores(FIXED, other), "more than 1 % equal, bit for bit"
    right = (FIXED > 0).astype(float)
    changed = right.copy()
    changed[0, 0] = 1 - changed[0, 0]
    assert not same_scores(right, changed), "right or wrong agrees often"
    assert same_scores(right, right)


@pytest.mark.unhooked
@pytest.mark.parametrize("wrong", [FIXED[:3], FIXED[:, :1], np.full_like(FIXED, np.nan)])
def test_what_cannot_be_paired_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"paired|finite"):
        difference(FIXED, wrong, np.arange(300))
