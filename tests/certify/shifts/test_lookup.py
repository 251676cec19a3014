"""Windows looked up, against all layers run one after the other in exact rationals."""

import tempfile
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
from tests.plans import constants_of, table_of

import everyformer as ef
from everyformer.certify.shifts.context import Mode
from everyformer.certify.shifts.layers import Tokens
from everyformer.certify.shifts.lookup import Windows, follow_layers, look_up, read_windows
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, read_weights, to_fractions
from everyformer.construct.pipeline import Built
from everyformer.construct.shifts.contextual import contextual_ids, contextual_state
from everyformer.model.forward import feed_forward_layer
from everyformer.model.stacks import Stage

seeds = st.integers(0, 2**32)


def literal(stage: StageWeights, z: np.ndarray) -> np.ndarray:
    """All layers of a stage on (count, d): in Fractions, or in float64 if z is."""
    exact = z.dtype == object
    arrays = {
        f"feed_forward.{name}": to_fractions(a) if exact and a.dtype != bool else a
        for name, a in stage.arrays.items()
    }
    stack = Stage.from_arrays("", "", arrays).feed_forward
    assert stack is not None
    for layer in range(stack.layers):
        z = feed_forward_layer(stack, layer, z)
    return z


def tokens(centre: Any, mode: Mode = "real", radius: Any = 0.0) -> Tokens:
    z = np.asarray(centre)
    z = z if z.dtype == object else z.astype(np.float64)
    wide = np.broadcast_to(np.asarray(radius, dtype=np.float64), z.shape).copy()
    return Tokens(z, wide, mode, np.zeros(len(z), dtype=bool))


def is_within(found: Tokens, states: np.ndarray) -> bool:
    """Whether states lie within the radius of the centres, exactly."""
    exact = states if states.dtype == object else to_fractions(states)
    off = np.abs(to_fractions(found.centre) - exact)
    return bool((off <= to_fractions(found.radius)).all())


def windows_of(
    centres: list[float],
    changes: list[list[float]],
    half: float = 0.5,
    direction: list[float] | None = None,
) -> StageWeights:
    """One layer of four ReLUs for each window; ramps from half to half/2 of its centre."""
    d, count = len(changes[0]), len(centres)
    w = direction or [1.0, *[0.0] * (d - 1)]
    knots = np.array([[c - half, c - half / 2, c + half / 2, c + half] for c in centres])
    column = np.array(changes) / (half / 2)
    arrays = {
        "W_1": np.tile(np.array(w), (count, 4, 1)),
        "b_1": -knots,
        "W_2": column[:, :, None] * np.array([1.0, -1.0, -1.0, 1.0]),
        "b_2": np.zeros((count, d)),
    }
    return StageWeights("windows", "feed_forward", arrays)


def rational_windows(
    centres: list[Fraction], changes: list[list[Fraction]], half: Fraction
) -> StageWeights:
    """The same with a function of Phi, 1 within half of 0."""

    def array(values: Any) -> np.ndarray:
        return to_fractions(np.array(values, dtype=object))

    d, count = len(changes[0]), len(centres)
    arrays = {
        "W_1": array([[[1, *[0] * (d - 1)]]] * count),
        "b_1": array([[-c] for c in centres]),
        "W_2": array(changes)[:, :, None],
        "b_2": array([[0] * d] * count),
        "phi.breaks": array([[[-half, half]]] * count),
        "phi.closed": np.array([[[True, False]]] * count),
        "phi.slopes": array([[[0, 0, 0]]] * count),
        "phi.intercepts": array([[[0, 1, 0]]] * count),
    }
    return StageWeights("windows", "feed_forward", arrays)


@cache
def built(n: int, d: int, K: int, positional: bool, softened: bool) -> Built:
    target = ef.targets.soft_attention(n, d)
    return ef.construct(
        target, grid=K, method=ef.SelectiveShifts(positional=positional, softened=softened)
    )


def stages_of(made: Built) -> dict[str, StageWeights]:
    with tempfile.TemporaryDirectory() as folder:
        made.network.save(Path(folder) / "n")
        weights = read_weights(Path(folder) / "n")
    return {stage.name: stage for stage in weights.stages}


SIZES = [(2, 1, 4, False), (2, 1, 4, True), (2, 2, 2, True), (3, 1, 4, False)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("softened", [True, False])
def test_windows_are_the_intended_ones(
    size: tuple[int, int, int, bool], softened: bool
) -> None:
    made = built(*size, softened)
    c, table = constants_of(made.plan), table_of(made)
    ids = contextual_ids(c, table.columns)
    order = np.argsort(ids, axis=None)
    centres: Any = to_fractions(ids.reshape(-1)[order]) / c.K
    held = to_fractions(contextual_state(c, table.columns, ids).reshape(-1, c.d)) / c.K
    stages = stages_of(made)
    name = "ids to codes" if "ids to codes" in stages else "value map"
    windows = read_windows(stages[name])
    half, inner = c.delta / 2, c.delta / (4 if softened else 2)
    assert (to_fractions(windows.low_out) == centres - half).all()
    assert (to_fractions(windows.low_in) == centres - inner).all()
    assert (to_fractions(windows.high_in) == centres + inner).all()
    assert (to_fractions(windows.high_out) == centres + half).all()
    assert (windows.direction == np.array(c.u)).all()
    assert windows.layer.tolist() == list(range(len(order)))[::-1]
    if name == "value map":
        written = to_fractions(held[order] + to_fractions(windows.change))
        values = to_fractions(table.values.reshape(-1, c.d)[order])
        off = np.abs(written - values)
        assert (off <= (Fraction(1, 2**36) if softened else 0)).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("softened", [True, False])
def test_the_value_map_is_its_layers(
    size: tuple[int, int, int, bool], softened: bool
) -> None:
    """Every id, moved within its plateau, and places where there is not a window."""
    stages = stages_of(built(*size, softened))
    name = "ids to codes" if "ids to codes" in stages else "value map"
    windows = read_windows(stages[name])
    rng = Random(0)
    inside: Any = windows.low_in + (windows.high_in - windows.low_in) / 2
    moved = inside + (windows.high_in - inside) * Fraction(rng.randint(-60, 60), 64)
    below = windows.low_out[:1] - Fraction(3, 8)
    above = windows.high_out[-1:] + Fraction(3, 8)
    t = np.concatenate([part.astype(object) for part in (inside, moved, below, above)])
    z = to_fractions(np.zeros((len(t), len(windows.direction))))
    z[:, 0] = to_fractions(t)
    start = z if not softened else z.astype(np.float64)
    found = look_up(name, windows, tokens(start))
    assert is_within(found, literal(stages[name], z))
    if not softened:
        assert not found.radius.any()


def places(rng: Random, count: int) -> list[float]:
    """Centres of windows of half-width 1/2, one apart or more, in a random order."""
    found = rng.sample(range(2, 4 * count), count)
    return [float(place) for place in found]


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_order_is_respected(seed: int) -> None:
    """Windows in any order, whose changes lead into other windows, or out of all.

    A token that lands in a window of an earlier layer stays there.
    """
    rng = Random(seed)
    count, d = rng.randint(1, 8), rng.randint(1, 2)
    centres = places(rng, count)
    ends = [*centres, 0.0, 100.0, -3.0]
    changes = [
        [rng.choice(ends) - c, *(rng.uniform(-9, 9) for _ in range(d - 1))] for c in centres
    ]
    stage = windows_of(centres, changes)
    windows = read_windows(stage)
    first = [c + rng.randint(-15, 15) / 64 for c in centres] + [0.75, 100.0]
    z = np.array([[t, *(rng.gauss(0, 3) for _ in range(d - 1))] for t in first])
    found = look_up("windows", windows, tokens(z))
    assert is_within(found, literal(stage, to_fractions(z)))
    assert found.radius.max() <= 1e-13
    exact = rational_windows(
        [Fraction(c) for c in centres],
        [[Fraction(v) for v in change] for change in changes],
        Fraction(1, 2),
    )
    found = look_up("windows", read_windows(exact), tokens(to_fractions(z)))
    assert (found.centre == literal(exact, to_fractions(z))).all()


@pytest.mark.parametrize("later_first", [True, False])
def test_a_window_that_has_passed_changes_nothing(later_first: bool) -> None:
    """10 goes to 20; 20 goes to 5, if its layer is still to come."""
    centres, changes = [10.0, 20.0], [[10.0], [-15.0]]
    if later_first:
        centres, changes = centres[::-1], changes[::-1]
    stage = windows_of(centres, changes)
    found = look_up("windows", read_windows(stage), tokens([[10.0], [20.0]]))
    assert found.centre.tolist() == ([[20.0], [5.0]] if later_first else [[5.0], [5.0]])
    assert (literal(stage, np.array([[10.0], [20.0]])) == found.centre).all()


@pytest.mark.parametrize("t", [4.6, 5.3, 5.4999, 4.5001])
def test_tokens_on_ramps_are_undecided(t: float) -> None:
    windows = read_windows(windows_of([5.0, 9.0], [[1.0], [1.0]]))
    with pytest.raises(Undecided, match=r"neither on the plateau .* layer 0") as caught:
        look_up("somewhere", windows, tokens([[5.0], [t], [2.0]]))
    assert caught.value.stage == "somewhere"


def test_tokens_that_may_be_on_ramps_are_undecided() -> None:
    """The radius counts, and the direction's weight on it."""
    stage = windows_of([5.0], [[1.0, 0.0]], direction=[1.0, 4.0])
    windows = read_windows(stage)
    inside, outside = [[1.0, 1.0]], [[5.625, 0.0]]
    for centre, most in ((inside, 0.25), (outside, 0.125)):
        for radius in ([most * 0.99, 0.0], [0.0, most * 0.99 / 4]):
            look_up("windows", windows, tokens(centre, radius=[radius]))
        for radius in ([most * 1.01, 0.0], [0.0, most * 1.01 / 4]):
            with pytest.raises(Undecided, match="neither on the plateau"):
                look_up("windows", windows, tokens(centre, radius=[radius]))


def test_ends_of_rational_windows_are_undecided() -> None:
    stage = rational_windows([Fraction(1, 3)], [[Fraction(9)]], Fraction(1, 7))
    windows = read_windows(stage)
    for end in (Fraction(1, 3) + Fraction(1, 7), Fraction(1, 3) - Fraction(1, 7)):
        with pytest.raises(Undecided, match="neither on the plateau"):
            look_up(
                "windows", windows, tokens(to_fractions(np.array([[end]], dtype=object)))
            )


Mutation = tuple[str, int, Any, Any, str]
MUTATIONS: dict[str, Mutation] = {  # array, layer, factor, summand, what is said
    "overlap": ("b_1", 1, 1, -0.5, "layers 0 and 1 overlap"),
    "same place": ("b_1", 2, 0, [-3.5, -3.75, -4.25, -4.5], "layers 1 and 2 overlap"),
    "another direction": ("W_1", 1, 2, 0, "layer 1 is not a window"),
    "one row": ("W_1", 1, [[1], [1], [1], [-1]], 0, "layer 1 is not a window"),
    "no return": ("W_2", 2, [1, 1, 1, 0], 0, "layer 2 is not a window"),
    "another end": ("W_2", 2, [1, 1, 1, 1 + 2.0**-52], 0, "layer 2 is not a window"),
    "a shift": ("b_2", 0, 1, 2.0**-60, "layer 0 is not a window"),
    "a wider ramp": ("b_1", 1, 1, [0.25, 0, 0, 0], "layer 1 is not a window"),
    "no power of two": ("b_1", 1, 1, [0.125, 0, 0, -0.125], "layer 1 is not a window"),
    "downwards": ("b_1", 1, -1, -8, "layer 1 is not a window"),
    "crossed": ("b_1", 1, 1, [-0.75, -0.75, 0.75, 0.75], "layer 1 is not a window"),
}


def by_hand() -> StageWeights:
    return windows_of([5.0, 4.0, 2.0], [[1.0, 2.0], [0.5, 0.0], [-7.0, 3.0]])


@pytest.mark.parametrize("name", MUTATIONS)
def test_layers_that_are_no_windows(name: str) -> None:
    array, layer, factor, summand, words = MUTATIONS[name]
    stage = by_hand()
    read_windows(stage)
    arrays = {key: value.copy() for key, value in stage.arrays.items()}
    arrays[array][layer] = arrays[array][layer] * factor + summand
    with pytest.raises(Undecided, match=words) as caught:
        read_windows(replace(stage, arrays=arrays))
    assert caught.value.stage == "windows"


def test_rational_layers_that_are_no_windows() -> None:
    ones = [Fraction(1)] * 3
    stage = rational_windows([Fraction(k) for k in (9, 6, 3)], [ones] * 3, Fraction(1))
    read_windows(stage)
    for name, place, value in (
        ("phi.slopes", (1, 0, 1), Fraction(1, 9)),
        ("phi.intercepts", (1, 0, 0), Fraction(1)),
        ("phi.intercepts", (1, 0, 2), Fraction(1)),
        ("W_1", (1, 0, 1), Fraction(1)),
        ("b_2", (1, 2), Fraction(1)),
    ):
        arrays = {key: array.copy() for key, array in stage.arrays.items()}
        arrays[name][place] = value
        with pytest.raises(Undecided, match="layer 1 is not a window"):
            read_windows(replace(stage, arrays=arrays))
    touching = rational_windows([Fraction(2), Fraction(1)], [ones] * 2, Fraction(1, 2))
    read_windows(touching)
    with pytest.raises(Undecided, match="overlap"):
        read_windows(
            rational_windows([Fraction(2), Fraction(1)], [ones] * 2, Fraction(3, 5))
        )


def test_float64_needs_windows_in_decreasing_order() -> None:
    centres = [2.0, 4.0, 5.0]
    stage = windows_of(centres, [[-10.0], [-10.0], [-10.0]])
    with pytest.raises(Undecided, match="decreasing order"):
        look_up("windows", read_windows(stage), tokens([[2.0]], "float64"))
    stage = windows_of(centres[::-1], [[-10.0], [-10.0], [-10.0]])
    found = look_up("windows", read_windows(stage), tokens([[2.0], [5.0]], "float64"))
    assert found.centre.tolist() == [[-8.0], [-5.0]]
    assert not found.radius.any()
    with pytest.raises(Undecided, match="neither on the plateau"):  # nor below them all
        look_up("windows", read_windows(stage), tokens([[3.0]], "float64"))


def run_windows(rng: Random, *, large: bool) -> tuple[StageWeights, Windows, np.ndarray]:
    """Windows whose plateaus send a token below all of them, and tokens in them.

    With large, the second coordinate holds a large number, and the change is close to
    half a unit in its last place.
    """
    count = rng.randint(1, 4)
    centres = sorted(2 * c + rng.randint(0, 99) / 512 for c in places(rng, count))[::-1]
    held = float(rng.randrange(2**30, 2**31)) if large else rng.uniform(-2, 2)
    beside: list[float] = []
    for _ in centres:
        step = np.spacing(held) * (rng.randint(0, 40) + 0.5)
        aside = float(np.nextafter(step, rng.choice([0.0, 1.0])))
        beside.append(aside if large else rng.uniform(-9, 9))
    changes = [[-c - rng.random() - 1, b] for c, b in zip(centres, beside, strict=True)]
    stage = windows_of(centres, changes)
    z = [[c + rng.choice([0.0, rng.uniform(-0.24, 0.24)]), held] for c in centres]
    return stage, read_windows(stage), np.array(z)


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_a_float64_run_is_within_the_radius(seed: int) -> None:
    stage, windows, z = run_windows(Random(seed), large=False)
    found = look_up("windows", windows, tokens(z, "float64"))
    assert is_within(found, literal(stage, z))
    assert found.radius.max() <= 1e-12
    middle = look_up("windows", windows, tokens(np.round(z), "float64"))
    assert is_within(middle, literal(stage, np.round(z)))


def test_a_float64_run_beside_a_large_number() -> None:
    """The update is rounded, then its sum with the state: both count."""
    for seed in range(60):
        stage, windows, z = run_windows(Random(seed), large=True)
        found = look_up("windows", windows, tokens(z, "float64"))
        assert is_within(found, literal(stage, z)), seed


def test_a_token_that_float64_has_rounded_is_lost_in_a_window() -> None:
    windows = read_windows(windows_of([5.0, 3.0], [[-9.0], [-9.0]]))
    start = tokens([[5.0], [5.0], [1.0], [3.5]], "float64", [[0], [1e-9], [1e-9], [1e-9]])
    found = look_up("windows", windows, start)
    assert found.lost.tolist() == [False, True, False, True]
    assert found.centre[[0, 2]].tolist() == [[-4.0], [1.0]]
    assert found.radius[:, 0].tolist() == [0.0, 0.0, 1e-9, 0.0]


def number(rng: Random) -> float:
    kind = rng.randrange(3)
    if kind == 0:
        return float(rng.randint(-4, 4))
    if kind == 1:
        return rng.randint(-64, 64) / 8 * 2.0 ** rng.randint(-3, 20)
    return rng.gauss(0, 1) * 2.0 ** rng.randint(-5, 8)


def random_layer(rng: Random) -> StageWeights:
    """A layer on one direction, as any short stage may hold it; windows, clamps, others."""
    d, r = rng.randint(1, 2), rng.randint(1, 4)
    w = np.array([rng.choice([number(rng), 1.0, 0.0]) for _ in range(d)])
    multiples = np.array([rng.choice([1, 1, -1, 2, -0.5, 0]) for _ in range(r)])
    arrays = {
        "W_1": multiples[:, None] * w,
        "b_1": np.array([rng.choice([number(rng), 0.0]) for _ in range(r)]),
        "W_2": np.array(
            [[rng.choice([number(rng), 0.0]) for _ in range(r)] for _ in range(d)]
        ),
        "b_2": np.array([rng.choice([number(rng), 0.0, 0.0]) for _ in range(d)]),
    }
    kind = rng.random()
    if kind < 0.3:  # a window: four ReLUs that cancel for tokens above it
        unit, half = np.eye(d)[rng.randrange(d)], 2.0 ** rng.randint(-3, 3)
        knots = number(rng) + np.array([-1, -0.5, 0.5, 1]) * half
        column = np.array([number(rng) * 2.0 ** rng.randint(0, 20) for _ in range(d)])
        arrays = {
            "W_1": np.tile(unit, (4, 1)),
            "b_1": -knots,
            "W_2": column[:, None] * np.array([1.0, -1.0, -1.0, 1.0]),
            "b_2": np.zeros(d),
        }
    elif kind < 0.6:
        unit = np.eye(d)[rng.randrange(d)]
        arrays = {
            "W_1": np.array([unit, -unit]),
            "b_1": np.array([-number(rng), number(rng)]),
            "W_2": np.array([-unit, unit]).T,
            "b_2": np.zeros(d),
        }
    return StageWeights("x", "feed_forward", {k: v[None] for k, v in arrays.items()})


@settings(deadline=None, max_examples=100)
@given(seeds)
def test_layers_followed_one_by_one(seed: int) -> None:
    """Any layer on one direction, in both arithmetics, from anywhere in the radius."""
    rng = Random(seed)
    stage = random_layer(rng)
    d = stage.arrays["b_2"].shape[-1]
    z = np.array([[number(rng) * 2.0 ** rng.randint(0, 30) for _ in range(d)]])
    radius = rng.choice([0.0, abs(rng.gauss(0, 1)) * 2.0 ** rng.randint(-40, 2)])
    off = np.array([[rng.choice([-1, 1, rng.random()]) * radius for _ in range(d)]])
    if (np.abs(to_fractions(z + off) - to_fractions(z)) > Fraction(radius)).any():
        off = np.zeros_like(z)
    exact, run = to_fractions(z) + to_fractions(off), z + off
    try:
        real = follow_layers(stage, tokens(z, "real", radius))
        float64 = follow_layers(stage, tokens(z, "float64", radius))
    except Undecided:
        return
    assert is_within(real, literal(stage, exact))
    assert is_within(float64, literal(stage, run))


def test_a_shift_may_round_the_other_way() -> None:
    """Just below a tie or just above it: a radius of 2^-59 becomes a unit of 2^-22."""
    arrays = {
        "W_1": np.array([[[1.0]]]),
        "b_1": np.array([[-100.0]]),
        "W_2": np.array([[[1.0]]]),
        "b_2": np.array([[2.0**30]]),
    }
    stage = StageWeights("x", "feed_forward", arrays)
    below, radius = 2.0**-23 - 2.0**-60, 2.0**-59
    found = follow_layers(stage, tokens([[below]], "float64", radius))
    above = np.array([[below + radius]])
    assert literal(stage, above)[0, 0] - found.centre[0, 0] == 2.0**-22
    assert is_within(found, literal(stage, above))


def test_layers_that_cannot_be_followed() -> None:
    arrays = {
        "W_1": np.array([[[1.0, 0.0], [0.0, 1.0]]]),
        "b_1": np.zeros((1, 2)),
        "W_2": np.array([[[1.0, 0.0], [0.0, 1.0]]]),
        "b_2": np.zeros((1, 2)),
    }
    stage = StageWeights("mixed", "feed_forward", arrays)
    with pytest.raises(Undecided, match="more than one direction"):
        follow_layers(stage, tokens([[1.0, 2.0]]))
