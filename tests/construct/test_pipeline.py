"""The whole construction: networks that equal their table on every cell."""

import resource
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.plans import constants_of, grid_plan, table_of

import everyformer as ef
from everyformer.construct.method import format_count
from everyformer.construct.pipeline import Built
from everyformer.construct.shifts.contextual import contextual_ids
from everyformer.construct.shifts.value import ValuePlan, value_map
from everyformer.errors import TargetError
from everyformer.numerics.kinds import EXACT
from everyformer.numerics.rationals import exact_array
from everyformer.targets import (
    GALLERY,
    centring,
    first_token,
    prefix_mean,
    reverse,
    shift,
    soft_attention,
)
from everyformer.targets.target import Target

EQUIVARIANT = [name for name, make in GALLERY.items() if make(3, 1).equivariant]
ORDERED = [name for name in GALLERY if name not in EQUIVARIANT]


def cells(built: Built) -> tuple[np.ndarray, np.ndarray]:
    """Column numbers of every cell, and the table's value there."""
    c = constants_of(built.plan)
    columns = c.grid.all_sequences()
    values = built.target(c.grid.centres(columns))
    if not c.positional:
        ordered = np.sort(columns, axis=-1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
        values[repeated] = 0  # Theorem 2: duplicate columns give 0
    return columns, values


def plateau_points(built: Built, columns: np.ndarray, seed: int = 0) -> np.ndarray:
    """A random point of every cell, off the ramps of width 2^-30 at its upper ends."""
    c = constants_of(built.plan)
    low, high = np.asarray(c.grid.box.lows), np.asarray(c.grid.box.highs)
    inside = np.random.default_rng(seed).uniform(1e-6, 1 - 1e-6, (*columns.shape, c.d))
    return low + (high - low) * (c.grid.digits(columns) + inside) / c.K


@pytest.mark.rows(8)
@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.parametrize(("n", "d", "K"), [(2, 1, 6), (3, 1, 4), (2, 2, 3), (1, 2, 3)])
def test_modified_network_of_theorem_2_equals_the_table(
    name: str, n: int, d: int, K: int
) -> None:
    built = ef.construct(
        GALLERY[name](n, d), grid=K, method=ef.SelectiveShifts(softened=False)
    )
    columns, values = cells(built)
    x = grid_plan(built.plan).shape.centres(columns)
    # A permuted cell has the table's value exactly; f itself may round differently there.
    order = np.argsort(columns, axis=-1)
    ordered = built.target(np.take_along_axis(x, order[..., None], axis=1))
    exact = np.empty_like(ordered)
    np.put_along_axis(exact, order[..., None], ordered, axis=1)
    exact[(values == 0).all(axis=(1, 2))] = 0
    assert (built.network.exact(x) == exact_array(exact)).all()


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize(("n", "d", "K"), [(2, 1, 5), (3, 1, 3), (2, 2, 2), (4, 1, 2)])
@pytest.mark.parametrize("spacing", ["paper", "ours"])
def test_modified_network_of_theorem_3_equals_the_table(
    name: str, n: int, d: int, K: int, spacing: str
) -> None:
    built = ef.construct(
        GALLERY[name](n, d),
        grid=K,
        method=ef.SelectiveShifts(
            softened=False, spacing=K if spacing == "paper" else K + 1
        ),
    )
    columns, values = cells(built)
    x = grid_plan(built.plan).shape.centres(columns)
    assert (built.network.exact(x) == exact_array(values)).all()


def test_modified_network_is_constant_on_cells_and_zero_outside() -> None:
    built = ef.construct(centring(2, 1), grid=3, method=ef.SelectiveShifts(softened=False))
    third = Fraction(1, 3)
    corner = built.network.exact(exact_array([[0], [third]]))
    inside = built.network.exact(exact_array([[third - Fraction(1, 10**9)], [0.6]]))
    assert (corner == inside).all()
    edge = built.network.exact(exact_array([[1], [0]]))  # the edge is in the last cell
    assert (edge == built.network.exact(exact_array([[0.9], [0.1]]))).all()
    tiny = Fraction(1, 10**20)
    for outside in ([[1 + tiny], [0]], [[-tiny], [0.5]], [[7], [-9]]):
        assert (built.network.exact(exact_array(outside)) == 0).all()


SOFT_SIZES = [(2, 1, 64), (3, 1, 16), (2, 2, 8), (3, 2, 4), (4, 1, 8), (2, 3, 4)]


@pytest.mark.rows(3)
@pytest.mark.parametrize(("n", "d", "K"), SOFT_SIZES)
def test_softened_network_of_theorem_2(n: int, d: int, K: int) -> None:
    """Every cell centre, and at once the permutation equivariance, bit for bit."""
    built = ef.construct(soft_attention(n, d), grid=K)
    columns, values = cells(built)
    y = built.network(grid_plan(built.plan).shape.centres(columns))
    assert np.abs(y - values).max() <= 1e-9
    repeated = (values == 0).all(axis=(1, 2))
    assert (y[repeated] == 0).all()
    # All permutations of a cell are among the cells: equal bits, in the permuted order.
    number = {tuple(row): k for k, row in enumerate(columns.tolist())}
    for order in ([*range(1, n), 0], [1, 0, *range(2, n)]):
        moved = [number[tuple(row)] for row in columns[:, order].tolist()]
        assert np.array_equal(y[moved], y[:, order])


@pytest.mark.parametrize(
    ("n", "d", "K"), [(2, 1, 32), (3, 1, 8), (2, 2, 4), (4, 1, 8), (2, 3, 2)]
)
def test_random_plateau_points(n: int, d: int, K: int) -> None:
    built = ef.construct(soft_attention(n, d), grid=K)
    columns, values = cells(built)
    for seed in range(2):
        y = built.network(plateau_points(built, columns, seed))
        assert np.abs(y - values).max() <= 1e-9


THEOREM_3 = [(2, 1, 16), (3, 1, 8), (2, 2, 4), (4, 1, 4), (2, 3, 2), (3, 2, 2)]


@pytest.mark.parametrize(("n", "d", "K"), THEOREM_3)
@pytest.mark.parametrize("make", [reverse, shift, first_token, prefix_mean])
def test_softened_network_of_theorem_3(
    make: Callable[[int, int], Target], n: int, d: int, K: int
) -> None:
    built = ef.construct(make(n, d), grid=K)
    columns, values = cells(built)
    assert np.abs(built.network(plateau_points(built, columns)) - values).max() <= 1e-9


@pytest.mark.rows(3)
@pytest.mark.parametrize(("n", "d", "K"), SOFT_SIZES)
def test_softened_network_of_theorem_3_at_the_sizes_of_theorem_2(
    n: int, d: int, K: int
) -> None:
    built = ef.construct(prefix_mean(n, d), grid=K)
    columns, values = cells(built)
    assert np.abs(built.network(plateau_points(built, columns)) - values).max() <= 1e-9


def test_131_thousand_layers() -> None:
    built = ef.construct(soft_attention(2, 1), grid=256)
    assert built.network.blocks > 131_000
    columns, values = cells(built)
    some = slice(None, None, 97)
    y = built.network(plateau_points(built, columns[some]))
    assert np.abs(y - values[some]).max() <= 1e-9


@pytest.mark.parametrize(("n", "d", "K"), [(2, 1, 8), (3, 1, 8), (2, 2, 4), (1, 1, 8)])
def test_outside_the_box_the_softened_network_vanishes(n: int, d: int, K: int) -> None:
    built = ef.construct(soft_attention(n, d), grid=K)
    assert built.network.construction is not None
    reach = built.network.construction.reach
    rng = np.random.default_rng(0)
    x = rng.random((2000, n, d))
    far = 2.0 ** rng.uniform(-25, np.log2(reach) - 1, len(x))
    far[:200] = reach
    token, coordinate = rng.integers(n, size=len(x)), rng.integers(d, size=len(x))
    above = rng.random(len(x)) < 0.5
    x[np.arange(len(x)), token, coordinate] = np.where(above, 1 + far, -far)
    x[::5] = np.where(rng.random(x[::5].shape) < 0.5, 1 + reach / 3, -reach / 7)
    assert (built.network(x) == 0).all()


BOXES: list[Any] = [[(-1, 1)], [(0.1, 0.7)], [(5, 9)], [(-300.5, 17.25)]]


@pytest.mark.parametrize("domain", BOXES)
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("equivariant", [True, False])
def test_boxes_and_their_edges(domain: Any, softened: bool, equivariant: bool) -> None:
    def bend(x: np.ndarray) -> np.ndarray:
        weights = 1 if equivariant else np.arange(1, x.shape[-2] + 1)[:, None]
        return np.sin(x) * weights + x.mean(-2, keepdims=True)

    target = Target(bend, 2, 2, domain=[*domain, (0, 3)], equivariant=equivariant)
    built = ef.construct(
        target, grid=4 if softened else 2, method=ef.SelectiveShifts(softened=softened)
    )
    columns, values = cells(built)
    points = plateau_points(built, columns)
    assert np.abs(built.network(points) - values).max() <= 1e-9
    grid = grid_plan(built.plan).shape
    low, high = np.asarray(grid.box.lows), np.asarray(grid.box.highs)
    for corner, digit in ((low, 0), (high, grid.cells - 1)):
        edge = grid.digits(columns) == digit
        x = np.where(edge, corner, grid.centres(columns))
        touched = edge.any(axis=(1, 2))
        assert np.abs(built.network(x[touched]) - values[touched]).max() <= 1e-9


def test_outputs_stay_in_the_range_of_the_table_on_the_ramps() -> None:
    """The clamp: on the ramps ids are arbitrary, outputs are not."""
    built = ef.construct(prefix_mean(2, 1), grid=8)
    rng = np.random.default_rng(0)
    x = rng.random((4000, 2, 1))
    line = rng.integers(1, 8, len(x)) / 8
    x[:, 0, 0] = line - rng.random(len(x)) * 2.0**-30
    y = built.network(x)
    assert y.min() >= table_of(built).values.min() - 1e-12
    assert y.max() <= table_of(built).values.max() + 1e-12
    unclamped = ef.Network(
        built.network.architecture,
        built.network.stages[:-1],
        built.network.positions,
        built.network.construction,
    )
    assert np.abs(unclamped(x)).max() > 100  # the negative control: without the clamp


@pytest.mark.parametrize("scale", [1e3, 1e8])
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("positional", [True, False])
def test_values_larger_than_ids_are_scaled(
    scale: float, softened: bool, positional: bool
) -> None:
    """A value that another window would hit is stored divided by a power of two."""
    target = Target(
        lambda x: scale * (x - x.mean(-2, keepdims=True) / 2), 2, 1, equivariant=True
    )
    built = ef.construct(
        target, grid=4, method=ef.SelectiveShifts(positional=positional, softened=softened)
    )
    columns, values = cells(built)
    names = [stage.name for stage in built.network.stages]
    made = built.network.construction
    assert made is not None
    assert made.ids is not None
    ids_start = float(made.ids.low)
    assert ("scale up" in names) == (np.abs(values).max() > ids_start)
    y = built.network(plateau_points(built, columns))
    assert np.abs(y - values).max() <= 1e-9 * scale


def test_without_the_scaling_a_value_is_hit_twice() -> None:
    """The gap of Lemma 7: A_L with u^T A_L = a later id is overwritten."""
    c = constants_of(
        ef.plan(centring(2, 1), grid=4, method=ef.SelectiveShifts(softened=False))
    )
    sets = c.grid.distinct_sets()
    ids = contextual_ids(c, sets)
    lowest = float(Fraction(int(ids.min()), c.K))

    def adversary(x: np.ndarray) -> np.ndarray:
        return np.full_like(x, lowest + 1 / 16)  # within delta/2 of the last window

    target = Target(adversary, 2, 1, equivariant=True)
    built = ef.construct(target, grid=4, method=ef.SelectiveShifts(softened=False))
    columns, values = cells(built)
    x = c.grid.centres(columns)
    assert (built.network.exact(x) == exact_array(values)).all()
    # The same table without the scaling, as the paper has it.
    plain = next(value_map(c, EXACT, table_of(built), ids, ValuePlan(1, 0, 0))).stage
    stages = tuple(s for s in built.network.stages if s.name != "scale up")
    stages = tuple(plain if s.name == "value map" else s for s in stages)
    paper = ef.Network(built.network.architecture, stages)
    wrong = (paper.exact(x) != exact_array(values)).any(axis=(1, 2))
    assert wrong.any()


@pytest.mark.parametrize("softened", [True, False])
def test_a_declared_equivariance_is_checked(softened: bool) -> None:
    def nearly(x: np.ndarray) -> np.ndarray:
        y = x.copy()
        hit = (x[..., 0, 0] > 0.7) & (x[..., 1, 0] < 0.3)
        y[..., 0, 0] += 0.01 * hit
        return y

    target = Target(nearly, 3, 1, equivariant=True)
    with pytest.raises(
        TargetError, match=r"not: at cell \[\[\d\], \[\d\], \[\d\]\].*order"
    ):
        ef.construct(target, grid=4, method=ef.SelectiveShifts(softened=softened))
    ef.construct(Target(nearly, 3, 1), grid=4, method=ef.SelectiveShifts(softened=softened))


def test_the_network_of_125_thousand_blocks(tmp_path: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    built = ef.construct(soft_attention(3, 2), grid=8)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert built.cost.blocks == 250_075  # 2 passes of 124,992 value layers
    assert grown < 2**30
    path = tmp_path / "large.safetensors"
    built.network.save(path)
    again = ef.load(path)
    for (_, a), (_, b) in zip(built.network.arrays(), again.arrays(), strict=True):
        assert np.array_equal(a, b)


def test_a_plan_for_a_grid_does_not_trace_the_function() -> None:
    """To trace a sort of 3,000 tokens takes a minute, and a count does not need it."""
    seen: list[type] = []

    def f(x: np.ndarray) -> np.ndarray:
        seen.append(type(x))
        return x

    plan = ef.plan(ef.Target(f, seq_len=3, d_model=1), grid=4)
    assert plan.count().blocks > 0
    assert set(seen) <= {np.ndarray}


def test_counts_of_a_million_digits_are_shown_at_once() -> None:
    assert format_count(8**1_000_000) == "9.7e+903089"
    assert format_count(3 * 10**18) == "3.0e+18"
