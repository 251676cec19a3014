"""What the weights compute on every cell, against the network itself."""

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.plans import table_of

import everyformer as ef
from everyformer.certify.shifts.lookup import read_windows
from everyformer.certify.shifts.reading import (
    ShiftReading,
    Values,
    clamp_rounding,
    read_network,
    realise,
)
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights, read_weights, to_fractions
from everyformer.errors import CertificateError
from everyformer.model.network import Network
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.numerics.rationals import exact_array
from everyformer.targets.gallery import GALLERY
from everyformer.targets.target import Target

flint: Any = importlib.import_module("flint")

ONE = ((0.0, 1.0),)
WIDE = ((-2.0, 5.0),)

Case = tuple[str, int, int, int, bool | None, bool]
CASES: dict[str, Case] = {  # target, n, d, K, positional, softened
    "Theorem 2": ("soft_attention", 2, 1, 8, None, True),
    "Theorem 2, three tokens": ("smooth_rank", 3, 1, 4, None, True),
    "Theorem 2, four tokens": ("centring", 4, 1, 4, None, True),
    "Theorem 2, two coordinates": ("distance_to_maximum", 2, 2, 2, None, True),
    "Theorem 2, one token": ("smooth_bump", 1, 2, 4, None, True),
    "Theorem 3": ("prefix_mean", 2, 1, 8, None, True),
    "Theorem 3, three tokens": ("sort", 3, 1, 4, None, True),
    "Theorem 3, two coordinates": ("reverse", 2, 2, 2, None, True),
    "Theorem 3 of a symmetric target": ("soft_attention", 2, 1, 4, True, True),
    "rational, Theorem 2": ("soft_attention", 2, 1, 5, None, False),
    "rational, three tokens": ("centring", 3, 1, 4, None, False),
    "rational, two coordinates": ("smooth_rank", 2, 2, 2, None, False),
    "rational, Theorem 3": ("shift", 2, 1, 3, None, False),
}


@cache
def built(name: str) -> tuple[ef.Built, Target]:
    target_name, n, d, K, positional, softened = CASES[name]
    target = GALLERY[target_name](n, d)
    made = ef.construct(
        target, grid=K, method=ef.SelectiveShifts(positional=positional, softened=softened)
    )
    return made, target


def stored(network: Network) -> Weights:
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "n")
        return read_weights(Path(folder) / "n")


def representatives(reading: ShiftReading) -> np.ndarray:
    grid = reading.grid
    if reading.positional:
        return grid.all_sequences()
    return np.concatenate([grid.distinct_sets(), grid.repeated_multisets()])


def reading_of(network: Network, target: Target, K: int) -> ShiftReading:
    return read_network(stored(network), target.domain, K)


@cache
def reading(name: str) -> ShiftReading:
    made, target = built(name)
    return reading_of(made.network, target, made.plan.cells)


def exceeds(values: Values, states: np.ndarray) -> bool:
    """Whether a state lies farther from its centre than the radius allows, exactly."""
    off = np.abs(to_fractions(values.centre) - to_fractions(states))
    return bool((off > to_fractions(values.radius)).any())


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][-1]])
def test_all_cells_of_float64_networks(name: str) -> None:
    """The float64 run at every centre; with copies of tokens, within the radius."""
    made, _ = built(name)
    found = reading(name)
    rows = representatives(found)
    states = made.network(found.grid.centres(rows), executor="reference")
    values = realise(found, rows, "float64")
    assert not exceeds(values, states)
    real = realise(found, rows, "real")
    assert (real.centre == values.centre).all()
    assert real.radius.max() <= 1e-9
    distinct = np.array([len(set(row)) == len(row) for row in rows.tolist()])
    if found.positional or found.grid.seq_len < 3:
        assert not values.radius.any()
    else:
        assert not values.radius[distinct].any()
    table = {
        tuple(r): v
        for r, v in zip(table_of(made).columns.tolist(), table_of(made).values, strict=True)
    }
    for row, centre in zip(rows.tolist(), real.centre, strict=True):
        assert np.abs(centre - table.get(tuple(row), 0.0)).max() <= 1e-9


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name][-1]])
def test_all_cells_of_rational_networks(name: str) -> None:
    made, _ = built(name)
    found = reading(name)
    rows = representatives(found)
    digits = found.grid.digits(rows)
    centres = (2 * digits.astype(object) + 1) * Fraction(1, 2 * found.grid.cells)
    values = realise(found, rows, "real")
    assert values.centre.dtype == object
    assert not values.radius.any()
    assert (values.centre == made.network.exact(centres)).all()


@pytest.mark.parametrize("positional", [False, True])
def test_boxes_and_points_beside_the_centres(positional: bool) -> None:
    """On [-2, 5], anywhere on a plateau: the value is that of the cell."""
    target = Target(
        lambda x: np.sin(x) - x.mean(-2, keepdims=True),
        2,
        1,
        lipschitz=3,
        equivariant=True,
        domain=WIDE,
    )
    network = ef.construct(
        target, grid=4, method=ef.SelectiveShifts(positional=positional)
    ).network
    found = reading_of(network, target, 4)
    rows = representatives(found)
    values = realise(found, rows, "float64")
    rng = np.random.default_rng(0)
    for _ in range(10):
        inside = rng.uniform(1e-6, 1 - 1e-6, size=(*rows.shape, 1))
        x = -2 + 7 * (found.grid.digits(rows) + inside) / 4
        assert not exceeds(values, network(x, executor="reference"))


def arb(value: Any) -> Any:
    exact = Fraction(value)
    return flint.arb(flint.fmpq(exact.numerator, exact.denominator))


def in_balls(weights: Weights, state: np.ndarray, skip: int) -> list[list[Any]]:
    """A softmax network after its first stages, on one sequence of exact tokens."""
    z = [[arb(v) for v in token] for token in state]
    for stage in weights.stages[skip:]:
        for k in range(stage.layers):
            layer = {
                name: np.frompyfunc(arb, 1, 1)(array)
                for name, array in stage.layer(k).items()
            }
            step = _attention if stage.half == "attention" else _feed_forward
            z = [
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in zip(z, step(layer, z), strict=True)
            ]
    return z


def _dot(row: Any, token: list[Any]) -> Any:
    return sum((a * b for a, b in zip(row, token, strict=True)), flint.arb(0))


def _attention(layer: dict[str, np.ndarray], z: list[list[Any]]) -> list[list[Any]]:
    update = [[flint.arb(0) for _ in token] for token in z]
    for h in range(len(layer["W_Q"])):
        query, key, value = (
            [_dot(layer[name][h, 0], token) for token in z]
            for name in ("W_Q", "W_K", "W_V")
        )
        for j, q in enumerate(query):
            scores = [(q - layer["b_Q"][h, 0]) * k for k in key]
            highest = max(float(s.mid()) for s in scores)
            powers = [(s - highest).exp() for s in scores]
            mean = _dot(powers, value) / sum(powers, flint.arb(0))
            for i in range(len(z[0])):
                update[j][i] += layer["W_O"][h, i, 0] * mean
    return update


def _feed_forward(layer: dict[str, np.ndarray], z: list[list[Any]]) -> list[list[Any]]:
    result: list[list[Any]] = []
    for token in z:
        seen = [
            _dot(row, token) + b for row, b in zip(layer["W_1"], layer["b_1"], strict=True)
        ]
        hidden = [s if s > 0 else flint.arb(0) if s < 0 else s.max(0) for s in seen]
        result.append(
            [
                _dot(row, hidden) + b
                for row, b in zip(layer["W_2"], layer["b_2"], strict=True)
            ]
        )
    return result


def softer(network: Network, divisor: float) -> Network:
    """The network with a smaller lambda."""
    return network.with_arrays(
        {k: a / divisor if k.endswith("W_K") else a for k, a in network.arrays()}
    )


@pytest.mark.parametrize("theorem", ["Theorem 2, two coordinates", "Theorem 3"])
@pytest.mark.parametrize("divisor", [1.0, 60.0])
def test_the_whole_network_in_balls(theorem: str, divisor: float) -> None:
    """Real arithmetic to the end: the value map forgives what softmax adds to the ids."""
    made, target = built(theorem)
    K = made.plan.cells
    weights = stored(softer(made.network, divisor))
    found = read_network(weights, target.domain, K)
    rows = representatives(found)
    values = realise(found, rows, "real")
    digits = found.grid.digits(rows)
    n, d = digits.shape[1:]
    with flint.ctx.workprec(2500):
        for index in Random(3).sample(range(len(rows)), 3):
            state = found.plateaus.values[
                np.arange(n)[:, None], np.arange(d), digits[index]
            ]
            z = in_balls(weights, state, found.plateaus.stages)
            for (j, i), centre in np.ndenumerate(values.centre[index]):
                off = abs(z[j][i] - arb(centre))
                assert off <= arb(values.radius[index, j, i]) + arb(Fraction(1, 2**2000))


@pytest.mark.parametrize("name", ["Theorem 2, three tokens", "Theorem 3"])
@pytest.mark.parametrize("divisor", [20.0, 36.0, 50.0])
def test_float64_runs_of_softer_networks(name: str, divisor: float) -> None:
    """Where a token is rounded and lost, its radius is the range of the clamp."""
    made, target = built(name)
    network = softer(made.network, divisor)
    found = reading_of(network, target, made.plan.cells)
    rows = representatives(found)
    values = realise(found, rows, "float64")
    states = network(found.grid.centres(rows), executor="reference")
    assert not exceeds(values, states)
    assert values.radius.max() <= found.spread.max()


def changed(weights: Weights, name: str, arrays: dict[str, Any]) -> Weights:
    stages = [
        replace(s, arrays={**s.arrays, **arrays}) if s.name == name else s
        for s in weights.stages
    ]
    return replace(weights, stages=tuple(stages))


def test_a_changed_table_is_read() -> None:
    """The control: values come from the weights, not from what was meant."""
    made, target = built("Theorem 3")
    weights, K = stored(made.network), made.plan.cells
    stage = next(s for s in weights.stages if s.name == "value map")
    W_2 = stage.arrays["W_2"].copy()
    W_2[7] *= 1 + 2.0**-20
    found = read_network(changed(weights, "value map", {"W_2": W_2}), target.domain, K)
    rows = representatives(found)
    before = realise(reading("Theorem 3"), rows, "real").centre
    after = realise(found, rows, "real").centre
    assert (before != after).sum() == 1
    index = [s.name for s in weights.stages].index("value map")
    arrays = {**dict(made.network.arrays()), f"stages.{index}.feed_forward.W_2": W_2}
    states = made.network.with_arrays(arrays)(
        found.grid.centres(rows), executor="reference"
    )
    assert not exceeds(realise(found, rows, "float64"), states)


def test_where_the_clamp_keeps_the_output() -> None:
    made, target = built("Theorem 3, two coordinates")
    found = reading("Theorem 3, two coordinates")
    values = table_of(made).values.reshape(-1, 2)
    lows, highs = values.min(axis=0).tolist(), values.max(axis=0).tolist()
    assert found.ranges == tuple(zip(lows, highs, strict=True))
    assert found.clamps_twice
    assert (found.spread >= np.subtract(highs, lows)).all()
    assert found.spread.max() <= max(highs) - min(lows) + 1e-9
    weights = stored(made.network)
    unclamped = replace(weights, stages=weights.stages[:-1])
    free = read_network(unclamped, target.domain, made.plan.cells)
    assert free.ranges == ((None, None),) * 2
    assert not free.clamps_twice
    assert np.isinf(free.spread).all()
    last = weights.stages[-1]
    once = replace(last, arrays={k: v[:2] for k, v in last.arrays.items()})
    single = replace(weights, stages=(*weights.stages[:-1], once))
    assert not read_network(single, target.domain, made.plan.cells).clamps_twice


def test_two_clamps_of_float64_stay_in_the_range() -> None:
    """From anywhere up to 2^1000, within what `clamp_rounding` allows."""
    rng = np.random.default_rng(5)
    for low, high in ((-0.3, 0.7), (0.1, 0.1000001), (-5.0, -3.25), (0.0, 1.0)):
        t = rng.uniform(-1, 1, 4000) * 2.0 ** rng.integers(-60, 1000, 4000)
        for _ in range(2):
            t = t + (np.maximum(low - t, 0.0) - np.maximum(t - high, 0.0))
        slack = clamp_rounding(Fraction(low), Fraction(high))
        assert Fraction(t.max()) <= Fraction(high) + slack or t.max() == 0
        assert Fraction(t.min()) >= Fraction(low) - slack or t.min() == 0


def moved_window(stage: StageWeights) -> dict[str, Any]:
    """A window with room above it, moved up: its token lies on its ramp."""
    windows = read_windows(stage)
    room = windows.low_out[1:] - windows.high_out[:-1]
    b_1 = stage.arrays["b_1"].copy()
    b_1[windows.layer[np.argmax(room)]] -= 0.375 / 8
    return {"b_1": b_1}


def no_window(stage: StageWeights) -> dict[str, Any]:
    W_1 = stage.arrays["W_1"].copy()
    W_1[5, 2] *= 2
    return {"W_1": W_1}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("ids to codes", moved_window, "neither on the plateau"),
        ("value map", no_window, "layer 5 is not a window"),
    ],
)
def test_damaged_windows_are_undecided(
    name: str, change: Callable[[StageWeights], dict[str, Any]], words: str
) -> None:
    made, target = built("Theorem 3")
    weights = stored(made.network)
    stage = next(s for s in weights.stages if s.name == name)
    assert stage.layers > 64
    damaged = changed(weights, name, change(stage))
    rows = representatives(reading("Theorem 3"))
    with pytest.raises(Undecided, match=words) as caught:
        realise(read_network(damaged, target.domain, made.plan.cells), rows, "real")
    assert caught.value.stage == name


def test_attention_after_the_value_map_is_undecided() -> None:
    made, target = built("Theorem 3")
    weights = stored(made.network)
    attention = next(s for s in weights.stages if s.half == "attention")
    later = replace(weights, stages=(*weights.stages, attention))
    found = read_network(later, target.domain, made.plan.cells)
    with pytest.raises(Undecided, match="attention comes after") as caught:
        realise(found, representatives(found), "real")
    assert caught.value.stage == attention.name


def test_a_float64_run_without_a_clamp_is_undecided() -> None:
    """Lost tokens are somewhere in the clamp's range; without a clamp, anywhere."""
    made, target = built("Theorem 3")
    weights = stored(softer(made.network, 36.0))
    free = replace(weights, stages=weights.stages[:-1])
    found = read_network(free, target.domain, made.plan.cells)
    with pytest.raises(Undecided, match="nothing bounds the output"):
        realise(found, representatives(found), "float64")


def test_rational_weights_with_relus() -> None:
    """A clamp by four ReLUs, two of them idle, after a rational network."""
    made, target = built("rational, Theorem 3")
    network, K = made.network, made.plan.cells
    stack = FeedForwardStack(
        W_1=exact_array([[[1], [-1], [0], [0]]]),
        b_1=exact_array([[Fraction(-1, 2), 0, 0, 0]]),
        W_2=exact_array([[[-1, 1, 0, 0]]]),
        b_2=exact_array([[0]]),
    )
    clamp = Stage("clamp", "here", feed_forward=stack)
    longer = replace(network, stages=(*network.stages, clamp), construction=None)
    try:
        found = reading_of(longer, target, K)
    except (CertificateError, Undecided):
        return  # refused is as good as right
    rows = representatives(found)
    values = realise(found, rows, "real").centre
    free = realise(reading("rational, Theorem 3"), rows, "real").centre
    half = Fraction(1, 2)
    clipped = [min(max(value, Fraction(0)), half) for value in free.flat]
    assert list(values.flat) == clipped
    assert found.ranges == ((0, half),)
