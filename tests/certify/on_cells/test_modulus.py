"""False moduli of continuity are found, with the two cells that show it; true ones pass."""

from fractions import Fraction
from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.modulus import (
    MAX_CELLS,
    Contradiction,
    contradiction,
    step_length,
    step_sizes,
)
from everyformer.certify.verify import declare
from everyformer.targets.box import Box, Grid
from everyformer.targets.gallery import GALLERY
from everyformer.targets.target import Target

UNIT = ((0.0, 1.0),)


def grid_of(K: int, n: int, d: int) -> Grid:
    return Grid(K, n, Box.per_coordinate(UNIT, d))


def steps_apart(grid: Grid, first: np.ndarray, second: np.ndarray) -> int:
    """The distance of two cells: the largest difference of a digit."""
    return int(np.abs(grid.digits(first) - grid.digits(second)).max())


def brute_force(grid: Grid, values: np.ndarray, allowed: dict[int, Fraction]) -> bool:
    """Whether any two cells contradict the declaration."""
    rows = grid.all_sequences()
    digits = grid.digits(rows).reshape(len(rows), -1)
    apart = np.abs(digits[:, None] - digits[None]).max(axis=-1)
    differ = np.abs(values[:, None] - values[None]).max(axis=(-2, -1))
    return any(
        bool(((apart <= step) & (differ > float(omega))).any())
        for step, omega in allowed.items()
    )


def holds(
    grid: Grid, found: Contradiction, values: np.ndarray, allowed: dict[int, Fraction]
) -> None:
    """A contradiction says what is so: values, distance and what is allowed there."""
    V = grid.columns
    places = found.cells @ V ** np.arange(grid.seq_len)[::-1]
    low, high = (values[place][found.entry] for place in places)
    assert high - low == found.gap
    (omega,) = {v for v in allowed.values() if float(v) == found.allowed}
    step = max(k for k, v in allowed.items() if v == omega)
    assert steps_apart(grid, *found.cells) <= step
    assert found.gap > found.allowed


SHAPES = [
    (4, 1, 1),
    (8, 1, 1),
    (3, 2, 1),
    (4, 2, 1),
    (2, 1, 2),
    (2, 2, 2),
    (3, 1, 2),
    (2, 3, 1),
]


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32))
def test_the_same_as_all_pairs(seed: int) -> None:
    rng = Random(seed)
    K, n, d = rng.choice(SHAPES)
    grid = grid_of(K, n, d)
    size = rng.choice([1, 2, 3])
    values = np.array(
        [rng.randint(0, size) for _ in range(grid.sequences * n * d)], dtype=np.float64
    ).reshape(grid.sequences, n, d)
    if rng.random() < 0.5:  # few entries differ at all
        values *= np.random.default_rng(seed).random(values.shape) < 0.1
    sizes = step_sizes(grid)
    allowed = {k: Fraction(rng.randint(0, 7), 2) + k for k in sizes}
    found = contradiction(Cells(grid, None), values, allowed)
    assert (found is not None) == brute_force(grid, values, allowed)
    if found is not None:
        holds(grid, found, values, allowed)


def test_a_violation_along_an_axis() -> None:
    grid = grid_of(4, 2, 2)
    cells = Cells(grid, None)
    rows = cells.rows(0, cells.count)
    values = np.zeros((cells.count, 2, 2))
    place = 123
    values[place, 1, 0] = 1.0
    found = contradiction(cells, values, {1: Fraction(99, 100), 2: Fraction(2)})
    assert found is not None
    assert found.entry == (1, 0)
    assert (found.gap, found.allowed) == (1.0, 0.99)
    assert found.cells[1].tolist() == rows[place].tolist()
    assert steps_apart(grid, *found.cells) == 1
    assert contradiction(cells, values, {1: Fraction(1)}) is None
    text = found.describe(grid)
    assert "entry [1, 0]" in text
    assert grid.describe(rows[place]) in text
    assert "allows 0.99" in text


@pytest.mark.parametrize("shape", [(4, 2, 1), (4, 1, 2), (3, 2, 2)])
def test_a_violation_across_a_diagonal(shape: tuple[int, int, int]) -> None:
    """+1 and -1 in cells that touch at a corner: 2 apart there, 1 along every axis."""
    K, n, d = shape
    grid = grid_of(K, n, d)
    cells = Cells(grid, None)
    rows = cells.rows(0, cells.count)
    digits = grid.digits(rows).reshape(cells.count, -1)
    values = np.zeros((cells.count, n, d))
    low = int(np.flatnonzero((digits == 1).all(axis=-1))[0])
    high = int(np.flatnonzero((digits == 2).all(axis=-1))[0])
    values[low, 0, d - 1], values[high, 0, d - 1] = -1.0, 1.0
    allowed = {1: Fraction(3, 2)}
    found = contradiction(cells, values, allowed)
    assert found is not None
    assert found.gap == 2.0
    assert found.cells.tolist() == rows[[low, high]].tolist()
    values[high] = 0.0
    assert contradiction(cells, values, allowed) is None


def test_a_violation_of_long_steps_alone() -> None:
    """A modulus that is true for one step and false for two."""
    grid = grid_of(8, 1, 1)
    values = np.arange(8.0).reshape(8, 1, 1)
    allowed = {1: Fraction(1), 2: Fraction(3, 2), 4: Fraction(4)}
    found = contradiction(Cells(grid, None), values, allowed)
    assert found is not None
    assert (found.gap, found.allowed) == (2.0, 1.5)
    assert steps_apart(grid, *found.cells) == 2
    assert step_sizes(grid) == (1, 2, 4)
    assert [step_length(grid, k) for k in (1, 2, 4)] == [Fraction(k, 8) for k in (1, 2, 4)]
    wide = Grid(8, 1, Box((0.0, -2.0), (1.0, 5.0)))
    assert step_length(wide, 2) == Fraction(14, 8)


@pytest.mark.parametrize("diagonal", [False, True])
def test_violations_in_symmetric_tables(diagonal: bool) -> None:
    """Values of multisets stand for all orders of their tokens, permuted alike."""
    grid = grid_of(4, 3, 1)
    cells = Cells.of(grid, symmetric=True)
    rows = cells.rows(0, cells.count)
    values = np.zeros((cells.count, 3, 1))
    high = rows.tolist().index([0, 2, 3])
    low = rows.tolist().index([1, 1, 2] if diagonal else [0, 2, 2])
    values[high, 0, 0] = 1.0
    if diagonal:
        values[low, 2, 0] = 0.0
        values[low, :2, 0] = -1.0
    found = contradiction(
        cells, values, {1: Fraction(3, 2) if diagonal else Fraction(1, 2)}
    )
    assert found is not None
    assert found.gap == (2.0 if diagonal else 1.0)
    assert sorted(found.cells[1].tolist()) == [0, 2, 3]
    assert found.cells[1][found.entry[0]] == 0  # the token that has the value
    if diagonal:
        assert sorted(found.cells[0].tolist()) == [1, 1, 2]
        assert found.cells[0][found.entry[0]] == 1
    assert steps_apart(grid, *found.cells) == 1
    values[high] = 0.0
    assert contradiction(cells, values, {1: Fraction(3, 2)}) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_symmetric_tables_are_full_tables(seed: int) -> None:
    rng = Random(seed)
    K, n, d = rng.choice([(4, 2, 1), (3, 3, 1), (2, 2, 2), (8, 2, 1)])
    grid = grid_of(K, n, d)
    cells = Cells.of(grid, symmetric=True)
    rows = cells.rows(0, cells.count)
    values = np.random.default_rng(seed).integers(0, 4, (cells.count, n, d)).astype(float)
    for row, value in zip(rows, values, strict=True):  # equal tokens have equal values
        for j in range(1, n):
            if row[j] == row[j - 1]:
                value[j] = value[j - 1]
    full = np.zeros((grid.sequences, n, d))
    places = grid.columns ** np.arange(n)[::-1]
    for row, value in zip(rows, values, strict=True):
        for order in permutations(range(n)):
            full[row[list(order)] @ places] = value[list(order)]
    allowed = {k: Fraction(rng.randint(1, 7), 2) for k in step_sizes(grid)}
    found = contradiction(cells, values, allowed)
    assert (found is not None) == brute_force(grid, full, allowed)
    if found is not None:
        assert found.gap > found.allowed
        first, second = (full[row @ places][found.entry] for row in found.cells)
        assert second - first == found.gap


def declared(target: Target, K: int) -> Contradiction | None:
    grid = Grid(K, target.seq_len, target.domain)
    symmetric = target.equivariant
    cells = Cells.of(grid, symmetric=symmetric)
    statement = declare(target, cells)
    assert statement.values is not None
    return contradiction(cells, statement.values, statement.steps)


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery_tells_the_truth(name: str) -> None:
    for n, d, K in ((2, 1, 16), (3, 1, 8), (2, 2, 4), (1, 2, 8), (1, 1, 32)):
        assert declared(GALLERY[name](n, d), K) is None


def less(target: Target, factor: Fraction) -> Target:
    assert target.lipschitz is not None
    return Target(
        target.function,
        target.seq_len,
        target.d_model,
        lipschitz=target.lipschitz * factor,
        equivariant=target.equivariant,
    )


@pytest.mark.parametrize("K", [2, 4, 8])
def test_a_constant_that_is_a_little_too_small(K: int) -> None:
    """Linear functions reach their least constant between neighbouring centres."""
    for target in (ef.targets.reverse(2), ef.targets.reverse(2, 2), ef.targets.centring(3)):
        if target.d_model == 2 and K == 8:
            continue
        assert declared(less(target, Fraction(1)), K) is None
        found = declared(less(target, Fraction(99, 100)), K)
        assert found is not None
        grid = Grid(K, target.seq_len, target.domain)
        assert steps_apart(grid, *found.cells) >= 1
        assert found.gap > found.allowed > 0.98 * found.gap


def test_rounding_is_no_contradiction() -> None:
    """Values off by a few units in the last place, at sizes of every kind."""
    grid = grid_of(8, 1, 1)
    for size in (1e-9, 1.0, 1e9):
        values = size * (1 + np.arange(8.0).reshape(8, 1, 1) / 8)
        noisy = values * (1 + 2.0**-48 * (-1) ** np.arange(8).reshape(8, 1, 1))
        assert contradiction(Cells(grid, None), noisy, {1: Fraction(size) / 8}) is None
        less_than_that = Fraction(size) / 8 * Fraction(999, 1000)
        assert contradiction(Cells(grid, None), noisy, {1: less_than_that}) is not None


def test_grids_beyond_the_limit_are_left_alone() -> None:
    grid = grid_of(64, 4, 1)
    assert grid.sequences > MAX_CELLS
    assert contradiction(Cells(grid, None), np.zeros((1, 4, 1)), {1: Fraction(0)}) is None
