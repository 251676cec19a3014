"""All methods side by side, before any is built."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from tests.plans import grid_plan

import everyformer as ef
from everyformer.construct import pipeline, table_error
from everyformer.construct.comparison import Candidate, Comparison
from everyformer.construct.method import as_text
from everyformer.construct.pipeline import compare
from everyformer.construct.registry import METHODS, all_methods
from everyformer.errors import GridError, TargetError, ToleranceError
from everyformer.numerics.limits import format_count


def by_name(found: Comparison) -> dict[str, Candidate]:
    return {candidate.method.title: candidate for candidate in found.candidates}


@pytest.fixture(scope="module")
def centring() -> Comparison:
    return compare(ef.targets.centring(2, 1), 0.05)


def test_every_choice_is_the_coarsest_that_meets_the_tolerance(
    centring: Comparison,
) -> None:
    for candidate in centring.candidates:
        if candidate.chosen is None:
            assert candidate.refusal
            assert all(point.bound > centring.tol for point in candidate.curve)
            continue
        assert candidate.chosen.bound <= centring.tol
        coarser = [p for p in candidate.curve if p.plan.cells < candidate.chosen.plan.cells]
        assert all(point.bound > centring.tol for point in coarser)


def test_theorem_2_does_not_reach_what_averaging_does(centring: Comparison) -> None:
    found = by_name(centring)
    refusal = found["Yun et al., Theorem 2"].refusal
    assert refusal is not None
    assert "float64 holds 53" in refusal
    averaging = found["averaging, wide, equiv."].chosen
    dense = found["Yun et al., Theorem 3"].chosen
    assert averaging is not None
    assert dense is not None
    assert averaging.plan.count().attention_layers == 1
    assert dense.plan.count().attention_layers == 2 * dense.plan.cells + 1
    assert averaging.plan.count().parameters < dense.plan.count().parameters


def test_the_cheapest_comes_first_in_the_table(centring: Comparison) -> None:
    order = [point.plan.count().parameters for _, point in centring.by_cost()]
    assert order == sorted(order)
    lines = str(centring).splitlines()
    first = centring.by_cost()[0][0].method.title
    heading = next(i for i, line in enumerate(lines) if line.startswith("method"))
    assert lines[heading + 1].startswith(first)
    assert lines[-4].split()[-1] == "no"
    assert lines[-3].startswith("residual network*")
    assert lines[-2].startswith("Yun et al., Theorem 2: best bound")
    assert lines[-1].startswith("* One neuron")
    assert centring.to_json()["cheapest"] == centring.by_cost()[0][0].method.title


def test_a_residual_network_stands_beside_them_and_is_never_chosen(
    centring: Comparison,
) -> None:
    assert centring.residual is not None
    assert "bench residual" in centring.remarks()[-1]
    assert not any("residual" in one.method.title for one in centring.candidates)
    shown = centring.to_json()["residual_network"]
    assert shown.pop("planned_bound") <= 0.1
    assert shown == centring.residual.to_json()


def test_a_target_with_positions_has_no_equivariant_candidates() -> None:
    found = compare(ef.targets.reverse(2, 1), 0.1)
    names = set(by_name(found))
    assert {"Yun et al., Theorem 3", "URPE, Luo et al.", "averaging, two-step"} <= names
    assert not any("equiv." in name or "Theorem 2" in name for name in names)


def test_a_declared_modulus_is_enough() -> None:
    reverse = ef.targets.reverse(2, 1)
    found = compare(reverse.untraced(), 0.1)
    traced = compare(reverse, 0.1)
    for name, candidate in by_name(found).items():
        other = by_name(traced)[name]
        if candidate.chosen is not None and other.chosen is not None:
            assert candidate.chosen.plan.cells >= other.chosen.plan.cells


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ToleranceError, match="positive"):
        compare(ef.targets.sort(2, 1), 0.0)
    with pytest.raises(ToleranceError, match="p="):
        compare(ef.targets.sort(2, 1), 0.1, p=Fraction(1, 2))
    unknown = ef.Target(lambda x: float(x.sum()) + 0 * x, 2, 1, name="unknown")
    with pytest.raises(TargetError, match="unknown"):
        compare(unknown, 0.1)


def test_too_many_cells_are_said_and_not_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_error, "MAX_CELLS", 1000)
    found = compare(ef.targets.reverse(3, 1), 1e-3)
    assert all("grid=16 has 4,096 cells" in line for line in found.remarks())
    assert [one.method for one, _ in found.by_cost()] == [ef.Compile(), ef.Partition()]
    assert all("best bound" in line for line in found.remarks())


def test_auto_builds_the_cheapest_and_proves_it() -> None:
    built = ef.construct(ef.targets.reverse(2, 1), tol=0.05, method="auto")
    candidate, point = compare(ef.targets.reverse(2, 1), 0.05).by_cost()[0]
    assert candidate.method == ef.Compile()
    assert built.plan.to_json() == point.plan.to_json()
    assert built.plan.count().parameters == built.cost.parameters
    assert built.certificate.verdict is ef.Verdict.PROVED
    assert built.certificate.eps == Fraction(1, 20)
    for bound in (built.certificate.bound, built.certificate.float64_bound):
        assert bound is not None
        assert bound <= 0.05


def test_the_supremum_leaves_two_methods() -> None:
    found = compare(ef.targets.reverse(2, 1), 0.05, p=math.inf)
    assert [one.method for one in found.candidates] == [ef.Partition(), ef.Compile()]
    assert "d_inf(f, g) <= 0.05" in str(found)


def test_a_plan_whose_network_falls_short_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: nothing is returned on the word of its plan."""
    target = ef.targets.reverse(2, 1)
    found = compare(target, 0.1)
    order = [candidate.method.title for candidate, _ in found.by_cost()]
    fails = [order[0]]
    proper = pipeline.certify

    def fail_first(network: ef.Network, *given: Any, **more: Any) -> ef.Certificate:
        proved = proper(network, *given, **more)
        early = network.architecture.num_prefix > 0 or network.program is not None
        wrong = early or len(fails) > 1
        return (
            replace(proved, claims=(), bound=None, float64_bound=None) if wrong else proved
        )

    monkeypatch.setattr(pipeline, "certify", fail_first)
    built = ef.construct(target, tol=0.1, method="auto")
    assert "compiled program" in str(built.tried[0])
    assert "softmax partition of unity" in str(built.tried[1])
    assert built.plan.source == "averaging attention with positions, wide"
    fails += order[1:]
    with pytest.raises(ToleranceError, match="No network that can be built") as error:
        ef.construct(target, tol=0.1, method="auto")
    labels = [point.plan.label for _, point in found.by_cost()]
    assert all(label in str(error.value) for label in labels)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "sparse"])
def test_a_method_says_whether_it_takes_a_grid(name: str) -> None:
    method, target = METHODS[name](), ef.targets.reverse(2, 1)
    if method.takes_grid:
        assert ef.plan(target, 4, method=method).grid == 4
        return
    with pytest.raises(GridError, match="tol"):
        ef.plan(target, 4, method=method)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_whole_numbers(centring: Comparison, width: int) -> None:
    text = as_text(centring.table(width), width)
    for _, point in centring.by_cost():
        assert f" {format_count(point.plan.count().parameters)} " in text
        assert point.bound.format_value() in text
    assert f"{width} columns are too few for: memory" in text
    assert "KiB" not in text
    assert "KiB" in str(centring)


def test_methods_are_compared_for_a_tolerance_alone() -> None:
    with pytest.raises(GridError, match="compared for a tolerance, not for a grid"):
        ef.construct(ef.targets.reverse(2, 1), grid=4, method="auto")


def test_a_pattern_adds_its_row() -> None:
    target = ef.targets.reverse(3, 1)
    found = compare(target, 0.3, also=[ef.SparseShifts(ef.patterns.star(3))])
    sparse = by_name(found)["sparse, star"].chosen
    assert sparse is not None
    assert grid_plan(sparse.plan).architecture.class_name == "ST^{2,1,4}"


def test_only_plans_that_differ_in_size_have_the_same_label() -> None:
    """Where one of a label cannot be proved, finer ones are not tried: no other method."""
    target = ef.targets.centring(2, 1)
    star = ef.patterns.star(2)
    also = [ef.SparseShifts(star), ef.SparseShifts(star, variant="sweep")]
    others = (ef.Partition(), ef.Compile())
    compared = [one for one in all_methods(target) if one not in others]
    methods = [*compared, *also]
    labels = [ef.plan(target, 4, method=method).label for method in methods]
    labels.append(ef.plan(target, tol=0.1, method=ef.Compile()).label)
    assert len(set(labels)) == len(labels)
