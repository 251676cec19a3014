"""Derivatives on boxes, and their suprema over a whole box."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from tests.numerics.suprema import suprema

from everyformer.errors import InputError
from everyformer.numerics.curvature import enclose_curvature, pairs_of
from everyformer.numerics.expression import Expression
from everyformer.targets.trace import trace


def traced(
    function: Callable[[np.ndarray], np.ndarray], n: int = 2, d: int = 1
) -> Expression:
    return trace(function, n, d, [0.0] * d, [1.0] * d)


def product(x: np.ndarray) -> np.ndarray:
    """Both entries are sin(3 x_0) x_1."""
    value = np.sin(3 * x[..., 0, 0]) * x[..., 1, 0]
    return np.stack([value, value], axis=-1)[..., None]


WHOLE = ([Fraction(0), Fraction(0)], [Fraction(1), Fraction(2)])


@pytest.mark.parametrize("balls", [False, True])
def test_suprema_of_a_known_function(balls: bool) -> None:
    found = suprema(traced(product), *WHOLE, max_cells=2000, balls=balls)
    true_slopes = [6.0, 1.0]
    true_curves = [18.0, 3.0, 0.0]
    for e in range(2):
        assert 2.0 <= found.values[e] <= 2.05
        for k in range(2):
            assert true_slopes[k] <= found.slopes[e, k] <= true_slopes[k] * 1.05
        for at in range(3):
            assert true_curves[at] <= found.curves[e, at] <= true_curves[at] * 1.05 + 1e-12
    assert found.cells <= 2000


def test_more_cells_give_smaller_suprema() -> None:
    found = [suprema(traced(product), *WHOLE, max_cells=count) for count in (1, 30, 3000)]
    sizes = [one.curves.sum() + one.slopes.sum() for one in found]
    assert sizes[0] >= sizes[1] >= sizes[2]
    assert found[0].cells == 1


def test_the_box_may_have_ends_that_are_no_floats() -> None:
    identity = traced(lambda x: x, 1)
    found = suprema(identity, [Fraction(-1, 3)], [Fraction(1, 3)])
    assert Fraction(float(found.values[0])) >= Fraction(1, 3)
    assert found.slopes[0, 0] == 1.0


def test_a_kink_makes_the_curves_infinite_and_leaves_the_slopes() -> None:
    kink = traced(lambda x: np.abs(x - 0.5) + x[..., ::-1, :] ** 2)
    found = suprema(kink, [Fraction(0)] * 2, [Fraction(1)] * 2, max_cells=400)
    assert np.isposinf(found.curves[0, 0])
    assert found.slopes[0, 0] == pytest.approx(1.0)
    assert np.isfinite(found.slopes).all()


def test_cells_that_meet_at_a_kink_do_not_hide_it() -> None:
    # Halving puts faces at x = 1/2, where each half alone would be smooth.
    kink = traced(lambda x: np.abs(x - 0.5), 1)
    for count in (1, 3, 50):
        assert np.isposinf(
            suprema(kink, [Fraction(0)], [Fraction(1)], max_cells=count).curves[0, 0]
        )


def test_a_root_at_zero_is_undecided_with_its_slopes() -> None:
    root = traced(lambda x: np.sqrt(np.abs(x)), 1)
    found = suprema(root, [Fraction(0)], [Fraction(1)], max_cells=50)
    assert np.isposinf(found.slopes[0, 0])
    assert np.isposinf(found.curves[0, 0])


def test_both_ways_contain_the_truth() -> None:
    expression = traced(lambda x: np.tanh(2 * x) * np.exp(x[..., ::-1, :]))
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 1, (30, 2, 1))
    high = low + 0.125
    ours, theirs = (
        enclose_curvature(expression, low, high, balls=balls) for balls in (False, True)
    )
    for name in ("low", "slope_low", "curve_low"):
        upper = name.replace("low", "high")
        lows = np.maximum(getattr(ours, name), getattr(theirs, name))
        assert (lows <= np.minimum(getattr(ours, upper), getattr(theirs, upper))).all()
    x, y = low[:, 0, 0], low[:, 1, 0]
    t = np.tanh(2 * x)
    true = np.stack(
        [-8 * t * (1 - t * t) * np.exp(y), 2 * (1 - t * t) * np.exp(y), t * np.exp(y)],
        axis=-1,
    )
    for found in (ours, theirs):
        assert (found.curve_low[:, 0] <= true + 1e-12).all()
        assert (found.curve_high[:, 0] >= true - 1e-12).all()


def test_entries_and_pairs_are_numbered_token_by_token() -> None:
    # Entry [1, 0] of two tokens of width two is x[0][1] * x[1][0]: variables 1 and 2.
    def function(x: np.ndarray) -> np.ndarray:
        value = x[..., 0, 1] * x[..., 1, 0]
        zero = 0 * value
        rows = [np.stack([zero, zero], -1), np.stack([value, zero], -1)]
        return np.stack(rows, -2)

    low = np.full((1, 2, 2), 0.5)
    found = enclose_curvature(traced(function, 2, 2), low, low)
    pairs = pairs_of(4)
    expected = np.zeros((4, len(pairs)))
    expected[2, pairs.index((1, 2))] = 1.0
    for ends in (found.curve_low, found.curve_high):
        assert np.allclose(ends[0], expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (np.zeros((1, 1, 1)), np.ones((1, 1, 1))),
        (np.ones((1, 2, 1)), np.zeros((1, 2, 1))),
        (np.zeros((1, 2, 1)), np.full((1, 2, 1), math.inf)),
        (np.full((1, 2, 1), math.nan), np.ones((1, 2, 1))),
    ],
)
def test_impossible_boxes_are_refused(low: np.ndarray, high: np.ndarray) -> None:
    with pytest.raises(InputError):
        enclose_curvature(traced(product), low, high)
