"""Weights and certificates that were tampered with, hashes brought up to date.

Whatever was changed, PROVED may only be said of what is true.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from scipy.stats import qmc
from tests.certify.tampered import edit, write_weights
from tests.plans import grid_plan

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError
from everyformer.model.executor import ExecutorName
from everyformer.targets import GALLERY, first_token
from everyformer.targets.target import Target

LAYER = ("W_1", "b_1", "W_2", "b_2")
PLATEAU = np.array([1.0, -1.0, -1.0, 1.0])
"""Signs of a window's four ReLUs."""

Change = Callable[["Arrays"], None]


class Arrays:
    """The arrays of a network, to be changed in place."""

    def __init__(self, network: ef.Network) -> None:
        self.every = {name: array.copy() for name, array in network.arrays()}
        self.names = [stage.name for stage in network.stages]

    def key(self, stage: str, name: str) -> str:
        half = (
            "attention" if name in ("W_Q", "b_Q", "W_K", "W_V", "W_O") else "feed_forward"
        )
        return f"stages.{self.names.index(stage)}.{half}.{name}"

    def __call__(self, stage: str, name: str) -> np.ndarray:
        return self.every[self.key(stage, name)]


@cache
def built(name: str, grid: int, d: int = 1) -> ef.Built:
    return ef.construct(GALLERY[name](2, d), grid=grid)


def tamper(folder: Path, change: Change) -> ef.Network:
    network = ef.load(folder / NETWORK_FILE)
    arrays = Arrays(network)
    change(arrays)
    changed = network.with_arrays(arrays.every)
    write_weights(folder, changed)
    return changed


def refuses(folder: Path, stage: str, *verdicts: ef.Verdict) -> ef.Verification:
    found = ef.verify(folder)
    assert found.verdict in (verdicts or (ef.Verdict.UNKNOWN, ef.Verdict.REFUTED))
    begins = [reason.removeprefix("float64, ").split(":")[0] for reason in found.reasons]
    starts = [begin.strip('"') for begin in begins]  # the file names its stages
    assert stage in starts, found.reasons
    assert found.verdict.name in str(found)
    return found


def move_value(layer: int, amount: float) -> Change:
    """Let one window of the value map write another value."""

    def change(arrays: Arrays) -> None:
        knots, columns = -arrays("value map", "b_1"), arrays("value map", "W_2")
        columns[layer] += amount / (knots[layer, 1] - knots[layer, 0]) * PLATEAU

    return change


def swap_layers(stage: str, first: int, second: int, *names: str) -> Change:
    def change(arrays: Arrays) -> None:
        for name in names:
            array = arrays(stage, name)
            array[[first, second]] = array[[second, first]]

    return change


def add_to(stage: str, name: str, layer: int | slice, amount: float) -> Change:
    def change(arrays: Arrays) -> None:
        arrays(stage, name)[layer] += amount

    return change


def multiply(
    stage: str, name: str, factor: float, layer: int | slice = slice(None)
) -> Change:
    def change(arrays: Arrays) -> None:
        arrays(stage, name)[layer] *= factor

    return change


def widen_ramp(layer: int, width: float) -> Change:
    """The same steps of the quantiser, less steep at one of them."""

    def change(arrays: Arrays) -> None:
        knots, columns = -arrays("quantise", "b_1")[layer], arrays("quantise", "W_2")
        steep = (knots[3] - knots[0]) / width
        arrays("quantise", "b_1")[layer, 2] = width - knots[3]
        columns[layer, 0, 2:] = steep, 1 - steep

    return change


def move_positions(amount: float) -> Change:
    def change(arrays: Arrays) -> None:
        arrays.every["positions"][1] += amount

    return change


def squeeze_clamp(amount: float) -> Change:
    """Both ends inwards; outwards, if negative."""
    return add_to("clamp", "b_1", slice(None), amount)


SHIFTS, VALUES = "selective shifts", "value map"
WEIGHTS: list[tuple[str, str, int, Change, str]] = [
    ("value", "reverse", 4, move_value(3, -0.4), "bound"),
    ("value, 2", "centring", 8, move_value(3, 0.5), "bound"),
    ("value scaled", "reverse", 4, multiply(VALUES, "W_2", 1.01, 3), "bound"),
    ("code", "reverse", 4, multiply("ids to codes", "W_2", 1.01, 3), "bound"),
    ("threshold up", "reverse", 4, add_to("quantise", "b_1", 2, -1 / 4), "bound"),
    ("threshold down", "reverse", 4, add_to("quantise", "b_1", 2, 1 / 4), "bound"),
    ("threshold, 2", "centring", 8, add_to("quantise", "b_1", 2, 1 / 8), "bound"),
    ("blocks swapped", "reverse", 4, swap_layers(VALUES, 2, 5, *LAYER), VALUES),
    ("blocks swapped, 2", "centring", 8, swap_layers(VALUES, 2, 5, *LAYER), VALUES),
    ("values swapped", "reverse", 4, swap_layers(VALUES, 2, 5, "W_2"), VALUES),
    ("values swapped, 16", "reverse", 16, swap_layers(VALUES, 2, 5, "W_2"), "bound"),
    ("lambda / 100", "reverse", 4, multiply(SHIFTS, "W_K", 0.01), "bound"),
    ("lambda / 100, 2", "centring", 8, multiply(SHIFTS, "W_K", 0.01), "ids to codes"),
    ("lambda / 1e6", "centring", 8, multiply(SHIFTS, "W_K", 1e-6), SHIFTS),
    ("-lambda", "reverse", 4, multiply(SHIFTS, "W_K", -1), "bound"),
    ("ramp", "reverse", 4, widen_ramp(1, 1 / 16), "bound"),
    ("ramp, 2", "centring", 8, widen_ramp(1, 1 / 32), "bound"),
    ("position by a cell", "reverse", 4, move_positions(1 / 4), "bound"),
    ("position by half a cell", "reverse", 4, move_positions(1 / 8), "bound"),
    ("no position", "reverse", 4, move_positions(-5 / 4), "global shift"),
    ("clamp widened", "reverse", 4, squeeze_clamp(-1e4), "bound"),
    ("clamp narrowed", "reverse", 4, squeeze_clamp(0.2), "bound"),
    ("clamp inside out", "reverse", 4, squeeze_clamp(1e4), "clamp"),
    ("query", "reverse", 4, add_to(SHIFTS, "b_Q", 3, 1 / 4), "bound"),
    ("query, 2", "centring", 8, add_to(SHIFTS, "b_Q", 3, 1 / 8), "bound"),
    ("query on an id", "reverse", 4, add_to(SHIFTS, "b_Q", 3, 1 / 8), SHIFTS),
    ("shift", "centring", 8, multiply(SHIFTS, "W_O", 2, 3), "bound"),
    ("last shift", "reverse", 4, multiply("global shift", "W_O", 0.5), "bound"),
]
"""What is changed, of which network (", 2": of Theorem 2), and where it is noticed."""


@pytest.mark.rows(14)
@pytest.mark.parametrize(
    ("name", "grid", "change", "stage"),
    [pytest.param(*case, id=label) for label, *case in WEIGHTS],
)
def test_changed_weights_are_not_proved(
    name: str, grid: int, change: Change, stage: str, tmp_path: Path
) -> None:
    built(name, grid).save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    network = tamper(tmp_path, change)
    found = refuses(tmp_path, stage)
    if found.verdict is ef.Verdict.REFUTED:
        assert found.certificate.eps is not None
        sampled = distance_sampled(network, built(name, grid).target)
        assert sampled >= 0.99 * float(found.certificate.eps)


@pytest.mark.parametrize("amount", [1e-4, 0.01, 0.02, 0.03, 0.1, 0.4])
def test_an_entry_may_move_by_the_slack_and_no_more(amount: float, tmp_path: Path) -> None:
    """For linear f, on one of 16 cells: d_2^2 grows by amount^2 / 16."""
    built("reverse", 4).save(tmp_path)
    before = ef.verify(tmp_path)
    tamper(tmp_path, move_value(3, -amount))
    after = ef.verify(tmp_path)
    assert before.bound is not None
    assert before.certificate.eps is not None
    assert after.bound is not None
    expected = np.sqrt(float(before.bound.value) ** 2 + amount**2 / 16)
    assert float(after.bound.value) == pytest.approx(expected, rel=1e-6)
    proved = after.verdict is ef.Verdict.PROVED
    assert proved == (expected <= float(before.certificate.eps))


def test_the_clamp_removed(tmp_path: Path) -> None:
    network = built("reverse", 4).network
    built("reverse", 4).save(tmp_path)
    write_weights(tmp_path, replace(network, stages=network.stages[:-1]))
    found = refuses(tmp_path, "value map", ef.Verdict.UNKNOWN)
    assert any("not clamped" in reason for reason in found.reasons)


def test_half_of_the_clamp_removed(tmp_path: Path) -> None:
    """float64 needs it twice: t + (hi - t) is not hi."""

    def change(arrays: Arrays) -> None:
        for name in LAYER:
            arrays.every[arrays.key("clamp", name)] = arrays("clamp", name)[:1]

    built("reverse", 4).save(tmp_path)
    tamper(tmp_path, change)
    refuses(tmp_path, "clamp", ef.Verdict.UNKNOWN)


def test_a_clamp_that_float64_does_not_cancel(tmp_path: Path) -> None:
    """relu(3t - 3hi) c - relu(t - hi)(3c + 1) is -relu(t - hi), in real arithmetic.

    And a window far above the codes sends what comes from the ramps to 1e240.
    """

    def change(arrays: Arrays) -> None:
        rows, biases, columns = (arrays("clamp", name) for name in LAYER[:3])
        for unit in (0, 2):
            rows[:, unit] *= 3
            biases[:, unit] *= 3
        columns[:, 0] = 2.0**30, 1 - 3 * 2.0**30, 2.0**30, -1 - 3 * 2.0**30
        far = -np.array([[64, 64.25, 2.0**40, 2.0**40 + 0.25]])
        first = (np.ones((1, 4, 1)), far, 1.3 * 2.0**800 * PLATEAU[None, None], [[0.0]])
        for name, row in zip(LAYER, first, strict=True):
            key = arrays.key("value map", name)
            arrays.every[key] = np.concatenate([row, arrays.every[key]])

    built("reverse", 4).save(tmp_path)
    edit(tmp_path, "claim", "eps", to="1/5")
    tamper(tmp_path, change)
    refuses(tmp_path, "clamp", ef.Verdict.UNKNOWN)


def test_noise_of_one_coordinate_in_the_other(tmp_path: Path) -> None:
    """relu(3t) c - relu(t) 3c is 0 in real arithmetic, and in float64 it is not."""

    def change(arrays: Arrays) -> None:
        rows, biases, columns = (arrays("quantise", name) for name in LAYER[:3])
        on_first = rows[:, 1, 0] != 0
        rows[on_first, 0] *= 3
        biases[on_first, 0] *= 3
        columns[on_first, 1, :2] = 2.0**60, -3 * 2.0**60

    target = built("reverse", 2, 2).target
    built("reverse", 2, 2).save(tmp_path)
    network = tamper(tmp_path, change)
    x = np.random.default_rng(0).random((20_000, 2, 2))
    gap = target(x) - network(x)
    measured = float(np.sqrt(np.square(gap).sum(axis=(1, 2)).mean()))
    eps = ef.verify(tmp_path).certificate.eps
    assert eps is not None
    assert measured > 2 * float(eps)
    refuses(tmp_path, "quantise")


def test_a_jump_at_a_single_point(tmp_path: Path) -> None:
    """Two functions of Phi that cancel everywhere but on the grid: they differ there."""
    exact = ef.construct(
        GALLERY["reverse"](2, 2), grid=2, method=ef.SelectiveShifts(softened=False)
    )
    exact.save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    arrays = Arrays(exact.network)
    prefix = f"stages.{arrays.names.index('quantise')}.feed_forward."
    half = Fraction(1, 2)
    layer: dict[str, list[Any]] = {
        "W_1": [[1, 0], [1, 0]],
        "b_1": [-half, -half],
        "W_2": [[0, 0], [1, -1]],
        "b_2": [0, 0],
        "phi.breaks": [[0, 9], [0, 9]],
        "phi.closed": [[True, True], [False, True]],
        "phi.slopes": [[0, 0, 0], [0, 0, 0]],
        "phi.intercepts": [[0, 1, 1], [0, 1, 1]],
    }
    for name, added in layer.items():
        array = arrays.every[prefix + name]
        axis = {"W_2": 2, "b_2": None}.get(name, 1)
        if axis is not None:  # a second hidden unit, idle in all other layers
            array = np.concatenate([array, np.zeros_like(array)], axis=axis)
        if name == "phi.breaks":
            array[:, 1] = [0, 1]
        row = np.array(added, dtype=array.dtype)[None]
        arrays.every[prefix + name] = np.concatenate([array, row])
    changed = exact.network.with_arrays(arrays.every)
    x = np.full((1, 2, 2), 0.7)
    assert np.abs(changed(x) - exact.network(x)).max() > 1
    write_weights(tmp_path, changed)
    refuses(tmp_path, "quantise")


def test_the_certificate_of_another_target(tmp_path: Path) -> None:
    ef.construct(first_token(2, 1), grid=4).save(tmp_path)
    write_weights(tmp_path, built("reverse", 4).network)
    found = refuses(tmp_path, "bound", ef.Verdict.REFUTED)
    assert "is at least" in found.reasons[0]


def test_the_certificate_of_another_size(tmp_path: Path) -> None:
    """The certificate of K = 8 over the weights of K = 4, and the other way round."""
    built("reverse", 8).save(tmp_path)
    write_weights(tmp_path, built("reverse", 4).network)
    refuses(tmp_path, "bound")
    built("reverse", 4).save(tmp_path)
    write_weights(tmp_path, built("reverse", 8).network)
    refuses(tmp_path, "bound")


def new_hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("constant", [None, "1/2", "0"])
def test_an_edited_expression(constant: str | None, tmp_path: Path) -> None:
    built("reverse", 4).save(tmp_path)
    program = json.loads((tmp_path / "certificate.json").read_text())["target"][
        "expression"
    ]
    if constant is None:
        program["outputs"].reverse()  # the identity
    else:
        program["nodes"][0] = ["const", constant]
    edit(tmp_path, "target", "expression", to=program)
    with pytest.raises(CertificateError, match="not the one that its hash names"):
        ef.verify(tmp_path)
    edit(tmp_path, "target", "sha256", to=new_hash(program))
    refuses(tmp_path, "bound", ef.Verdict.REFUTED)


CLAIMS: list[tuple[str, tuple[Any, ...], str]] = [
    ("sum", ("bound", "value", "1/100"), "bound"),
    ("sum of float64", ("float64_bound", "value", "1/100"), "bound"),
    ("part", ("bound", "terms", 0, "terms", 0, "value", "1/100"), "bound"),
    ("rule", ("bound", "rule", "product"), "bound"),
    ("eps", ("claim", "eps", "1/10"), "bound"),
    ("eps 0", ("claim", "eps", "0"), "bound"),
    ("coarser grid", ("construction", "grid", 2), "bound"),
    ("other grid", ("construction", "grid", 3), "bound"),
    ("larger domain", ("claim", "domain", [["0", "2"]]), "quantise"),
    ("moved domain", ("claim", "domain", [["1", "2"]]), "quantise"),
    ("exponent", ("claim", "p", "1"), "bound"),
    ("no claims", ("claim", "claims", []), "nothing is claimed"),
    ("no eps", ("claim", "eps", None), "nothing is claimed"),
    ("no target", ("target", "kind", "nothing"), "nothing is claimed"),
]


@pytest.mark.parametrize(
    ("path", "stage"), [pytest.param(*case, id=label) for label, *case in CLAIMS]
)
def test_edited_claims_are_not_proved(
    path: tuple[Any, ...], stage: str, tmp_path: Path
) -> None:
    built("reverse", 4).save(tmp_path)
    edit(tmp_path, *path[:-1], to=path[-1])
    refuses(tmp_path, stage, ef.Verdict.UNKNOWN)


def test_a_claim_about_float64_without_float64_weights(tmp_path: Path) -> None:
    ef.construct(
        GALLERY["reverse"](2, 1), grid=4, method=ef.SelectiveShifts(softened=False)
    ).save(tmp_path)
    edit(tmp_path, "claim", "claims", to=["real", "float64"])
    refuses(tmp_path, "bound", ef.Verdict.UNKNOWN)


def test_what_stays_true_is_still_proved(tmp_path: Path) -> None:
    """A finer grid and a part of the domain: other words for what the weights do."""
    built("reverse", 4).save(tmp_path)
    edit(tmp_path, "construction", "grid", to=8)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    edit(tmp_path, "construction", "grid", to=4)
    edit(tmp_path, "claim", "domain", to=[["0", "1/2"]])
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    x = np.random.default_rng(0).random((20_000, 2, 1)) / 2
    gap = np.square(built("reverse", 4).network(x) - x[:, ::-1]).sum(axis=(1, 2)).mean() / 4
    assert found.bound is not None
    assert np.sqrt(gap) == pytest.approx(float(found.bound.value), rel=1e-2)


def test_a_consistent_tree_is_only_remarked_on(tmp_path: Path) -> None:
    built("reverse", 4).save(tmp_path)
    for name in ("bound", "float64_bound"):
        smaller = ef.Bound.total([ef.Bound(Fraction(1, 10**9), "a part")], "a sum")
        edit(tmp_path, name, to=smaller.to_json())
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    assert len(found.remarks) == 2
    assert all("larger than the stated 1.000e-09" in text for text in found.remarks)


def test_the_wrong_hash_is_no_verdict(tmp_path: Path) -> None:
    built("reverse", 4).save(tmp_path)
    built("reverse", 8).network.save(tmp_path / NETWORK_FILE)
    with pytest.raises(CertificateError, match="sha256"):
        ef.verify(tmp_path)


# Mutations at random.


def affine(scale: float, domain: tuple[float, float], equivariant: bool) -> Target:
    """A linear map; its distance to a step function has a closed form."""

    def function(x: np.ndarray) -> np.ndarray:
        if equivariant:
            return scale * (x.mean(-2, keepdims=True) - x / 2)
        return scale * x[..., ::-1, :]

    slope = Fraction(scale) * 2
    return Target(function, 2, 1, domain=[domain], equivariant=equivariant, lipschitz=slope)


@cache
def victims() -> list[tuple[ef.Built, Fraction]]:
    """Small networks of both theorems, and a tight eps for each."""
    networks = [
        built("reverse", 4),
        built("centring", 4),
        built("centring", 8),
        built("reverse", 2, 2),
        built("centring", 2, 2),
        ef.construct(affine(1.5, (-1.0, 2.0), equivariant=False), grid=4),
        ef.construct(affine(0.75, (-3.0, 1.0), equivariant=True), grid=4),
    ]
    found: list[tuple[ef.Built, Fraction]] = []
    for network in networks:
        bounds = (network.certificate.bound, network.certificate.float64_bound)
        largest = max(bound.value for bound in bounds if bound is not None)
        found.append((network, largest * Fraction(1001, 1000)))
    return found


def distance_sampled(
    network: ef.Network, target: Target, executor: ExecutorName = "literal"
) -> float:
    """d_2(f, g) at 20,480 points, most of them quasi-random; at fewer, block by block."""
    n, d = target.seq_len, target.d_model
    points = 1 << (14 if executor == "literal" else 11)
    cube = np.concatenate(
        [
            qmc.Sobol(n * d, bits=53, rng=1).random(points),
            np.random.default_rng(1).random((points // 4, n * d)),
        ]
    ).reshape(-1, n, d)
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    x = low + (high - low) * cube
    gap = np.square(target(x) - network(x, executor=executor)).sum(axis=(1, 2))
    return float(np.sqrt(gap.mean() * float(target.domain.volume(n))))


def distance_of_steps(
    network: ef.Network, of: ef.Built, executor: ExecutorName = "literal"
) -> float:
    """d_2(f, g) from the cells' centres, for linear f: no sampling error.

    The mean over a cell of |f - g|^2 is |f(c) - g|^2 plus the variance of f, which is
    (slope * half-width)^2 / 3 for each entry and variable.
    """
    grid, target = grid_plan(of.plan).shape, of.target
    n, d = target.seq_len, target.d_model
    centres = grid.centres(grid.all_sequences())
    gap = np.square(target(centres) - network(centres, executor=executor))
    units = np.eye(n * d).reshape(-1, n, d)
    slopes = target(units) - target(np.zeros((1, n, d)))
    halves = np.array([float(w) for w in grid.box.widths]) / (2 * grid.cells)
    variance = np.square(slopes * (units * halves).sum(axis=(1, 2))[:, None, None]).sum()
    mean = gap.sum(axis=(1, 2)).mean() + variance / 3
    return float(np.sqrt(mean * float(target.domain.volume(n))))


SIGNS = st.sampled_from([-1.0, 1.0])
"""Of which sign a change is."""


@st.composite
def mutations(draw: st.DrawFn, network: ef.Network) -> dict[str, np.ndarray]:
    """One to three changes, each of an entry or of a layer of one array."""
    arrays = {name: array.copy() for name, array in network.arrays()}
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(arrays)))
        array = arrays[name]
        place = np.unravel_index(draw(st.integers(0, array.size - 1)), array.shape)
        if draw(st.booleans()):
            place = place[: draw(st.integers(1, array.ndim))]  # a whole row, or layer
        other = np.unravel_index(draw(st.integers(0, array.size - 1)), array.shape)
        size = draw(SIGNS) * 10.0 ** draw(st.integers(-16, 1))
        kind = draw(
            st.sampled_from(["relative", "absolute", "flip", "zero", "ulp", "swap"])
        )
        before = array[place].copy()
        if kind == "relative":
            array[place] = before * (1 + size)
        elif kind == "absolute":
            array[place] = before + size * draw(st.sampled_from([1.0, 0.25, 0.125]))
        elif kind == "flip":
            array[place] = -before
        elif kind == "zero":
            array[place] = 0.0
        elif kind == "ulp":
            array[place] = np.nextafter(before, draw(SIGNS) * np.inf)
        else:
            other = other[: len(place)]
            array[place], array[other] = array[other].copy(), before
    return arrays


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_false_verdict_on_mutated_weights(data: st.DataObject) -> None:
    """PROVED means at most eps, REFUTED means more, by measurements of another kind."""
    of, eps = data.draw(st.sampled_from(victims()), label="network")
    arrays = data.draw(mutations(of.network), label="arrays")
    assume(any((array != arrays[name]).any() for name, array in of.network.arrays()))
    network = of.network.with_arrays(arrays)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replace(of.certificate, eps=eps).save(folder)
        write_weights(folder, network)
        verdict = ef.verify(folder).verdict
    event(verdict.name)
    if verdict is ef.Verdict.UNKNOWN:
        return
    executors: tuple[ExecutorName, ...] = ("literal", "reference")
    for executor in executors:
        sampled = distance_sampled(network, of.target, executor)
        if verdict is ef.Verdict.PROVED:
            assert sampled <= 1.02 * float(eps)
            assert distance_of_steps(network, of, executor) <= float(eps)
        else:
            assert sampled >= 0.98 * float(eps)
