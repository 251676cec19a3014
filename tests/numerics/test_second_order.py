"""Curves contain the second derivatives of known functions and all second differences."""

import importlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.numerics.second_order import TwiceDifferentiated

flint: Any = importlib.import_module("flint")

# A function of x and y, over any arithmetic.
Function = Callable[[Any, Any, Any], Any]


def third(on: Any) -> Any:
    return on.constant(Fraction(1, 3))


FUNCTIONS: dict[str, Function] = {
    "neg": lambda on, x, y: on.neg(on.mul(x, y)),
    "add": lambda on, x, y: on.add(on.pow(x, 3), on.mul(x, y)),
    "sub": lambda on, x, y: on.sub(on.mul(x, y), on.mul(y, y)),
    "mul": lambda on, x, y: on.mul(on.add(x, y), on.mul(x, on.mul(y, y))),
    "div": lambda on, x, y: on.div(on.sin(x), on.add(on.mul(y, y), third(on))),
    "div by both": lambda on, x, y: on.div(on.mul(x, y), on.add(on.mul(x, x), y)),
    "pow": lambda on, x, y: on.mul(on.pow(x, 3), on.pow(y, -2)),
    "even": lambda on, x, y: on.pow(on.sub(x, y), 4),
    "odd": lambda on, x, y: on.pow(on.sub(x, y), 3),
    "constant power": lambda on, x, y: on.add(on.pow(x, 0), on.pow(on.mul(x, y), 1)),
    "exp": lambda on, x, y: on.exp(on.mul(x, y)),
    "exp of exp": lambda on, x, y: on.exp(on.neg(on.exp(on.sub(x, y)))),
    "log": lambda on, x, y: on.log(on.add(x, on.exp(y))),
    "sqrt": lambda on, x, y: on.sqrt(on.add(on.mul(x, x), on.mul(y, y))),
    "tanh": lambda on, x, y: on.tanh(on.sub(on.mul(x, y), x)),
    "sin": lambda on, x, y: on.sin(on.mul(x, on.add(x, y))),
    "cos": lambda on, x, y: on.cos(on.mul(x, on.add(x, y))),
    "abs, decided": lambda on, x, y: on.abs(on.neg(on.mul(x, on.mul(x, y)))),
    "max, decided": lambda on, x, y: on.max(on.mul(x, y), on.neg(on.exp(x))),
    "min, decided": lambda on, x, y: on.min(on.constant(Fraction(-1)), on.mul(x, y)),
}

PAIRS = ((0, 0), (0, 1), (1, 1))


class Points:
    """The operations on points: balls of 300 bits around one number."""

    def __init__(self) -> None:
        self._balls = BallArithmetic(300)

    def __getattr__(self, op: str) -> Any:
        plain: dict[str, Any] = {
            "exp": flint.arb.exp,
            "log": flint.arb.log,
            "sqrt": flint.arb.sqrt,
            "tanh": flint.arb.tanh,
        }
        return plain.get(op) or getattr(self._balls, op)


def curves(on: Any, function: Function, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(count, pair, end): enclosures of the second derivatives on the boxes."""
    jets = TwiceDifferentiated(on)
    found = np.zeros((len(low), 3, 2))
    if isinstance(on, IntervalArithmetic):
        x, y = (jets.variable(Interval(low[:, k], high[:, k]), k) for k in range(2))
        for pair, curve in function(jets, x, y).curves.items():
            found[:, PAIRS.index(pair), 0] = curve.low
            found[:, PAIRS.index(pair), 1] = curve.high
        return found
    for box in range(len(low)):
        x, y = (
            jets.variable(on.box(float(low[box, k]), float(high[box, k])), k)
            for k in range(2)
        )
        for pair, curve in function(jets, x, y).curves.items():
            found[box, PAIRS.index(pair)] = on.ends(curve)
    return found


def second_difference(function: Function, p: Any, pair: tuple[int, int], s: Any) -> Any:
    """By the mean value theorem, s^2 d_kl f somewhere in p + [0, s] e_k + [0, s] e_l."""
    points = Points()

    def at(*steps: int) -> Any:
        moved = [p[k] + s * sum(1 for step in steps if step == k) for k in range(2)]
        return function(points, *moved)

    k, m = pair
    return (at(k, m) - at(k) - at(m) + at()) / (s * s)


def boxes(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    low = np.round(rng.uniform(0.25, 2, (count, 2)) * 8) / 8
    return low, low + rng.choice([1 / 64, 1 / 8, 1 / 2], (count, 1))


@pytest.fixture(params=["intervals", "balls"])
def on(request: pytest.FixtureRequest) -> Any:
    return IntervalArithmetic() if request.param == "intervals" else BallArithmetic()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_differences_are_inside(name: str, on: Any) -> None:
    low, high = boxes()
    found = curves(on, FUNCTIONS[name], low, high)
    assert np.isfinite(found).all()
    rng = np.random.default_rng(5)
    with flint.ctx.workprec(300):
        for box in range(len(low)):
            width = (high[box] - low[box])[0]
            p = [flint.arb(float(v)) for v in low[box] + rng.uniform(0, 0.5, 2) * width]
            for step in (width / 4, width * 2.0**-40):
                for at, pair in enumerate(PAIRS):
                    value = second_difference(
                        FUNCTIONS[name], p, pair, flint.arb(float(step))
                    )
                    left, right = (flint.arb(float(end)) for end in found[box, at])
                    assert not value < left
                    assert not value > right


SECOND: dict[str, list[Callable[[Any, Any], Any]]] = {
    "add": [lambda x, y: 6 * x, lambda x, y: 1 + 0 * x, lambda x, y: 0 * x],
    "pow": [
        lambda x, y: 6 * x / (y * y),
        lambda x, y: -6 * x * x / (y * y * y),
        lambda x, y: 6 * x * x * x / (y * y * y * y),
    ],
    "exp": [
        lambda x, y: y * y * (x * y).exp(),
        lambda x, y: (1 + x * y) * (x * y).exp(),
        lambda x, y: x * x * (x * y).exp(),
    ],
    "sqrt": [
        lambda x, y: y * y / (x * x + y * y) ** 1.5,
        lambda x, y: -x * y / (x * x + y * y) ** 1.5,
        lambda x, y: x * x / (x * x + y * y) ** 1.5,
    ],
    "log": [
        lambda x, y: -1 / (x + y.exp()) ** 2,
        lambda x, y: -y.exp() / (x + y.exp()) ** 2,
        lambda x, y: x * y.exp() / (x + y.exp()) ** 2,
    ],
    "abs, decided": [lambda x, y: 2 * y, lambda x, y: 2 * x, lambda x, y: 0 * x],
}


@pytest.mark.parametrize("name", SECOND)
@settings(max_examples=15, deadline=None)
@given(x=st.floats(0.25, 2.0), y=st.floats(0.25, 2.0))
def test_curves_at_a_point_are_the_derivatives(name: str, x: float, y: float) -> None:
    place = np.array([[x, y]])
    for arithmetic in (IntervalArithmetic(), BallArithmetic()):
        found = curves(arithmetic, FUNCTIONS[name], place, place)[0]
        with flint.ctx.workprec(200):
            for at in range(3):
                true = float(SECOND[name][at](flint.arb(x), flint.arb(y)))
                rounding = 1e-15 * abs(true)
                assert found[at, 0] <= true + rounding
                assert found[at, 1] >= true - rounding
                assert found[at, 1] - found[at, 0] <= 1e-9 * (1 + abs(true))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_ways_agree(name: str) -> None:
    low, high = boxes()
    ours, theirs = (
        curves(on, FUNCTIONS[name], low, high)
        for on in (IntervalArithmetic(), BallArithmetic())
    )
    assert (
        np.maximum(ours[..., 0], theirs[..., 0]) <= np.minimum(ours, theirs)[..., 1]
    ).all()
    wide, other = ours[..., 1] - ours[..., 0], theirs[..., 1] - theirs[..., 0]
    small = low[:, 0] + 1 / 64 == high[:, 0]
    assert (wide[small] <= 3 * other[small] + 1e-9).all()


KINKS: dict[str, Function] = {
    "abs": lambda on, x, y: on.abs(x),
    "max": lambda on, x, y: on.max(x, on.constant(Fraction(0))),
    "min": lambda on, x, y: on.min(on.neg(x), on.mul(x, x)),
    "inside": lambda on, x, y: on.exp(on.mul(y, on.abs(x))),
    "sqrt": lambda on, x, y: on.sqrt(on.mul(x, x)),
    "log": lambda on, x, y: on.log(on.mul(x, x)),
    "div": lambda on, x, y: on.div(y, x),
    "negative power": lambda on, x, y: on.pow(x, -2),
}


@pytest.mark.parametrize("name", KINKS)
def test_a_kink_on_or_beside_the_box_is_undecided(name: str, on: Any) -> None:
    # Around 0, and on both sides of it: |x| is smooth on [-1, 0] and on [0, 1], and on
    # their union it is not.
    low = np.array([[-1.0, 1.0], [-1.0, 1.0], [0.0, 1.0]])
    high = np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0]])
    found = curves(on, KINKS[name], low, high)[:, 0]
    assert np.isneginf(found[:, 0]).all()
    assert np.isposinf(found[:, 1]).all()


@pytest.mark.parametrize("name", KINKS)
def test_away_from_the_kink_it_is_decided(name: str, on: Any) -> None:
    low, high = np.array([[2.0**-4, 1.0]]), np.array([[0.5, 2.0]])
    assert np.isfinite(curves(on, KINKS[name], low, high)).all()


def test_a_constant_has_no_curves(on: Any) -> None:
    jets = TwiceDifferentiated(on)
    two = jets.constant(Fraction(2))
    for jet in (jets.exp(two), jets.sin(two), jets.cos(two), jets.max(two, two)):
        assert jet.curves == {}
        assert jet.slopes == {}
