from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.cli.commands.demo import demo_inputs


def rows_of(output: str) -> dict[str, list[str]]:
    notes, _ = demo_inputs()
    lines = {note: line for note in notes for line in output.splitlines() if note in line}
    return {note: line.removeprefix(note).split() for note, line in lines.items()}


def test_demo_prints_plan_values_certificate_and_picture(
    everyformer: Callable[..., Any],
) -> None:
    output = everyformer("demo").stdout
    assert "swap_mean: Theorem 2" in output
    assert "PROVED: d_2(swap_mean, g) <= 0.2125, g in real arithmetic and as" in output
    assert "cells: 4,096 cells, f enclosed with its slopes" in output
    assert "Picture: everyformer-demo/plot.png" in output
    assert Path("everyformer-demo/plot.png").read_bytes().startswith(b"\x89PNG")


def test_demo_shows_f_beside_g(everyformer: Callable[..., Any]) -> None:
    rows = rows_of(everyformer("demo").stdout)
    assert len(rows) == 8
    centres = rows["cell centres"]
    assert centres[3:6] == centres[6:9]  # f and g
    assert rows["same cells"][6:9] == centres[6:9]
    assert sorted(rows["reordered"][6:9]) == sorted(centres[6:9])
    assert rows["equal tokens"][6:9] == ["0.000"] * 3
    assert rows["outside [0, 1]"][6:9] == ["0.000"] * 3
    assert all(float(rows[f"random {i}"][-1]) < 0.047 for i in (1, 2, 3))


def test_demo_can_be_repeated_and_followed(everyformer: Callable[..., Any]) -> None:
    everyformer("demo", "--out", "mine")
    *_, check, look = everyformer("demo", "--out", "mine").stdout.splitlines()
    checked = everyformer(*check.removeprefix("Check the bound: everyformer ").split())
    assert checked.stdout.startswith("PROVED: d_2(f, g) <= 0.2125")
    everyformer(*look.removeprefix("Look inside: everyformer ").split())
    everyformer("demo", "--out", "mine")  # the picture of `inspect` is no obstacle
    names = {entry.name for entry in Path("mine").iterdir()}
    assert names == {"network.safetensors", "certificate.json", "plot.png", "x.npy"}
    assert np.load("mine/x.npy").shape == (8, 3, 1)


def test_an_interrupted_demo_leaves_nothing(
    everyformer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("everyformer.certify.on_cells.proof.examine", interrupted)
    everyformer("demo", code=130)
    assert not list(Path().iterdir())


def test_demo_leaves_other_folders_alone(everyformer: Callable[..., Any]) -> None:
    Path("notes").mkdir()
    Path("notes/plot.png").write_text("mine")
    result = everyformer("demo", "--out", "notes", code=2)
    assert "Error: notes is not empty and is never replaced" in result.stderr
    assert Path("notes/plot.png").read_text() == "mine"
