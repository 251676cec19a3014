"""`plan`, `construct`, `verify` and `inspect` with --method sparse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer import patterns

Command = Callable[..., Any]


def sparse(pattern: str, *parameters: str) -> list[str]:
    settings = (f"pattern={pattern}", *parameters)
    return ["--method", "sparse", *(part for one in settings for part in ("--with", one))]


def test_plan_with_a_pattern(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "-n", 5, "--grid", 2, *sparse("star", "width=1"))
    shown = json.loads(everyformer(*arguments, "--json").stdout)
    plan = ef.plan(ef.targets.reverse(5, 1), 2, method=ef.SparseShifts(patterns.star(5, 1)))
    assert shown == plan.to_json() | {"refusal": None}
    text = " ".join(everyformer(*arguments).stdout.split())
    assert "Theorem 1 of Yun et al. 2020b, own proof" in text
    assert "connections (dense 25) │ 21" in text


def test_a_path_and_parameters(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "-n", 4, "--grid", 2, "--json")
    axial = sparse("axial", "rows=2", "columns=2")
    shown = json.loads(everyformer(*arguments, *axial, "--with", "gamma=2,1,3,4").stdout)
    assert (shown["path"], shown["connections"]) == ([2, 1, 3, 4], [8, 8])
    found = everyformer(*arguments, *axial, "--with", "gamma=1,4,2,3", code=2).stderr
    assert "gamma breaks at step 1" in " ".join(found.split())


def test_a_network_is_built_verified_and_inspected(everyformer: Command) -> None:
    arguments = ("construct", "reverse", "-n", 3, "--grid", 2, *sparse("ring"))
    output = everyformer(*arguments, "--workers", 1, "-o", "out").stdout
    assert "PROVED: d_2(reverse, g) <= 0.25" in output
    report = json.loads(Path("out/cost.json").read_text())
    assert report["cost"]["connections"] == [6]
    assert everyformer("verify", "out", "--workers", 1).stdout.startswith("PROVED")
    np.save("x.npy", np.array([[0.1], [0.9], [0.2]]))
    output = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "max shifts" in output
    assert Path("out/ids.png").exists()


def test_a_seed_and_a_file(everyformer: Command) -> None:
    plan = ("plan", "reverse", "-n", 6, "--grid", 2, "--json")
    drawn = sparse("bigbird", "random=1", "seed=3")
    shown = json.loads(everyformer(*plan, *drawn).stdout)
    pattern = patterns.big_bird(6, random=1, seed=3)
    assert shown["connections"] == list(pattern.connections)
    own = np.eye(6, dtype=bool)
    np.save("mine.npy", own | np.roll(own, -1, axis=1))
    shown = json.loads(everyformer(*plan, *sparse("mine.npy")).stdout)
    assert shown["connections"] == [12]
    Path("ring.txt").write_text("".join(f"{k} {(k + 1) % 6}\n" for k in range(6)))
    ring = sparse("ring.txt", "self_loops=true", "zero_based=true", "gamma=0,1,2,3,4,5")
    assert json.loads(everyformer(*plan, *ring).stdout)["connections"] == [12]
    lonely = everyformer(*plan, *sparse("ring.txt", "zero_based=true"), code=2).stderr
    assert "A1.1 self-loops" in lonely


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (sparse("fixed", "width=2"), "A1.3 receptive-fields REFUTED"),
        (sparse("spiral"), "There is no pattern 'spiral'"),
        (sparse("ring", "seed=1"), "ring: no parameter seed"),
        (sparse("bigbird", "seed=a"), "--with seed=a: write KEY=VALUE with a whole number"),
        (sparse("ring", "n=5"), "--with n=5: use -n for that"),
        (sparse("ring", "rows=2"), "no parameter rows"),
        (
            sparse("strided", "width=a"),
            "--with width=a: write KEY=VALUE with a whole",
        ),
        (sparse("ring", "gamma=a,b"), "--with gamma=a,b: write the tokens in order"),
        (sparse("axial", "rows=2", "columns=2"), "4 tokens"),
        (sparse("mine.npy"), "mine.npy is for 2 tokens, not for n=5"),
        (sparse("mine.npy", "width=2"), "mine.npy is read from files"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, everyformer: Command) -> None:
    np.save("mine.npy", np.ones((2, 2), dtype=bool))
    wrong = everyformer("plan", "reverse", "-n", 5, "--grid", 2, *arguments, code=2).stderr
    assert message in " ".join(wrong.replace("│", " ").split())
