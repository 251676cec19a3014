"""The bounds on the whole box: above what is sampled, of the right order, or refused."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certify.partition.partition_map import (
    average,
    errors_sampled,
    lattice,
    unit_lattice,
    waves,
)
from tests.certify.partition.whole_box import first_order, second_order
from tests.numerics.suprema import Suprema, suprema

from everyformer.certify.bound import Bound
from everyformer.certify.partition.bounds import (
    distance,
    everywhere,
    from_lipschitz,
    from_modulus,
    leak,
    logit_rounding,
    reweighting,
    rounding,
)
from everyformer.certify.partition.lattice import Lattice, clipped
from everyformer.errors import CertificateError
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.targets.box import Box, Grid
from everyformer.targets.gallery import (
    centring,
    distance_to_maximum,
    smooth_bump,
    smooth_rank,
    soft_attention,
    sort,
)
from everyformer.targets.target import Target


def known(target: Target, partition: Lattice) -> Suprema:
    assert target.expression is not None
    expression = without_cancelling_maxima(target.expression)
    return suprema(expression, partition.lows, partition.highs, max_cells=1000)


def sup(bounds: list[Bound]) -> float:
    assert all(bound.is_consistent() for bound in bounds)
    return max(float(bound.value) for bound in bounds)


# N, K, D, the sup error at random points as printed, two digits.
ACCEPTANCE = [
    (2, 8, 1, 2.7e-2),
    (2, 8, 2, 1.6e-2),
    (2, 8, 8, 7.2e-2),
    (2, 8, 200, 1.3e-1),
    (2, 16, 1, 6.9e-3),
    (2, 16, 2, 4.7e-3),
    (2, 16, 8, 3.5e-2),
    (2, 16, 200, 6.2e-2),
    (2, 32, 1, 1.7e-3),
    (2, 32, 2, 1.8e-3),
    (2, 32, 8, 1.8e-2),
    (2, 32, 200, 3.3e-2),
    (3, 16, 1, 9.4e-3),
    (3, 16, 2, 6.2e-3),
]


@pytest.mark.parametrize(("N", "K", "D", "printed"), ACCEPTANCE)
def test_the_average_has_the_printed_errors(N: int, K: int, D: int, printed: float) -> None:
    partition = unit_lattice(N, K, D, 4)
    assert partition.anchors == (K + 9) ** N
    assert errors_sampled(waves(N), partition).max() == pytest.approx(printed, rel=0.15)


def order(D: int) -> float:
    """The fitted power of h in the sup error."""
    grids = (8, 16, 32, 64)
    errors = [errors_sampled(waves(2), unit_lattice(2, K, D, 4)).max() for K in grids]
    return -float(np.polyfit(np.log(grids), np.log(errors), 1)[0])


def test_the_order_is_two_at_a_moderate_temperature() -> None:
    assert abs(order(1) - 2) <= 0.15


def test_the_order_is_lost_when_the_temperature_is_near_zero() -> None:
    assert order(200) < 1.2


SMOOTH: dict[str, tuple[Target, int, str, int]] = {
    "waves": (waves(2), 8, "1", 4),
    "waves, sharper": (waves(2), 16, "2", 3),
    "waves, three tokens": (waves(3), 12, "3/4", 4),
    "waves, a box": (waves(2, 1, (-0.5, 1.5)), 16, "3/2", 3),
    "soft_attention": (soft_attention(2), 16, "1", 4),
    "smooth_rank": (smooth_rank(2), 12, "3/4", 4),
    "smooth_bump": (smooth_bump(2), 16, "3", 3),
    "centring, no curves": (centring(2), 8, "3", 3),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_both_orders_are_above_what_is_sampled(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    target, K, D, m = SMOOTH[name]
    partition = lattice(target, K, D, m)
    found = known(target, partition)
    sampled = float(errors_sampled(target, partition, 1000).max())
    second = sup(second_order(partition, found.slopes, found.curves))
    first = sup(first_order(partition, found.slopes))
    record_property("second order over sampled", second / sampled)
    record_property("first order over sampled", first / sampled)
    assert sampled <= second <= 40 * sampled
    assert sampled <= first
    assert second < first


def test_each_derivative_has_its_constant() -> None:
    box = Box((0.0, 0.0), (1.0, 4.0))
    partition = Lattice(Grid(8, 1, box), Fraction(2), 3)
    c, (h, w) = partition.constants, partition.steps
    assert (h, w) == (Fraction(1, 8), Fraction(1, 2))
    zero, one = np.zeros((2, 2)), np.array([[1.0, 0.0], [0.0, 1.0]])
    assert [bound.value for bound in first_order(partition, one)] == [c.m1 * h, c.m1 * w]
    curves = np.zeros((2, 3))
    slopes = second_order(partition, one, curves)
    assert [bound.value for bound in slopes] == [c.b * h, c.b * w]
    for at, expected in enumerate([c.m2 / 2 * h * h, c.m1**2 * h * w, c.m2 / 2 * w * w]):
        curves = np.zeros((2, 3))
        curves[1, at] = 1.0
        found = second_order(partition, zero, curves)
        assert [bound.value for bound in found] == [0, expected]


def test_the_second_order_bound_has_order_two() -> None:
    target = waves(2)
    bounds: list[float] = []
    for K in (32, 64):
        partition = lattice(target, K, 1, 4)
        found = known(target, partition)
        bounds.append(sup(second_order(partition, found.slopes, found.curves)))
    assert bounds[0] / bounds[1] > 3.5


def test_a_clipped_target_has_no_second_order_bound() -> None:
    target = waves(2)
    partition = lattice(target, 16, 1, 4)
    found = known(target, partition)
    with pytest.raises(CertificateError, match="kinks on the faces"):
        second_order(partition, found.slopes, found.curves, clipped=True)
    # Nor does it slip through when nobody says that it is clipped.
    assert target.expression is not None
    inside = clipped(target.expression, target.domain)
    bent = suprema(inside, partition.lows, partition.highs, max_cells=1000)
    with pytest.raises(CertificateError, match=r"Entry 0 .* second derivative"):
        second_order(partition, bent.slopes, bent.curves)
    assert sup(first_order(partition, bent.slopes)) > 0


def test_clipping_changes_nothing_inside_and_keeps_the_values_outside() -> None:
    target = waves(2, 2)
    assert target.expression is not None
    inside = clipped(target.expression, target.domain)
    x = np.random.default_rng(0).uniform(-1, 2, (100, 2, 2))
    assert np.allclose(inside(x), target(np.clip(x, 0, 1)))


def clipping(target: Target) -> Target:
    low, high = target.domain.lows[0], target.domain.highs[0]
    return Target(
        lambda x: target(np.clip(x, low, high)), target.seq_len, target.d_model, name="clip"
    )


def test_the_first_order_bound_holds_for_a_clipped_target() -> None:
    target = waves(2)
    partition = lattice(target, 16, 2, 3)
    assert target.expression is not None
    inside = clipped(target.expression, target.domain)
    bent = suprema(inside, partition.lows, partition.highs, max_cells=1000)
    sampled = errors_sampled(clipping(target), partition)
    assert sampled.max() <= sup(first_order(partition, bent.slopes))
    # The second-order formula with derivatives of the box alone would be wrong there.
    box = [Fraction(0)] * 2, [Fraction(1)] * 2
    smooth = suprema(target.expression, *box, max_cells=1000)
    points = np.array([[[0.0], [0.0]], [[1.0], [1.0]], [[1.0], [0.0]]])
    corner = np.abs(average(clipping(target), partition, points) - target(points)).max()
    assert corner > sup(second_order(partition, smooth.slopes, smooth.curves))


@pytest.mark.parametrize("make", [sort, distance_to_maximum, soft_attention])
@pytest.mark.parametrize("D", ["1", "2"])
def test_a_declared_constant_is_enough(make: Callable[[int, int], Target], D: str) -> None:
    target = make(2, 1)
    partition = lattice(target, 16, D, 4)
    assert target.lipschitz is not None
    bound = from_lipschitz(partition, target.lipschitz)
    assert errors_sampled(clipping(target), partition).max() <= bound.value


def test_a_declared_modulus_is_enough() -> None:
    target = smooth_rank(2, 1, 32.0)
    partition = lattice(target, 16, 2, 4)
    omega = target.modulus_of_continuity(partition.radius)
    assert omega is not None
    sampled = errors_sampled(clipping(target), partition).max()
    assert sampled <= from_modulus(partition, omega, partition.radius).value


def test_infinite_constants_are_refused() -> None:
    partition = unit_lattice(2, 8, 1, 4)
    slopes = np.array([[1.0, 1.0], [1.0, math.inf]])
    with pytest.raises(CertificateError, match="Entry 1 of the target"):
        first_order(partition, slopes)
    with pytest.raises(CertificateError, match="Entry 1 of the target"):
        second_order(partition, slopes, np.ones((2, 3)))


@pytest.mark.parametrize("p", [Fraction(1), Fraction(2), Fraction(5, 2)])
def test_distance_over_a_box(p: Fraction) -> None:
    box = Box((-1.0, 0.0), (1.0, 0.5))
    partition = Lattice(Grid(8, 2, box), Fraction(1), 3)
    assert partition.volume == 1
    assert partition.steps == (Fraction(1, 4), Fraction(1, 16)) * 2
    assert partition.lows == (Fraction(-7, 4), Fraction(-3, 16)) * 2
    assert partition.highs == (Fraction(7, 4), Fraction(11, 16)) * 2
    wide = Lattice(Grid(8, 1, Box((0.0,), (3.0,))), Fraction(1), 3)
    one = Bound(Fraction(1), "1 in every entry")
    assert float(distance(wide, [one], p).value) == pytest.approx(3 ** (1 / p))
    assert float(everywhere(wide, one, p).value) == pytest.approx(3 ** (1 / p))
    unit = unit_lattice(2, 8, 1, 3)
    both = distance(unit, [one, one], p)
    assert both.is_consistent()
    assert float(both.value) == pytest.approx(2 ** (1 / p))


def test_rescaling_the_box_rescales_nothing_else() -> None:
    """f(x) on [0, 1] and f((x + 1) / 4) on [-1, 3] have the same average and bounds."""
    unit = waves(2)
    wide = Target(lambda x: unit.function((x + 1) / 4), 2, 1, domain=[(-1.0, 3.0)])
    x = np.random.default_rng(0).uniform(0, 1, (50, 2, 1))
    first, second = (lattice(target, 8, 1, 4) for target in (unit, wide))
    assert np.allclose(average(unit, first, x), average(wide, second, 4 * x - 1))
    found, other = known(unit, first), known(wide, second)
    left = sup(second_order(first, found.slopes, found.curves))
    right = sup(second_order(second, other.slopes, other.curves))
    assert left == pytest.approx(right, rel=0.05)


def test_the_leak_is_negligible_and_grows_when_the_gap_shrinks() -> None:
    partition = unit_lattice(2, 16, 2, 4)
    assert partition.suppression == 801
    small = leak(partition, Fraction(2), partition.suppression)
    assert 0 < small.value <= 8 * Fraction(2) ** -1154
    near = leak(partition, Fraction(2), Fraction(31))
    assert 8 * math.exp(-30) <= near.value <= 16 * math.exp(-30)
    assert leak(partition, Fraction(2), Fraction(0)).value <= 4


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 2.0))
def test_reweighting_bounds_what_wrong_logits_do(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    logits, values = rng.normal(0, 3, 20), rng.uniform(-1, 1, 20)
    weights = np.exp(logits)
    wrong = weights * np.exp(rng.choice([-eta, eta], 20))
    gap = abs(values @ (weights / weights.sum() - wrong / wrong.sum()))
    assert gap <= float(reweighting(Fraction(eta), Fraction(1), "").value) + 1e-15


@pytest.mark.parametrize(("N", "K", "D", "m"), [(2, 16, "2", 4), (3, 8, "1", 3)])
def test_logits_stay_in_their_range_and_round_as_promised(
    N: int, K: int, D: str, m: int
) -> None:
    partition = unit_lattice(N, K, D, m)
    rng = np.random.default_rng(0)
    beta = float(partition.D) * K * K
    anchors = rng.integers(-m, K + m + 1, (4000, N)) / K
    points = rng.uniform(0, 1, (4000, N))
    anchors[:2], points[:2] = [[1 + m / K] * N, [-m / K] * N], [[0.0] * N, [1.0] * N]

    def logits(z: np.ndarray, v: np.ndarray) -> np.ndarray:
        return (z * (2 * v * beta)).sum(axis=1) - beta * (v * v).sum(axis=1)

    size = np.abs(logits(points, anchors))
    assert size.max() == pytest.approx(float(partition.logit_size))
    single, half = points.astype(np.float32), anchors.astype(np.float32)
    beta32 = np.float32(beta)
    computed = (single * (2 * half * beta32)).sum(axis=1) - beta32 * (half * half).sum(
        axis=1
    )
    gap = np.abs(computed - logits(points, anchors)).max()
    assert gap <= float(logit_rounding(partition, Fraction(1, 2**24)))


def test_rounding_is_small_in_float64_and_not_in_float32() -> None:
    partition = unit_lattice(2, 32, 1, 4)
    small = rounding(partition, Fraction(2))
    assert small.is_consistent()
    assert 1e-13 < float(small.value) < 1e-10
    assert float(rounding(partition, Fraction(2), Fraction(1, 2**24)).value) > 1e-3
    assert float(logit_rounding(partition)) < 3e-11
