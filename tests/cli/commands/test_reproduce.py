"""`everyformer reproduce` from the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Command = Callable[..., Any]
NAMES = (
    "urpe-synthetic",
    "sparse-copying",
    "contextual-gap",
    "random-projections",
    "mixers-bert",
    "urpe-figure1",
    "urpe-lengths",
    "urpe-images",
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_list(everyformer: Command) -> None:
    shown = everyformer("reproduce", "--list").output
    assert all(name in shown for name in NAMES)
    assert everyformer("reproduce").output == shown


def test_smoke_runs_are_kept_and_shown(everyformer: Command) -> None:
    run = ("reproduce", "urpe-synthetic", "--size", "smoke", "--only", "pi/*/10/0")
    shown = everyformer(*run, "--set", "steps=8", "-o", "results").output
    assert "| pi   | urpe" in shown
    assert "not judged" in shown
    assert "pi/urpe/10/0 begins" in shown
    path = Path("results/urpe-synthetic_smoke_cpu.json")
    report = json.loads(path.read_text())
    assert {r["more"]["steps"] for r in report["results"]} == {8}
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert "--resume" in everyformer(*run, "-o", "results", code=2).output
    again = everyformer(*run, "--set", "steps=8", "-o", "results", "--resume").output
    assert "begins" not in again
    assert json.loads(path.read_text()) == report
    only_shown = everyformer(
        "reproduce",
        "urpe-synthetic",
        "--size",
        "smoke",
        "-o",
        "results",
        "--show",
        "--json",
    )
    assert json.loads(only_shown.stdout) == report


def test_the_other_experiments_run(everyformer: Command) -> None:
    shown = everyformer(
        "reproduce", "sparse-copying", "--size", "smoke", "--only", "f*/*/2/0", "-o", "r"
    ).output
    assert shown.count("not judged") == 3
    shown = everyformer("reproduce", "contextual-gap", "--size", "smoke", "-o", "r").output
    assert "| average" in shown


def test_an_export_of_finished_runs_is_said_to_be_empty(everyformer: Command) -> None:
    run = ("reproduce", "urpe-zinc", "--size", "smoke", "--only", "*/gin/*", "-o", "r")
    told = everyformer(*run, "--runs", "runs", "--export-state", "state").stderr
    assert "No run is unfinished: state stays empty." in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("mnist",), "There are urpe-synthetic"),
        (
            ("urpe-synthetic", "--size", "huge"),
            "Choose one of smoke, small, reduced, paper",
        ),
        (("urpe-synthetic", "--seeds", "a"), "not a list of whole numbers"),
        (("contextual-gap", "--seeds", "1,0,1"), "names a seed twice"),
        (("contextual-gap", "--seeds", "0,-1"), "not a list of whole numbers from 0"),
        (("contextual-gap", "--seeds", str(2**63)), "not a list of whole numbers from 0"),
        (("urpe-synthetic", "--set", "lr"), "is not a setting"),
        (("urpe-synthetic", "--set", "rate=1"), "A training config has no rate"),
        (("urpe-synthetic", "--only", "zz"), "matches none"),
        (("contextual-gap", "--set", "lr=1"), "trains nothing"),
        (("random-projections", "--set", "lr=1"), "trains nothing"),
        (("urpe-synthetic", "--size", "smoke", "--show"), "holds no such results"),
        (("urpe-synthetic", "--set", "seed=1"), "instead: --seeds"),
        (("urpe-synthetic", "--set", "warmup=999"), "leaves none of 300 steps"),
        (("urpe-synthetic", "--minutes", "0"), "Give more --minutes"),
        (("urpe-synthetic", "--size", "reduced"), "has no reduced size"),
        (("sparse-copying", "--data", "packs"), "Leave out --data"),
        (("mixers-bert", "--size", "reduced"), "Give it with --data DIR"),
        (("mixers-bert", "--size", "paper", "--data", "."), "everyformer data pack squad"),
        (("mixers-bert", "--data", "a.pack.xz"), "--data a.pack.xz is not a folder"),
        (("urpe-wikitext", "--data", "a.pack.xz"), "--data a.pack.xz is not a folder"),
        (("urpe-zinc", "--data", "a.pack.xz"), "Give the folder of packs"),
        (("urpe-wikitext", "--size", "paper", "--data", "a"), "a lacks ['wiki.train.tok"),
        (("mixers-bert", "--set", "mnli.rate=1"), "has no setting mnli.rate"),
        (("mixers-bert", "--only", "mlm/atention/*"), "none of the 25 cells, such as mlm/"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], told: str, everyformer: Command) -> None:
    output = everyformer("reproduce", *arguments, code=2).output
    assert told in " ".join(output.replace("│", " ").split())
