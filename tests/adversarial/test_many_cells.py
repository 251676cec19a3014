"""More cells than Python writes digits of a number: plans and refusals in few words."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import everyformer as ef
from everyformer.cli.app import app
from everyformer.errors import EveryformerError

METHODS = ("selective-shift", "urpe", "averaging", "partition")
SIZES = ("-n", "240", "-d", "64", "--grid", "4")
"""4^(n d) has 9,248 digits."""


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", "reverse", *SIZES, *words])


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_is_shown(method: Any) -> None:
    plan = ef.plan(ef.targets.reverse(240, 64), 4, method=method)
    for text in (str(plan), repr(plan), plan._repr_html_()):  # type: ignore[attr-defined]
        assert "e+" in text
        assert len(text) < 10_000


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_is_written_as_json(method: str) -> None:
    found = run("--method", method, "--json")
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert "e+" in shown["parameters"]
    assert shown["refusal"] is not None


@pytest.mark.parametrize("ask", [ef.plan, ef.construct])
@pytest.mark.parametrize("method", METHODS)
def test_a_tolerance_is_refused_in_few_words(ask: Callable[..., Any], method: Any) -> None:
    with pytest.raises(EveryformerError, match="No network that can be built") as raised:
        ask(ef.targets.reverse(240, 64), tol=1e-3, method=method)
    assert len(str(raised.value)) < 2_000


def test_numbers_that_can_be_written_stay_numbers() -> None:
    plan = ef.plan(ef.targets.reverse(3, 1), 4)
    assert plan.to_json()["parameters"] == plan.count().parameters
    assert "T_P^{2,1,4}" in str(plan)
