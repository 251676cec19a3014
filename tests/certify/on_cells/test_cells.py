"""Bounds on single cells and their sums, against the function itself on dense points."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.known import Declared
from everyformer.certify.on_cells import cells as module
from everyformer.certify.on_cells.cells import (
    CellExamination,
    Cells,
    examine,
    mean_slack,
    network_values,
)
from everyformer.certify.on_cells.distances import cell_ends, float_down, float_up
from everyformer.certify.shifts.reading import ShiftReading, read_network, realise
from everyformer.certify.weights import read_weights
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box, Grid
from everyformer.targets.target import Target

Kind = Literal["expression", "declared"]
POWERS = [Fraction(p) for p in (1, 2, 3, 4, "5/2")]


def bend(x: np.ndarray) -> np.ndarray:
    """Neither linear nor convex, and steep somewhere."""
    return np.sin(2 * x) * x[..., ::-1, :] + np.exp(-(x**2))


TARGETS: dict[str, tuple[Callable[[], Target], int]] = {
    "soft_attention": (lambda: ef.targets.soft_attention(2), 4),
    "centring": (lambda: ef.targets.centring(3), 4),
    "smooth_bump": (lambda: ef.targets.smooth_bump(1, 2), 4),
    "prefix_mean": (lambda: ef.targets.prefix_mean(2), 4),
    "bend": (lambda: Target(bend, 2, 1, lipschitz=8, domain=[(-2, 1.5)]), 4),
    "reverse": (lambda: ef.targets.reverse(2, 2), 2),
}


@cache
def built(name: str, softened: bool = True) -> tuple[Target, ShiftReading]:
    make, K = TARGETS[name]
    target = make()
    network = ef.construct(
        target, grid=K, method=ef.SelectiveShifts(softened=softened)
    ).network
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "n")
        weights = read_weights(Path(folder) / "n")
    return target, read_network(weights, target.domain, K)


def known(
    target: Target, grid: Grid, rows: np.ndarray, kind: Kind
) -> Expression | Declared:
    if kind == "expression":
        assert target.expression is not None
        return target.expression
    radius = max(grid.box.widths) / (2 * grid.cells)
    omega = target.modulus_of_continuity(radius)
    assert omega is not None
    return Declared(target(grid.centres(rows)), omega, target.lipschitz, radius)


def examined(
    name: str, rows: np.ndarray, p: Fraction, kind: Kind = "expression", **options: Any
) -> dict[str, Any]:
    """The sums over given rows, one cell for each."""
    target, reading = built(name)
    work = CellExamination(
        reading,
        Cells(reading.grid, rows),
        known(target, reading.grid, rows, kind),
        p,
        run=options.pop("run", False),
        **options,
    )
    return examine(work, 0)


def upper(result: dict[str, Any]) -> Fraction:
    return Fraction(result["cells"]) + Fraction(result["duplicates"])


def dense(name: str, row: np.ndarray, points: int = 9) -> np.ndarray:
    """|f - g| at the midpoints of points^N parts of a cell, shape (.., n, d).

    For a convex |f - g|^p the mean of these is below the integral.
    """
    target, reading = built(name)
    grid = reading.grid
    n, d = grid.seq_len, grid.d_model
    low, _, _, _ = cell_ends(grid, row[None])
    share = (np.arange(points) + 0.5) / points
    axes = np.stack(np.meshgrid(*[share] * (n * d), indexing="ij"), axis=-1)
    widths = np.array([float(w) for w in grid.box.widths]) / grid.cells
    x = low[0] + axes.reshape(-1, n, d) * widths
    g = network_values(reading, row[None], "real").centre.astype(np.float64)
    return np.abs(target(x) - g)


@pytest.mark.rows(5)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["expression", "declared"])
def test_every_cell_is_bounded(name: str, kind: Kind) -> None:
    """Above the mean of |f - g|^p on the cell; the lower bound below its least value."""
    _, reading = built(name)
    rng = Random(0)
    rows = reading.grid.all_sequences()
    chosen = rng.sample(range(len(rows)), min(3, len(rows)))
    for index in chosen:
        row = rows[index]
        weight = int(reading.grid.orbit_sizes(row[None])[0])
        gaps = dense(name, row)
        for p in POWERS:
            result = examined(name, row[None], p, kind)
            sampled = (gaps ** float(p)).mean(axis=0).sum()
            assert float(upper(result)) / weight >= sampled * (1 - 1e-12)
            least = (gaps.min(axis=0) ** float(p)).sum()
            assert float(Fraction(result["lower"])) / weight <= least * (1 + 1e-12)
            assert Fraction(result["lower"]) <= upper(result)


@pytest.mark.parametrize("p", [Fraction(2), Fraction(4)])
def test_linear_functions_lose_nothing(p: Fraction) -> None:
    """The control: for these the bound is the integral, so that none below it would do."""
    for name in ("centring", "prefix_mean"):
        row = built(name)[1].grid.all_sequences()[7]
        weight = int(built(name)[1].grid.orbit_sizes(row[None])[0])
        found = float(upper(examined(name, row[None], p))) / weight
        points = 25
        sampled = (dense(name, row, points) ** float(p)).mean(axis=0).sum()
        assert sampled <= found <= sampled * (1 + 4 * float(p) / points**2)


def test_sums_over_all_cells() -> None:
    """d_2(f, g) on the whole domain, against a plain mean of all dense points."""
    for name in ("soft_attention", "prefix_mean", "bend"):
        target, reading = built(name)
        grid = reading.grid
        symmetric = not reading.positional
        cells = Cells.of(grid, symmetric=symmetric)
        rows = cells.rows(0, cells.count)
        assert cells.weights(rows).sum() == grid.sequences
        assert cells.shards == 1
        gaps = [(dense(name, row) ** 2).mean(axis=0).sum() for row in rows]
        sampled = float((np.array(gaps) * cells.weights(rows)).sum())
        for kind in ("expression", "declared"):
            facts = known(target, grid, rows, kind)
            result = examine(CellExamination(reading, cells, facts, Fraction(2), True), 0)
            assert sampled <= float(upper(result))
            if kind == "expression":
                assert float(upper(result)) <= 10 * sampled
            repeated = np.array([len(set(row)) < len(row) for row in rows.tolist()])
            if symmetric:
                among = float((np.array(gaps) * cells.weights(rows))[repeated].sum())
                assert float(Fraction(result["duplicates"])) >= among > 0
            else:
                assert result["duplicates"] == "0"
            values = target(grid.centres(rows))
            assert Fraction(result["low"][0]) <= Fraction(values.min())
            assert Fraction(result["high"][0]) >= Fraction(values.max())
            assert Fraction(result["radius"]) < Fraction(1, 10**6)
            assert result["undecided"] is None
            worst, share = result["worst"]
            index = rows.tolist().index(worst)
            assert float(Fraction(share)) >= gaps[index]


@pytest.mark.parametrize("kind", ["expression", "declared"])
def test_another_network_has_another_bound(kind: Kind) -> None:
    """A target moved by 1/2: bounds follow, from above and from below."""
    target, reading = built("prefix_mean")
    rows = reading.grid.all_sequences()

    def moved(x: np.ndarray) -> np.ndarray:
        return target.function(x) + 0.5

    shifted = Target(moved, 2, 1, lipschitz=1)
    facts = known(shifted, reading.grid, rows, kind)
    work = CellExamination(reading, Cells(reading.grid, None), facts, Fraction(2), False)
    result = examine(work, 0)
    count = len(rows) * 2
    assert upper(result) >= Fraction(count, 4)
    least = Fraction(1, 2) - Fraction(1, 2 * reading.grid.cells)
    assert least**2 * Fraction(9, 10) <= Fraction(result["lower"]) / count <= Fraction(1, 4)
    own = known(target, reading.grid, rows, kind)
    assert examine(replace(work, known=own), 0)["lower"] == "0"


@pytest.mark.parametrize("name", ["soft_attention", "bend", "smooth_bump"])
def test_balls_and_intervals_both_bound(name: str) -> None:
    _, reading = built(name)
    rows = reading.grid.all_sequences()[::3]
    for p in (Fraction(1), Fraction(5, 2)):
        for row in rows[:2]:
            first = examined(name, row[None], p)
            second = examined(name, row[None], p, balls=True)
            assert first["by_balls"] == 0
            assert second["by_balls"] == 1
            weight = int(reading.grid.orbit_sizes(row[None])[0])
            sampled = (dense(name, row) ** float(p)).mean(axis=0).sum()
            found = [float(upper(result)) / weight for result in (first, second)]
            assert min(found) >= sampled * (1 - 1e-12)
            assert max(found) <= 2 * min(found)  # balls are the wider ones on boxes


def test_a_pole_is_undecided() -> None:
    """1 / x has no bound on a cell with 0 at its edge; the cell is named."""
    _, reading = built("prefix_mean")
    rows = reading.grid.all_sequences()
    pole = Target(lambda x: 1 / x, 2, 1, lipschitz=1).expression
    assert pole is not None
    cells = Cells(reading.grid, None)
    result = examine(CellExamination(reading, cells, pole, Fraction(2), False), 0)
    assert 0 in result["undecided"]
    assert result["by_balls"] == sum(0 in row for row in rows.tolist())
    assert result["worst"] == result["low"] == result["high"] == []


@pytest.mark.parametrize("kind", ["expression", "declared"])
def test_sums_do_not_depend_on_the_order(kind: Kind) -> None:
    """64 cells in five orders; declared values of every size."""
    target, reading = built("centring")
    rows = reading.grid.all_sequences()
    rng = np.random.default_rng(3)
    noise = (
        rng.normal(size=(len(rows), 3, 1))
        * 2.0 ** rng.integers(-20, 20, len(rows))[:, None, None]
    )
    results: list[dict[str, Any]] = []
    for _ in range(5):
        order = rng.permutation(len(rows))
        facts = known(target, reading.grid, rows[order], kind)
        if isinstance(facts, Declared):
            facts = replace(facts, values=noise[order])
        cells = Cells(reading.grid, rows[order])
        results.append(
            examine(CellExamination(reading, cells, facts, Fraction(3), True), 0)
        )
    for name in ("cells", "duplicates", "real", "float64", "lower", "radius", "worst"):
        assert all(result[name] == results[0][name] for result in results)


@pytest.mark.parametrize("kind", ["expression", "declared"])
def test_shards_add_up(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    target, reading = built("prefix_mean")
    cells = Cells(reading.grid, None)
    rows = cells.rows(0, cells.count)
    facts = known(target, reading.grid, rows, kind)
    work = CellExamination(reading, cells, facts, Fraction(2), True)
    whole = examine(work, 0)
    monkeypatch.setattr(module, "SHARD", 7)
    assert cells.shards == math.ceil(len(rows) / 7)
    parts = [examine(work, index) for index in range(cells.shards)]
    for name in ("cells", "duplicates", "lower"):
        total = float(sum(Fraction(part[name]) for part in parts))
        assert total == pytest.approx(float(Fraction(whole[name])), rel=1e-12)
    assert max(Fraction(part["high"][0]) for part in parts) == Fraction(whole["high"][0])


@pytest.mark.parametrize("softened", [True, False])
def test_values_are_put_back_in_order(softened: bool) -> None:
    """Any order of the tokens, against the network's own equivariance."""
    _, reading = built("centring", softened)
    rows = reading.grid.all_sequences()
    values = network_values(reading, rows, "real")
    places = {tuple(row): k for k, row in enumerate(rows.tolist())}
    ordered = np.array([row for row in rows.tolist() if row == sorted(row)])
    direct = realise(reading, ordered, "real")
    for row, centre in zip(ordered.tolist(), direct.centre, strict=True):
        for order in permutations(range(3)):
            index = places[tuple(row[j] for j in order)]
            assert (values.centre[index] == centre[list(order)]).all()
    assert (values.centre[places[2, 0, 1]] != values.centre[places[0, 1, 2]]).any()


boxes = st.sampled_from([(0.0, 1.0), (-2.0, 5.0), (0.1, 0.7), (-1e9, 1e-9), (3.0, 3.5)])


@settings(deadline=None, max_examples=40)
@given(boxes, boxes, st.integers(2, 9), st.integers(1, 3))
def test_cell_ends_enclose_the_exact_ones(
    first: tuple[float, float], second: tuple[float, float], K: int, n: int
) -> None:
    grid = Grid(K, n, Box((first[0], second[0]), (first[1], second[1])))
    rng = np.random.default_rng(K)
    rows = rng.integers(0, grid.columns, size=(5, n))
    ends = cell_ends(grid, rows)
    digits = grid.digits(rows)
    for (k, j, i), digit in np.ndenumerate(digits):
        start = Fraction(grid.box.lows[i]) + int(digit) * grid.box.widths[i] / K
        end = start + grid.box.widths[i] / K
        middle = (start + end) / 2
        found = [float(end[k, j, i]) for end in ends]
        assert Fraction(found[0]) <= start < Fraction(math.nextafter(found[0], math.inf))
        assert Fraction(found[1]) >= end > Fraction(math.nextafter(found[1], -math.inf))
        assert Fraction(found[2]) <= middle <= Fraction(found[3])
        assert found[3] <= math.nextafter(found[2], math.inf)


@settings(deadline=None)
@given(st.fractions())
def test_rounding_outward(value: Fraction) -> None:
    up, down = float_up(value), float_down(value)
    assert Fraction(down) <= value <= Fraction(up)
    assert up in (down, math.nextafter(down, math.inf))


@pytest.mark.parametrize("p", POWERS, ids=str)
def test_the_mean_of_a_declared_modulus(p: Fraction) -> None:
    """(E max|u|^p)^(1/p) = (N / (N + p))^(1/p) for N variables, times L h."""
    grid = Grid(4, 3, Box((0.0,), (2.0,)))
    linear = Declared(np.zeros((1, 3, 1)), Fraction(3, 4), Fraction(3), Fraction(1, 4))
    share = mean_slack(linear, grid, p) / linear.omega
    num, den = p.numerator, p.denominator
    true = (Fraction(3) / (3 + p)) ** den
    assert true <= share**num <= true * (1 + Fraction(1, 10**12))
    u = np.random.default_rng(0).uniform(-1, 1, size=(100_000, 3))
    sampled = (np.abs(u).max(axis=-1) ** float(p)).mean() ** (1 / float(p))
    assert float(share) == pytest.approx(sampled, rel=0.005)
    other = replace(linear, lipschitz=None)
    assert mean_slack(other, grid, p) == other.omega


def test_what_is_declared_has_a_hash() -> None:
    base = Declared(np.zeros((2, 1, 1)), Fraction(1), Fraction(2), Fraction(1, 2))
    changes = [
        replace(base, values=np.array([[[0.0]], [[5e-324]]])),
        replace(base, values=np.zeros((1, 2, 1))),
        replace(base, omega=Fraction(1, 3)),
        replace(base, lipschitz=None),
        replace(base, radius=Fraction(1, 3)),
    ]
    hashes = {declared.sha256 for declared in (base, *changes)}
    assert len(hashes) == 6
    assert replace(base, values=np.zeros((2, 1, 1))).sha256 == base.sha256
