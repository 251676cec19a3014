"""Slopes contain the derivatives of known functions and all difference quotients."""

import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.derivative import Differentiated, Jet
from everyformer.numerics.intervals import Interval, IntervalArithmetic

flint: Any = importlib.import_module("flint")

# A function of x and y, over any arithmetic.
Function = Callable[[Any, Any, Any], Any]


def of(value: str) -> Fraction:
    return Fraction(value)


FUNCTIONS: dict[str, Function] = {
    "neg": lambda on, x, y: on.neg(x),
    "add": lambda on, x, y: on.add(x, y),
    "sub": lambda on, x, y: on.sub(x, on.mul(y, y)),
    "mul": lambda on, x, y: on.mul(on.add(x, y), on.mul(x, y)),
    "square": lambda on, x, y: on.mul(x, x),
    "div": lambda on, x, y: on.div(on.sin(x), on.add(on.mul(y, y), on.constant(of("1/3")))),
    "pow": lambda on, x, y: on.mul(on.pow(x, 3), on.pow(y, -2)),
    "even": lambda on, x, y: on.pow(on.sub(x, y), 4),
    "constant power": lambda on, x, y: on.add(on.pow(x, 0), on.pow(y, 1)),
    "exp": lambda on, x, y: on.exp(on.mul(x, y)),
    "exp of exp": lambda on, x, y: on.exp(on.neg(on.exp(x))),
    "log": lambda on, x, y: on.log(on.add(x, on.exp(y))),
    "sqrt": lambda on, x, y: on.sqrt(on.add(on.mul(x, x), on.mul(y, y))),
    "tanh": lambda on, x, y: on.tanh(on.sub(on.mul(x, y), x)),
    "sin": lambda on, x, y: on.sin(on.mul(x, on.add(x, y))),
    "cos": lambda on, x, y: on.cos(on.mul(x, on.add(x, y))),
    "abs": lambda on, x, y: on.abs(on.sub(x, y)),
    "abs of sin": lambda on, x, y: on.abs(on.sin(on.mul(on.constant(of("5")), x))),
    "smaller": lambda on, x, y: on.min(x, y),
    "larger": lambda on, x, y: on.max(x, y),
    "min": lambda on, x, y: on.min(on.mul(x, y), on.constant(of("3/4"))),
    "max": lambda on, x, y: on.max(on.min(x, y), on.sub(on.constant(of("1")), x)),
    "kinks": lambda on, x, y: on.mul(on.abs(on.sub(x, y)), on.max(x, on.exp(on.neg(y)))),
}


class Points:
    """The operations on points: balls of 200 bits around one number."""

    def __init__(self) -> None:
        self._balls = BallArithmetic(200)

    def __getattr__(self, op: str) -> Any:
        plain: dict[str, Any] = {
            "abs": abs,
            "exp": flint.arb.exp,
            "log": flint.arb.log,
            "sqrt": flint.arb.sqrt,
            "tanh": flint.arb.tanh,
        }
        return plain.get(op) or getattr(self._balls, op)


def boxes(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in x and y, of widths from 0 to 1/2; some on the diagonal x = y."""
    rng = np.random.default_rng(4)
    low = np.round(rng.uniform(0.25, 2, (count, 2)) * 8) / 8
    width = rng.choice([0.0, 1 / 64, 1 / 8, 1 / 2], (count, 1))
    return low, low + width


def slopes(
    jets: Any, on: Any, function: Function, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """(count, variable, end): enclosures of both partial derivatives on the boxes."""
    count = len(low)
    found = np.zeros((count, 2, 2))
    if isinstance(on, IntervalArithmetic):
        x, y = (jets.variable(Interval(low[:, k], high[:, k]), k) for k in range(2))
        for k, slope in function(jets, x, y).slopes.items():
            found[:, k, 0], found[:, k, 1] = slope.low, slope.high
        return found
    for box in range(count):
        x, y = (
            jets.variable(on.box(float(low[box, k]), float(high[box, k])), k)
            for k in range(2)
        )
        for k, slope in function(jets, x, y).slopes.items():
            found[box, k] = on.ends(slope)
    return found


def violations(jets: Any, on: Any, function: Function) -> int:
    """How many differences f(p) - f(q) are outside of sum_k slope_k * (p_k - q_k)."""
    low, high = boxes()
    found = slopes(jets, on, function, low, high)
    assert np.isfinite(found).all()
    rng = np.random.default_rng(5)
    points, wrong = Points(), 0
    with flint.ctx.workprec(200):
        for box in range(len(low)):
            # Pairs far apart, and pairs so close that the quotient is the derivative.
            for step in (1.0, 2.0**-20):
                p = low[box] + rng.uniform(0, 1, 2) * (high[box] - low[box])
                q = low[box] + rng.uniform(0, 1, 2) * (high[box] - low[box])
                q = np.clip(p + (q - p) * step, low[box], high[box])
                at_p, at_q = ([flint.arb(float(v)) for v in point] for point in (p, q))
                difference = function(points, *at_p) - function(points, *at_q)
                allowed = flint.arb(0)
                for k in range(2):
                    left, right = (flint.arb(float(end)) for end in found[box, k])
                    allowed = allowed + left.union(right) * (at_p[k] - at_q[k])
                wrong += not allowed.overlaps(difference)
    return wrong


@pytest.fixture(params=["intervals", "balls"])
def on(request: pytest.FixtureRequest) -> Any:
    return IntervalArithmetic() if request.param == "intervals" else BallArithmetic()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_differences_are_inside(name: str, on: Any) -> None:
    assert violations(Differentiated(on), on, FUNCTIONS[name]) == 0


DERIVATIVES: dict[str, list[Function]] = {
    "mul": [
        lambda on, x, y: 2 * x * y + y * y,
        lambda on, x, y: x * x + 2 * x * y,
    ],
    "div": [
        lambda on, x, y: x.cos() / (y * y + flint.arb(1) / 3),
        lambda on, x, y: -2 * y * x.sin() / ((y * y + flint.arb(1) / 3) ** 2),
    ],
    "pow": [
        lambda on, x, y: 3 * x * x / (y * y),
        lambda on, x, y: -2 * x * x * x / (y * y * y),
    ],
    "constant power": [lambda on, x, y: 0 * x, lambda on, x, y: 1 + 0 * x],
    "exp": [lambda on, x, y: y * (x * y).exp(), lambda on, x, y: x * (x * y).exp()],
    "log": [
        lambda on, x, y: 1 / (x + y.exp()),
        lambda on, x, y: y.exp() / (x + y.exp()),
    ],
    "sqrt": [
        lambda on, x, y: x / (x * x + y * y).sqrt(),
        lambda on, x, y: y / (x * x + y * y).sqrt(),
    ],
    "tanh": [
        lambda on, x, y: (y - 1) * (x * y - x).sech() ** 2,
        lambda on, x, y: x * (x * y - x).sech() ** 2,
    ],
    "sin": [
        lambda on, x, y: (2 * x + y) * (x * x + x * y).cos(),
        lambda on, x, y: x * (x * x + x * y).cos(),
    ],
    "cos": [
        lambda on, x, y: -(2 * x + y) * (x * x + x * y).sin(),
        lambda on, x, y: -x * (x * x + x * y).sin(),
    ],
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_slopes_contain_the_derivative(name: str, on: Any) -> None:
    low, high = boxes()
    found = slopes(Differentiated(on), on, FUNCTIONS[name], low, high)
    with flint.ctx.workprec(200):
        for box, k, share in np.ndindex(len(low), 2, 5):
            corner = low[box] + np.array([share / 4, 1 - share / 4]) * (
                high[box] - low[box]
            )
            x, y = (flint.arb(float(v)) for v in corner)
            exact = DERIVATIVES[name][k](None, x, y)
            assert not exact < flint.arb(float(found[box, k, 0]))
            assert not exact > flint.arb(float(found[box, k, 1]))
            if (low[box] == high[box]).all():
                # On a point the slope is the derivative, and nothing is lost.
                assert float(found[box, k, 1] - found[box, k, 0]) <= 1e-11 * max(
                    1.0, abs(float(exact))
                )


def test_kinks(on: Any) -> None:
    jets = Differentiated(on)
    low = np.array([[-1.0, 0.0], [0.0, 0.0], [-2.0, 0.0], [1.0, 0.0]])
    high = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    found = slopes(jets, on, lambda on, x, y: on.abs(x), low, high)[:, 0]
    # [0, 1] lies on one side; [-2, 0] too, but a ball reaches beyond its upper end.
    at_zero = [-1.0, -1.0] if isinstance(on, IntervalArithmetic) else [-1.0, 1.0]
    expected = [[-1.0, 1.0], [1.0, 1.0], at_zero, [1.0, 1.0]]
    assert np.allclose(found, expected, rtol=0, atol=1e-8)
    low, high = np.array([[0.0, 2.0], [0.0, 0.5]]), np.array([[1.0, 3.0], [1.0, 1.5]])
    for function, decided in (
        (FUNCTIONS["smaller"], [[1.0, 1.0], [0.0, 0.0]]),
        (FUNCTIONS["larger"], [[0.0, 0.0], [1.0, 1.0]]),
    ):
        found = slopes(jets, on, function, low, high)
        assert found[0].tolist() == decided
        assert np.allclose(found[1], [[0.0, 1.0], [0.0, 1.0]], rtol=0, atol=1e-8)


def test_what_does_not_occur_has_no_slope(on: Any) -> None:
    jets = Differentiated(on)
    x = jets.variable(
        Interval(np.array([1.0]), np.array([2.0]))
        if isinstance(on, IntervalArithmetic)
        else on.box(1.0, 2.0),
        "x",
    )
    two = jets.constant(Fraction(2))
    assert jets.mul(two, two).slopes == {}
    assert jets.div(two, two).slopes == {}
    assert jets.sin(two).slopes == {}
    assert jets.cos(two).slopes == {}
    assert jets.max(two, two).slopes == {}
    assert jets.pow(x, 0).slopes == {}
    assert set(jets.add(jets.exp(x), two).slopes) == {"x"}


def test_singular_slopes_are_infinite() -> None:
    on = IntervalArithmetic()
    jets = Differentiated(on)
    low, high = np.array([[0.0, 1.0]]), np.array([[1.0, 2.0]])
    singular: list[Function] = [
        lambda on, x, y: on.sqrt(x),
        lambda on, x, y: on.mul(on.constant(Fraction(0)), on.sqrt(x)),
        lambda on, x, y: on.div(y, x),
        lambda on, x, y: on.log(x),
        lambda on, x, y: on.tanh(on.div(y, x)),
        lambda on, x, y: on.max(on.log(x), y),
    ]
    for function in singular:
        assert slopes(jets, on, function, low, high)[0, 0].tolist() == [-math.inf, math.inf]


class _NoSecondTerm(Differentiated):
    def mul(self, a: Jet, b: Jet) -> Jet:
        product = super().mul(a, b)
        return Jet(product.value, super().mul(a, Jet(b.value)).slopes)


class _ForgottenSign(Differentiated):
    def cos(self, a: Jet) -> Jet:
        found = super().cos(a)
        return Jet(found.value, self.neg(Jet(found.value, found.slopes)).slopes)


class _NoQuotientRule(Differentiated):
    def div(self, a: Jet, b: Jet) -> Jet:
        return super().div(a, Jet(b.value)) if a.slopes else super().div(a, b)


class _OneBranch(Differentiated):
    def abs(self, a: Jet) -> Jet:
        return Jet(super().abs(a).value, a.slopes)


class _NoInnerDerivative(Differentiated):
    def exp(self, a: Jet) -> Jet:
        value = super().exp(a).value
        return Jet(value, dict.fromkeys(a.slopes, value))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (_NoSecondTerm, "mul"),
        (_ForgottenSign, "cos"),
        (_NoQuotientRule, "div"),
        (_OneBranch, "abs"),
        (_OneBranch, "abs of sin"),
        (_NoInnerDerivative, "exp"),
    ],
)
def test_a_wrong_rule_is_caught(wrong: type[Differentiated], name: str, on: Any) -> None:
    assert violations(wrong(on), on, FUNCTIONS[name]) > 0
