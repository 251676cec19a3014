"""Functions that jump: no bound below what a jump costs, no proof from a changed choice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.numerics.expression import Expression

Function = Callable[[Any], Any]
N, D, GRID = 2, 1, 4
FUNCTIONS: dict[str, Function] = {
    "a jump in the middle of cells": lambda x: np.where(x > 0.375, 1.0, 0.0),
    "a jump at the end of cells": lambda x: np.where(x >= 0.5, 1.0, 0.0),
    "the other end": lambda x: np.where(x > 0.5, 1.0, 0.0),
    "a jump by the other token": lambda x: np.where(x[:, ::-1] > 0.375, 1.0, x),
    "a jump on the diagonal": lambda x: np.where(x > x[:, ::-1], 1.0, 0.0),
    "a thin band": lambda x: np.where((x > 0.4) & (x < 0.401), 50.0, x),
    "a mask": lambda x: x * (x > 0.3) - 2.0 * (x <= 0.1),
    "a jump between functions": lambda x: np.where(x > 0.6, np.sin(9 * x), x**2),
    "a jump that a minimum hides": lambda x: np.minimum(np.where(x > 0.375, 9, x), 0.3),
    "a jump times a function": lambda x: np.where(x > 0.375, 4.0, 0.0) * (x - 0.375),
    "a branch that is not defined": lambda x: np.where(x > 0.5, np.log(x - 0.4), 0.0),
    "conditions on sums": lambda x: np.sign(x.sum(-2, keepdims=True) - 0.77) + 0 * x,
}


def distance_sampled(built: ef.Built, function: Function) -> float:
    x = np.random.default_rng(0).random((20_000, N, D))
    with np.errstate(invalid="ignore"):
        wanted = function(x)
    squares = ((built.network(x) - wanted) ** 2).sum(axis=(1, 2))
    certain = squares.mean() - 4 * squares.std() / np.sqrt(len(x))
    return float(np.sqrt(max(certain, 0.0)))


@pytest.mark.rows(12)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("method", ["selective-shift", "averaging"])
def test_bounds_hold_for_functions_that_jump(name: str, method: Any) -> None:
    built = ef.construct(ef.Target(FUNCTIONS[name], N, D), grid=GRID, method=method)
    certificate = built.certificate
    if name == "a branch that is not defined":  # on the cell from 1/4 to 1/2 it is
        assert certificate.verdict is ef.Verdict.PROVED
    assert certificate.bound is not None
    assert float(certificate.bound.value) >= distance_sampled(built, FUNCTIONS[name])


def test_a_jump_costs_half_of_itself_where_it_lies() -> None:
    """Whatever constant g has on a cell: |1 - g| or |g| is at least 1/2 on half of it."""
    built = ef.construct(
        ef.Target(FUNCTIONS["a jump in the middle of cells"], N, D), grid=4
    )
    assert built.certificate.bound is not None
    assert float(built.certificate.bound.value) >= np.sqrt(2 * 0.25 / GRID)


@pytest.mark.parametrize("p", [2, np.inf])
def test_partition_proves_nothing_small_of_a_jump(p: float) -> None:
    target = ef.Target(FUNCTIONS["a jump in the middle of cells"], 1, 1)
    bound = ef.construct(target, grid=8, method="partition", p=p).certificate.bound
    assert bound is None or float(bound.value) >= (0.5 if p == np.inf else 0.01)


def changed(nodes: list[Any], change: str) -> list[Any]:
    """Lines of a program with another choice."""
    at = next(k for k, line in enumerate(nodes) if line[0] == "where")
    _, c, a, b = nodes[at]
    lines = {
        "branches exchanged": ["where", c, b, a],
        "one branch": ["where", c, a, a],
        "another condition": ["where", b, a, b],
        "a maximum": ["max", a, b],
    }
    return [*nodes[:at], lines[change], *nodes[at + 1 :]]


CHANGES = ["branches exchanged", "one branch", "another condition", "a maximum"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_choice_is_not_proved(tmp_path: Path, change: str) -> None:
    def function(x: Any) -> Any:
        return np.where(x > 0.5, x, x - 8)

    target = ef.Target(function, N, D)
    built = ef.construct(target, grid=GRID)
    built.network.save(tmp_path / "network.safetensors")
    built.certificate.save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    place = tmp_path / "certificate.json"
    values = json.loads(place.read_text())
    stated = values["target"]
    stated["expression"]["nodes"] = changed(stated["expression"]["nodes"], change)
    stated["sha256"] = Expression.from_json(stated["expression"]).sha256
    place.write_text(json.dumps(values))
    assert ef.verify(tmp_path).verdict is not ef.Verdict.PROVED
