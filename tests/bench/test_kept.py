"""Rows of long benchmarks survive a run that is stopped."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everyformer.bench import kept as kept_rows
from everyformer.bench.kept import Kept
from everyformer.bench.methods.compile import compiling, scaling
from everyformer.bench.results import environment
from everyformer.errors import InputError


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    kept = Kept(path)
    assert kept.row({"n": 1}, lambda: {"found": 1}) == {"n": 1, "found": 1}
    with pytest.raises(KeyboardInterrupt):
        kept.row({"n": 2}, _stopped)
    with path.open("a") as file:
        file.write('{"about": {"n": 2}, "ro')  # the machine went off
    again = Kept(path, resume=True)
    assert again.row({"n": 1}, _stopped) == {"n": 1, "found": 1}
    assert again.row({"n": 2}, lambda: {"found": 2})["found"] == 2
    assert len(again.starts) == 2
    third = Kept(path, resume=True)
    assert third.row({"n": 2}, _stopped)["found"] == 2
    fresh = Kept(path)
    assert fresh.row({"n": 1}, lambda: {"found": 3})["found"] == 3
    fresh.finish()
    assert not path.exists()


def _stopped() -> dict[str, Any]:
    raise KeyboardInterrupt


def test_a_benchmark_of_compiled_programs_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(compiling, "POINTS", 50)
    report = compiling.run(quick=True, kept=Kept(path))
    assert all(row["verified"] == "PROVED" for row in report["rows"])
    for row in report["rows"]:
        assert max(row["measured"], row["measured_in_balls"]) <= row["proved_float64"]
        assert abs(row["measured"] - row["measured_in_balls"]) <= 1e-18
    monkeypatch.setattr(compiling, "row_of", _stopped)
    again = compiling.run(quick=True, kept=Kept(path, resume=True))
    assert again["rows"] == report["rows"]
    assert len(again["earlier_starts"]) == 1
    assert compiling.table(again).row_count == len(report["rows"])


def test_the_scaling_table(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [one for one in scaling.points(quick=True) if one.name != "soft attention"]

    def chosen(*, quick: bool) -> list[scaling.Point]:
        return few if quick else []

    monkeypatch.setattr(scaling, "points", chosen)
    report = scaling.run(quick=True)
    assert all(row["outcome"] == "PROVED" for row in report["rows"])
    slopes = {(one["series"], one["case"]): one for one in report["exponents"]}
    assert slopes["n", "sort"]["blocks"] == pytest.approx(1)
    assert slopes["n", "sort, log-depth"]["blocks"] < 0.8
    assert slopes["length", "tanh MLP"]["blocks"] == pytest.approx(1)
    assert scaling.table(report).row_count == len(few) + len(slopes)


def test_a_line_that_was_cut_takes_no_other_with_it(tmp_path: Path) -> None:
    """Nor does what is no row at all."""
    path = tmp_path / "rows.jsonl"
    Kept(path).row({"n": 1}, lambda: {"ms": 2})
    with path.open("ab") as file:
        file.write(b'5\nnull\n[1]\n{}\n"environment"\n\xff\n{"about": {"n": 2}}\n{"abou')
    for starts in (2, 3):
        again = Kept(path, resume=True)
        assert len(again.starts) == starts
        assert again.known({"n": 1}) == {"n": 1, "ms": 2}
        assert again.known({"n": 2}) is None


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"gpu": "NVIDIA H200"}, "rows of NVIDIA H200, and here is "),
        ({"versions": {"torch": "1.0", "gone": "2"}}, "rows of torch 1.0, and here is to"),
    ],
)
def test_rows_of_another_place_are_refused(
    other: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit may go on, and so may a library that is looked at since then."""
    path, here = tmp_path / "rows.jsonl", environment()
    for there, refused in (({"commit": "0"}, False), (other, True)):
        monkeypatch.setattr(kept_rows, "environment", partial(dict, here | there))
        Kept(path)
        monkeypatch.undo()
        with pytest.raises(InputError, match=told) if refused else nullcontext():
            Kept(path, resume=True)
