"""Grids: counts, digits, centres, orbits."""

from fractions import Fraction
from itertools import permutations
from math import comb
from typing import Any

import numpy as np
import pytest

from everyformer.errors import GridError, TargetError
from everyformer.targets.box import Box, Grid
from everyformer.targets.target import Target

UNIT2 = Box((0.0, 0.0), (1.0, 1.0))


def test_counts() -> None:
    grid = Grid(3, 2, UNIT2)
    assert grid.columns == 9
    assert grid.sequences == 81 == len(grid.all_sequences())
    assert len(np.unique(grid.all_sequences(), axis=0)) == 81
    assert grid.num_distinct_sets == comb(9, 2) == len(grid.distinct_sets())
    assert len(grid.repeated_multisets()) == 9


def test_digits_and_centres() -> None:
    grid = Grid(4, 1, Box((-1.0, 0.0), (1.0, 8.0)))
    column = np.array([1 + 4 * 2])
    assert grid.digits(column).tolist() == [[1, 2]]
    assert grid.centres(column).tolist() == [[-1 + 2 * 1.5 / 4, 8 * 2.5 / 4]]


def test_orbits_add_up_to_all_sequences() -> None:
    grid = Grid(2, 4, UNIT2)
    multisets = np.concatenate([grid.distinct_sets(), grid.repeated_multisets()])
    assert grid.orbit_sizes(multisets).sum() == grid.sequences
    for row, size in zip(multisets[:20], grid.orbit_sizes(multisets[:20]), strict=True):
        assert len(set(permutations(row.tolist()))) == size


@pytest.mark.unhooked
def test_numpy_integers_are_integers() -> None:
    assert Grid(np.int64(4), 2, UNIT2).columns == 16  # type: ignore[arg-type]


def test_volume_is_exact() -> None:
    assert Box((0.0, -1.0), (0.5, 2.0)).volume(2) == Fraction(9, 4)


@pytest.mark.parametrize("bad", [0, 1, -4, True, 2.5, "8"])
@pytest.mark.unhooked
def test_bad_grids(bad: Any) -> None:
    with pytest.raises(GridError, match="integer >= 2"):
        Grid(bad, 2, UNIT2)


@pytest.mark.parametrize(
    "end", [True, np.True_, "1", np.array([1.0]), 1 + 0j, None, 10**400, Fraction(10**400)]
)
def test_ends_that_are_not_numbers_of_float64(end: Any) -> None:
    domains: list[dict[str, Any]] = [
        {"domain": [(0, end)]},
        {"domain": [[(0, end)]]},
        {"region": [[[(0, end)]]]},
    ]
    for given in domains:
        with pytest.raises(TargetError, match="is not a list of"):
            Target(lambda x: x, 1, 1, **given)
