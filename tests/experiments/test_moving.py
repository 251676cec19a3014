"""An experiment goes on on another machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.test_reproduce import Counting
from tests.train.runs import losses, tiny_run

from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Result, Size, Surroundings
from everyformer.experiments.experiment import Experiment, synthetic
from everyformer.experiments.moving import export_runs, import_runs, refuse_filled, runs_of
from everyformer.experiments.report import load_report
from everyformer.experiments.reproduce import reproduce


def _experiment(deadline: float | None) -> Experiment:
    """Two cells, which end early if there is a deadline."""

    def cells(size: Size, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[Cell]:
        def run(around: Surroundings) -> Result:
            found = tiny_run(around.folder, deadline=deadline, resume=around.resume)
            loss = list(losses(found.curve).values())[-1]
            return Result(loss, None, found.ended != "deadline", {"wall_s": 1.0})

        return [Cell({"task": "t", "row": row}, {"row": row}, run) for row in "ab"]

    return replace(Counting().experiment, name="moved", cells=synthetic("moved", cells))


def test_unfinished_runs_go_on_elsewhere_to_the_same_bits(tmp_path: Path) -> None:
    stopped, whole = _experiment(0.0), _experiment(None)
    expected = reproduce(
        whole, "smoke", out=tmp_path / "w", runs=tmp_path / "w", only=["t/a"]
    )
    early = reproduce(stopped, "smoke", out=tmp_path / "1", runs=tmp_path / "1")
    here, there = (runs_of(tmp_path / at, whole, "smoke") for at in ("1", "2"))
    assert export_runs(load_report(early), here, tmp_path / "state") == {}
    assert import_runs(tmp_path / "state", there) == ["t_a", "t_b"]
    assert import_runs(tmp_path / "state", there) == []
    late = reproduce(
        whole, "smoke", out=tmp_path / "2", runs=tmp_path / "2", resume=True, others=[early]
    )
    values = [r["value_sampled"] for r in load_report(late)["results"]]
    assert values == [load_report(expected)["results"][0]["value_sampled"]] * 2
    assert export_runs(load_report(late), there, tmp_path / "none") == {}
    assert not list((tmp_path / "none").iterdir()), "finished runs were exported"


def test_runs_that_cannot_move_are_named(tmp_path: Path) -> None:
    early = reproduce(_experiment(0.0), "smoke", out=tmp_path, runs=tmp_path, only=["t/a"])
    place = runs_of(tmp_path, _experiment(None), "smoke")
    left = export_runs(load_report(early), place, tmp_path / "state", largest=100)
    assert "states of at most 100 are moved" in left["t/a"]
    with pytest.raises(TrainingError, match="holds no run"):
        import_runs(tmp_path / "state", place)
    refuse_filled(tmp_path / "state")
    with pytest.raises(TrainingError, match="not an empty folder"):
        refuse_filled(tmp_path)
