import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef

Command = Callable[..., Any]


def told(message: str) -> str:
    """A message without the frame that breaks its lines."""
    return " ".join(message.replace("│", " ").split())


def test_plan_of_a_file(everyformer: Command, swap_mean: str) -> None:
    output = everyformer("plan", swap_mean, "--grid", 16).stdout
    assert "swap_mean: Theorem 2" in output
    assert "3,399" in output
    assert "would not be built" not in output


def test_plan_as_json_is_the_librarys(everyformer: Command) -> None:
    shown = json.loads(
        everyformer("plan", "sort", "--grid", 8, "-n", 3, "-d", 2, "--json").stdout
    )
    refusal = shown.pop("refusal")
    assert shown == ef.plan(ef.targets.sort(3, 2), 8).to_json()
    assert "float64 holds 53" in refusal


def test_plan_sizes_have_defaults(everyformer: Command) -> None:
    shown = json.loads(everyformer("plan", "reverse", "--grid", 4, "--json").stdout)
    assert (shown["seq_len"], shown["d_model"], shown["refusal"]) == (2, 1, None)


def test_exact_and_positional_choose_the_network(everyformer: Command) -> None:
    arguments = ("plan", "centring", "--grid", 6, "--json")
    shown = json.loads(
        everyformer(
            *arguments, "--with", "softened=false", "--with", "positional=true"
        ).stdout
    )
    assert (shown["class"], shown["theorem"]) == ("modified T_P^{2,1,1}", "Theorem 3")
    shown = json.loads(everyformer(*arguments, "--with", "positional=false").stdout)
    assert (shown["class"], shown["theorem"]) == ("T^{2,1,4}", "Theorem 2")


def test_plan_of_urpe(everyformer: Command) -> None:
    arguments = ("plan", "sort", "--grid", 4, "--method", "urpe")
    title = " ".join(everyformer(*arguments).stdout.split())
    assert title.startswith("sort: Theorem 3 of Luo et al. 2022, Omega_U^{2,1,4} n = 2")
    shown = json.loads(everyformer(*arguments, "--json").stdout)
    assert shown["stages"]["position layer"] == 1
    assert shown["refusal"] is None
    assert (shown["class"], shown["paper"]) == ("Omega_U^{2,1,4}", "Luo et al. 2022")
    dense = json.loads(everyformer(*arguments[:-2], "--json").stdout)
    assert (dense["class"], dense["paper"]) == ("T_P^{2,1,4}", "Yun et al. 2020")


def test_plan_of_averaging_attention(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "--grid", 16, "--method", "averaging")
    text = " ".join(everyformer(*arguments).stdout.split())
    assert "averaging attention with positions, wide" in text
    shown = json.loads(everyformer(*arguments, "--json").stdout)
    plan = ef.plan(ef.targets.reverse(2, 1), 16, method="averaging")
    assert shown == plan.to_json() | {"refusal": None}
    assert (shown["blocks"], shown["attention_layers"]) == (2, 1)
    assert shown["construction"] == "averaging attention with positions, wide"
    narrow = json.loads(
        everyformer(*arguments, "--json", "--with", "variant=narrow").stdout
    )
    assert narrow["blocks"] == 31 + 1 + 511


def test_plan_says_why_it_would_be_refused(everyformer: Command) -> None:
    output = everyformer("plan", "sort", "--grid", 6).stdout
    assert "It would not be built: grid=6 is not a power of two" in output


def test_targets_lists_the_gallery(everyformer: Command) -> None:
    output = everyformer("targets").stdout
    assert all(name in output for name in ef.targets.GALLERY)
    assert "2, equivariant" in output
    assert "3, positions" in output
    assert "The sequence backwards." in output


def test_all_methods_side_by_side(
    everyformer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("plan", "reverse", "--compare", "--tol", 0.1)
    output = everyformer(*arguments).stdout
    for name in ("compiled", "partition of", "averaging,", "Yun et al.,"):
        assert name in output
    assert (tmp_path / "reverse-comparison.png").stat().st_size > 1000
    shown = json.loads(everyformer(*arguments, "--json", "--picture", "other.png").stdout)
    assert shown == ef.compare(ef.targets.reverse(2, 1), 0.1).to_json()
    assert [row["grid"] for row in shown["optimality"]] == [2**k for k in range(1, 9)]
    assert shown["optimality"][-1]["residual_over_lower_bound"] < 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other.png",
        "reverse-comparison.png",
    ]
    wrong = everyformer("plan", "reverse", "--compare", "--grid", 4, code=2).stderr
    assert "--compare needs --tol and no --grid" in wrong
    both = ("plan", "reverse", "--grid", 4, "--tol", 0.1)
    assert "Give --grid K, or --tol EPS" in everyformer(*both, code=2).stderr
    plotted = ("plan", "reverse", "--grid", 4, "--picture", "no.png")
    assert "--picture belongs to --compare" in everyformer(*plotted, code=2).stderr
    assert "Give --grid K" in everyformer("plan", "reverse", code=2).stderr


def test_a_comparison_takes_a_method_that_needs_more_input(everyformer: Command) -> None:
    compare = ("plan", "reverse", "-n", 3, "--compare", "--tol", 0.3, "--json", "--method")
    shown = json.loads(everyformer(*compare, "sparse", "--with", "pattern=star").stdout)
    star = ef.SparseShifts(ef.patterns.star(3))
    assert shown == ef.compare(ef.targets.reverse(3, 1), 0.3, also=[star]).to_json()
    assert "sparse, star" in {one["name"] for one in shown["candidates"]}
    plain = ef.compare(ef.targets.reverse(3, 1), 0.3).to_json()
    assert json.loads(everyformer(*compare, "auto").stdout) == plain
    assert json.loads(everyformer(*compare, "urpe").stdout) == plain
    wrong = everyformer(*compare, "averaging", "--with", "variant=narrow", code=2).stderr
    assert "--compare tries averaging with settings of its own" in told(wrong)


def test_plan_for_a_tolerance_is_the_first_that_is_built(everyformer: Command) -> None:
    arguments = ("plan", "reverse", "--tol", 0.05, "--json")
    shown = json.loads(everyformer(*arguments).stdout)
    plan = ef.plan(ef.targets.reverse(2, 1), tol=0.05)
    assert (plan.grid, shown) == (16, plan.to_json() | {"refusal": None})
    assert "The first plan that `construct --tol 0.05` builds" in told(
        everyformer(*arguments[:-1]).stdout
    )
    shown = json.loads(everyformer(*arguments, "--method", "partition", "-p", "inf").stdout)
    plan = ef.plan(ef.targets.reverse(2, 1), tol=0.05, p=math.inf, method="partition")
    assert shown == plan.to_json() | {"refusal": None}


def test_plan_without_a_trace_knows_what_is_declared(everyformer: Command) -> None:
    """A tolerance from the modulus alone needs a finer lattice."""
    arguments = ("plan", "sort", "--tol", 0.1, "--method", "partition", "--json")
    traced, declared = (
        json.loads(everyformer(*arguments, *more).stdout)["grid"]
        for more in ((), ("--no-trace",))
    )
    assert traced < declared
