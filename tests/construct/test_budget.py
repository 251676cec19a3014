"""Bounds from a declared modulus, and grids from a tolerance."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import qmc

import everyformer as ef
from everyformer.construct.budget import check_exponent
from everyformer.errors import EveryformerError, TargetError, ToleranceError
from everyformer.targets import GALLERY, centring, reverse
from everyformer.targets.target import Target


def distance_sampled(built: ef.Built, p: float, points: int = 4096) -> float:
    """d_p(f, g) by quasi-Monte Carlo."""
    c = built.plan.constants
    low, high = np.asarray(c.grid.box.lows), np.asarray(c.grid.box.highs)
    cube = qmc.Sobol(c.n * c.d, rng=1).random(points).reshape(-1, c.n, c.d)
    x = low + (high - low) * cube
    gap = np.abs(built.target(x) - built.network(x)) ** p
    return float((gap.sum(axis=(1, 2)).mean() * float(c.grid.box.volume(c.n))) ** (1 / p))


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_sampled_distance_is_below_the_bound(name: str, p: int) -> None:
    for n, d, K in ((2, 1, 16), (2, 2, 4)):
        built = ef.construct(GALLERY[name](n, d), grid=K, p=p)
        bound = built.distance_bound
        assert bound is not None
        assert distance_sampled(built, p) <= float(bound.value)


def test_the_bound_falls_with_delta() -> None:
    """First order for Theorem 3; Theorem 2 loses measure n(n-1)/(2K) of equal columns."""
    values = []
    for K in (4, 8, 16):
        built = ef.construct(reverse(2, 1), grid=K, p=2)
        assert built.distance_bound is not None
        values.append(float(built.distance_bound.value))
        assert distance_sampled(built, 2) <= values[-1]
    assert values[0] / values[1] == pytest.approx(2, rel=1e-3)
    assert values[1] / values[2] == pytest.approx(2, rel=1e-3)


def test_boxes_scale_the_bound() -> None:
    target = Target(np.sin, 2, 1, lipschitz=1, domain=[(-2, 2)])
    built = ef.construct(target, grid=16, p=2)
    assert built.distance_bound is not None
    bound = float(built.distance_bound.value)
    assert distance_sampled(built, 2) <= bound
    # sqrt(volume 16 x 2 entries) times omega = (4/16)/2
    assert bound == pytest.approx(np.sqrt(32) / 8, rel=1e-3)


@pytest.mark.parametrize("p", [1, 2, 2.5, Fraction(3, 2)])
def test_tolerance_chooses_the_coarsest_dyadic_grid(p: Any) -> None:
    built = ef.construct(reverse(2, 1), tol=0.1, p=p)
    assert built.distance_bound is not None
    assert built.distance_bound.value <= Fraction(0.1)
    K = built.plan.grid
    coarser = ef.construct(reverse(2, 1), grid=K // 2, p=p)
    assert coarser.distance_bound is not None
    assert coarser.distance_bound.value > Fraction(0.1)


def test_duplicates_are_in_the_bound_of_theorem_2() -> None:
    built = ef.construct(centring(2, 1), grid=16)
    assert built.distance_bound is not None
    reasons = [term.reason.split(":")[0] for term in built.distance_bound.terms]
    assert reasons == ["cells", "duplicates", "ramps"]
    modified = ef.construct(centring(2, 1), grid=16, softened=False)
    assert modified.distance_bound is not None
    assert len(modified.distance_bound.terms) == 2  # no ramps


def test_without_a_modulus_there_is_no_bound() -> None:
    target = Target(np.sin, 2, 1)
    assert ef.construct(target, grid=4).distance_bound is None
    with pytest.raises(TargetError, match="declares neither lipschitz nor modulus"):
        ef.construct(target, tol=0.1)


def test_a_tolerance_out_of_reach_is_refused() -> None:
    message = r"Theorem 2: the best bound was .* at grid=.*Theorem 3: the best bound was"
    with pytest.raises(ToleranceError, match=message):
        ef.construct(centring(3, 2), tol=1e-3)


def test_where_theorem_2_loses_too_much_theorem_3_is_taken() -> None:
    """n = 3, d = 1: float64 ends at K = 64, where 5 % of the cells have equal columns."""

    def swap_mean(x: np.ndarray) -> np.ndarray:
        return x.mean(-2, keepdims=True) - x / 2

    target = Target(swap_mean, 3, 1, lipschitz=1.5, equivariant=True)
    built = ef.construct(target, tol=0.1)
    assert built.plan.constants.theorem == "Theorem 3"
    assert built.distance_bound is not None
    assert built.distance_bound.value <= Fraction(0.1)
    assert ef.construct(target, tol=0.3).plan.constants.theorem == "Theorem 2"
    with pytest.raises(ToleranceError, match="Theorem 2: the best bound"):
        ef.construct(target, tol=0.1, positional=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either grid or tol"),
        ({"grid": 4, "tol": 0.1}, "either grid or tol"),
        ({"tol": 0}, "not a positive number"),
        ({"tol": float("nan")}, "not a positive number"),
        ({"tol": 0.1, "p": 0.5}, "p=0.5 is not a number >= 1"),
        ({"tol": 0.1, "p": float("inf")}, "p = infinity"),
        ({"tol": 0.1, "p": 1.1}, "ratio of small integers"),
    ],
)
def test_bad_tolerances(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EveryformerError, match=message):
        ef.construct(reverse(2, 1), **arguments)


def test_exponents() -> None:
    assert check_exponent(2.5) == Fraction(5, 2)
