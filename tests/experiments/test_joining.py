"""Results of several processes become one file."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.test_reproduce import Counting

from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.arrays import save_arrays
from everyformer.experiments.report import load_report, results_path, shown_path
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.experiments.writer import only_writer


def _run(counting: Counting, out: Path, only: str, others: Sequence[Path] = ()) -> Path:
    return reproduce(
        counting.experiment, "smoke", out=out, runs=out / "runs", only=[only], others=others
    )


def test_what_two_processes_ran_is_one_report_in_order(tmp_path: Path) -> None:
    counting = Counting()
    last, first = _run(counting, tmp_path / "1", "ccc"), _run(counting, tmp_path / "2", "a")
    kept = {"x": np.arange(3.0), "texts": np.frombuffer(b"ein Text\n", np.uint8)}
    save_arrays(scores_path(last), {"ccc": kept})
    both = results_path(tmp_path / "both", counting.experiment, "smoke")
    both.parent.mkdir()
    show(counting.experiment, both, [last, first])
    report = load_report(both)
    assert [r["labels"]["row"] for r in report["results"]] == ["a", "ccc"]
    assert report["wall_s"] == 2.0
    assert "2 s of training, summed over processes" in both.with_suffix(".md").read_text()
    found = load_scores(scores_path(both))["ccc"]
    assert found["x"].tolist() == [0, 1, 2]
    assert found["texts"].dtype == np.uint8, "a byte of a text stays a byte in the file"
    show(counting.experiment, both, [first])
    assert load_report(both) == report


def test_results_of_another_machine_are_shown(tmp_path: Path) -> None:
    counting = Counting()
    here = _run(counting, tmp_path, "a")
    shown = shown_path(tmp_path, counting.experiment, "smoke")
    assert shown == here
    there = here.rename(tmp_path / "counting_smoke_a-gpu.json")
    assert shown_path(tmp_path, counting.experiment, "smoke") == there
    both = tmp_path / "counting_smoke_b-gpu.json"
    both.write_bytes(there.read_bytes())
    with pytest.raises(FileFormatError, match=r"a-gpu.json, counting_smoke_b-gpu.json of"):
        shown_path(tmp_path, counting.experiment, "smoke")
    with pytest.raises(FileFormatError, match="no such results"):
        shown_path(tmp_path, counting.experiment, "paper")


def test_joined_cells_are_not_run_again(tmp_path: Path) -> None:
    counting = Counting()
    there = _run(counting, tmp_path / "1", "bb")
    counting.ran.clear()
    here = _run(counting, tmp_path / "2", "*", others=[there])
    assert counting.ran == ["a", "ccc"]
    assert [r["labels"]["row"] for r in load_report(here)["results"]] == ["a", "bb", "ccc"]


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    """Each would replace what the other has finished; a dead one stands in nobody's way."""
    counting = Counting()
    path = results_path(tmp_path, counting.experiment, "smoke")
    asks = f"from everyformer.experiments.writer import only_writer as w; from pathlib \
import Path\nwith w(Path({str(path)!r}), None): print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TrainingError, match=r"Another process writes .*--show --join"):
            _run(counting, tmp_path, "a")
        assert not counting.ran
        other.kill()
    assert load_report(_run(counting, tmp_path, "a"))["results"]
    with (
        pytest.raises(TrainingError, match="Another process writes"),
        only_writer(path, None),  # read before the results were there
    ):
        pass
    assert not list(tmp_path.glob(".*")), "nothing is left behind"


def test_of_two_runs_of_a_cell_the_finished_one_counts(tmp_path: Path) -> None:
    counting = Counting()
    counting.stopped = "bb"
    early = _run(counting, tmp_path / "1", "bb")
    counting.stopped = ""
    ended = _run(counting, tmp_path / "2", "bb")
    for path, other in ((early, ended), (ended, early)):
        show(counting.experiment, path, [other])
        assert [r["complete"] for r in load_report(path)["results"]] == [True]


def test_results_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    counting = Counting()
    here, there = _run(counting, tmp_path / "1", "a"), _run(counting, tmp_path / "2", "a")
    before = here.read_bytes()
    changed = json.loads(there.read_text())
    changed["results"][0]["value_sampled"] = 7.0
    there.write_text(json.dumps(changed))
    with pytest.raises(TrainingError, match=r"finished with 1.0 here and with 7.0 there"):
        show(counting.experiment, here, [there])
    moved = there.with_name("counting_paper_cpu.json")
    moved.write_bytes(there.read_bytes())
    with pytest.raises(TrainingError, match="same experiment, size and kind"):
        show(counting.experiment, here, [moved])
    with pytest.raises(TrainingError, match="no such file"):
        show(counting.experiment, here, [tmp_path / "3" / here.name])
    assert here.read_bytes() == before


def test_what_another_process_ran_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """Reasons why a cell was skipped hold for the cells that nobody ran."""
    counting = Counting()
    here, there = _run(counting, tmp_path / "1", "a"), _run(counting, tmp_path / "2", "bb")
    for path, skipped in (
        (here, {"bb": "no parent here"}),
        (there, {"a": "none there", "ccc": "nor for this one"}),
    ):
        report = json.loads(path.read_text())
        path.write_text(json.dumps(report | {"skipped": skipped}))
    show(counting.experiment, here, [there])
    assert load_report(here)["skipped"] == {"ccc": "nor for this one"}
    told = here.with_suffix(".md").read_text()
    assert "no parent here" not in told
    assert "- ccc: nor for this one" in told
