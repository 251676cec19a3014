"""The lattice that is chosen meets the tolerance, and none with fewer anchors does."""

from fractions import Fraction

import numpy as np
import pytest
from tests.certify.partition_map import errors_sampled, unit_lattice, waves

from everyformer.certify.bound import Bound
from everyformer.certify.lattice import Partition
from everyformer.certify.partition import distance, from_lipschitz
from everyformer.certify.partition_choice import (
    DECAYS,
    MARGINS,
    TracedBounds,
    choose,
    cost,
)
from everyformer.errors import ToleranceError
from everyformer.targets.box import Box, Grid
from everyformer.targets.gallery import sort

TWO = Fraction(2)
UNIT = Box((0.0,), (1.0,))


def test_a_smooth_target() -> None:
    target = waves(2)
    assert target.expression is not None
    prove = TracedBounds(target.expression, TWO)
    choice = choose(prove, 2, target.domain, 0.05, margins=(3,))
    assert choice.bound <= 0.05
    assert choice.bound.is_consistent()
    assert choice.bound.value == prove(choice.partition).value
    gaps = errors_sampled(target, choice.partition)
    assert np.sqrt(np.square(gaps).sum(axis=1).mean()) <= choice.bound.value
    coarser = Grid(choice.partition.grid.cells - 1, 2, target.domain)
    for D in DECAYS:
        assert prove(Partition(coarser, D, choice.partition.margin)) > 0.05


def closed_form(partition: Partition) -> Bound:
    """sort by its declared constant: no enclosures, so that all lattices can be tried."""
    bound = from_lipschitz(partition, Fraction(1))
    return distance(partition, [bound] * partition.size, TWO)


@pytest.mark.parametrize("tol", [0.3, 0.1, 0.031])
def test_the_fewest_anchors_are_found(tol: float) -> None:
    choice = choose(closed_form, 2, UNIT, tol)
    assert choice.bound <= tol
    for m in MARGINS:
        for K in range(2, choice.partition.grid.cells + 3):
            tried = [Partition(Grid(K, 2, UNIT), D, m) for D in DECAYS]
            if tried[0].anchors < choice.cost.prefix_tokens:
                assert all(closed_form(partition) > tol for partition in tried)


def test_a_declared_target_is_bounded_as_chosen() -> None:
    choice = choose(closed_form, 2, UNIT, 0.1)
    gaps = errors_sampled(sort(2), choice.partition)
    assert np.sqrt(np.square(gaps).sum(axis=1).mean()) <= 0.1


def test_a_tolerance_out_of_reach_is_refused() -> None:
    with pytest.raises(ToleranceError, match=r"at most 400 anchors .* the best has 400"):
        choose(closed_form, 2, UNIT, 1e-6, max_anchors=400)
    with pytest.raises(ToleranceError, match="no lattice is that small"):
        choose(closed_form, 2, UNIT, 1e-6, max_anchors=10)


def test_rounding_is_added_when_a_run_is_claimed() -> None:
    target = waves(2)
    assert target.expression is not None
    partition = unit_lattice(2, 8, 1, 3)
    real, run = (
        TracedBounds(target.expression, TWO, run=run)(partition) for run in (False, True)
    )
    assert real.value < run.value < real.value * Fraction(1_000_001, 1_000_000)
    assert [term.reason for term in run.terms][2].startswith("rounding")
    assert run.is_consistent()


@pytest.mark.parametrize(("n", "d", "K", "m"), [(2, 1, 16, 4), (3, 1, 8, 4), (2, 2, 4, 3)])
def test_costs_are_counted(n: int, d: int, K: int, m: int) -> None:
    partition = Partition(Grid(K, n, Box((0.0,) * d, (1.0,) * d)), Fraction(2), m)
    found, N = cost(partition), n * d
    registers = {"x": d, "pos": n, "one": 1, "data": 1, "nrm": 1, "y": d}
    registers |= dict.fromkeys(("slot", "z", "key", "F", "G"), N)
    w = sum(registers.values())
    assert found.width == w == 2 * d + n + 5 * N + 3
    assert found.prefix_tokens == (K + 1 + 2 * m) ** N
    assert found.scores == n * found.prefix_tokens
    attention = 3 * (N + 1) * w + w * (N + 1)
    layers = [(2 * N * w + N + w), (4 * N * w + 2 * N + w)]
    assert found.parameters == 2 * attention + sum(layers) + found.prefix_tokens * w
