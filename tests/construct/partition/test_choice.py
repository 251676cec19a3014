"""The lattice that is chosen meets the tolerance, and none with fewer anchors does."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from tests.certify.partition.partition_map import (
    average,
    errors_sampled,
    unit_lattice,
    waves,
)

from everyformer.certify.bound import Bound
from everyformer.certify.partition.bounds import distance, from_lipschitz
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.lattice_field import BOXES
from everyformer.construct.partition.choice import (
    DECAYS,
    MARGINS,
    Choice,
    Choices,
    DeclaredBounds,
    TracedBounds,
    choose,
)
from everyformer.errors import CertificateError, ToleranceError
from everyformer.targets.box import Box, Grid
from everyformer.targets.gallery import sort
from everyformer.targets.target import Target

TWO = Fraction(2)
UNIT = Box((0.0,), (1.0,))


def closely(bounds: TracedBounds) -> Choices:
    """The sharpest bound for every lattice, not only for the one that seems best."""

    def choices(lattices: Sequence[Lattice], boxes: int) -> list[Choice]:
        return [bounds.choices([lattice], boxes)[0] for lattice in lattices]

    return choices


def test_a_smooth_target() -> None:
    target = waves(2)
    assert target.expression is not None
    prove = closely(TracedBounds(target.expression, TWO))
    choice = choose(prove, 2, target.domain, 0.05, margins=(3,))
    assert choice.bound <= 0.05
    assert choice.bound.is_consistent()
    assert choice.bound.value == prove([choice.lattice], BOXES)[0].bound.value
    middles = (np.arange(64) + 0.5) / 64  # random points are off by more than the bound is
    x = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2, 1)
    gaps = average(target, choice.lattice, x) - target(x)
    assert np.sqrt(np.square(gaps).sum(axis=(1, 2)).mean()) <= choice.bound.value
    coarser = Grid(choice.lattice.grid.cells - 1, 2, target.domain)
    lattices = [Lattice(coarser, D, choice.lattice.margin) for D in DECAYS]
    assert all(found.bound > 0.05 for found in prove(lattices, BOXES))


def closed_form(lattices: Sequence[Lattice], boxes: int = 0) -> list[Choice]:
    """sort by its declared constant: no enclosures, so that all lattices can be tried."""
    one = Fraction(1)
    return [
        Choice(
            lattice, distance(lattice, [from_lipschitz(lattice, one)] * lattice.size, TWO)
        )
        for lattice in lattices
    ]


@pytest.mark.parametrize("tol", [0.3, 0.1, 0.031])
def test_the_fewest_anchors_are_found(tol: float) -> None:
    choice = choose(closed_form, 2, UNIT, tol)
    assert choice.bound <= tol
    for m in MARGINS:
        for K in range(2, choice.lattice.grid.cells + 3):
            tried = [Lattice(Grid(K, 2, UNIT), D, m) for D in DECAYS]
            if tried[0].anchors < choice.lattice.anchors:
                assert all(found.bound > tol for found in closed_form(tried))


def test_a_declared_target_is_bounded_as_chosen() -> None:
    choice = choose(closed_form, 2, UNIT, 0.1)
    gaps = errors_sampled(sort(2), choice.lattice)
    assert np.sqrt(np.square(gaps).sum(axis=1).mean()) <= 0.1


def test_a_tolerance_out_of_reach_is_refused() -> None:
    with pytest.raises(ToleranceError, match=r"at most 400 anchors .* the best has 400"):
        choose(closed_form, 2, UNIT, 1e-6, max_anchors=400)
    with pytest.raises(ToleranceError, match="no lattice is that small"):
        choose(closed_form, 2, UNIT, 1e-6, max_anchors=10)


def test_what_is_far_out_of_reach_is_refused_before_fine_lattices() -> None:
    """The finest lattice misses the tolerance 4,000 times; nothing near it is enclosed."""
    seen: list[int] = []

    def counted(lattices: Sequence[Lattice], boxes: int = 0) -> list[Choice]:
        seen.append(lattices[0].grid.cells)
        return closed_form(lattices, boxes)

    with pytest.raises(ToleranceError, match=r"8 cells per axis the bound is .* times"):
        choose(counted, 2, UNIT, 1e-6, max_anchors=2**13)
    assert seen == [2, 8]
    near = closed_form([Lattice(Grid(85, 2, UNIT), D, 2) for D in DECAYS])
    reached = min(one.bound.value for one in near)
    assert choose(counted, 2, UNIT, reached, max_anchors=2**13).bound <= reached
    seen.clear()
    with pytest.raises(ToleranceError, match="the best has 8100 anchors"):
        choose(counted, 2, UNIT, reached / 2, max_anchors=2**13)
    assert max(seen) == 85  # of margin 2; 87 of margin 1 cannot halve the bound
    seen.clear()
    with pytest.raises(ToleranceError, match="the best has"):
        choose(counted, 2, UNIT, reached * 0.9, max_anchors=2**13)
    assert {K for K in seen if K > 60} <= {85, 87}, "a near miss: the finest alone"


def test_rounding_is_added_when_a_run_is_claimed() -> None:
    target = waves(2)
    assert target.expression is not None
    partition = unit_lattice(2, 8, 1, 3)
    real, run = (
        TracedBounds(target.expression, TWO, run=run).choices([partition])[0].bound
        for run in (False, True)
    )
    assert real.value < run.value < real.value * Fraction(1_000_001, 1_000_000)
    assert [term.reason for term in run.terms][2].startswith("rounding")
    assert run.is_consistent()


def test_a_declared_modulus() -> None:
    """omega = r: as good as the constant 1, but for the factor of the formula."""
    bounds = DeclaredBounds(None, lambda r: r, Fraction(1), None)
    choice = choose(bounds.choices, 2, UNIT, 0.1)
    assert choice.bound <= 0.1
    known = DeclaredBounds(Fraction(1), lambda r: r, Fraction(1), None)
    constant = choose(known.choices, 2, UNIT, 0.1)
    assert constant.lattice.anchors < choice.lattice.anchors
    gaps = errors_sampled(sort(2), choice.lattice)
    assert gaps.max() <= choice.bound.value


def test_few_lattices_are_tried_for_a_kink() -> None:
    """A bound like sqrt(r) falls slowly: K is not looked for in steps of one cell."""
    tried: list[int] = []

    def root(lattices: Sequence[Lattice], boxes: int = 0) -> list[Choice]:
        K = lattices[0].grid.cells
        tried.append(K)
        bound = Bound(Fraction(round(1e9 * K**-0.5), 10**9), "of order 1/2", "K^(-1/2)")
        return [Choice(lattices[0], bound)]

    choice = choose(root, 1, UNIT, 0.02, margins=(2,))
    assert choice.lattice.grid.cells == 2500
    assert len(set(tried)) < 40


def test_a_root_in_the_middle_is_bounded_by_its_range() -> None:
    root = Target(lambda x: np.sqrt(np.abs(x - 0.5)), 1, 1)
    assert root.expression is not None
    bounds = TracedBounds(root.expression, TWO)
    choice = choose(bounds.choices, 1, UNIT, 0.05)
    gaps = errors_sampled(root, choice.lattice)
    assert np.sqrt(np.square(gaps).mean()) <= choice.bound.value <= 0.05


def test_a_target_without_bounds_is_given_up_early() -> None:
    pole = Target(lambda x: 1 / (x - 0.4), 1, 1)
    assert pole.expression is not None
    with pytest.raises(CertificateError, match="finite on the anchors"):
        choose(closely(TracedBounds(pole.expression, TWO)), 1, UNIT, 0.1)


def test_the_best_lattice_of_a_quick_look_has_the_bound_of_a_close_one() -> None:
    target = waves(2)
    assert target.expression is not None
    bounds = TracedBounds(target.expression, TWO)
    lattices = [Lattice(Grid(8, 2, target.domain), D, 2) for D in DECAYS]
    close = [found.bound for found in closely(bounds)(lattices, BOXES)]
    quick = bounds.choices(lattices)
    assert {choice.lattice.D for choice in quick} == set(DECAYS)
    for choice in quick:
        assert choice.bound.value >= close[lattices.index(choice.lattice)].value
    best = min(quick, key=lambda choice: choice.bound.value)
    assert best.bound.value == min(bound.value for bound in close)
