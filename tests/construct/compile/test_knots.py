"""Prefix tokens for functions of one number: as accurate as asked, and few."""

from fractions import Fraction

import numpy as np
import pytest

from everyformer.construct.compile.lowering.knots import (
    LOGISTIC,
    TANH,
    Column,
    Knots,
    exp_constant,
    exp_knots,
    gamma_knots,
    gauss_knots,
)
from everyformer.construct.compile.lowering.unary import (
    centred,
    gamma_argument,
    gauss_argument,
)
from everyformer.construct.compile.program import Function, FunctionName
from everyformer.construct.compile.ranges import Range
from everyformer.errors import ToleranceError

F = Fraction


def phi(knots: Knots, tau: np.ndarray, column: int = 0) -> np.ndarray:
    scores = np.outer(tau, knots.a) + np.array(knots.b)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ np.array(knots.values[column]) / weights.sum(axis=1)


def power(s: str) -> Function:
    return Function("pow", F(s))


def gauss(function: Function, accuracy: float, low: float = -1.0) -> Column:
    return Column(function, F(1), F(0), low, 1.0, accuracy)


@pytest.mark.rows(10)
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize(
    ("function", "scale"),
    [(power("2"), 1), (power("3"), 1), (Function("sin"), 6), (Function("exp"), 3)],
)
def test_gauss_knots_are_as_accurate_as_asked(
    function: Function, scale: int, accuracy: float
) -> None:
    column = Column(function, F(scale), F(1, 3), -0.9, 1.0, accuracy)
    tau = np.linspace(-0.9, 1.0, 1777)
    off = np.abs(phi(gauss_knots((column,)), tau) - column.at(tau)).max()
    assert off <= max(accuracy, 3e-12 * column.at_ends())


@pytest.mark.rows(8)
@pytest.mark.parametrize("accuracy", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (power("-1/2"), 1.0, 140.0),
        (power("-1"), 1.2, 100.0),
        (power("1/2"), 1.0, 300.0),
        (power("-3"), 1.0, 2.0),
        (Function("log"), 1.5, 90.0),
        (Function("log"), 1.0, 1.001),
    ],
)
def test_gamma_knots_are_as_accurate_as_asked(
    function: Function, low: float, high: float, accuracy: float
) -> None:
    column = Column(function, F(1, 4), F(0), low, high, accuracy)
    tau = np.geomspace(low, high, 1777)
    assert np.abs(phi(gamma_knots((column,)), tau) - column.at(tau)).max() <= accuracy


def test_few_knots_suffice() -> None:
    counts = [len(gauss_knots((gauss(power("2"), e),)).a) for e in (1e-6, 1e-10, 1e-12)]
    assert counts <= [3, 7, 10]
    root = Column(power("-1/2"), F(1), F(0), 1.0, 130.0, 1e-6)
    assert len(gamma_knots((root,)).a) <= 18


def test_columns_share_a_grid() -> None:
    columns = (gauss(power("2"), 1e-8), gauss(Function("cos"), 1e-6, -0.5))
    knots = gauss_knots(columns)
    for i, column in enumerate(columns):
        tau = np.linspace(column.low, column.high, 999)
        assert np.abs(phi(knots, tau, i) - column.at(tau)).max() <= column.accuracy


def test_exact_knots_and_exp() -> None:
    t = np.linspace(-3, 5, 999)
    np.testing.assert_allclose(phi(TANH, t), np.tanh(t), rtol=0, atol=1e-15)
    np.testing.assert_allclose(phi(LOGISTIC, t), 1 / (1 + np.exp(-t)), rtol=0, atol=1e-15)
    knots = exp_knots(exp_constant(5.0, 1e-6))
    np.testing.assert_allclose(phi(knots, t), np.exp(t), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ends", [("0", "1"), ("-2", "3"), ("100", "101"), ("-1/3", "1/7")])
def test_arguments_lie_in_the_columns_interval(ends: tuple[str, str]) -> None:
    known = Range(F(ends[0]), F(ends[1]))
    half, mid = centred(*known.wide)
    assert (8 * mid / half).denominator == 1
    for name in ("pow", "sin"):
        kind: FunctionName = "pow" if name == "pow" else "sin"
        function = Function(kind, F(2) if name == "pow" else None)
        argument = gauss_argument(function, known, F(1, 10**6))
        for t in (known.low, known.high):
            tau = float((t - argument.mid) / argument.half)
            assert argument.column.low <= tau <= argument.column.high
            assert abs(tau) <= 1
            value = float(argument.factor) * argument.column.at(np.array([tau]))[0]
            expected = float(t) ** 2 if name == "pow" else np.sin(float(t))
            assert value == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert argument.half <= 8


def test_powers_of_positive_numbers() -> None:
    known = Range(F(1, 100), F(3))
    for function in (power("-1/2"), power("-1"), Function("log"), power("3/2")):
        argument = gamma_argument(function, known, F(1, 10**6))
        tau = float(known.high / argument.half)
        assert 1 <= argument.column.low < 4
        value = float(argument.factor) * argument.column.at(np.array([tau]))[0]
        s = function.power
        assert value == pytest.approx(np.log(3) if s is None else 3 ** float(s), rel=1e-12)


def test_a_root_that_reaches_zero_is_refused_or_cut_off() -> None:
    known = Range(F(0), F(1))
    for function in (power("-1/2"), power("-2"), Function("log")):
        with pytest.raises(ToleranceError, match="may be asked for at 0"):
            gamma_argument(function, known, F(1, 100))
    argument = gamma_argument(power("1/2"), known, F(1, 100))
    knots = gamma_knots((argument.column,))
    t = np.linspace(0, 1, 4001)
    off = float(argument.factor) * phi(knots, t / float(argument.half)) - np.sqrt(t)
    assert np.abs(off).max() <= 0.02
