"""Corners, edges, borders of cells, ends of ramps and their float64 neighbours.

What is promised, and checked here for every construction:

* A point whose coordinates are all near borders of cells, centres or ends of the domain has
  the value of a cell whose closure contains it. Near means equal or a few float64 numbers
  away. At a corner of the domain that is the value of the corner's cell.
* On ramps, and wherever else inside the domain, a value lies in the range of the table.
* One float64 number outside the domain the weights give a finite value; asking the network
  for it is refused, where nothing is promised out there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.plans import grid_plan

import everyformer as ef
from everyformer import patterns
from everyformer.construct.averaging import layers as averaging
from everyformer.construct.averaging.layers import Variant
from everyformer.construct.pipeline import Built
from everyformer.construct.shifts import constants
from everyformer.errors import DomainError
from everyformer.model.network import Network
from everyformer.targets import reverse, soft_attention
from everyformer.targets.target import Target

ULPS = 2
"""How many float64 numbers on each side of a border count as near it."""

MANY = 600
"""Most points that are tried of one network; a sample where there are more."""


def with_positions(x: np.ndarray) -> np.ndarray:
    """A function whose values on different cells and tokens differ."""
    j, i = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    return np.sin(3 * x + j + i / 2) * x.mean(axis=(-2, -1), keepdims=True) + np.cos(x)


def symmetric(x: np.ndarray) -> np.ndarray:
    """The same without positions."""
    return np.sin(3 * x) * x.mean(axis=(-2, -1), keepdims=True) + np.cos(x)


def neighbours(x: float, ulps: int = ULPS) -> list[float]:
    """x and the float64 numbers next to it, increasing."""
    found = [x]
    for _ in range(ulps):
        found.insert(0, math.nextafter(found[0], -math.inf))
        found.append(math.nextafter(found[-1], math.inf))
    return found


def near_borders(low: float, high: float, K: int) -> dict[float, tuple[int, int]]:
    """Points of one coordinate, and the first and the last cell that each belongs to."""
    width = Fraction(high) - Fraction(low)
    found: dict[float, tuple[int, int]] = {}
    for k in range(K + 1):
        border = float(Fraction(low) + k * width / K)
        for x in neighbours(border):
            found[min(max(x, low), high)] = max(k - 1, 0), min(k, K - 1)
        if k < K:
            found[float(Fraction(low) + (2 * k + 1) * width / (2 * K))] = k, k
    return found


@dataclass(frozen=True)
class Edges:
    """A network, and the grid whose cells it is to respect."""

    network: Network
    n: int
    K: int
    box: tuple[tuple[float, float], ...]
    ramp: Fraction

    @classmethod
    def of(cls, built: Built) -> "Edges":
        grid, held = grid_plan(built.plan).shape, built.network.construction
        assert held is not None
        box = tuple(zip(grid.box.lows, grid.box.highs, strict=True))
        return cls(built.network, grid.seq_len, grid.cells, box, held.ramp_width)

    @property
    def axes(self) -> list[tuple[float, float]]:
        """The interval of every entry of a sequence, token by token."""
        return list(self.box) * self.n

    @cached_property
    def on_cells(self) -> np.ndarray:
        """The network at the centre of every cell, shape (K, .., K, nd)."""
        N, K = len(self.axes), self.K
        low, high = np.array(self.axes).T
        cells = np.array(list(product(range(K), repeat=N)))
        x = low + (high - low) * (cells + 0.5) / K
        return self.run(x).reshape(*(K,) * N, N)

    def run(self, x: np.ndarray) -> np.ndarray:
        """The network on flat sequences, shape (count, nd)."""
        return self.network(x.reshape(len(x), self.n, -1)).reshape(len(x), -1)

    def wrong(self, many: int = MANY) -> list[str]:
        """Points near borders whose value no cell next to them has; corners come first."""
        held = [near_borders(low, high, self.K) for low, high in self.axes]
        points = [np.array(list(axis)) for axis in held]
        cells = [np.array(list(axis.values())) for axis in held]
        chosen = _choose([len(axis) for axis in points], many)
        ends = [(axis.argmin(), axis.argmax()) for axis in points]
        chosen = np.concatenate([np.array(list(product(*ends))), chosen])
        x = np.stack([axis[c] for axis, c in zip(points, chosen.T, strict=True)], -1)
        table, found = self.on_cells, self.run(x)
        distance = np.full(len(x), np.inf)
        for side in product((0, 1), repeat=len(points)):
            beside = zip(cells, chosen.T, side, strict=True)
            allowed = table[tuple(of[c, s] for of, c, s in beside)]
            distance = np.fmin(distance, np.abs(found - allowed).max(axis=-1))
        far = ~(distance <= 1e-9 * (1 + np.abs(table).max()))
        return [
            f"{a.tolist()} gives {b.tolist()}"
            for a, b in zip(x[far], found[far], strict=True)
        ]

    def leaves_range(self, many: int = MANY) -> list[str]:
        """Points around the ramps whose value is outside the range of the table."""
        steps = [-2, -1.5, -1.25, -1, -0.75, -0.5, -0.25, -0.125, 0.25, 0.5]
        points: list[np.ndarray] = []
        for low, high in self.axes:
            borders = low + (high - low) * np.arange(self.K + 1) / self.K
            ramps = borders[:, None] + np.array(steps) * float(self.ramp) * (high - low)
            near = [y for x in ramps.flat for y in neighbours(float(x), 1)]
            points.append(np.clip([*near, low, high], low, high))
        chosen = _choose([len(axis) for axis in points], many)
        x = np.stack([axis[c] for axis, c in zip(points, chosen.T, strict=True)], -1)
        table, found = self.on_cells, self.run(x)
        by_entry = table.reshape(-1, self.n, len(self.box))  # one range for all tokens
        least = np.minimum(by_entry.min(axis=(0, 1)), 0)
        most = np.maximum(by_entry.max(axis=(0, 1)), 0)
        slack = 1e-9 * (1 + np.abs(table).max())
        y = found.reshape(-1, self.n, len(self.box))
        fine = ((y >= least - slack) & (y <= most + slack)).all(axis=(1, 2))
        return [
            f"{a.tolist()} gives {b.tolist()}"
            for a, b in zip(x[~fine], y[~fine], strict=True)
        ]

    def not_finite_outside(self) -> int:
        """Sequences with entries one float64 number outside that give no finite value."""
        ends = [
            (math.nextafter(low, -math.inf), low, high, math.nextafter(high, math.inf))
            for low, high in self.axes
        ]
        x = np.array(list(product(*ends))).reshape(-1, self.n, len(self.box))
        found = self.network.executor.run(x)
        return int((~np.isfinite(found)).any(axis=(1, 2)).sum())


def _choose(sizes: list[int], many: int) -> np.ndarray:
    """All combinations of one point of each axis, or a sample; shape (count, axes)."""
    if math.prod(sizes) <= many:
        return np.array(list(product(*(range(size) for size in sizes))))
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, size, many) for size in sizes], axis=-1)


UNIT, AROUND = [(0.0, 1.0)], [(-1.0, 1.0)]
MIXED, WIDE, TENTHS = [(-1.0, 1.0), (0.0, 3.0)], [(1e-3, 1e3)], [(0.1, 0.7)]
SHAPES: list[tuple[int, int, list[tuple[float, float]]]] = [
    (2, 4, UNIT),
    (3, 4, AROUND),
    (2, 2, MIXED),
    (2, 4, WIDE),
    (2, 8, TENTHS),
    (1, 4, TENTHS),
]
"""n, K and the domain."""

WITH: list[dict[str, Any]] = [
    {"method": ef.Averaging("wide", True)},
    {"method": ef.Averaging("narrow", True)},
    {"method": ef.Averaging("two-step", True)},
    {"method": ef.SelectiveShifts(positional=True)},
    {"method": "urpe"},
]
WITHOUT: list[dict[str, Any]] = [
    {"method": ef.Averaging("wide", False)},
    {"method": ef.Averaging("narrow", False)},
    {"method": ef.SelectiveShifts(positional=False)},
]
SPARSE: list[Callable[[int], patterns.Pattern]] = [
    patterns.star,
    patterns.ring,
    lambda n: patterns.window(n, 1),
    lambda n: patterns.strided(n, 2),
]


def build(
    settings: dict[str, Any],
    shape: tuple[int, int, list[tuple[float, float]]],
    function: Callable[[np.ndarray], np.ndarray] = with_positions,
) -> Built:
    n, K, domain = shape
    target = Target(
        function, n, len(domain), domain=domain, equivariant=function is symmetric
    )
    return ef.construct(target, grid=K, **settings)


def check(built: Built) -> None:
    edges = Edges.of(built)
    many = 40 if built.network.is_exact else MANY  # rationals are slow
    assert edges.wrong(many) == []
    assert edges.leaves_range(many) == []
    assert edges.not_finite_outside() == 0


def _name(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values())
    return f"n{value[0]}-K{value[1]}-{value[2]}" if isinstance(value, tuple) else ""


@pytest.mark.parametrize("shape", SHAPES, ids=_name)
@pytest.mark.parametrize("settings", WITH, ids=_name)
def test_edges_with_positions(settings: dict[str, Any], shape: Any) -> None:
    check(build(settings, shape))


@pytest.mark.parametrize("shape", SHAPES, ids=_name)
@pytest.mark.parametrize("settings", WITHOUT, ids=_name)
def test_edges_without_positions(settings: dict[str, Any], shape: Any) -> None:
    check(build(settings, shape, symmetric))


@pytest.mark.parametrize("shape", [(2, 3, TENTHS), (1, 2, MIXED), (2, 2, UNIT)])
def test_edges_of_exact_networks(shape: Any) -> None:
    check(build({"method": ef.SelectiveShifts(True, softened=False)}, shape))
    check(build({"method": ef.UrpeShifts(softened=False)}, shape))
    check(build({"method": ef.SelectiveShifts(False, softened=False)}, shape, symmetric))


@pytest.mark.parametrize("pattern", SPARSE, ids=["star", "ring", "window", "strided"])
@pytest.mark.parametrize("softened", [True, False])
def test_edges_of_sparse_networks(
    pattern: Callable[[int], patterns.Pattern], softened: bool
) -> None:
    shapes = [(2, 4, UNIT), (3, 2, TENTHS), (3, 2, WIDE), (2, 2, MIXED)]
    for n, K, domain in shapes if softened else shapes[:2]:
        settings = {"method": ef.SparseShifts(pattern(n), softened=softened)}
        check(build(settings, (n, K, domain)))


@pytest.mark.parametrize("variant", ["wide", "narrow", "two-step"])
def test_grids_that_are_not_dyadic_and_the_steepest_ramps(variant: Variant) -> None:
    for n, K, domain in ((2, 3, TENTHS), (3, 3, UNIT), (2, 7, WIDE), (2, 3, MIXED)):
        for p in (1, 3):
            settings = {"method": ef.Averaging(variant), "p": p}
            check(build(settings, (n, K, domain)))


def test_the_corners_where_people_try_it_first() -> None:
    built = ef.construct(reverse(2, 1), grid=16, method="averaging")
    x = np.array([[1.0, 0.37], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.25]])[..., None]
    expected = np.array(
        [
            [0.34375, 0.96875],
            [0.03125, 0.03125],
            [0.96875, 0.96875],
            [0.96875, 0.03125],
            [0.28125, 0.53125],
        ]
    )
    assert np.abs(built.network(x)[..., 0] - expected).max() < 1e-12


def test_the_folded_executor_takes_the_same_cells() -> None:
    for target, K in ((reverse(2, 1), 16), (soft_attention(2, 1), 32)):
        built = ef.construct(target, grid=K)
        axis = np.array(list(near_borders(0.0, 1.0, K)))[: 4 * K : 3]
        x = np.array(list(product(axis, axis)))[..., None]
        assert (built.network(x, executor="folded") == built.network(x)).all()


def test_a_partition_of_unity_meets_its_uniform_bound_on_the_edges() -> None:
    for n, K, domain in ((2, 4, UNIT), (1, 6, AROUND), (1, 8, TENTHS), (1, 4, MIXED)):
        d = len(domain)
        target = Target(symmetric, n, d, domain=domain, equivariant=True)
        built = ef.construct(target, grid=K, p=math.inf, method="partition")
        assert built.certificate.verdict is ef.Verdict.PROVED
        points = [list(near_borders(low, high, 2)) for low, high in domain] * n
        chosen = _choose([len(axis) for axis in points], MANY)
        x = np.stack([np.array(a)[c] for a, c in zip(points, chosen.T, strict=True)], -1)
        x = x.reshape(-1, n, d)
        eps = built.certificate.eps
        assert eps is not None
        assert np.abs(built.network(x) - target(x)).max() <= float(eps)
        edges = Edges(built.network, n, 2, tuple(domain), Fraction(0))
        assert edges.not_finite_outside() == 0


def wave(x: np.ndarray) -> np.ndarray:
    """Bent everywhere, with a kink, and other tokens in it."""
    return np.exp(-x * x) + np.maximum(x, 0.3) + x.mean(-2, keepdims=True)


def _on_edges(n: int, domain: list[tuple[float, float]]) -> np.ndarray:
    """Corners, middles and their neighbours, of all entries at once."""
    points = [list(near_borders(low, high, 2)) for low, high in domain] * n
    chosen = _choose([len(axis) for axis in points], MANY)
    x = np.stack([np.array(a)[c] for a, c in zip(points, chosen.T, strict=True)], -1)
    return x.reshape(-1, n, len(domain))


@pytest.mark.parametrize("domain", [UNIT, AROUND, TENTHS, MIXED], ids=range(4))
def test_a_compiled_network_meets_its_bound_on_the_edges(domain: Any) -> None:
    target = Target(wave, 2, len(domain), domain=domain)
    built = ef.construct(target, tol=1e-3, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED
    eps = built.certificate.eps
    assert eps is not None
    x = _on_edges(2, domain)
    assert np.abs(built.network(x) - target(x)).max() <= float(eps)
    edges = Edges(built.network, 2, 2, tuple(domain), Fraction(0))
    assert edges.not_finite_outside() == 0


def test_a_compiled_network_for_a_smaller_box_is_rejected() -> None:
    """Negative control: beyond the box that it was compiled for, its bound is not met."""
    built = ef.construct(Target(wave, 2, 1, domain=TENTHS), tol=1e-3, method="compile")
    x, eps = _on_edges(2, AROUND), built.certificate.eps
    assert eps is not None
    assert np.abs(built.network.executor.run(x) - wave(x)).max() > float(eps)
    with pytest.raises(DomainError, match="lies outside"):
        built.network(np.full((1, 2, 1), np.nextafter(0.7, 1)))


@pytest.mark.parametrize("equivariant", [True, False])
def test_memories_are_exact_at_the_ends_of_what_they_hold(equivariant: bool) -> None:
    ends = [0.0, 1.0, 0.1, -0.3, 1e3, 1e-3, math.nextafter(0.7, 1)]
    x = np.array(list(product(ends, ends)))
    x = x if not equivariant else x[x[:, 0] < x[:, 1]]
    y = np.sin(x) + x[:, ::-1]
    memory = ef.memorise(x, y, equivariant=equivariant)
    assert memory.wrong().size == 0
    for direction in (-np.inf, np.inf):
        beside = np.clip(np.nextafter(x, direction), -0.3, 1e3)[..., None]
        assert (memory.network(beside) == y[..., None]).all()


@pytest.mark.parametrize("shape", SHAPES[:5], ids=_name)
def test_positions_one_apart_are_rejected(
    shape: tuple[int, int, list[tuple[float, float]]],
) -> None:
    """Negative control: with E_j = j the ends of neighbouring positions are one number."""
    built = build({"method": ef.Averaging(positional=True)}, shape)
    held = built.network.registers
    assert held is not None
    n, K, domain = shape
    d = len(domain)
    start = held.start.copy()
    start[:, :d] -= np.arange(n)[:, None] / K
    stage = built.network.stages[0]
    layers = stage.feed_forward
    assert layers is not None
    b_1 = layers.b_1.copy()
    sharp = float(1 / Edges.of(built).ramp)
    for unit in range(b_1.shape[1]):
        m = unit // 2 % (n * K - 1) + 1
        shift = (m // K - (0.5 if m % K == 0 else 0)) / K if m >= K else 0.0
        b_1[0, unit] += (shift - (0 if m % K == 0 else 0.75 / sharp)) * sharp
    first = replace(stage, feed_forward=replace(layers, b_1=b_1))
    old = replace(
        built.network,
        stages=(first, *built.network.stages[1:]),
        registers=replace(held, start=start),
    )
    wrong = replace(Edges.of(built), network=old).wrong()
    assert len(wrong) > 10
    corners = 2 ** (n * d)
    low = [low for low, _ in domain] * n
    assert any(text.startswith(str(low)) for text in wrong[:corners])


@pytest.mark.parametrize("positional", [True, False])
def test_ramps_on_the_borders_are_rejected(
    monkeypatch: pytest.MonkeyPatch, positional: bool
) -> None:
    """Negative control: positions apart, but every border in the middle of a ramp."""
    monkeypatch.setattr(averaging, "GUARD", Fraction(-1, 2))
    function = with_positions if positional else symmetric
    built = build({"method": ef.Averaging(positional=positional)}, SHAPES[0], function)
    assert len(Edges.of(built).wrong()) > 10


@pytest.mark.parametrize("settings", [WITH[3], WITH[4], WITHOUT[2]], ids=_name)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=_name)
def test_without_the_guard_neighbours_of_borders_are_rejected(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], shape: Any
) -> None:
    """Negative control: the float64 number below a border is on a ramp."""
    monkeypatch.setattr(constants, "EDGE_GUARD", Fraction(0))
    function = symmetric if settings == WITHOUT[2] else with_positions
    built = build(settings, shape, function)
    assert len(Edges.of(built).wrong()) > 10
