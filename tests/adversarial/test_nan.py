"""nan and infinity where bounds are made: no check passes, no bound gets smaller."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.adversarial.register_drafts import Draft, built

from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import Cells, sum_up
from everyformer.certify.on_cells.distances import mean_distance
from everyformer.certify.on_cells.modulus import contradiction
from everyformer.certify.on_cells.moments import (
    mean_of_line,
    mean_of_sizes,
    power,
    power_down,
)
from everyformer.certify.on_cells.values import Mode, Values
from everyformer.certify.overflow import LIMIT, after_attention, after_feed_forward
from everyformer.certify.partition.local import power_sum
from everyformer.certify.register_stages import (
    Exact,
    Layer,
    Mean,
    add_mean,
    add_ridges,
    read_stage,
)
from everyformer.certify.rounding import sums_exactly
from everyformer.certify.shifts.context import Ids, run_attention, to_real
from everyformer.certify.shifts.layers import Tokens, run_layer
from everyformer.certify.shifts.lookup import look_up, read_windows
from everyformer.certify.shifts.piecewise import layer_function
from everyformer.certify.undecided import Undecided, require_finite
from everyformer.certify.weights import StageWeights
from everyformer.errors import CertificateError
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.enclosure import Enclosure, enclose
from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.targets.box import Box, Grid

NAN, INF = math.nan, math.inf
BROKEN = (NAN, INF)
MODES: tuple[Mode, ...] = ("real", "float64")
EXPONENTS = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(7, 3), Fraction(5))


@pytest.mark.parametrize("p", EXPONENTS)
def test_powers(p: Fraction) -> None:
    base = np.array([0.0, NAN, INF, -1.0, 0.5])
    up, down = power(base, p), power_down(base, p)
    assert up[0] == 0
    assert not np.isfinite(up[1:4]).any()
    assert up[4] >= 0.5 ** float(p) >= down[4] > 0
    assert (down[:4] == 0).all()


@pytest.mark.parametrize("broken", [NAN, INF])
def test_means(broken: float) -> None:
    line, steps = np.array([broken]), np.array([[1.0, broken]])
    one, plain = np.ones(1), np.ones((1, 2))
    for q in (2, 16):
        with np.errstate(invalid="ignore"):
            found = [
                mean_of_line(line, plain, q),
                mean_of_line(one, steps, q),
                mean_of_sizes(steps, q),
            ]
        assert not np.isfinite(found).any()


def test_the_mean_distance_uses_no_broken_enclosure() -> None:
    """With nan in one of its arrays the distance is that without it, or not finite."""
    ends, slope = np.zeros((1, 1, 1)), np.ones((1, 1, 1, 1, 1))
    whole = Enclosure(ends, ends + 1, ends + 0.5, ends + 0.5, slope, slope)
    g = np.zeros((1, 1, 1))
    for field in fields(Enclosure):
        nothing = np.full_like(getattr(whole, field.name), NAN)
        broken = replace(whole, **{field.name: nothing})
        with np.errstate(invalid="ignore"):
            found = mean_distance(broken, ends + 0.125, Fraction(2), g)[0].item()
        assert found >= 1 or not math.isfinite(found), field.name


@pytest.mark.parametrize("broken", BROKEN)
def test_sums_and_values_are_finite_or_undecided(broken: float) -> None:
    good, bad = np.ones((1, 1, 1)), np.full((1, 1, 1), broken)
    attacks: list[Callable[[], Any]] = [
        lambda: sum_up(bad.ravel()),
        lambda: power_sum(bad, None),
        lambda: power_sum(bad, Fraction(2)),
        lambda: Values(bad, good),
        lambda: Values(good, bad),
        lambda: Values(good, -good),
        lambda: require_finite("here", "a number", good, broken),
    ]
    for attack in attacks:
        with pytest.raises(Undecided):
            attack()
    require_finite("here", "numbers", good, np.array([10**400, Fraction(1, 3)], object))


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_values_of_f_are_finite_or_refused(broken: float) -> None:
    grid = Grid(4, 1, Box.per_coordinate([(0.0, 1.0)], 1))
    values = np.array([0.0, broken, 0.0, 9.0]).reshape(4, 1, 1)
    with pytest.raises(CertificateError, match="not finite"):
        Declared(values, Fraction(1), None, Fraction(1, 8))
    with pytest.raises(CertificateError, match="not finite"):
        contradiction(Cells(grid, None), values, {1: Fraction(1)})


def test_sums_that_are_not_numbers_are_not_exact() -> None:
    terms = np.array([[1.0, NAN], [1.0, INF], [INF, -INF], [1.0, 2.0]])
    found = sums_exactly(terms, np.zeros(terms.shape, dtype=np.int64))
    assert found.tolist() == [False, False, False, True]


def attention(w: int = 1) -> StageWeights:
    one = np.ones((1, 1, 1, w))
    arrays = {"W_Q": one, "W_K": one * 2.0**20, "W_V": one, "W_O": np.ones((1, 1, w, 1))}
    return StageWeights("attention", "attention", {**arrays, "b_Q": np.zeros((1, 1, 1))})


def window() -> StageWeights:
    """1 on [1, 2], 0 outside of [0.5, 2.5]."""
    knots = np.array([[0.5, 1.0, 2.0, 2.5]])
    W_2 = 2 * np.array([[[1.0, -1.0, -1.0, 1.0]]])
    arrays = {"W_1": np.ones((1, 4, 1)), "b_1": -knots, "W_2": W_2}
    return StageWeights("window", "feed_forward", {**arrays, "b_2": np.zeros((1, 1))})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("broken", BROKEN)
def test_states_of_unknown_error_are_undecided(broken: float, mode: Mode) -> None:
    """Or their error stays what it is, which `Values` refuses."""
    numbers, first = np.array([[[1], [2]]]), np.ones((1, 2), dtype=bool)
    ids = Ids(numbers, 1, first, np.zeros((1, 2, 1)), mode)
    assert np.isfinite(run_attention(attention(), ids, softmax=True).error).all()
    bad = replace(ids, error=np.full((1, 2, 1), broken))
    assert not np.isfinite(to_real(bad.error)).any()
    with pytest.raises(Undecided), np.errstate(invalid="ignore"):
        run_attention(attention(), bad, softmax=True)
    tokens = Tokens(np.array([[1.5]]), np.array([[broken]]), mode, np.zeros(1, dtype=bool))
    function = layer_function(window().layer(0))
    assert function is not None
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(run_layer("", "", function, tokens).radius).any()
        try:
            found = look_up("", read_windows(window()), tokens)
        except Undecided:
            return
        assert found.lost.all()  # of a float64 run nothing is known any more


@pytest.mark.parametrize("broken", BROKEN)
def test_reach_of_unknown_states(broken: float) -> None:
    with np.errstate(all="ignore"):
        assert not after_feed_forward(window(), broken) <= LIMIT
        assert not after_attention(attention(), broken, 2) <= LIMIT
        large = window()
        large.arrays["W_1"][:] = 1e308
        large.arrays["W_2"][:] = 0.0
        assert not after_feed_forward(large, 1.0) <= LIMIT


def states(broken: float) -> Iterator[tuple[Layer | Mean, Exact]]:
    """Stages of an averaging network after the first, and registers of unknown error."""
    draft = Draft.of(built().network)
    n, w = draft.start.shape
    for part in draft.parts[1:]:
        stage = StageWeights("stage", part.half, part.arrays)
        error = np.full((1, n, w), broken)
        numbers = np.zeros((1, n, w), dtype=np.int64)
        yield read_stage(stage, n), Exact(numbers, 1, error)


@pytest.mark.parametrize("broken", BROKEN)
def test_registers_of_unknown_error_are_undecided(broken: float) -> None:
    for stage, state in states(broken):
        inputs = np.zeros(state.numbers.shape[-1], dtype=bool)
        follow: Any = add_mean if isinstance(stage, Mean) else add_ridges
        with pytest.raises(Undecided), np.errstate(invalid="ignore"):
            follow(stage, state, inputs, "float64")


@pytest.mark.parametrize("broken", BROKEN)
def test_a_ridge_is_not_flat_around_nothing(broken: float) -> None:
    stage = read_stage(window(), 1)
    assert isinstance(stage, Layer)
    ridge = stage.ridges[0]
    low, high = np.array([3.0, 3.0, broken]), np.array([3.5, broken, broken])
    assert ridge.flat(low, high)[0]
    assert not ridge.flat(low, np.where(np.isnan(high), NAN, -INF))[1:].any()
    with np.errstate(invalid="ignore"):
        found = ridge.rounding(np.array([broken]), np.array([broken]), 1)
    assert not np.isfinite(found).any()


def operations(on: Any, box: Any) -> dict[str, Callable[[Any], Any]]:
    """All operations of an expression, with constants and a box as other operands."""
    names = ("neg", "abs", "exp", "log", "sqrt", "tanh", "sin", "cos")
    found: dict[str, Callable[[Any], Any]] = {name: getattr(on, name) for name in names}
    for k in (0, 1, 2, 3, -1, -2):
        found[f"pow {k}"] = lambda a, k=k: on.pow(a, k)
    others = {"0": on.constant(Fraction(0)), "1": on.constant(Fraction(1)), "box": box}
    for name, key in product(("add", "sub", "mul", "div", "min", "max"), others):
        call, other = getattr(on, name), others[key]
        found[f"{name} {key}"] = lambda a, call=call, other=other: call(a, other)
        found[f"{key} {name}"] = lambda a, call=call, other=other: call(other, a)
    return found


LAST = ("sin", "cos", "tanh", "exp", "log", "pow 0", "max 0", "mul 0")
"""Operations whose results are bounded, or whose domain is not everything."""

ENDS = [(-INF, INF), (NAN, 2.0), (2.0, NAN), (NAN, NAN), (NAN, INF), (-INF, NAN)]


@pytest.mark.parametrize("ends", ENDS)
def test_intervals_of_nothing_stay_so(ends: tuple[float, float]) -> None:
    """Through any operation and one of the last; the intervals beside them are known."""
    box = Interval(np.array([[-1.0, 2.0, 0.0]]), np.array([[1.0, 3.0, 0.0]]))
    start = Interval(np.array([[1.0, ends[0], 0.5]]), np.array([[2.0, ends[1], 0.5]]))
    calls = operations(IntervalArithmetic(), box)
    for first, second in product(calls, LAST):
        with np.errstate(all="ignore"):
            found = calls[second](calls[first](start))
        low, high = (np.broadcast_to(end, (1, 3))[0, 1] for end in (found.low, found.high))
        nothing = np.isnan(low) or np.isnan(high) or (low == -INF and high == INF)
        assert nothing, (first, second)


def test_balls_of_nothing_stay_so() -> None:
    balls = BallArithmetic()
    calls = operations(balls, balls.box(-1.0, 1.0))
    unknown = [balls.box(NAN, 1.0), balls.box(-INF, INF), balls.box(0.0, NAN)]
    for start, first, second in product(unknown, calls, LAST):
        found = calls[second](calls[first](start))
        assert balls.ends(found) == (-INF, INF), (first, second)


@pytest.mark.parametrize("op", ["sin", "cos", "tanh", "exp"])
def test_functions_on_boxes_that_are_none(op: str) -> None:
    expression = Expression(1, 1, (Node("x", (0, 0)), Node(op, (0,))), ((1,),))
    box = np.array([0.0, NAN, INF]).reshape(3, 1, 1)
    found = enclose(expression, box, box, box, box)
    assert np.isfinite([found.low[0], found.high[0]]).all()
    assert (found.low[1:] == -INF).all()
    assert (found.high[1:] == INF).all()
