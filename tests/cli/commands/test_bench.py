import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_bench_prints_a_table_and_writes_a_result(everyformer: Command) -> None:
    output = everyformer("bench", "building", "--quick", "-o", "results").stdout
    assert "Building, medians of 3" in output
    (path,) = Path("results").iterdir()
    assert json.loads(path.read_text())["theme"] == "building"


def test_bench_as_json(everyformer: Command) -> None:
    shown = everyformer("bench", "building", "--quick", "-o", "results", "--json").stdout
    assert json.loads(shown)["environment"]["cores"] >= 1


def test_an_unknown_theme(everyformer: Command) -> None:
    output = everyformer("bench", "weather", code=2).output
    assert "'weather' is not a theme. Choose building or execution" in output
    assert not list(Path().iterdir())


def test_only_long_benchmarks_can_be_resumed(everyformer: Command) -> None:
    output = everyformer("bench", "building", "--quick", "--resume", code=2).output
    assert "building keeps no rows" in output
    assert not list(Path().iterdir())


def test_choices_are_for_models(everyformer: Command) -> None:
    asked = ("--only", "T5-base", "--minutes", "1")
    output = everyformer("bench", "building", *asked, code=2).output
    assert "building does not take --only and --minutes" in " ".join(output.split())


def test_an_unknown_model_leaves_nothing(everyformer: Command) -> None:
    pytest.importorskip("transformers")
    asked = ("--only", "GPT-5", "-o", "results")
    assert "GPT-5 is not among" in everyformer("bench", "models", *asked, code=2).output
    assert not list(Path("results").iterdir())
