"""Ridges against the sums they stand for, exactly; and float64 within its bound."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.certify.ridge import Ridge, whole

numbers = st.integers(-64, 64).map(lambda k: k / 8)
units = st.lists(
    st.tuples(st.sampled_from([1.0, -1.0]), numbers, numbers), min_size=1, max_size=8
)


def ridge_of(given: list[tuple[float, float, float]], split: bool = False) -> Ridge:
    signs, biases, columns = (np.array(part) for part in zip(*given, strict=True))
    columns = np.stack([0 * columns, columns], axis=-1)
    columns[0, 1] = columns[0, 1] or 1.0
    layers = np.arange(len(signs)) if split else np.zeros(len(signs), dtype=int)
    size = 1 if split else len(signs)
    return Ridge.of(np.array([1.0, 0.0]), signs, biases, columns, layers, size)


def brute(ridge: list[tuple[float, float, float]], t: Fraction) -> Fraction:
    terms = [
        Fraction(c if k or c else 1.0) * max(Fraction(s) * t + Fraction(b), Fraction(0))
        for k, (s, b, c) in enumerate(ridge)
    ]
    return sum(terms, start=Fraction(0))


@settings(deadline=None)
@given(units, st.lists(numbers, min_size=1, max_size=5))
def test_values_are_the_sums(
    given: list[tuple[float, float, float]], points: list[float]
) -> None:
    ridge = ridge_of(given)
    t = [Fraction(point) for point in points]
    assert [row[0] for row in ridge.values(t)] == [brute(given, point) for point in t]


@settings(deadline=None)
@given(units)
def test_the_range_holds_all_values(given: list[tuple[float, float, float]]) -> None:
    low, high = ridge_of(given).range
    found = [brute(given, Fraction(k, 4)) for k in range(-80, 81)]
    assert low[0] <= min(found)
    assert max(found) <= high[0]
    if np.isfinite(low[0]) and np.isfinite(high[0]):  # attained at a bend
        ends = [brute(given, Fraction(s) * -Fraction(b)) for s, b, _ in given]
        assert low[0] <= min(ends) <= low[0] + 1e-9


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 200))
def test_float64_runs_are_within_the_bound(seed: int, r: int) -> None:
    rng = np.random.default_rng(seed)
    signs, biases = np.ones(r), rng.normal(size=r) * 100
    columns = np.stack([np.zeros(r), rng.normal(size=r)], axis=-1)
    ridge = Ridge.of(
        np.array([1.0, 0.0]), signs, biases, columns, np.zeros(r, dtype=int), r
    )
    t = rng.normal(size=20) * 100
    exact = np.array([row[0] for row in ridge.values([Fraction(v) for v in t])])
    run = np.maximum(t[:, None] + biases, 0) @ columns[:, 1]
    off = np.array([float(abs(Fraction(a) - b)) for a, b in zip(run, exact, strict=True)])
    bound = ridge.rounding(t, np.abs(t), 2)[:, 0]
    assert (off <= bound).all()
    assert bound.max() < 1e-7


def test_whole_numbers() -> None:
    held = whole(np.array([0.75, -6.0, 0.0]))
    assert held.unit == 4
    assert held.numbers.tolist() == [3, -24, 0]


def test_flat_pieces() -> None:
    step = [(1.0, -1.0, 2.0), (1.0, -2.0, -2.0)]
    ridge = ridge_of(step)
    ends = np.array([[-5.0, 0.9], [2.1, 9.0], [0.5, 1.5], [0.5, 2.5]])
    assert ridge.flat(ends[:, 0], ends[:, 1]).tolist() == [True, True, False, False]
