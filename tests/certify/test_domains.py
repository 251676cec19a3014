"""Distances over regions and over all of R^(n x d): bounds against exact runs."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversarial.register_drafts import Draft, exactly

import everyformer as ef
from everyformer.certify.support import vanishes_outside
from everyformer.construct.averaging.layers import Variant
from everyformer.verdict import Verdict

Function = Callable[[np.ndarray], np.ndarray]

CORNER = [[[(0, 0.4)], [(0, 1)]], [[(0.4, 0.9)], [(0.1, 0.3)]]]


def bent(x: np.ndarray) -> np.ndarray:
    return np.sin(2 * x) * x[..., ::-1, :] + 0.25 * x


def hill(x: np.ndarray) -> np.ndarray:
    b = np.maximum(0, 1 - np.abs(2 * x - 1))
    return b.prod(axis=-2, keepdims=True) * np.sin(x + np.arange(x.shape[-2])[:, None])


def even_hill(x: np.ndarray) -> np.ndarray:
    b = np.maximum(0, 4 * x * (1 - x))
    return b * b.prod(axis=-2, keepdims=True)


def distance(built: ef.Built, x: np.ndarray, volume: float) -> float:
    gap = np.abs(built.target(x) - built.network(x)) ** 2
    return float((gap.sum(axis=(1, 2)).mean() * volume) ** 0.5)


@pytest.mark.parametrize("method", ["averaging", "selective-shift"])
def test_a_bound_over_a_region_holds_there_and_is_verified(
    method: str, tmp_path: Path
) -> None:
    target = ef.Target(bent, 2, 1, region=CORNER, domain=[(0, 1)])
    assert target.region is not None
    built = ef.construct(target, grid=4, method=method)
    built.save(tmp_path)
    found = ef.verify(tmp_path, target)
    assert found.verdict is Verdict.PROVED
    assert "over a region of 2 boxes, volume 0.5" in found.headline
    assert "[0.0, 0.4]; [0.0, 1.0]" in str(found)
    x = target.region.sample(np.random.default_rng(0), 4096)
    measured = distance(built, x, float(target.region.volume))
    bound = built.certificate.bound
    assert bound is not None
    assert 0.5 * float(bound.value) < measured <= float(bound.value)
    whole = ef.construct(ef.Target(bent, 2, 1), grid=4, method=method).certificate.bound
    assert whole is not None
    assert bound.value < whole.value


def test_f_need_not_exist_outside_the_region(tmp_path: Path) -> None:
    """log(x - 1) on [1.5, 2] and [3, 4.2]: the hull has points where it is not defined."""

    def f(x: np.ndarray) -> np.ndarray:
        first = np.log(x[..., :1, :] - 1)
        return np.concatenate([first, 1 / (x[..., 1:, :] - 2)], axis=-2)

    target = ef.Target(f, 2, 1, domain=[[(1.5, 2)], [(3, 4.2)]])
    built = ef.construct(target, tol=0.2, method="averaging")
    built.save(tmp_path)
    assert ef.verify(tmp_path, target).verdict is Verdict.PROVED


def test_a_region_of_all_cells_has_the_bound_of_the_box() -> None:
    halves = [[[(0, 0.5)], [(0, 1)]], [[(0.5, 1)], [(0, 1)]]]
    bounds: list[Fraction] = []
    for target in (ef.Target(bent, 2, 1), ef.Target(bent, 2, 1, region=halves)):
        found = ef.construct(target, grid=4, method="averaging").certificate.bound
        assert found is not None
        bounds.append(found.value)
    assert abs(bounds[1] / bounds[0] - 1) < Fraction(1, 50)


def test_a_claim_below_the_truth_on_whole_cells_is_refuted(tmp_path: Path) -> None:
    target = ef.Target(bent, 2, 1, region=[[[(0, 0.5)], [(0, 0.6)]]], domain=[(0, 1)])
    built = ef.construct(target, grid=4, method="averaging")
    built.save(tmp_path)

    def higher(x: np.ndarray) -> np.ndarray:
        return bent(x) + 1

    region = [[[(0, 0.5)], [(0, 0.6)]]]
    moved = ef.Target(higher, 2, 1, region=region, domain=[(0, 1)])
    assert ef.verify(tmp_path, moved).verdict is Verdict.REFUTED


SIDES = (
    -1e300,
    -5.0,
    -1e-3,
    0.0,
    0.13,
    0.25 - 2.0**-30,
    0.25,
    0.61,
    1.0,
    1.001,
    7.0,
    1e300,
)


@pytest.mark.parametrize(
    ("f", "variant"),
    [(hill, "narrow"), (hill, "two-step"), (even_hill, "wide")],
)
def test_outside_the_strip_the_network_is_exactly_zero(
    f: Any, variant: Variant, tmp_path: Path
) -> None:
    """In rationals, wherever any coordinate is outside, ramps of the others included."""
    target = ef.Target(f, 2, 1, everywhere=True, equivariant=f is even_hill)
    built = ef.construct(target, grid=4, method=ef.Averaging(variant=variant))
    x = np.array(list(product(SIDES, SIDES)))[..., None]
    outside = ((x < 0) | (x > 1)).any(axis=(1, 2))
    found = exactly(Draft.of(built.network), x)
    assert found is not None
    assert (found[outside] == 0).all()
    assert (found[~outside] != 0).any()
    built.save(tmp_path)
    verified = ef.verify(tmp_path, target)
    assert verified.verdict is Verdict.PROVED
    assert verified.headline.startswith("PROVED: d_2(")  # unconditionally
    assert "over all of R^(2 x 1)" in verified.headline
    assert verified.float64_bound is None
    assert any("outside the box" in term.reason for term in _terms(verified.bound))
    count, cost = built.plan.count(), built.cost
    assert (count.blocks, count.parameters) == (cost.blocks, cost.parameters)
    assert cost.nonzeros <= count.nonzeros_limit


def _terms(bound: Any) -> list[Any]:
    return [bound, *(inner for term in bound.terms for inner in _terms(term))]


SUPPORTS: list[tuple[Function, bool]] = [
    (hill, True),
    (even_hill, True),
    (
        lambda x: (
            np.where((x > 0) & (x < 1), x * (1 - x), 0).prod(-2, keepdims=True) + 0 * x
        ),
        True,
    ),
    (lambda x: hill(x) * np.sqrt(x), False),
    (lambda x: np.maximum(0, 1 - x), False),
    (lambda x: np.maximum(0, 1 - np.abs(2 * x - 1 - 2.0**-40)), False),
    (lambda x: hill(x) / (1 + x * x), True),
    (lambda x: hill(x) / x, False),
    (lambda x: np.exp(-1000 * x * x), False),
]


@pytest.mark.parametrize(("f", "proved"), SUPPORTS)
def test_a_support_is_proved_by_the_expression_or_not_at_all(
    f: Function, proved: bool
) -> None:
    target = ef.Target(f, 2, 1)
    assert target.expression is not None, target.untraceable
    assert vanishes_outside(target.expression, target.domain) is proved


def test_a_support_that_is_only_declared_makes_the_claim_conditional(
    tmp_path: Path,
) -> None:
    """Without a trace, or with one that says less than what is true."""

    def f(x: np.ndarray) -> np.ndarray:
        return hill(x) + np.maximum(x, 0) - (np.abs(x) + x) / 2

    declared = ef.Target(hill, 2, 1, everywhere=True, lipschitz=8, trace=False)
    for target in (declared, ef.Target(f, 2, 1, everywhere=True)):
        built = ef.construct(target, grid=2, method="averaging")
        built.save(tmp_path)
        headline = ef.verify(tmp_path, target).headline
        assert headline.startswith("PROVED, CONDITIONAL on the declared")
        assert "support of f" in headline
