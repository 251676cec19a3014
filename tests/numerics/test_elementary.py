"""exp, log, sin, cos, tanh: the proved bounds hold, with room, against Arb."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everyformer.numerics import elementary
from everyformer.numerics.elementary import ERROR, LARGEST, TINY

flint: Any = importlib.import_module("flint")
Function = Callable[[np.ndarray], np.ndarray]
Bounds = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

NAMES = ("exp", "log", "sin", "cos", "tanh")
APPROXIMATIONS: dict[str, Function] = {name: getattr(elementary, name) for name in NAMES}
BOUNDS: dict[str, Bounds] = {name: getattr(elementary, f"{name}_bounds") for name in NAMES}
COUNT = 7000


def neighbours(values: np.ndarray, steps: int = 2) -> np.ndarray:
    """The floats next to the given ones too."""
    found = [values]
    for side in (-np.inf, np.inf):
        moved = values
        for _ in range(steps):
            moved = np.nextafter(moved, side)
            found.append(moved)
    return np.concatenate(found)


def points(name: str) -> np.ndarray:
    """Inputs inside the range of the table, edges included."""
    rng = np.random.default_rng(1)
    tiny = np.ldexp(rng.uniform(1, 2, 600), rng.integers(-1074, -3, 600))
    tiny = np.concatenate([tiny, [0.0, TINY, 2.0**-1022, 2.0**-511, 2.0**-27]])
    signed = np.concatenate([tiny, -tiny])
    if name == "exp":
        halves = (np.arange(-1009, 1022) + 0.5) * np.log(2.0)
        edges = neighbours(np.array([-700.0, 709.0, 0.0]))
        x = [rng.uniform(-700, 709, COUNT), rng.normal(size=COUNT), neighbours(halves)]
        x += [np.clip(edges, -700, 709), signed]
    elif name == "log":
        near_one = np.concatenate([1 + signed, 1 + np.arange(-500, 500) * 2.0**-53])
        roots = np.ldexp(np.full(2000, 0.5**0.5), np.arange(-1000, 1000))
        powers = np.ldexp(1.0, np.arange(-1074, 1024))
        x = [np.ldexp(rng.uniform(1, 2, COUNT), rng.integers(-1074, 1023, COUNT))]
        x += [rng.uniform(0.5, 2, COUNT), near_one, neighbours(roots), powers]
        x += [np.array([TINY, LARGEST, 2.0**-1022])]
    elif name == "tanh":
        x = [np.abs(rng.normal(size=COUNT)), rng.uniform(0, 25, COUNT), tiny]
        x += [neighbours(np.array([20.0, 1.0])), np.array([40.0, 60.0])]
    else:
        k = np.concatenate([np.arange(-800, 800), rng.integers(-667_000, 667_000, 800)])
        x = [rng.uniform(-(2**20), 2**20, COUNT), rng.normal(size=COUNT) * 3, signed]
        x += [neighbours(k * (np.pi / 2)), neighbours((k + 0.5) * (np.pi / 2))]
        x += [np.array([2.0**20, -(2.0**20)])]
    found = np.unique(np.concatenate(x))
    return found[found > 0] if name == "log" else found


def exact(name: str, x: float) -> Any:
    """f(x) as a ball, with enough bits to tell sin x from x."""
    with flint.ctx.workprec(200 + 3 * abs(math.frexp(x)[1])):
        return getattr(flint.arb(x), name)()


def allowed(name: str, x: float, value: Any) -> Any:
    """The error that the table of `elementary` allows."""
    if name in {"exp", "log"}:
        return abs(value) * ERROR
    return flint.arb(ERROR * min(1.0, abs(x)) if name == "sin" else ERROR)


def worst_error(name: str, approximation: Function, x: np.ndarray) -> float:
    """The largest error at these points, as a part of what is allowed."""
    worst = 0.0
    with flint.ctx.workprec(200):
        for point, found in zip(x.tolist(), approximation(x).tolist(), strict=True):
            value = exact(name, point)
            error = abs(value - flint.arb(found))
            if not error.is_zero():
                worst = max(worst, float((error / allowed(name, point, value)).upper()))
    return worst


def escapes(name: str, bounds: Bounds, x: np.ndarray) -> list[float]:
    """The points whose value lies outside of the bounds."""
    low, high = bounds(x)
    assert not (np.isnan(low) | np.isnan(high)).any()
    found: list[float] = []
    for point, left, right in zip(x.tolist(), low.tolist(), high.tolist(), strict=True):
        value = exact(name, point)
        if not (flint.arb(left) <= value and value <= flint.arb(right)):
            found.append(point)
    return found


def test_there_are_enough_points() -> None:
    assert sum(len(points(name)) for name in NAMES) > 100_000


@pytest.mark.parametrize("name", NAMES)
def test_error_is_within_the_proof(name: str) -> None:
    # The proofs reach 2^-47, a quarter of ERROR; the rest is left as room.
    assert worst_error(name, APPROXIMATIONS[name], points(name)) < 1 / 4


@pytest.mark.parametrize("name", NAMES)
def test_bounds_contain_the_value(name: str) -> None:
    assert escapes(name, BOUNDS[name], points(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_close(name: str) -> None:
    x = points(name)
    low, high = BOUNDS[name](x)
    size = np.maximum(np.abs(low), np.abs(high)) if name in {"exp", "log"} else 1.0
    assert (high - low <= 5 * ERROR * size + 2 * TINY).all()


def test_bounds_beyond_the_range() -> None:
    far = np.array([-np.inf, -1e308, -746.0, -700.5, 709.5, 710.0, 1e308, np.inf])
    low, high = elementary.exp_bounds(far)
    assert low.tolist()[:4] == [0.0] * 4
    assert (high[:4] < 2.0**-1009).all()
    assert high.tolist()[4:] == [np.inf] * 4
    assert (low[4:] > 8e307).all()
    assert escapes("exp", elementary.exp_bounds, np.array([-746.0, -700.5, 709.5])) == []

    low, high = elementary.log_bounds(np.array([np.inf, 0.0, -0.0, -1.0, -np.inf, 2.0]))
    assert 709.7 < low[0] < 709.8
    assert high[0] == np.inf
    assert low.tolist()[1:5] == [-np.inf] * 4
    assert high.tolist()[1:5] == [np.inf] * 4

    for bounds in (elementary.sin_bounds, elementary.cos_bounds):
        low, high = bounds(np.array([np.inf, -np.inf, 1e300, -(2.0**20) - 1, 0.5]))
        assert low.tolist()[:4] == [-1.0] * 4
        assert high.tolist()[:4] == [1.0] * 4
        assert 0 < high[4] - low[4] < 1e-12

    low, high = elementary.tanh_bounds(np.array([-np.inf, np.inf, -1e300]))
    assert (low[[0, 2]] == -1.0).all()
    assert (high[[0, 2]] < -1 + 1e-12).all()
    assert high[1] == 1.0


def test_negative_arguments_of_tanh() -> None:
    assert escapes("tanh", elementary.tanh_bounds, -points("tanh")) == []


def test_exact_at_the_fixed_points() -> None:
    zero, one = np.array([0.0]), np.array([1.0])
    for bounds, x in (
        (elementary.sin_bounds, zero),
        (elementary.tanh_bounds, zero),
        (elementary.log_bounds, one),
    ):
        low, high = bounds(x)
        assert low[0] == high[0] == 0.0


@pytest.mark.parametrize(
    ("name", "constant", "place"),
    [("exp", "_EXP", 9), ("log", "_ATANH", 8), ("sin", "_SIN", 6), ("cos", "_COS", 6)],
)
def test_a_wrong_coefficient_is_caught(
    name: str, constant: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = list(getattr(elementary, constant))
    wrong[place] *= 1 + 1e-8
    monkeypatch.setattr(elementary, constant, wrong)
    x = points(name)[::7]
    assert worst_error(name, APPROXIMATIONS[name], x) > 1
    assert escapes(name, BOUNDS[name], x)


@pytest.mark.parametrize(
    ("name", "constant"),
    [("exp", "_LN_2_LOW"), ("log", "_LN_2_LOW"), ("sin", "_HALF_PI_LOW")],
)
def test_a_constant_that_is_cut_off_is_caught(
    name: str, constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(elementary, constant) != 0
    # pi / 2 needs its third part only for large x: leave out the second one too.
    for part in {constant, constant.replace("HALF_PI_LOW", "HALF_PI_MIDDLE")}:
        monkeypatch.setattr(elementary, part, 0.0)
    assert escapes(name, BOUNDS[name], points(name)[::7])


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_bound_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementary, "_WIDEN", 2.0**-55)
    assert escapes(name, BOUNDS[name], points(name)[::7])


def test_constants_are_right() -> None:
    with flint.ctx.workprec(300):
        for ours, true in (("_LN_2", flint.arb(2).log()), ("_HALF_PI", flint.arb.pi() / 2)):
            value = getattr(elementary, ours)
            ball = flint.arb(flint.fmpq(value.numerator, value.denominator))
            assert abs(ball - true) < flint.arb(2) ** -160
