"""What else would do for a tolerance, as planned."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.cli.method_settings import read_method
from everyformer.construct.alternatives import MUCH, Alternative
from everyformer.construct.grid_plan import GridPlan
from everyformer.construct.method import Plan
from everyformer.construct.table_error import TableErrors
from everyformer.errors import TargetError


def symmetric(x: np.ndarray) -> np.ndarray:
    return x * x + x.mean(axis=-2, keepdims=True)


TARGET = ef.Target(symmetric, 2, 1, equivariant=True)


@pytest.fixture(scope="module")
def built() -> ef.Built:
    """Theorem 2 at K = 32, which loses cells with equal columns."""
    return ef.construct(TARGET, tol=0.3)


def test_a_cheaper_theorem_is_named(built: ef.Built) -> None:
    found = {one.method.title: one for one in built.cheaper}
    theorem_3 = found["Yun et al., Theorem 3"]
    assert theorem_3.parameters * MUCH <= built.cost.parameters
    assert "47,265 parameters" in built.hint
    assert "by their plans" in built.hint
    assert "Yun et al., Theorem 3: 1,911 parameters" in built.hint
    assert [one.parameters for one in built.cheaper] == sorted(
        one.parameters for one in built.cheaper
    )


def test_what_is_named_keeps_its_word(built: ef.Built) -> None:
    """Asked for as the hint says, in Python and in the shell, it is proved."""
    for one in built.cheaper:
        asked: Any = eval(one.python.removeprefix("method="), {"ef": ef})
        again = ef.construct(TARGET, tol=0.3, method=asked, p=2)
        assert again.certificate.verdict is ef.Verdict.PROVED
        assert again.cost.parameters == one.parameters
        words = one.shell.split()
        settings = [words[i + 1] for i, word in enumerate(words) if word == "--with"]
        assert read_method(words[1], settings, 2) in (asked, one.method)


def test_nothing_is_built_for_a_hint(
    built: ef.Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> None:
        raise AssertionError("a hint builds nothing")

    monkeypatch.setattr(Plan, "build", build)
    monkeypatch.setattr(GridPlan, "build", build)
    again = ef.Built(built.network, built.target, built.plan, built.p, built.proved)
    assert [one.to_json() for one in again.cheaper] == [
        one.to_json() for one in built.cheaper
    ]


def test_the_cheapest_has_no_hint() -> None:
    built = ef.construct(TARGET, tol=0.3, method="compile", p=2)
    assert built.cheaper == ()
    assert built.hint == ""


def test_without_a_bound_there_is_nothing_to_compare() -> None:
    unknown = ef.Target(lambda x: np.arctan(x), 2, 1, equivariant=True)
    built = ef.construct(unknown, grid=4)
    assert built.certificate.verdict is ef.Verdict.UNKNOWN
    assert (built.cheaper, built.hint) == ((), "")


def test_a_grid_is_compared_by_what_was_proved() -> None:
    built = ef.construct(TARGET, grid=16)
    assert built.cheaper
    eps = built.certificate.eps
    assert eps is not None
    assert all(one.bound <= eps for one in built.cheaper)
    assert f"for {float(eps):g}" in built.hint


def test_a_function_that_fails_later_spoils_nothing(built: ef.Built) -> None:
    """The network is there; a hint is not worth an error."""

    def fails(x: np.ndarray) -> np.ndarray:
        raise TargetError("no more")

    broken = ef.Target(fails, 2, 1, equivariant=True, lipschitz=1)
    again = ef.Built(built.network, broken, built.plan, built.p, built.proved)
    assert all(isinstance(one, Alternative) for one in again.cheaper)


def test_a_region_is_neither_ruled_out_by_its_box_nor_compared() -> None:
    """Far from the region f is steep; tables of the whole box are 20 times too far."""
    steep = ef.Target(
        lambda x: 100 * np.maximum(x - 0.25, 0) + x,
        2,
        1,
        region=[[[(0, 0.25)], [(0, 0.25)]]],
        domain=[(0, 1)],
    )
    built = ef.construct(steep, tol=0.05)
    assert built.certificate.verdict is ef.Verdict.PROVED
    box = TableErrors(steep, Fraction(2))
    assert built.plan.too_coarse(box, Fraction("0.05")) is not None
    assert built.cheaper == ()
