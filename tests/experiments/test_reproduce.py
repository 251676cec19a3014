"""Cells are run, kept, resumed and shown."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Cell, Result, Size, Surroundings
from everyformer.experiments.expected import Expected
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.reproduce import load_report, reproduce, results_path


class Counting:
    """An experiment of three cells that counts how often each is run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = ""
        entry = {"cell": {"row": "a"}, "paper": 2.0, "source": "nowhere", "target": None}
        self.experiment = Experiment(
            name="counting",
            about="counts",
            cells=self.cells,
            expected=Expected("count", {}, (entry,)),
            picture=self.draw,
            columns={"wall_s": "seconds"},
        )

    def cells(
        self, size: Size, seeds: Sequence[int], changes: Mapping[str, Any]
    ) -> list[Cell]:
        def run(name: str) -> Result:
            if name == self.fails:
                msg = "out of power"
                raise RuntimeError(msg)
            self.ran.append(name)
            return Result(float(len(name)), 0.5, True, {"wall_s": 1.0})

        def cell(row: str) -> Cell:
            def body(around: Surroundings) -> Result:
                around.watch({"step": 1, "accuracy": 0.5})
                return run(row)

            return Cell({"row": row}, {"row": row, **changes}, body)

        return [cell(row) for row in ("a", "bb", "ccc")]

    def draw(self, results: Sequence[Mapping[str, Any]], path: Path) -> None:
        path.write_text(f"{len(results)} results")


def test_a_crash_keeps_what_is_finished(tmp_path: Path) -> None:
    counting = Counting()
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    counting.fails = "ccc"
    with pytest.raises(RuntimeError, match="out of power"):
        reproduce(counting.experiment, "small", **places)
    path = results_path(places["out"], counting.experiment, "small")
    assert [r["labels"]["row"] for r in load_report(path)["results"]] == ["a", "bb"]
    with pytest.raises(TrainingError, match="--resume"):
        reproduce(counting.experiment, "small", **places)
    counting.fails = ""
    seen: list[Mapping[str, Any]] = []
    reproduce(counting.experiment, "small", **places, resume=True, watch=seen.append)
    assert counting.ran == ["a", "bb", "ccc"]
    assert [(line["cell"], line.get("accuracy")) for line in seen] == [
        ("ccc", None),
        ("ccc", 0.5),
    ]
    report = load_report(path)
    assert report["wall_s"] == 3.0
    assert report["environment"]["date"]
    assert path.with_suffix(".png").read_text() == "3 results"
    table = path.with_suffix(".md").read_text()
    assert "| a   | 1.0000  | 2.0000 | 1.0000 ± 0.5 | no target |" in table


def test_other_settings_are_run_again(tmp_path: Path) -> None:
    counting = Counting()
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    reproduce(counting.experiment, "small", **places, only=["a"])
    reproduce(counting.experiment, "small", **places, only=["a"], resume=True)
    assert counting.ran == ["a"]
    changes = {"lr": 1.0}
    path = reproduce(
        counting.experiment, "small", **places, only=["a", "b*"], resume=True,
        changes=changes,
    )  # fmt: skip
    assert counting.ran == ["a", "a", "bb"]
    assert len(load_report(path)["results"]) == 2


def test_no_cell_begins_after_the_time(tmp_path: Path) -> None:
    counting = Counting()
    path = tmp_path / "counting_small_cpu.json"
    path.write_text(json.dumps({"results": [], "size": "small", "environment": {}}))
    with pytest.raises(KeyError):  # an environment without a machine cannot be shown
        reproduce(
            counting.experiment, "small", out=tmp_path, runs=tmp_path, resume=True,
            seconds=1.0,
        )  # fmt: skip
    assert counting.ran == []


def test_what_is_no_cell_or_no_report_is_refused(tmp_path: Path) -> None:
    counting = Counting()
    with pytest.raises(TrainingError, match="--only z matches none of the 3 cells"):
        reproduce(counting.experiment, "small", out=tmp_path, runs=tmp_path, only=["z"])
    (tmp_path / "broken.json").write_text("[]")
    with pytest.raises(FileFormatError, match="holds no results"):
        load_report(tmp_path / "broken.json")
