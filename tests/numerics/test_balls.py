"""Balls: they contain the values, avoid the traps of python-flint, and round outward."""

import importlib
import importlib.util
import math
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.errors import CertificateError
from everyformer.numerics import balls as module
from everyformer.numerics.balls import BallArithmetic

flint: Any = importlib.import_module("flint")

LARGEST = sys.float_info.max
UNARY = ("neg", "abs", "sin", "cos", "exp", "log", "sqrt", "tanh")
BINARY = ("add", "sub", "mul", "div", "min", "max")
ends = st.one_of(
    st.sampled_from([0.0, -1.0, 1.0, 0.125, 5e-324, 1e-160, 40.0, -40.0]),
    st.floats(-50, 50),
)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[float, float, float]:
    """An interval and a point of it."""
    low, high = sorted((draw(ends), draw(ends)))
    share = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    return low, high, min(max(low + share * (high - low), low), high)


def real(op: str, *operands: float, exponent: int = 1) -> Any:
    """The value at points, with 3000 bits; nan where it is undefined."""
    with flint.ctx.workprec(3500):
        x = [flint.arb(value) for value in operands]
        if op == "pow":
            product = flint.arb(1)
            for _ in range(abs(exponent)):
                product = product * x[0]
            return 1 / product if exponent < 0 else product
        symbols: dict[str, Any] = {
            "add": lambda: x[0] + x[1],
            "sub": lambda: x[0] - x[1],
            "mul": lambda: x[0] * x[1],
            "div": lambda: x[0] / x[1],
            "neg": lambda: -x[0],
            "abs": lambda: abs(x[0]),
            "min": lambda: flint.arb(min(operands)),
            "max": lambda: flint.arb(max(operands)),
        }
        return symbols[op]() if op in symbols else getattr(x[0], op)()


def holds(arithmetic: Any, ball: Any, value: Any) -> bool:
    """True if the ball and its float ends contain the value, or all are undecided."""
    low, high = arithmetic.ends(ball)
    if value.is_nan():
        return ball.is_nan() and low == -math.inf and high == math.inf
    if not ball.is_finite():
        return low == -math.inf and high == math.inf
    with flint.ctx.workprec(3500):
        return bool(
            ball.overlaps(value)
            and not value < ball.lower()
            and not value > ball.upper()
            and not value < flint.arb(low)
            and not value > flint.arb(high)
        )


@settings(max_examples=80, deadline=None)
@given(boxes(), st.sampled_from(UNARY), st.sampled_from([53, 64, 128]))
def test_unary(a: tuple[float, float, float], op: str, precision: int) -> None:
    arithmetic = BallArithmetic(precision)
    with arithmetic.working():
        ball = getattr(arithmetic, op)(arithmetic.box(*a[:2]))
    assert holds(arithmetic, ball, real(op, a[2]))


@settings(max_examples=80, deadline=None)
@given(boxes(), boxes(), st.sampled_from(BINARY))
def test_binary(
    a: tuple[float, float, float], b: tuple[float, float, float], op: str
) -> None:
    arithmetic = BallArithmetic()
    with arithmetic.working():
        ball = getattr(arithmetic, op)(arithmetic.box(*a[:2]), arithmetic.box(*b[:2]))
    assert holds(arithmetic, ball, real(op, a[2], b[2]))


@settings(max_examples=80, deadline=None)
@given(boxes(), st.sampled_from([-3, -2, -1, 0, 1, 2, 3, 4, 7, 64]))
def test_powers(a: tuple[float, float, float], exponent: int) -> None:
    arithmetic = BallArithmetic()
    ball = arithmetic.pow(arithmetic.box(*a[:2]), exponent)
    assert holds(arithmetic, ball, real("pow", a[2], exponent=exponent))


def test_the_checker_can_fail() -> None:
    class Nearest(BallArithmetic):
        @staticmethod
        def ends(ball: Any) -> tuple[float, float]:
            return float(ball.lower()), float(ball.upper())

        def exp(self, a: Any) -> Any:
            return a.mid().exp()

    wrong = Nearest(200)
    with wrong.working():
        third = wrong.constant(Fraction(1, 3))
        assert not holds(wrong, third, flint.arb(1) / 3)  # 1/3 is above its nearest float.
        assert not holds(BallArithmetic(), wrong.exp(wrong.box(0.0, 1.0)), real("exp", 1.0))
        assert holds(BallArithmetic(), third, flint.arb(1) / 3)


@given(st.integers(), st.integers(-1200, 1100))
def test_ends_are_the_nearest_floats_outside(mantissa: int, exponent: int) -> None:
    exact = Fraction(mantissa) * Fraction(2) ** exponent
    low = module._float_below(mantissa, exponent)  # pyright: ignore[reportPrivateUsage]
    assert low == -math.inf or Fraction(low) <= exact
    after = math.nextafter(low, math.inf)
    assert after == math.inf or Fraction(after) > exact


@pytest.mark.parametrize(
    ("mantissa", "exponent", "low"),
    [
        (0, 10**9, 0.0),
        (1, 10**30, LARGEST),
        (-1, 10**30, -math.inf),
        (1, -(10**30), 0.0),
        (-1, -(10**30), -5e-324),
        (2**53 - 1, 971, LARGEST),
        (-(2**53) + 1, 971, -LARGEST),
        (-(2**54) + 1, 970, -math.inf),
        (2**54 - 1, 970, LARGEST),
    ],
)
def test_ends_at_the_limits_of_float64(mantissa: int, exponent: int, low: float) -> None:
    assert module._float_below(mantissa, exponent) == low  # pyright: ignore[reportPrivateUsage]


def test_zero_stays_an_end() -> None:
    # The radius of a union has 30 bits: without care [0, 1/8] would reach below 0.
    arithmetic = BallArithmetic()
    cell = arithmetic.box(0.0, 0.125)
    assert arithmetic.ends(cell)[0] == 0.0
    low, high = arithmetic.ends(arithmetic.sqrt(cell))
    assert low == 0.0
    assert high == pytest.approx(0.125**0.5, rel=1e-8)
    around = arithmetic.box(-1.0, 2.0)
    assert arithmetic.ends(arithmetic.abs(around))[0] == 0.0
    assert arithmetic.ends(arithmetic.pow(around, 2))[0] == 0.0
    assert arithmetic.ends(arithmetic.mul(around, around))[0] == 0.0
    assert arithmetic.below(arithmetic.constant(Fraction(0)), cell) is True


def test_undefined_stays_undefined() -> None:
    arithmetic = BallArithmetic()
    nothing = arithmetic.div(arithmetic.box(1.0, 1.0), arithmetic.box(-1.0, 1.0))
    one = arithmetic.box(1.0, 1.0)
    for op in UNARY:
        assert arithmetic.ends(getattr(arithmetic, op)(nothing)) == (-math.inf, math.inf)
    for op in BINARY:
        for pair in ((nothing, one), (one, nothing)):
            found = arithmetic.ends(getattr(arithmetic, op)(*pair))
            assert found == (-math.inf, math.inf)
    for exponent in (-2, 0, 1, 2, 3):
        assert arithmetic.ends(arithmetic.pow(nothing, exponent))[0] == -math.inf
    assert arithmetic.below(nothing, one) is False
    assert arithmetic.ends(arithmetic.box(0.0, math.inf)) == (-math.inf, math.inf)


@pytest.mark.parametrize("op", ["exp", "log", "sqrt", "tanh", "sin", "cos"])
def test_wide_balls_are_tight(op: str) -> None:
    arithmetic = BallArithmetic()
    low, high = arithmetic.ends(getattr(arithmetic, op)(arithmetic.box(0.5, 3.0)))
    sampled = [float(real(op, 0.5 + k / 400)) for k in range(1001)]
    width = max(sampled) - min(sampled)
    assert min(sampled) - 1e-5 - 2e-8 * width <= low <= min(sampled)
    assert max(sampled) <= high <= max(sampled) + 1e-5 + 2e-8 * width


def test_precision_is_put_back() -> None:
    before = flint.ctx.prec
    arithmetic = BallArithmetic(200)
    with arithmetic.working():
        assert flint.ctx.prec == 200
    assert flint.ctx.prec == before


def test_without_flint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(CertificateError, match="python-flint"):
        BallArithmetic()
    # The module itself can be imported.
    spec = importlib.util.spec_from_file_location("balls_again", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.BallArithmetic is not BallArithmetic
