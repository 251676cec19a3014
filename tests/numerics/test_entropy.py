"""t log t, continuous at 0: against Arb, and where programs may be read that way."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.curvature import enclose_curvature
from everyformer.numerics.enclosure import Enclosure, enclose, enclose_with_balls
from everyformer.numerics.entropy import with_entropies
from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.intervals import IntervalArithmetic
from everyformer.numerics.outward import Interval
from everyformer.targets.trace import _record, trace  # pyright: ignore[reportPrivateUsage]

flint = pytest.importorskip("flint")
BALLS = BallArithmetic(128)
PLACES = st.one_of(
    st.floats(0, 4),
    st.floats(0.3678, 0.368),
    st.floats(0, 1e300),
    st.sampled_from([0.0, 5e-324, 1e-310, 0.36787944117144233, 1.0, 1.7e308]),
)


def holds(low: float, high: float, t: float) -> bool:
    """Whether t log t, by Arb, meets [low, high]."""
    with flint.ctx.workprec(200):
        x = flint.arb(t)
        value = x * x.log() if t > 0 else flint.arb(0)
        return not (value < low or value > high)


@settings(max_examples=300, deadline=None)
@given(PLACES, PLACES, st.floats(0, 1))
def test_intervals_and_balls_hold_every_value(a: float, b: float, share: float) -> None:
    low, high = sorted((a, b))
    inside = min(max(low + share * (high - low), low), high)
    points = [
        low,
        high,
        inside,
        *(np.nextafter(end, s) for end in (low, high) for s in (0, 9e307)),
    ]
    points = [float(t) for t in points if low <= t <= high]
    points += [1 / math.e] if low <= 1 / math.e <= high else []
    found = IntervalArithmetic.xlogx(Interval(np.array([[low]]), np.array([[high]])))
    with BALLS.working():
        ball = BALLS.ends(BALLS.xlogx(BALLS.box(low, high)))
    for ends in ((found.low.item(), found.high.item()), ball):
        assert all(holds(*ends, t) for t in points)
    assert found.low.item() >= -0.3678794411714424


@pytest.mark.parametrize("low", [-5e-324, -1.0, -math.inf])
def test_nothing_is_known_below_zero(low: float) -> None:
    found = IntervalArithmetic.xlogx(Interval(np.array([[low]]), np.array([[1.0]])))
    assert (found.low.item(), found.high.item()) == (-math.inf, math.inf)
    assert BALLS.ends(BALLS.xlogx(BALLS.box(low, 1.0))) == (-math.inf, math.inf)


def on(expression: Expression, low: float, high: float, **options: Any) -> Enclosure:
    shape = (1, expression.seq_len, expression.d_model)
    ends = (
        np.full(shape, low),
        np.full(shape, high),
        *[np.full(shape, (low + high) / 2)] * 2,
    )
    return enclose(expression, *ends, **options)


READ: dict[str, Callable[[Any], Any]] = {
    "x log x": lambda x: x * np.log(x),
    "-x log x": lambda x: -x * np.log(x),
    "log x times 3 x": lambda x: np.log(x) * (3 * x),
    "thin plates": lambda x: x**2 * np.log(x),
    "bits": lambda x: x * np.log2(x),
    "binary entropy": lambda x: -x * np.log(x) - (1 - x) * np.log(1 - x),
    "affine": lambda x: (2 - 2 * x) * np.log(1 - x) / 5,
}


@pytest.mark.parametrize("name", READ)
def test_products_with_a_logarithm_are_read_as_continuous(name: str) -> None:
    f = trace(READ[name], 1, 1, [0], [1])
    whole = on(f, 0.0, 1.0)
    assert not np.isfinite(whole.low).any()
    again = without_cancelling_maxima(with_entropies(f))
    assert {"log", "xlogx"} & {node.op for node in again.nodes} >= {"xlogx"}
    found = on(again, 0.0, 1.0)
    x = np.random.default_rng(0).random((500, 1, 1)) ** 4
    with np.errstate(all="ignore"):
        values = READ[name](x)
    np.testing.assert_allclose(again(x), values, rtol=1e-12, atol=1e-12)
    assert found.low.item() <= values.min() <= values.max() <= found.high.item()
    ends = [np.full((1, 1, 1), v) for v in (0.0, 1.0, 0.5, 0.5)]
    balls = enclose_with_balls(again, *ends)
    assert balls.low.item() <= values.min() <= values.max() <= balls.high.item()
    for box in ((0.25, 0.5), (0.125, 0.1251)):  # elsewhere it is as tight as before
        a, b = on(f, *box), on(again, *box)
        assert (
            a.low.item() - 1e-12 <= b.low.item() <= b.high.item() <= a.high.item() + 1e-12
        )
        slope = (READ[name](np.array([box[1]])) - READ[name](np.array([box[0]]))).item()
        slope /= box[1] - box[0]
        assert b.slope_low.item() - 1e-9 <= slope <= b.slope_high.item() + 1e-9


def hinge(x: Any) -> Any:
    return np.maximum(x - 0.5, 0)


LEFT_ALONE: dict[str, Callable[[Any], Any]] = {
    "zero on half of the box": lambda x: (
        np.maximum(x - 0.5, 0) * np.log(np.maximum(x - 0.5, 0))
    ),
    "another argument": lambda x: x * np.log(x + x**2),
    "another factor": lambda x: (x + 1e-9) * np.log(x),
    "a logarithm alone": np.log,
    "negative on half of the box": lambda x: (x - 0.5) * np.log(x - 0.5),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_nothing_is_made_up_where_the_program_has_no_value(name: str) -> None:
    lines = _recorded(LEFT_ALONE[name])
    found = on(without_cancelling_maxima(with_entropies(lines)), 0.0, 1.0)
    assert (found.low.item(), found.high.item()) == (-math.inf, math.inf)
    if name.startswith("zero"):
        assert with_entropies(lines) == lines


def _recorded(function: Any) -> Expression:
    """The program, without the comparison that would refuse functions with nan."""
    return Expression(1, 1, *_record(function, 1, 1, batch=1)[0])


def test_a_constant_is_no_place_of_measure_zero() -> None:
    """0 log 0, with no x in it."""
    nodes = (Node("const", value=Fraction(0)), Node("log", (0,)), Node("mul", (0, 1)))
    f = Expression(1, 1, nodes, ((2,),))
    assert with_entropies(f) == f


def test_second_derivatives_of_t_log_t() -> None:
    f = Expression(1, 1, (Node("x", (0, 0)), Node("xlogx", (0,))), ((1,),))
    found = enclose_curvature(f, np.full((1, 1, 1), 0.5), np.full((1, 1, 1), 2.0))
    assert found.curve_low.item() == pytest.approx(0.5)
    assert found.curve_high.item() == pytest.approx(2)
    touching = enclose_curvature(f, np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    assert touching.curve_high.item() == math.inf
