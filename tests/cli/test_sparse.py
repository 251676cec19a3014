"""`plan`, `construct`, `verify` and `inspect` with --pattern."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import everyformer as ef
from everyformer import patterns

Command = Callable[..., Any]


def test_plan_with_a_pattern(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "-n", 5, "--grid", 2, "--pattern", "star", "--width", 1)
    shown = json.loads(everyformer(*arguments, "--json").stdout)
    plan = ef.plan(ef.targets.reverse(5, 1), 2, method=ef.SparseShifts(patterns.star(5, 1)))
    assert shown == plan.to_json() | {"refusal": None}
    text = " ".join(everyformer(*arguments).stdout.split())
    assert "Theorem 1 of Yun et al. 2020b, own proof" in text
    assert "connections (dense 25) │ 21" in text


def test_a_path_and_parameters(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "-n", 4, "--grid", 2, "--json", "--pattern", "axial")
    sizes = ("--with", "rows=2", "--with", "columns=2")
    shown = json.loads(everyformer(*arguments, *sizes, "--gamma", "2,1,3,4").stdout)
    assert (shown["path"], shown["connections"]) == ([2, 1, 3, 4], [8, 8])
    found = everyformer(*arguments, *sizes, "--gamma", "1,4,2,3", code=2).stderr
    assert "gamma breaks at step 1" in " ".join(found.split())


def test_a_network_is_built_verified_and_inspected(everyformer: Command) -> None:
    arguments = ("construct", "reverse", "-n", 3, "--grid", 2, "--pattern", "ring")
    output = everyformer(*arguments, "--workers", 1, "-o", "out").stdout
    assert "PROVED: d_2(reverse, g) <= 0.25" in output
    report = json.loads(Path("out/cost.json").read_text())
    assert report["cost"]["connections"] == [6]
    assert everyformer("verify", "out", "--workers", 1).stdout.startswith("PROVED")
    np.save("x.npy", np.array([[0.1], [0.9], [0.2]]))
    output = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "max shifts" in output
    assert Path("out/ids.png").exists()


def test_what_is_refused(everyformer: Command) -> None:
    plan = ("plan", "reverse", "-n", 5, "--grid", 2)
    wrong = everyformer(*plan, "--pattern", "fixed", "--width", 2, code=2).stderr
    assert "A1.3 receptive-fields REFUTED" in wrong
    wrong = everyformer(*plan, "--width", 2, code=2).stderr
    assert "Give --pattern." in " ".join(wrong.split())
    wrong = everyformer(*plan, "--pattern", "spiral", code=2).stderr
    assert "There is no pattern 'spiral'" in wrong
