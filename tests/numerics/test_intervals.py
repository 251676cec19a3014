"""Interval arithmetic: every result is inside, the ends are close, nothing is NaN."""

import importlib
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.numerics import intervals as module
from everyformer.numerics.elementary import LARGEST, TINY
from everyformer.numerics.intervals import Interval, IntervalArithmetic

flint: Any = importlib.import_module("flint")

EXACT_UNARY = ("neg", "abs")
SMOOTH_UNARY = ("sin", "cos", "exp", "log", "sqrt", "tanh")
UNARY = EXACT_UNARY + SMOOTH_UNARY
BINARY = ("add", "sub", "mul", "div", "min", "max")
POWERS = (-3, -2, -1, 0, 1, 2, 3, 4, 7, 64)

SPECIAL = [0.0, -0.0, TINY, 2.0**-1022, 1e-160, 0.5, 1.0, 1e160, 2.0**1023, LARGEST]
ends = st.one_of(
    st.sampled_from([sign * value for value in SPECIAL for sign in (1, -1)]),
    st.floats(-8, 8),
    st.floats(allow_nan=False),
)
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Interval, np.ndarray]:
    """Six intervals, and a real point of each."""
    low: list[float] = []
    high: list[float] = []
    inside: list[float] = []
    for _ in range(6):
        left, right = sorted((draw(ends), draw(ends)))
        if draw(st.booleans()):
            left, right = (left, left) if math.isfinite(left) else (0.0, 0.0)
        left, right = min(left, LARGEST), max(right, -LARGEST)
        near, far = max(left, -LARGEST), min(right, LARGEST)
        share = draw(shares)
        point = near * (1 - share) + far * share
        low.append(left)
        high.append(right)
        inside.append(min(max(point, near), far))
    return Interval(np.array(low), np.array(high)), np.array(inside)


def value(op: str, *operands: float, exponent: int = 1) -> Any:
    """The real value: a Fraction, a ball, or None where it is undefined."""
    exact = [Fraction(x) for x in operands]
    if op in SMOOTH_UNARY:
        x = operands[0]
        if (op == "log" and x <= 0) or (op == "sqrt" and x < 0):
            return None
        with flint.ctx.workprec(200 + 3 * abs(math.frexp(x)[1])):
            return getattr(flint.arb(x), op)()
    if op == "pow":
        return None if exact[0] == 0 and exponent < 0 else exact[0] ** exponent
    if op == "div":
        return None if exact[1] == 0 else exact[0] / exact[1]
    simple: dict[str, Any] = {
        "neg": operator.neg,
        "abs": abs,
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "min": min,
        "max": max,
    }
    return simple[op](*exact)


def outside(low: float, high: float, real: Any) -> bool:
    """True if the value is not in [low, high]; one that is undefined is in [-inf, inf]."""
    if real is None:
        return not (low == -math.inf and high == math.inf)
    if not isinstance(real, Fraction):
        return bool(real < flint.arb(low)) or bool(real > flint.arb(high))
    return (low > -math.inf and real < Fraction(low)) or (
        high < math.inf and real > Fraction(high)
    )


def faults(
    arithmetic: Any, op: str, *operands: tuple[Interval, np.ndarray], exponent: int = 1
) -> list[str]:
    """What is wrong with one operation on arrays of intervals."""
    extra = (exponent,) if op == "pow" else ()
    given_ = [interval for interval, _ in operands]
    result = getattr(arithmetic, op)(*given_, *extra)
    count = len(operands[0][1])
    low = np.broadcast_to(result.low, count).tolist()
    high = np.broadcast_to(result.high, count).tolist()
    found: list[str] = []
    for k in range(count):
        label = f"{op} {exponent} {[(float(i.low[k]), float(i.high[k])) for i in given_]}"
        label += f" -> [{low[k]}, {high[k]}]"
        if math.isnan(low[k]) or math.isnan(high[k]) or low[k] > high[k]:
            found.append(f"no interval: {label}")
        if low[k] == math.inf or high[k] == -math.inf:
            found.append(f"an end beyond all numbers: {label}")
        if any(i.low[k] == -np.inf and i.high[k] == np.inf for i in given_) and not (
            low[k] == -math.inf and high[k] == math.inf
        ):
            found.append(f"defined from nothing: {label}")
        real = value(op, *(float(x[k]) for _, x in operands), exponent=exponent)
        if outside(low[k], high[k], real):
            found.append(f"outside: {label} without {real}")
    return found


@settings(max_examples=80, deadline=None)
@given(boxes(), st.sampled_from(UNARY))
def test_unary_contains_the_value(a: tuple[Interval, np.ndarray], op: str) -> None:
    assert faults(IntervalArithmetic(), op, a) == []


@settings(max_examples=100, deadline=None)
@given(boxes(), boxes(), st.sampled_from(BINARY))
def test_binary_contains_the_value(
    a: tuple[Interval, np.ndarray], b: tuple[Interval, np.ndarray], op: str
) -> None:
    assert faults(IntervalArithmetic(), op, a, b) == []


@settings(max_examples=100, deadline=None)
@given(boxes(), st.sampled_from(POWERS))
def test_powers_contain_the_value(a: tuple[Interval, np.ndarray], exponent: int) -> None:
    assert faults(IntervalArithmetic(), "pow", a, exponent=exponent) == []


@given(st.fractions(), st.integers(-1200, 1200))
def test_constants_are_the_nearest_floats_around(ratio: Fraction, shift: int) -> None:
    number = ratio * Fraction(2) ** shift
    found = IntervalArithmetic.constant(number)
    low, high = found.low.item(), found.high.item()
    assert not outside(low, high, number)
    assert low == high or math.nextafter(low, math.inf) == high
    assert (low == high) == (abs(number) <= Fraction(LARGEST) and Fraction(low) == number)


def seeded(count: int, *, wide: bool = False) -> list[tuple[Interval, np.ndarray]]:
    """Two arrays of intervals with points at their ends and inside: no zero, no inf."""
    rng = np.random.default_rng(2)
    found: list[tuple[Interval, np.ndarray]] = []
    for _ in range(2):
        low = rng.uniform(0.1, 2, count)
        high = low + (rng.uniform(0, 1, count) if wide else 0.0)
        share = rng.integers(0, 3, count) / 2
        found.append((Interval(low, high), np.clip(low + share * (high - low), low, high)))
    return found


class TestTheCheckerCanFail:
    """An arithmetic that rounds wrongly, or forgets a case, is found out."""

    def test_right(self) -> None:
        a, b = seeded(200)
        for op in BINARY:
            assert faults(IntervalArithmetic(), op, a, b) == []
        for op in UNARY:
            assert faults(IntervalArithmetic(), op, a) == []

    @pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
    def test_rounding_to_nearest(self, op: str) -> None:
        class Nearest(IntervalArithmetic):
            pass

        plain: dict[str, Any] = {"add": np.add, "sub": np.subtract}
        plain |= {"mul": np.multiply, "div": np.divide}

        def nearest(a: Interval, b: Interval) -> Interval:
            return Interval(plain[op](a.low, b.low), plain[op](a.high, b.high))

        setattr(Nearest, op, staticmethod(nearest))
        assert faults(Nearest(), op, *seeded(200))

    def test_rounding_inward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lower, upper = module.lower_end, module.upper_end
        monkeypatch.setattr(module, "lower_end", upper)
        monkeypatch.setattr(module, "upper_end", lower)
        a, b = seeded(200)
        assert faults(IntervalArithmetic(), "add", a, b)
        assert faults(IntervalArithmetic(), "sqrt", a)

    def test_without_the_maximum_of_sin(self) -> None:
        class Ends(IntervalArithmetic):
            @staticmethod
            def sin(a: Interval) -> Interval:
                left, right = np.sin(a.low) - 1e-9, np.sin(a.high) + 1e-9
                return Interval(np.minimum(left, right), np.maximum(left, right))

        over = Interval(np.array([1.0]), np.array([2.5]))
        assert faults(Ends(), "sin", (over, np.array([1.57])))
        assert faults(IntervalArithmetic(), "sin", (over, np.array([1.57]))) == []

    def test_division_through_zero(self) -> None:
        class Blind(IntervalArithmetic):
            @classmethod
            def div(cls, a: Interval, b: Interval) -> Interval:
                return module.extremes(np.divide, a, b)

        one = (Interval(np.array([1.0]), np.array([1.0])), np.array([1.0]))
        through = (Interval(np.array([-1.0]), np.array([2.0])), np.array([0.0]))
        assert faults(Blind(), "div", one, through)
        assert faults(IntervalArithmetic(), "div", one, through) == []


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_ends_are_close(op: str) -> None:
    (a, _), (b, _) = seeded(500, wide=True)
    result = getattr(IntervalArithmetic(), op)(a, b)
    for k in range(500):
        pairs = [(x[k], y[k]) for x in (a.low, a.high) for y in (b.low, b.high)]
        corners = [value(op, float(x), float(y)) for x, y in pairs]
        for end, exact in ((result.low[k], min(corners)), (result.high[k], max(corners))):
            # At most two gaps between floats: one for rounding, one for moving outward.
            assert abs(Fraction(float(end)) - exact) <= 4 * abs(exact) * Fraction(1, 2**52)


@pytest.mark.parametrize("op", ["sin", "cos", "exp", "log", "sqrt", "tanh"])
@pytest.mark.parametrize("offset", [-3.0, 0.0, 40.0])
def test_ranges_are_tight(op: str, offset: float) -> None:
    if op in {"log", "sqrt"}:
        offset = abs(offset)
    rng = np.random.default_rng(3)
    low = offset + rng.uniform(0.01, 8, 300)
    high = low + rng.uniform(0, 4, 300)
    result = getattr(IntervalArithmetic(), op)(Interval(low, high))
    grid = low + (high - low) * np.linspace(0, 1, 4001)[:, None]
    sampled = getattr(np, op)(grid)
    # The samples miss an extremum by at most (step / 2)^2 / 2 * |f''|.
    missed = 5e-7 if op in {"sin", "cos"} else 0.0
    size = np.maximum(1.0, np.abs(sampled).max(axis=0))
    assert (sampled.min(axis=0) - result.low <= missed + 1e-12 * size).all()
    assert (result.high - sampled.max(axis=0) <= missed + 1e-12 * size).all()
    assert (result.low <= sampled.min(axis=0)).all()
    assert (result.high >= sampled.max(axis=0)).all()


def test_signs_and_zeros_are_exact() -> None:
    arithmetic = IntervalArithmetic()
    cell = Interval(np.array([0.0, 0.125]), np.array([0.125, 0.25]))
    next_cell = Interval(np.array([0.125, 0.125]), np.array([0.25, 0.25]))
    assert (arithmetic.sub(next_cell, cell).low == [0.0, -0.125 - 2.0**-55]).all()
    zero = arithmetic.constant(Fraction(0))
    product = arithmetic.mul(cell, Interval(np.zeros(2), np.zeros(2)))
    assert product.low.tolist() == product.high.tolist() == [0.0, 0.0]
    mixed = Interval(np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    assert not arithmetic.mul(mixed, zero).high.any()
    assert arithmetic.mul(cell, next_cell).low[0] == 0.0
    tiny = Interval(np.array([1e-200, -1e-200]), np.array([1e-200, -1e-200]))
    square = arithmetic.mul(tiny, Interval(np.full(2, 1e-200), np.full(2, 1e-200)))
    assert square.low.tolist() == [0.0, -TINY]
    assert square.high.tolist() == [TINY, 0.0]
    assert arithmetic.pow(mixed, 2).low.tolist() == [0.0, 0.0]
    assert arithmetic.mul(mixed, mixed).low.tolist() == [0.0, 0.0]


def test_undefined_stays_undefined() -> None:
    arithmetic = IntervalArithmetic()
    nothing = Interval(np.array([-np.inf, 1.0]), np.array([np.inf, 2.0]))
    (fine, _), _ = seeded(2)
    results = [getattr(arithmetic, op)(nothing) for op in UNARY]
    results += [getattr(arithmetic, op)(nothing, fine) for op in BINARY]
    results += [getattr(arithmetic, op)(fine, nothing) for op in BINARY]
    results += [arithmetic.pow(nothing, exponent) for exponent in POWERS]
    for result in results:
        assert (result.low[0], result.high[0]) == (-np.inf, np.inf)
        assert np.isfinite([result.low[1], result.high[1]]).all()


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_no_extremum_is_missed(op: str) -> None:
    rng = np.random.default_rng(12)
    k = np.concatenate([np.arange(-9, 9), rng.integers(-300_000, 300_000, 200)])
    for turn, sign in ((0.0, 1.0), (0.5, -1.0)):
        peak = (k + turn + (0.25 if op == "sin" else 0.0)) * (2 * np.pi)
        for width in 2.0 ** np.arange(-20, 2):
            # Uneven, so that the peak is not in the middle.
            box = Interval(peak - width, peak + width / 8)
            result = getattr(IntervalArithmetic(), op)(box)
            assert ((result.high if sign > 0 else result.low) == sign).all()


def test_overflow() -> None:
    # Sums, products and powers beyond float64 lie between the largest float and inf.
    arithmetic = IntervalArithmetic()
    big = Interval(np.array([LARGEST, 1e200]), np.array([LARGEST, 1e300]))
    other = Interval(np.array([LARGEST, 1e200]), np.array([LARGEST, 1e300]))
    for result in (
        arithmetic.mul(big, other),
        arithmetic.pow(big, 2),
        arithmetic.pow(big, 3),
        arithmetic.div(big, arithmetic.constant(Fraction(1, 10**200))),
    ):
        assert (result.low >= LARGEST * (1 - 2.0**-50)).all()
        assert (result.low <= LARGEST).all()
        assert (result.high == np.inf).all()
        minus = arithmetic.neg(result)
        assert (minus.low == -np.inf).all()
    total, rest = arithmetic.add(big, other), arithmetic.sub(arithmetic.neg(big), other)
    assert LARGEST * (1 - 2.0**-50) <= total.low[0] <= LARGEST
    assert total.high[0] == np.inf
    assert -LARGEST <= rest.high[0] <= -LARGEST * (1 - 2.0**-50)
    assert rest.low[0] == -np.inf


def test_neutral_operands_change_nothing() -> None:
    arithmetic = IntervalArithmetic()
    zero, one = arithmetic.constant(Fraction(0)), arithmetic.constant(Fraction(1))
    (a, _), _ = seeded(5)
    for result in (
        arithmetic.add(a, zero),
        arithmetic.add(zero, a),
        arithmetic.sub(a, zero),
        arithmetic.mul(a, one),
        arithmetic.mul(one, a),
        arithmetic.div(a, one),
        arithmetic.pow(a, 1),
    ):
        assert result is a


def test_select_takes_the_branch_or_the_hull() -> None:
    arithmetic = IntervalArithmetic()
    a = Interval(np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0]))
    b = Interval(np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.0, 2.0]))
    first, second = arithmetic.below(a, b), arithmetic.below(b, a)
    assert first.tolist() == [True, False, False]
    assert second.tolist() == [False, True, False]
    result = arithmetic.select(first, second, a, b)
    assert result.low.tolist() == [0.0, -2.0, 0.0]
    assert result.high.tolist() == [1.0, 0.0, 2.0]
