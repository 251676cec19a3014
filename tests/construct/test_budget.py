"""From a tolerance to the coarsest dyadic grid whose certified bound meets it."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plans import constants_of

import everyformer as ef
from everyformer.construct.grid_plan import GridPlan
from everyformer.construct.problem import exponent
from everyformer.errors import EveryformerError, TargetError, ToleranceError
from everyformer.targets import GALLERY, centring, reverse, soft_attention, sort
from everyformer.targets.target import Target


def largest_bound(certificate: ef.Certificate) -> Fraction:
    """Of all that is claimed."""
    bounds = {"real": certificate.bound, "float64": certificate.float64_bound}
    found = [bounds[claim] for claim in certificate.claims]
    return max(bound.value for bound in found if bound is not None)


@pytest.mark.rows(4)
@pytest.mark.parametrize("way", ["expression", "modulus"])
@pytest.mark.parametrize("p", [1, 2, 2.5, Fraction(3, 2)])
def test_tolerance_chooses_the_coarsest_dyadic_grid(p: Any, way: str) -> None:
    target = reverse(2, 1) if way == "expression" else reverse(2, 1).untraced()
    built = ef.construct(target, tol=0.1, p=p)
    certificate = built.certificate
    assert certificate.statement.kind == way
    assert certificate.verdict is ef.Verdict.PROVED
    assert certificate.eps == Fraction("0.1")
    assert certificate.claims == ("real", "float64")
    assert certificate.p == built.p == Fraction(p)
    assert largest_bound(certificate) <= Fraction("0.1")
    K = built.plan.cells
    assert K & (K - 1) == 0
    coarser = ef.construct(target, grid=K // 2, p=p).certificate
    assert largest_bound(coarser) > Fraction(0.1)


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("name", "tol"),
    [("smooth_rank", "0.2"), ("smooth_bump", "0.25"), ("sort", "0.1"), ("shift", "0.06")],
)
def test_the_gallery_to_a_tolerance(name: str, tol: str, tmp_path: Path) -> None:
    target = GALLERY[name](2, 1)
    built = ef.construct(target, tol=float(tol))
    x = np.random.default_rng(0).random((4096, 2, 1))
    gap = np.square(target(x) - built.network(x)).sum(axis=(1, 2)).mean()
    assert np.sqrt(gap) <= float(tol)
    positional = constants_of(built.plan).positional
    coarser = ef.construct(
        target, grid=built.plan.cells // 2, method=ef.SelectiveShifts(positional=positional)
    )
    assert largest_bound(coarser.certificate) > Fraction(tol)
    built.save(tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.PROVED
    assert found.certificate.eps == Fraction(tol)


def test_the_expression_needs_no_finer_grid_than_the_modulus() -> None:
    """The slopes of f are known cell by cell; a constant holds for the worst of them."""
    grids: dict[str, int] = {}
    for way in ("expression", "modulus"):
        target = Target(np.sin, 2, 1, lipschitz=2, trace=way == "expression")
        built = ef.construct(target, tol=0.05)
        grids[way] = built.plan.cells
    assert grids["expression"] < grids["modulus"]


def test_a_rational_network_to_a_tolerance() -> None:
    built = ef.construct(reverse(2, 1), tol=0.11, method=ef.SelectiveShifts(softened=False))
    assert built.plan.grid == 4
    assert built.certificate.claims == ("real",)
    assert built.certificate.verdict is ef.Verdict.PROVED


def test_without_a_modulus_and_a_trace_there_is_no_grid() -> None:
    target = Target(np.cbrt, 2, 1)
    assert ef.construct(target, grid=4).certificate.verdict is ef.Verdict.UNKNOWN
    message = "declares neither lipschitz nor modulus, and cannot be traced: .*cbrt"
    with pytest.raises(TargetError, match=message):
        ef.construct(target, tol=0.1)
    built = ef.construct(Target(np.sin, 2, 1), tol=0.1)  # traced, nothing declared
    assert built.certificate.verdict is ef.Verdict.PROVED


def test_a_tolerance_out_of_reach_is_refused() -> None:
    message = (
        r"(?s)to tol=0\.01\. Tried:\n"
        r"  construction +grid +parameters  outcome\n"
        r".*Theorem 2 of Yun et al\. 2020 +4 +135,800  bound about 2\.3.*, planned\n"
        r".*Theorem 3 of Yun et al\. 2020 +2 +16,526  bound about .*memory.*\n"
        r"Methods that could, as planned:\n"
        r'  compiled program: 62 parameters, planned bound .*method="compile".*\n'
        r"Raise tol"
    )
    with pytest.raises(ToleranceError, match=message):
        ef.construct(centring(3, 2), tol=0.01, max_memory=1 << 22)


def test_memory_limits_the_search() -> None:
    with pytest.raises(
        ToleranceError, match=r"(?s) 16 +25,095  bound .*\n.* 32 .*grid=32.*limit of"
    ):
        ef.construct(reverse(2, 1), tol=1e-3, max_memory=1 << 19)
    with pytest.raises(ToleranceError, match=r" 2 +439  grid=2 .*limit of"):
        ef.construct(reverse(2, 1), tol=1e-3, max_memory=1)


def test_a_pole_never_meets_a_tolerance() -> None:
    """f has no bound on the cells at 0, however fine the grid."""
    target = Target(lambda x: 1 / x, 2, 1)
    with pytest.raises(ToleranceError, match=r"no bound \(target: f has no finite"):
        ef.construct(target, tol=1, max_memory=1 << 16)


def swap_mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-2, keepdims=True) - x / 2


def test_where_theorem_2_loses_too_much_theorem_3_is_taken() -> None:
    """n = 3, d = 1, K = 16: 18 % of the cells have equal columns."""
    target = Target(swap_mean, 3, 1, equivariant=True)
    built = ef.construct(target, tol=0.1, max_memory=1 << 19)
    assert constants_of(built.plan).theorem == "Theorem 3"
    assert largest_bound(built.certificate) <= Fraction("0.1")
    assert constants_of(ef.construct(target, tol=0.3).plan).theorem == "Theorem 2"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The grids of all networks that are built."""
    grids: list[int] = []
    build = GridPlan.build

    def counted(plan: GridPlan, *arguments: Any) -> Any:
        grids.append(plan.grid)
        return build(plan, *arguments)

    monkeypatch.setattr(GridPlan, "build", counted)
    return grids


@pytest.mark.parametrize("way", ["expression", "modulus"])
def test_what_tables_rule_out_is_not_built(builds: list[int], way: str) -> None:
    """Theorem 2 up to K = 64 and Theorem 3 at K = 2 were built in vain before."""
    target = Target(swap_mean, 3, 1, equivariant=True, lipschitz=1, trace=way != "modulus")
    built = ef.construct(target, tol=0.1)
    assert builds == [built.plan.grid]
    assert [trial.grid for trial in built.tried][:6] == [4, 8, 16, 32, 64, 128]


def test_a_hopeless_tolerance_is_refused_without_a_network(builds: list[int]) -> None:
    with pytest.raises(ToleranceError, match=r'432 parameters, .*method="compile"'):
        ef.construct(sort(3, 1), tol=1e-4)
    with pytest.raises(ToleranceError, match=r"(?s) 128 .*bound about .*compile"):
        ef.construct(sort(3, 1), tol=1e-4, method="averaging")
    assert builds == []


def test_theorem_2_alone_may_not_be_enough() -> None:
    with pytest.raises(
        ToleranceError, match=r"Theorem 2 of Yun et al. 2020 +\d+ +[\d,]+  bound "
    ):
        ef.construct(
            soft_attention(3, 1),
            tol=0.1,
            method=ef.SelectiveShifts(positional=False),
            max_memory=1 << 20,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either grid or tol"),
        ({"grid": 4, "tol": 0.1}, "either grid or tol"),
        ({"tol": 0}, "not a positive number"),
        ({"tol": -1}, "not a positive number"),
        ({"tol": float("nan")}, "not a positive number"),
        ({"tol": float("inf")}, "not a positive number"),
        ({"tol": 0.1, "p": 0.5}, "p=0.5 is not a number >= 1"),
        ({"tol": 0.1, "p": float("inf")}, "p = infinity"),
        ({"tol": 0.1, "p": 1.1}, "ratio of small integers"),
    ],
)
def test_bad_tolerances(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EveryformerError, match=message):
        ef.construct(reverse(2, 1), **arguments)


def test_exponents() -> None:
    assert exponent(2.5, supremum=False) == Fraction(5, 2)
