"""Plateaus and ramps, against the first layers themselves in exact rationals."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.on_cells.reading import Plateaus
from everyformer.certify.shifts.quantiser import (
    coordinate_functions,
    exact_difference,
    find_plateaus,
)
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights, read_weights, to_fractions
from everyformer.construct.shifts.soften import four_relus
from everyformer.model.forward import feed_forward_layer
from everyformer.model.network import Network
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.targets.box import Box

UNIT, WIDE = ((0.0, 1.0),), ((-2.0, 5.0),)
TWO = ((-2.0, 5.0), (0.1, 0.7))
RAMP, GUARD = Fraction(1, 2**30), Fraction(1, 2**40)

Case = tuple[int, int, int, tuple[tuple[float, float], ...], bool, bool]
CASES: dict[str, Case] = {  # n, d, K, domain, positional, softened
    "Theorem 2": (2, 1, 8, UNIT, False, True),
    "Theorem 2, wide": (2, 1, 4, WIDE, False, True),
    "Theorem 2, two coordinates": (2, 2, 4, TWO, False, True),
    "Theorem 3": (2, 1, 4, UNIT, True, True),
    "Theorem 3, wide": (2, 1, 4, WIDE, True, True),
    "Theorem 3, three tokens": (3, 1, 4, ((0.1, 0.7),), True, True),
    "Theorem 3, two coordinates": (2, 2, 4, TWO, True, True),
    "one token": (1, 2, 4, UNIT, False, True),
    "rational": (2, 1, 3, WIDE, False, False),
    "rational, Theorem 3": (2, 2, 3, UNIT, True, False),
}
SOFTENED = [name for name in CASES if CASES[name][-1]]


@cache
def built(name: str) -> tuple[Network, Box, int]:
    n, d, K, domain, positional, softened = CASES[name]
    target = ef.Target(
        lambda x: x - x.mean(-2, keepdims=True),
        n,
        d,
        lipschitz=2,
        equivariant=True,
        domain=domain,
    )
    made = ef.construct(
        target, grid=K, method=ef.SelectiveShifts(positional=positional, softened=softened)
    )
    return made.network, target.domain, K


def stored(network: Network) -> Weights:
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "n")
        return read_weights(Path(folder) / "n")


@cache
def found(name: str) -> Plateaus:
    network, box, K = built(name)
    return find_plateaus(stored(network), box, K)


Run = Callable[[np.ndarray], np.ndarray]


def first_stages(weights: Weights, count: int, *, exact: bool) -> Run:
    """The first stages as they are: in Fractions, or in float64."""

    def number(array: np.ndarray) -> np.ndarray:
        return to_fractions(array) if exact and array.dtype != bool else array

    shift = weights.positions
    if shift is not None and not exact:
        shift = shift.astype(np.float64)
    stacks: list[FeedForwardStack] = []
    for stage in weights.stages[:count]:
        arrays = {f"feed_forward.{name}": number(v) for name, v in stage.arrays.items()}
        stack = Stage.from_arrays("", "", arrays).feed_forward
        assert stack is not None
        stacks.append(stack)

    def run(x: np.ndarray) -> np.ndarray:
        state = x if shift is None else x + shift
        for stack in stacks:
            for layer in range(stack.layers):
                state = feed_forward_layer(stack, layer, state)
        return state

    return run


@cache
def runner(name: str, *, exact: bool) -> Run:
    return first_stages(stored(built(name)[0]), found(name).stages, exact=exact)


def cell_ends(box: Box, K: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of all cells, shape (K, n, d), exactly."""
    widths = box.widths
    low = [
        [Fraction(a) + k * w / K for a, w in zip(box.lows, widths, strict=True)]
        for k in range(K)
    ]
    lows = np.broadcast_to(np.array(low, dtype=object)[:, None, :], (K, n, len(widths)))
    return lows, lows + np.array(widths, dtype=object) / K


def expected(plateaus: Plateaus) -> np.ndarray:
    """The states, shape (K, n, d): all coordinates of all tokens on the same cell."""
    return np.moveaxis(plateaus.values, -1, 0)


def plateau_ends(name: str, halvings: int = 44) -> tuple[np.ndarray, np.ndarray]:
    """Where the state of each cell's centre ends, on both sides, by bisection.

    All coordinates of all tokens at once, which is right because the layers mix none;
    exactly, up to 2^-halvings of a cell.
    """
    network, box, K = built(name)
    run, target = runner(name, exact=True), expected(found(name))
    lows, highs = cell_ends(box, K, network.architecture.seq_len)
    centre = (lows + highs) / 2
    assert (run(centre) == target).all()
    ends: list[np.ndarray] = []
    for outside in (lows, highs):
        inside, out = centre, outside
        for _ in range(halvings):
            middle = (inside + out) / 2
            same = run(middle) == target
            inside, out = np.where(same, middle, inside), np.where(same, out, middle)
        ends.append(inside)
    return ends[0], ends[1]


@cache
def measured(name: str) -> tuple[np.ndarray, np.ndarray]:
    return plateau_ends(name)


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", CASES)
def test_plateaus_are_those_that_are_measured(name: str) -> None:
    """Their length is found by bisection; at random points of them the state is theirs."""
    network, box, K = built(name)
    plateaus = found(name)
    low, high = measured(name)
    widths = np.array(box.widths, dtype=object)
    lengths = (high - low).sum(axis=0)
    missing = widths - lengths - plateaus.ramps
    assert (missing >= 0).all()
    assert (missing <= widths * K / Fraction(2**43)).all()
    share = ((high - low) * K / widths).min(axis=0)
    shortest = float(np.prod(share.astype(np.float64)))
    assert float(plateaus.shortest) == pytest.approx(shortest, rel=1e-12)
    names = [stage.name for stage in network.stages]
    assert names[plateaus.stages - 1] == "quantise"
    run, rng = runner(name, exact=True), Random(1)
    n, d = low.shape[1:]
    for _ in range(12):
        cells = np.array([[rng.randrange(K) for _ in range(d)] for _ in range(n)])
        share = rng.choice([Fraction(1, 2**40), Fraction(rng.random())])
        place = (cells, np.arange(n)[:, None], np.arange(d))
        x = low[place] + (high - low)[place] * share
        assert (run(x[None])[0] == expected(plateaus)[place]).all()


@pytest.mark.parametrize("name", CASES)
def test_ramps_have_the_length_of_the_formula(name: str) -> None:
    """K - 1 ramps of 2^-30 of the box and guards above them; none with Phi."""
    _, box, K = built(name)
    for lengths in found(name).ramps:
        for length, width in zip(lengths, box.widths, strict=True):
            ramps = (K - 1) * (RAMP + GUARD) * width if name in SOFTENED else Fraction(0)
            if box.is_unit or not ramps:
                assert length == ramps
            else:
                assert abs(length - ramps) <= ramps / 2**20  # weights are rounded


@pytest.mark.parametrize("name", SOFTENED)
def test_float64_reaches_the_same_states(name: str) -> None:
    """Random float64 points of plateaus, and the last ones before their ends."""
    _, box, K = built(name)
    plateaus, run = found(name), runner(name, exact=False)
    assert plateaus.ramps_run is not None
    lost = plateaus.ramps_run - plateaus.ramps
    widths = np.array(box.widths, dtype=object)
    assert (lost > 0).all()
    assert (lost <= widths * K / Fraction(2**40)).all()
    low, high = measured(name)
    low, high = (end.astype(np.float64) for end in (low + lost, high - lost))
    target = expected(plateaus).astype(np.float64)
    rng = np.random.default_rng(2)
    for first in (low, high):
        for ulps in range(40):
            x = first
            for _ in range(ulps + 1):  # towards the middle
                x = np.nextafter(x, (low + high) / 2)
            assert (run(x) == target).all()
    for _ in range(100):
        x = np.clip(low + (high - low) * rng.random(low.shape), low, high)
        assert (run(x) == target).all()


def test_the_literal_executor_reaches_them_too() -> None:
    network, box, K = built("Theorem 2, wide")
    lows, highs = cell_ends(box, K, network.architecture.seq_len)
    x = ((lows + highs) / 2).astype(np.float64)
    state = next(step.state for step in network.trace(x) if step.stage == "quantise")
    assert (state == expected(found("Theorem 2, wide")).astype(np.float64)).all()


def mutated(name: str, stage: str, change: Any) -> Weights:
    """The weights with the arrays of one stage changed in place."""
    weights = stored(built(name)[0])
    stages: list[StageWeights] = []
    for old in weights.stages:
        arrays = {key: array.copy() for key, array in old.arrays.items()}
        if old.name == stage:
            change(arrays)
        stages.append(replace(old, arrays=arrays))
    return replace(weights, stages=tuple(stages))


def test_a_wider_ramp_is_found() -> None:
    """The control of the formula: ramps of 2^-10 instead of 2^-30."""
    n, d, K, *_ = CASES["Theorem 2"]
    target = ef.targets.centring(n, d)
    exact = ef.construct(
        target, grid=K, method=ef.SelectiveShifts(softened=False)
    ).network.in_float64(allow_rounding=True)
    stage = next(stage for stage in exact.stages if stage.name == "quantise")
    assert stage.feed_forward is not None
    wide = four_relus(stage.feed_forward, 2.0**-10)
    arrays = {name: getattr(wide, name) for name in ("W_1", "b_1", "W_2", "b_2")}

    def widen(old: dict[str, np.ndarray]) -> None:
        old.update(arrays)

    weights = mutated("Theorem 2", "quantise", widen)
    plateaus = find_plateaus(weights, target.domain, K)
    assert (plateaus.ramps == (K - 1) * (Fraction(1, 2**10) + GUARD)).all()
    assert (plateaus.values == found("Theorem 2").values).all()
    assert plateaus.shortest == (1 - K * (Fraction(1, 2**10) + GUARD)) ** (n * d)


def test_a_moved_threshold_is_found() -> None:
    """A quarter of a cell is no longer caught; the rest of it lands elsewhere."""
    name, moved = "Theorem 2", 3
    _, box, K = built(name)

    def move(arrays: dict[str, np.ndarray]) -> None:
        arrays["b_1"][K - 1 - moved] -= 1 / (4 * K)

    plateaus = find_plateaus(mutated(name, "quantise", move), box, K)
    before, quarter = found(name), Fraction(1, 4 * K)
    assert (plateaus.ramps - before.ramps == quarter - RAMP - GUARD).all()
    differ = (plateaus.values != before.values).any(axis=(0, 1))
    assert np.flatnonzero(differ).tolist() == [moved, moved + 1]  # and catches the next
    assert (plateaus.values[..., moved] == Fraction(moved, K) + quarter).all()


@pytest.mark.parametrize(
    ("theta", "low", "high", "exact"),
    [
        (0.5, 0.5, 1.0 + 2.0**-40, True),  # the last cell of two, with its guard
        (0.5, 0.25, 2.0**53, False),
        (0.1, 0.1, 0.2, True),
        (0.1, 0.1, 0.21, True),  # 0.1 ends with a bit 0
        (0.1, 0.1, 0.26, False),
        (0.5, 0.1, 0.9, False),
        (0.0, 0.0, 1.0, False),
    ],
)
def test_differences_that_float64_does_not_round(
    theta: float, low: float, high: float, exact: bool
) -> None:
    given = Fraction(theta), Fraction(low), Fraction(high)
    assert exact_difference(*given) == exact
    rng = Random(0)
    for _ in range(2000 if exact else 0):
        z = rng.uniform(low, high)
        assert Fraction(z) - given[0] == Fraction(z - theta)


def swap_rows(arrays: dict[str, np.ndarray]) -> None:
    arrays["W_1"][1] = arrays["W_1"][1][:, ::-1]


def read_both(arrays: dict[str, np.ndarray]) -> None:
    arrays["W_1"][0] = 1.0


def flatten(arrays: dict[str, np.ndarray]) -> None:
    """A layer that does nothing: the last cell keeps its slope."""
    arrays["W_2"][0] = 0.0


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("Theorem 2, two coordinates", swap_rows, "mixes coordinates"),
        ("Theorem 2, two coordinates", read_both, "mixes coordinates"),
        ("Theorem 2", flatten, "nowhere constant on cell 7"),
    ],
)
def test_what_is_no_quantiser(name: str, change: Any, words: str) -> None:
    _, box, K = built(name)
    with pytest.raises(Undecided, match=words) as caught:
        find_plateaus(mutated(name, "quantise", change), box, K)
    assert caught.value.stage == "quantise"


def test_other_stages_first() -> None:
    weights = stored(built("Theorem 2")[0])
    box, K = built("Theorem 2")[1:]
    renamed = tuple(replace(stage, kind=None) for stage in weights.stages)
    with pytest.raises(Undecided, match="no stage 'quantise'"):
        find_plateaus(replace(weights, stages=renamed), box, K)
    attention = next(s for s in weights.stages if s.half == "attention")
    first = replace(weights, stages=(attention, *weights.stages))
    with pytest.raises(Undecided, match="attention before") as caught:
        find_plateaus(first, box, K)
    assert caught.value.stage == attention.name


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_changed_weights_are_followed(seed: int) -> None:
    """Whatever is said of changed weights is true of them, in both arithmetics.

    At least the share of points that is called plateau has the state found for its cell.
    """
    rng = Random(seed)
    name = rng.choice(["Theorem 2", "Theorem 3", "Theorem 2, wide"])
    _, box, K = built(name)

    def change(arrays: dict[str, np.ndarray]) -> None:
        for _ in range(rng.randint(1, 3)):
            array = arrays[rng.choice(["b_1", "W_2", "W_1", "b_2"])]
            place = rng.randrange(array.size)
            by = rng.choice([0.5, 1 / K, -1 / (4 * K), 2.0**-20, 1.0])
            array.flat[place] = rng.choice(
                [array.flat[place] + by, 0.0, -array.flat[place]]
            )

    weights = mutated(name, rng.choice(["quantise", "quantise", "out of range"]), change)
    try:
        plateaus = find_plateaus(weights, box, K)
    except Undecided:
        return
    lows, highs = cell_ends(box, K, weights.seq_len)
    points, widths = 8, np.array(box.widths, dtype=object)
    same = same_run = np.zeros(lows.shape[1:], dtype=np.int64)
    run, run_float64 = (
        first_stages(weights, plateaus.stages, exact=exact) for exact in (True, False)
    )
    for k in range(points):
        x = lows + (highs - lows) * Fraction(2 * k + 1, 2 * points)
        same = same + (run(x) == expected(plateaus)).sum(axis=0)
        state = run_float64(x.astype(np.float64))
        same_run = same_run + (state == expected(plateaus)).sum(axis=0)
    least = (1 - plateaus.ramps / widths) * (points * K) - 2 * K
    assert (same >= least).all()
    if plateaus.ramps_run is not None:
        least = (1 - plateaus.ramps_run / widths) * (points * K) - 2 * K
        assert (same_run >= least).all()


def single(layers: list[tuple[Any, Any, Any]]) -> Weights:
    """A network of one coordinate: rows, biases and columns of each layer."""
    parts = [np.array(part, dtype=np.float64) for part in zip(*layers, strict=True)]
    arrays = {"W_1": parts[0][..., None], "b_1": parts[1], "W_2": parts[2][:, None]}
    arrays["b_2"] = np.zeros((len(layers), 1))
    stage = StageWeights("quantise", "feed_forward", arrays, kind="quantise")
    return Weights(1, 1, True, None, (stage,), False, "")


def steps(units: int) -> list[tuple[Any, Any, Any]]:
    """[0, 1] to {0, 1/2}, by thresholds 1/2 and 0 with a ramp of 2^-10."""
    idle = [0.0] * (units - 3)
    up = 2.0**9 - 1
    return [
        ([1, 1, 1, *idle], [-0.5, -2, -3, *idle], [-1, 0, 0, *idle]),
        (
            [1, 1, 1, *idle],
            [0, 2.0**-10 - 0.5, -0.5, *idle],
            [-1, 1 + up, -up, *idle],
        ),
    ]


def float64_is_as_claimed(weights: Weights, plateaus: Plateaus, box: Box) -> bool:
    """Whether a float64 run misses the states on no more than is left to ramps."""
    if plateaus.ramps_run is None:
        return True
    cells, points = plateaus.values.shape[-1], 32
    low, width = box.lows[0], float(box.widths[0])
    x = low + width * (np.arange(cells * points) + 0.5) / (cells * points)
    states = first_stages(weights, 1, exact=False)(x[:, None, None])[:, 0, 0]
    missed = states != np.repeat(plateaus.values[0, 0].astype(np.float64), points)
    return missed.sum() / len(x) <= float(plateaus.ramps_run[0, 0]) / width + 1 / points


def test_a_quantiser_by_hand() -> None:
    box = Box((0.0,), (1.0,))
    plateaus = find_plateaus(single(steps(3)), box, 2)
    assert plateaus.values.tolist() == [[[0, Fraction(1, 2)]]]
    assert plateaus.ramps.tolist() == [[Fraction(1, 2**10)]]
    assert plateaus.ramps_run is not None
    assert float64_is_as_claimed(single(steps(3)), plateaus, box)
    other = replace(plateaus, values=plateaus.values + Fraction(1, 4))
    assert not float64_is_as_claimed(single(steps(3)), other, box)
    functions = coordinate_functions(single(steps(3)).stages, 1)
    assert [f.breaks[0] for f in functions[0]] == [Fraction(1, 2), 0]


LARGE = 2.0**60
CANCELLING = [
    [LARGE, -LARGE, 1.0, -1.0],
    [1.0, LARGE, -LARGE, -1.0],
    [-1.0, 1.0, -LARGE, LARGE],
    [LARGE, 1.0, -LARGE, -1.0],
]


@pytest.mark.parametrize("rows", [0.0, 1.0])
def test_units_that_cancel_in_real_arithmetic_alone(rows: float) -> None:
    """Four units that are always on, and sum to 0: float64 may add them to something."""
    box = Box((0.0,), (1.0,))
    for columns in CANCELLING:
        layer = ([1, *[rows] * 4], [-100, *[1] * 4], [0.5, *columns])
        weights = single([layer, *steps(5)])
        plateaus = find_plateaus(weights, box, 2)
        assert plateaus.values.tolist() == [[[0, Fraction(1, 2)]]]
        assert float64_is_as_claimed(weights, plateaus, box), columns


def test_a_threshold_that_is_far_below_rounds() -> None:
    """x - (x - 0.1) is 0.1 for x up to 0.2; beyond, float64 may miss it."""
    weights = single([([1], [-0.1], [-1])])
    for high in (0.2, 0.9):
        box = Box((0.1,), (high,))
        plateaus = find_plateaus(weights, box, 2)
        assert set(plateaus.values.flat) == {Fraction(0.1)}
        assert float64_is_as_claimed(weights, plateaus, box)
    forged = replace(plateaus, ramps_run=plateaus.ramps)
    assert not float64_is_as_claimed(weights, forged, box)


def test_a_product_that_rounds_after_the_plateau() -> None:
    """3 z - b is 2^-52 and 0 in float64; the unit that cancels it is not 0 there."""
    candidates = [1 + k * 2.0**-52 for k in range(1, 9)]
    tails = {z: Fraction(3) * Fraction(z) - Fraction(3 * z) for z in candidates}
    z, tail = next((z, tail) for z, tail in tails.items() if tail > 0)
    layers = [([1, 0], [-z, 0], [-1, 0]), ([3, 1], [-3 * z, float(tail) - z], [1, -1])]
    weights = single(layers)
    box = Box((1.0,), (2.0,))
    plateaus = find_plateaus(weights, box, 2)
    assert set(plateaus.values.flat) == {Fraction(z)}
    assert float64_is_as_claimed(weights, plateaus, box)
