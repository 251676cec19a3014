"""A layer as a function of one number, against the layer itself in exact rationals."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import table_of

import everyformer as ef
from everyformer.certify.shifts.piecewise import (
    LayerFunction,
    clamp_of,
    clamped_range,
    image,
    layer_function,
)

Layer = dict[str, np.ndarray]
Vector = tuple[Fraction, ...]

ZERO, ONE = Fraction(0), Fraction(1)

NEAR = Fraction(1, 2**40)

seeds = st.integers(0, 2**32)
"""Examples are made from a seed: drawn number by number they take ten times longer."""


def array(values: Any, *shape: int) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    result[:] = [Fraction(value) for value in values]
    return result.reshape(shape)


def small(rng: Random) -> Fraction:
    return Fraction(rng.randint(-12, 12), rng.randint(1, 6)) if rng.random() < 0.9 else ZERO


def smalls(rng: Random, count: int) -> list[Fraction]:
    return [small(rng) for _ in range(count)]


def make_layer(rng: Random, d: int, coordinate: int | None = None) -> Layer:
    """Layers of ReLUs or of Phi whose rows are multiples of one row, 0 times it included.

    With a coordinate given, they read and write it alone.
    """
    r = rng.randint(1, 4)
    only = [Fraction(coordinate in (None, i)) for i in range(d)]
    w = [a * (small(rng) or ONE) for a in only]
    columns = [[a * small(rng) for a in only] for _ in range(r)]
    layer = {
        "W_1": array([m * v for m in smalls(rng, r) for v in w], r, d),
        "b_1": array(smalls(rng, r), r),
        "W_2": array([column[i] for i in range(d) for column in columns], d, r),
        "b_2": array([a * small(rng) for a in only], d),
    }
    if rng.random() < 0.5:
        starts = smalls(rng, r)
        breaks = [end for a in starts for end in (a, a + Fraction(rng.randint(1, 4), 2))]
        layer |= {
            "phi.breaks": array(breaks, r, 2),
            "phi.closed": np.array([rng.random() < 0.5 for _ in breaks]).reshape(r, 2),
            "phi.slopes": array(smalls(rng, 3 * r), r, 3),
            "phi.intercepts": array(smalls(rng, 3 * r), r, 3),
        }
    return layer


def activation(layer: Layer, k: int, s: Fraction) -> Fraction:
    """What hidden unit k makes of its input."""
    if "phi.breaks" not in layer:
        return max(s, Fraction(0))
    piece = 0
    for side in (0, 1):
        end = layer["phi.breaks"][k, side]
        if s > end or (s == end and not layer["phi.closed"][k, side]):
            piece = side + 1
    return layer["phi.slopes"][k, piece] * s + layer["phi.intercepts"][k, piece]


def literal(layer: Layer, z: Vector) -> Vector:
    """z + W_2 phi(W_1 z + b_1) + b_2, term by term."""
    result = [a + b for a, b in zip(z, layer["b_2"], strict=True)]
    for k, row in enumerate(layer["W_1"]):
        s = sum((a * b for a, b in zip(row, z, strict=True)), start=ZERO)
        h = activation(layer, k, s + layer["b_1"][k])
        result = [a + b * h for a, b in zip(result, layer["W_2"][:, k], strict=True)]
    return tuple(result)


def changes(layer: Layer, w: Vector) -> list[Fraction]:
    """Where a hidden unit bends or jumps, in terms of t = w^T z."""
    place = next((i for i, entry in enumerate(w) if entry), None)
    found: set[Fraction] = set()
    for k, row in enumerate(layer["W_1"]):
        if place is None or not row[place]:
            continue
        ends = layer["phi.breaks"][k] if "phi.breaks" in layer else [Fraction(0)]
        found |= {(end - layer["b_1"][k]) * w[place] / row[place] for end in ends}
    return sorted(found)


def points(layer: Layer, w: Vector, start: Vector) -> Iterator[Vector]:
    """Tokens at, beside and between all changes, and far outside, on a line along w."""
    length = sum(a * a for a in w)
    if not length:
        yield start
        return
    at = changes(layer, w) or [Fraction(0)]
    places = [*at, *((a + b) / 2 for a, b in pairwise(at))]
    places += [t + side * step for t in at for side in (1, -1) for step in (NEAR, 10**6)]
    seen = sum(a * b for a, b in zip(w, start, strict=True))
    for t in places:
        yield tuple(z + a * (t - seen) / length for z, a in zip(start, w, strict=True))


def from_function(function: LayerFunction, z: Vector) -> Vector:
    t = sum((a * b for a, b in zip(function.direction, z, strict=True)), Fraction(0))
    return tuple(a + b for a, b in zip(z, function.value(t), strict=True))


@settings(deadline=None, max_examples=80)
@given(seeds)
def test_the_function_is_the_layer(seed: int) -> None:
    rng = Random(seed)
    d = rng.randint(1, 3)
    layer = make_layer(rng, d)
    function = layer_function(layer)
    assert function is not None
    z = tuple(smalls(rng, d))
    for point in points(layer, function.direction, z):
        assert from_function(function, point) == literal(layer, point)


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_breaks_are_where_it_bends_or_jumps(seed: int) -> None:
    layer = make_layer(Random(seed), 1)
    function = layer_function(layer)
    assert function is not None
    breaks, w = function.breaks, function.direction[0]
    assert list(breaks) == sorted(set(breaks))
    assert set(breaks) <= set(changes(layer, function.direction))
    for k, c in enumerate(breaks):
        room = min([NEAR, *(abs(c - b) / 4 for b in breaks if b != c)])
        before, after = (
            [literal(layer, ((c + side * step * room) / w,))[0] for step in (1, 2)]
            for side in (-1, 1)
        )
        limits = [2 * side[0] - side[1] for side in (before, after)]
        here = literal(layer, (c / w,))[0]
        continuous = limits == [here, here]
        assert function.is_continuous_at(k) == continuous
        bends = after[1] - after[0] != before[0] - before[1]
        assert bends or not continuous


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_pieces_of_an_interval(seed: int) -> None:
    rng = Random(seed)
    function = layer_function(make_layer(rng, 2))
    assert function is not None
    places = [*smalls(rng, 2), *function.breaks]
    low, high = sorted(rng.choices(places, k=2))
    high += rng.choice([NEAR, ONE])
    ends = [None, *function.breaks, None]
    meets = [
        k
        for k, (left, right) in enumerate(pairwise(ends))
        if (left is None or left < high) and (right is None or right > low)
    ]
    assert list(function.pieces(low, high)) == meets


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_two_directions_are_no_function_of_one_number(seed: int) -> None:
    """The control: one row turned aside, and there is no such function."""
    layer = make_layer(Random(seed), 2)
    r = len(layer["b_1"])
    turned = {**layer, "W_1": np.concatenate([layer["W_1"], array([1, 0, 1, 7], 2, 2)])}
    turned["b_1"] = np.concatenate([layer["b_1"], array([0, 0], 2)])
    turned["W_2"] = np.concatenate([layer["W_2"], array([0, 1, 1, 1], 2, 2)], axis=1)
    for name in ("breaks", "closed", "slopes", "intercepts"):
        if f"phi.{name}" in layer:
            first = layer[f"phi.{name}"][[0, 0]]
            turned[f"phi.{name}"] = np.concatenate([layer[f"phi.{name}"], first])
    assert len(turned["W_1"]) == r + 2
    assert layer_function(turned) is None


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_coordinates(seed: int) -> None:
    rng = Random(seed)
    d = rng.randint(1, 3)
    i = rng.randrange(d)
    function = layer_function(make_layer(rng, d, i))
    assert function is not None
    assert function.coordinate in (i, 0)
    if function.coordinate != i:
        assert not any(function.direction)
        assert not any(map(any, (*function.slopes, *function.offsets)))


MIXING = {
    "reads two": ([[1, 1]], [[1], [0]], [0, 0]),
    "writes another": ([[1, 0]], [[0], [1]], [0, 0]),
    "writes two": ([[0, 1]], [[1], [1]], [0, 0]),
    "shifts another": ([[1, 0]], [[1], [0]], [0, 2]),
    "shifts two": ([[0, 0]], [[0], [0]], [3, 2]),
}


@pytest.mark.parametrize("name", MIXING)
def test_layers_that_mix_coordinates(name: str) -> None:
    W_1, W_2, b_2 = (np.array(part, dtype=float) for part in MIXING[name])
    layer = {"W_1": W_1, "b_1": np.array([-1.0]), "W_2": W_2, "b_2": b_2}
    function = layer_function(layer)
    assert function is not None
    assert function.coordinate is None
    assert clamped_range([function], 2) is None


def test_a_write_at_a_single_point_is_seen() -> None:
    """Two steps that differ at their break alone: 0 on both sides of it, -1 at it."""
    layer = {
        "W_1": array([1, 0, 1, 0], 2, 2),
        "b_1": array([0, 0], 2),
        "W_2": array([0, 0, 1, -1], 2, 2),
        "b_2": array([0, 0], 2),
        "phi.breaks": array([0, 9, 0, 9], 2, 2),
        "phi.closed": np.array([[True, True], [False, True]]),
        "phi.slopes": array([0] * 6, 2, 3),
        "phi.intercepts": array([0, 1, 0, 0, 1, 0], 2, 3),
    }
    function = layer_function(layer)
    assert function is not None
    assert literal(layer, (Fraction(0), Fraction(5))) == (0, 4)
    assert from_function(function, (Fraction(0), Fraction(5))) == (0, 4)
    assert function.coordinate is None  # reads the first, writes the second


def range_of(layer: Layer, low: Fraction | None, high: Fraction | None) -> list[Fraction]:
    """Values of z -> z + psi(z) at, beside and between all changes inside [low, high]."""
    w = next((row for row in layer["W_1"] if any(row)), [ONE])[0]
    far = Fraction(10**6)
    start, end = -far if low is None else low, far if high is None else high
    at = [t / w for t in changes(layer, (w,))]
    inside = [z + side * NEAR for z in at for side in (-1, 0, 1)]
    return [literal(layer, (z,))[0] for z in [start, end, *inside] if start <= z <= end]


@settings(deadline=None, max_examples=80)
@given(seeds)
def test_the_image_is_the_range(seed: int) -> None:
    """It holds every value, and every end of it is a value, up to the width of NEAR."""
    rng = Random(seed)
    layer = make_layer(rng, 1)
    low, high = sorted(Fraction(rng.randint(-9, 9)) + Fraction(1, 97) for _ in range(2))
    ends = rng.choice([(None, None), (low, None), (None, high), (low, high)])
    function = layer_function(layer)
    assert function is not None
    values = range_of(layer, *ends)
    found = image(function, 0, *ends)
    for end, extreme, sign in ((found[0], min(values), 1), (found[1], max(values), -1)):
        if end is None:
            assert sign * extreme < -1000
        else:
            assert sign * end <= sign * extreme
            assert abs(end - extreme) <= 10**6 * NEAR


def clamp(low: Fraction, high: Fraction, d: int = 1, i: int = 0) -> Layer:
    unit = [int(k == i) for k in range(d)]
    return {
        "W_1": array([*unit, *(-v for v in unit)], 2, d),
        "b_1": array([-high, low], 2),
        "W_2": array([v for k in range(d) for v in (-unit[k], unit[k])], d, 2),
        "b_2": array([0] * d, d),
    }


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_clamps_in_a_row(seed: int) -> None:
    """The range of all of them is that of the composition, exactly."""
    rng = Random(seed)
    intervals = [(small(rng), small(rng)) for _ in range(rng.randint(1, 3))]
    functions: list[LayerFunction] = []
    layers_ = [clamp(min(pair), max(pair)) for pair in intervals]
    for layer, pair in zip(layers_, intervals, strict=True):
        function = layer_function(layer)
        assert function is not None
        assert clamp_of(function, 0) == (min(pair), max(pair))
        functions.append(function)
    values: list[Fraction] = []
    for start in [*(Fraction(10**6) * s for s in (1, -1)), *sum(intervals, start=())]:
        z = (start,)
        for layer in layers_:
            z = literal(layer, z)
        values.append(z[0])
    assert clamped_range(functions, 1) == [(min(values), max(values))]


def test_what_is_no_clamp() -> None:
    good = clamp(Fraction(-1), Fraction(2), 2, 1)
    function = layer_function(good)
    assert function is not None
    assert clamp_of(function, 1) == (-1, 2)
    assert clamp_of(function, 0) is None
    assert clamped_range([function], 2) == [(None, None), (-1, 2)]
    damages: dict[str, Any] = {
        "W_1": good["W_1"] * 2,
        "W_2": good["W_2"] * Fraction(1, 2),
        "b_1": -good["b_1"],
        "b_2": array([0, 1], 2),
    }
    for name, value in damages.items():
        damaged = layer_function({**good, name: value})
        assert damaged is not None
        assert clamp_of(damaged, 1) is None


def test_the_last_stage_of_a_network_keeps_the_table() -> None:
    built = ef.construct(ef.targets.reverse(2, 2), grid=2)
    arrays = dict(built.network.stages[-1].arrays())
    stacked = {k.removeprefix("feed_forward."): v for k, v in arrays.items()}
    functions: list[LayerFunction] = []
    for index in range(built.network.stages[-1].blocks):
        function = layer_function({name: v[index] for name, v in stacked.items()})
        assert function is not None
        functions.append(function)
    values = table_of(built).values.reshape(-1, 2)
    expected = list(zip(values.min(axis=0), values.max(axis=0), strict=True))
    assert clamped_range(functions, 2) == expected
