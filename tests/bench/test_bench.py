"""Benchmarks run, check before they time, and write complete result files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.bench import (
    building,
    contenders,
    execution,
    pairwise,
    results,
    tightness,
)
from everyformer.errors import EveryformerError
from everyformer.model.executor import Executor
from everyformer.targets import prefix_mean, soft_attention
from everyformer.targets.box import Grid


@pytest.mark.parametrize("theme", [building, execution, pairwise, tightness])
def test_quick_runs(theme: object, tmp_path: Path) -> None:
    report = theme.run(quick=True)  # type: ignore[attr-defined]
    path = results.write(tmp_path, report["theme"], report)
    read = json.loads(path.read_text())
    for key in ("date", "commit", "cpu", "cores", "gpu", "python", "versions"):
        assert key in read["environment"]
    assert theme.table(report).row_count > 1  # type: ignore[attr-defined]
    if theme is tightness:
        assert all(1 <= row["ratio"] <= tightness.GOAL for row in read["rows"])
    if theme is execution:
        assert read["gate"]["folded_equals_literal"] == 1000
        assert read["all_cells"]["largest_table_gap"] <= 1e-9
        execution.picture(report, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert not list(tmp_path.glob(".*"))


def test_nothing_wrong_is_timed() -> None:
    built = ef.construct(soft_attention(2, 1), grid=8)
    other = ef.Target(lambda x: built.target(x) + 1e-6, 2, 1)
    wrong = replace(built, target=other)
    with pytest.raises(EveryformerError, match="misses its table"):
        building.table_gap(wrong, Grid(8, 2, other.domain))


@pytest.mark.parametrize("wrong", ["reference", "folded"])
def test_executors_that_differ_are_not_timed(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Executor.run

    def spoiled(self: Executor, tokens: np.ndarray, **options: Any) -> np.ndarray:
        result = original(self, tokens, **options)
        return result + 1e-15 if options.get("name") == wrong else result

    monkeypatch.setattr(Executor, "run", spoiled)
    with pytest.raises(EveryformerError, match=r"differs from the .* nothing is timed"):
        execution.run(quick=True)


def test_contenders_compute_the_same() -> None:
    network = ef.construct(prefix_mean(2, 1), grid=4).network
    x = np.random.default_rng(0).random((5, 2, 1))
    assert np.array_equal(contenders.eager_torch(network)(x), network(x))
    scan = contenders.jax_scan(network)
    if scan is not None:
        assert np.abs(scan(x) - network(x)).max() <= 1e-12
