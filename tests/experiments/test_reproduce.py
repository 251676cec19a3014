"""Cells are run, kept, resumed and shown."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Cell, Result, Size, Surroundings
from everyformer.experiments.document import mixed_arithmetic
from everyformer.experiments.expected import Expected
from everyformer.experiments.experiment import Experiment, synthetic
from everyformer.experiments.registry import experiment_by_name
from everyformer.experiments.report import filled, load_report, results_path
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.urpe_synthetic import URPE_SYNTHETIC


class Counting:
    """An experiment of three cells that counts how often each is run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = self.stopped = ""
        entry = {"cell": {"row": "a"}, "paper": 2.0, "source": "nowhere", "target": None}
        self.experiment = Experiment(
            name="counting",
            about="counts",
            cells=synthetic("counting", self.cells),
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
            ended = name != self.stopped
            return Result(float(len(name)), 0.5, ended, {"wall_s": 1.0})

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


def test_results_stand_in_the_order_of_the_cells(tmp_path: Path) -> None:
    counting = Counting()
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    for only in ("ccc", "a", "bb"):
        path = reproduce(counting.experiment, "small", **places, only=[only], resume=True)
    assert counting.ran == ["ccc", "a", "bb"]
    results = load_report(path)["results"]
    assert [r["labels"]["row"] for r in results] == ["a", "bb", "ccc"]
    unknown = [{"labels": {"row": "no longer a cell"}}, *results]
    assert counting.experiment.in_order(unknown, "small")[-1] == unknown[0]


RESULTS = Path(__file__).parents[2] / "experiments/results"


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*_paper_*.json")), ids=lambda p: p.stem
)
def test_committed_results_are_of_the_settings_in_the_code(path: Path) -> None:
    """A table of the paper's size is what `--size paper` runs today."""
    report = load_report(path)
    experiment = experiment_by_name(report["experiment"])
    cells = {cell.name: cell for cell in experiment.cells("paper", [0], {})}
    for result in report["results"]:
        cell = cells["/".join(map(str, result["labels"].values()))]
        assert filled(result["settings"]) == json.loads(json.dumps(cell.settings)), (
            cell.name
        )
        assert result["complete"]


def test_time_that_is_too_short_is_refused(tmp_path: Path) -> None:
    counting = Counting()
    with pytest.raises(TrainingError, match="1 seconds are too few"):
        reproduce(counting.experiment, "small", out=tmp_path, runs=tmp_path, seconds=1.0)
    assert counting.ran == []


def test_time_that_is_over_ends_it_and_the_cell_goes_on(tmp_path: Path) -> None:
    counting = Counting()
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    counting.stopped = "bb"
    path = reproduce(counting.experiment, "small", **places, only=["bb"])
    assert [r["complete"] for r in load_report(path)["results"]] == [False]
    counting.stopped = ""
    reproduce(counting.experiment, "small", **places, only=["bb"], resume=True)
    (kept,) = load_report(path)["results"]
    assert kept["complete"]
    assert kept["more"]["wall_s"] == 2.0, "of both runs"


def test_settings_that_one_cell_refuses_are_refused_before_the_first(
    tmp_path: Path,
) -> None:
    """noPE has 300 updates at this size, and would be reached after an hour."""
    seen: list[Any] = []
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    places["watch"] = seen.append
    with pytest.raises(TrainingError, match="warmup=400 leaves none of 300 steps"):
        reproduce(URPE_SYNTHETIC, "small", **places, changes={"warmup": 400})
    with pytest.raises(TrainingError, match="seed=5 would train every cell"):
        reproduce(URPE_SYNTHETIC, "small", **places, changes={"seed": 5})
    with pytest.raises(TrainingError, match="looks at the clock when it evaluates"):
        reproduce(
            URPE_SYNTHETIC, "smoke", **places, changes={"evaluate_every": 0}, seconds=60.0
        )
    assert seen == []
    assert not (tmp_path / "out").exists()


def test_a_place_that_takes_no_results_is_refused_before_the_first(tmp_path: Path) -> None:
    counting = Counting()
    (tmp_path / "file").write_text("no folder")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            reproduce(counting.experiment, "small", out=out, runs=tmp_path)
    assert counting.ran == []


def test_results_older_than_a_setting_are_kept(tmp_path: Path) -> None:
    """A new setting of training with its default changes nothing in what is there."""
    places: dict[str, Any] = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    only: dict[str, Any] = {"only": ["pi/none/*"], "changes": {"steps": 6}}
    path = reproduce(URPE_SYNTHETIC, "smoke", **places, **only)
    report = load_report(path)
    del report["results"][0]["settings"]["train"]["weight_decay"]
    path.write_text(json.dumps(report))
    seen: list[Any] = []
    reproduce(URPE_SYNTHETIC, "smoke", **places, **only, resume=True, watch=seen.append)
    assert seen == []
    report["results"][0]["settings"]["train"]["weight_decay"] = 0.5
    path.write_text(json.dumps(report))
    reproduce(URPE_SYNTHETIC, "smoke", **places, **only, resume=True, watch=seen.append)
    assert seen[0]["cell"] == "pi/none/10/0", "another setting is another run"


MACHINE = {"gpu": None, "cpu": "abacus", "date": "2026-01-31T00", "commit": "a" * 40}


def report_of(**more: Any) -> dict[str, Any]:
    whole = {"experiment": "counting", "size": "small", "environment": MACHINE}
    return whole | {"results": []} | more


@pytest.mark.parametrize(
    "report",
    [
        [],
        {"results": [], "size": "small", "environment": MACHINE},
        report_of(environment={}),
        report_of(results=3),
        report_of(results=[{"labels": {}}]),
        report_of(size="paper"),
        report_of(experiment="other"),
    ],
)
def test_what_is_no_report_is_refused(report: Any, tmp_path: Path) -> None:
    path = tmp_path / "counting_small_cpu.json"
    path.write_text(json.dumps(report_of()))
    assert load_report(path) == report_of()
    path.write_text(json.dumps(report))
    with pytest.raises(FileFormatError, match=r"holds (no )?results of"):
        load_report(path)


def test_a_table_names_all_days_and_commits(tmp_path: Path) -> None:
    path = tmp_path / "counting_small_cpu.json"
    kept = {
        "labels": {"row": "a"}, "settings": {}, "value_sampled": 1.0, "complete": True,
        "standard_error_sampled": None, "more": {}, "date": "2026-02-01T00", "commit": None,
    }  # fmt: skip
    old = {name: kept[name] for name in kept if name not in ("date", "commit")}
    path.write_text(json.dumps(report_of(results=[old, kept])))
    show(Counting().experiment, path)
    told = path.with_suffix(".md").read_text()
    assert "abacus, 2026-01-31 to 2026-02-01, commit aaaaaaaaaaaa, unknown, 0 s" in told


def test_what_is_no_cell_is_refused(tmp_path: Path) -> None:
    counting = Counting()
    with pytest.raises(TrainingError, match="--only z matches none of the 3 cells"):
        reproduce(counting.experiment, "small", out=tmp_path, runs=tmp_path, only=["z"])


def test_rows_that_were_computed_otherwise_are_noted() -> None:
    """What each run keeps; one that went on elsewhere was computed in two ways."""
    one, two = "CPU, 1 thread, torch 2", "CPU, 2 threads, torch 2"

    def noted(*kept: dict[str, str] | None) -> list[str]:
        more = ({} if way is None else {"arithmetic": way} for way in kept)
        return mixed_arithmetic([{"more": of} for of in more])

    assert noted({"0": one}, {"0": one}, None) == []
    assert noted(None, None) == []
    (note,) = noted({"0": one}, {"0": two})
    assert note.startswith(f"Updates were computed in 2 ways: {one}; {two}. The order of")
    (note,) = noted({"0": one, "7": two}, {"0": one})
    assert "1 of 2 runs went on in another than they began in" in note
