"""The bound cell by cell: above what is sampled in each, sharper, and fit for kinks."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certify.partition.partition_map import average, errors_sampled, lattice, waves
from tests.certify.partition.whole_box import first_order

from everyformer.certify.partition.lattice import Lattice, clipped
from everyformer.certify.partition.lattice_field import LatticeField, lattice_field
from everyformer.certify.partition.local import cell_bounds, distance_bound
from everyformer.errors import CertificateError
from everyformer.numerics.curvature import Curvature
from everyformer.targets.gallery import (
    centring,
    distance_to_maximum,
    smooth_bump,
    smooth_rank,
    soft_attention,
    sort,
)
from everyformer.targets.target import Target

TWO = Fraction(2)


def field_of(target: Target, partition: Lattice, boxes: int = 4096) -> LatticeField:
    assert target.expression is not None
    return lattice_field(target.expression, partition, boxes=boxes)


def largest_in_cells(target: Target, partition: Lattice, count: int) -> np.ndarray:
    """(K^N, N): the largest |g - f| found in each cell of the grid."""
    K, N = partition.grid.cells, partition.size
    rng = np.random.default_rng(0)
    low, high = np.array(target.domain.lows), np.array(target.domain.highs)
    unit = rng.uniform(0, 1, (count, target.seq_len, target.d_model))
    points = low + (high - low) * unit
    gaps = np.abs(average(target, partition, points) - target(points)).reshape(count, N)
    digits = np.minimum((unit.reshape(count, N) * K).astype(int), K - 1)
    cells = np.ravel_multi_index(tuple(digits.T), (K,) * N)
    found = np.zeros((K**N, N))
    np.maximum.at(found, cells, gaps)
    return found


CASES: dict[str, tuple[Target, int, str, int]] = {
    "waves": (waves(2), 8, "1", 4),
    "waves, sharper": (waves(2), 16, "2", 3),
    "waves, softer": (waves(2), 16, "3/4", 3),
    "waves, three tokens": (waves(3), 6, "3/2", 3),
    "waves, width two": (waves(1, 2), 12, "1", 4),
    "waves, a box": (waves(2, 1, (-0.5, 1.5)), 12, "1", 4),
    "soft_attention": (soft_attention(2), 12, "1", 4),
    "smooth_rank": (smooth_rank(2), 16, "2", 3),
    "smooth_bump": (smooth_bump(2), 16, "3/2", 3),
    "centring": (centring(2), 8, "3", 3),
    "sort": (sort(2), 16, "2", 3),
    "distance_to_maximum": (distance_to_maximum(3), 8, "1", 4),
    "very sharp": (waves(2), 8, "200", 4),
}


@pytest.mark.parametrize("name", CASES)
def test_every_cell_is_bounded(name: str) -> None:
    target, K, D, m = CASES[name]
    partition = lattice(target, K, D, m)
    bounds = cell_bounds(field_of(target, partition), partition)
    sampled = largest_in_cells(target, partition, 8000)
    assert bounds.shape == sampled.shape
    assert (sampled <= bounds + 1e-14).all()


SHARP: dict[str, tuple[Target, int, str, int, float]] = {
    "waves": (waves(2), 32, "1", 4, 1.5),
    "soft_attention": (soft_attention(2), 32, "1", 4, 2.2),
    "smooth_rank": (smooth_rank(2), 32, "1", 4, 2.5),
    "smooth_bump": (smooth_bump(2), 32, "1", 4, 2.5),
    "sort": (sort(2), 32, "2", 3, 9.0),
}


@pytest.mark.parametrize("name", SHARP)
def test_the_distance_is_not_far_above_what_is_sampled(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    target, K, D, m, ratio = SHARP[name]
    partition = lattice(target, K, D, m)
    bounds = cell_bounds(field_of(target, partition, 2**14), partition)
    gaps = errors_sampled(target, partition, 4000)
    sampled = float(np.sqrt(np.square(gaps).sum(axis=1).mean() * float(partition.volume)))
    bound = distance_bound(bounds, partition, TWO)
    record_property("bound over sampled", float(bound.value) / sampled)
    assert gaps.max() <= distance_bound(bounds, partition, None).value
    assert sampled <= float(bound.value) <= ratio * sampled


def test_the_bound_tends_to_the_error_itself() -> None:
    target = waves(2)
    partition = lattice(target, 96, 1, 4)
    bounds = cell_bounds(field_of(target, partition, 1), partition)
    sampled = errors_sampled(target, partition, 4000).max()
    assert sampled <= distance_bound(bounds, partition, None).value <= 1.15 * sampled


def test_it_beats_the_first_order_bound_for_a_target_with_kinks() -> None:
    target = sort(2)
    partition = lattice(target, 64, 1, 4)
    field = field_of(target, partition, 1)
    assert np.isposinf(field.found.curve_high).any()
    bounds = cell_bounds(field, partition)
    sizes = np.maximum(field.found.slope_high, -field.found.slope_low)
    first = first_order(partition, sizes.max(axis=0))
    worst = max(bound.value for bound in first)
    assert distance_bound(bounds, partition, None).value < worst
    assert distance_bound(bounds, partition, TWO).value < worst / 2
    # Far from the diagonal sort is linear: only b is left, and the tails.
    K = partition.grid.cells
    assert bounds.reshape(K, K, 2)[0, K - 1].max() < float(worst) / 50


def test_a_clipped_target_pays_only_near_the_faces() -> None:
    target = waves(2)
    assert target.expression is not None
    inside = Target(lambda x: target(np.clip(x, 0, 1)), 2, 1)
    partition = lattice(target, 32, 2, 3)
    expression = clipped(target.expression, target.domain)
    bounds = cell_bounds(lattice_field(expression, partition, boxes=1), partition)
    sampled = largest_in_cells(inside, partition, 8000)
    assert (sampled <= bounds).all()
    plain = cell_bounds(field_of(target, partition, 1), partition)
    square = bounds.reshape(32, 32, 2)
    assert square[16, 16].max() <= plain.reshape(32, 32, 2)[16, 16].max() * 1.2
    assert square[0, 0].max() > 3 * square[16, 16].max()


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=6, max_size=6),
    st.integers(5, 12),
    st.sampled_from(["3/4", "1", "2", "3", "6"]),
)
def test_random_smooth_targets(numbers: list[float], K: int, D: str) -> None:
    a, b, c, d, e, f = numbers

    def function(x: np.ndarray) -> np.ndarray:
        other = x[..., ::-1, :]
        return a * np.sin(b * x + c * other) + np.exp(d * x * other) * e + f * x * x

    target = Target(function, 2, 1)
    partition = lattice(target, K, D, 3)
    bounds = cell_bounds(field_of(target, partition, 1024), partition)
    sampled = largest_in_cells(target, partition, 3000)
    assert (sampled <= bounds * (1 + 1e-12) + 1e-12).all()


def test_constant_curves_meet_signed_moments() -> None:
    """With one and the same curve everywhere only moments with their signs are left."""
    partition = lattice(waves(2), 4, 2, 3)
    c, h = partition.constants, float(partition.steps[0])

    def bound(*curves: float) -> float:
        found = Curvature.of_size(10**2, 2)
        found.slope_low[:], found.slope_high[:] = -1.0, 1.0
        found.curve_low[:], found.curve_high[:] = curves, curves
        return float(cell_bounds(LatticeField(10, 3, found), partition).max())

    flat = bound(0.0, 0.0, 0.0)
    assert flat == pytest.approx(2 * h * float(c.b))
    assert bound(0.0, 1.0, 0.0) - flat == pytest.approx(h * h * float(c.b**2))
    assert bound(1.0, 0.0, 1.0) - flat == pytest.approx(h * h * float(c.m2))
    opposite = bound(1.0, 0.0, -1.0) - flat
    assert opposite == pytest.approx(h * h * float(c.m2 - c.least_m2) / 2)


def test_balls_give_the_same_bound() -> None:
    target = waves(2)
    partition = lattice(target, 4, 2, 3)
    assert target.expression is not None
    ours, theirs = (
        cell_bounds(
            lattice_field(target.expression, partition, boxes=1, balls=balls), partition
        )
        for balls in (False, True)
    )
    assert np.allclose(ours, theirs, rtol=0.05)
    assert (theirs >= largest_in_cells(target, partition, 5000)).all()


def test_a_target_that_is_unknown_on_the_margin_is_refused() -> None:
    target = Target(lambda x: np.sqrt(x + 0.1), 1, 1)
    partition = lattice(target, 16, 1, 4)
    field = field_of(target, partition)
    with pytest.raises(CertificateError, match="anchors' box"):
        _ = field.largest
    with pytest.raises(CertificateError, match="slopes of the target"):
        distance_bound(cell_bounds(field, partition), partition, None)
    # With a finer grid the margin ends before the root does.
    fine = lattice(target, 64, 1, 4)
    bounds = cell_bounds(field_of(target, fine), fine)
    assert errors_sampled(target, fine).max() <= distance_bound(bounds, fine, None).value


def test_too_many_cells_are_refused() -> None:
    target = waves(4)
    with pytest.raises(CertificateError, match=r"38\^4 cells"):
        field_of(target, lattice(target, 32, 1, 3))
