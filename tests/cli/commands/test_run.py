from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef

Command = Callable[..., Any]


@pytest.mark.parametrize("shape", [(3, 1), (5, 3, 1), (2, 4, 3, 1), (0, 3, 1)])
def test_run_writes_what_the_network_returns(
    shape: tuple[int, ...], everyformer: Command, swap_mean_4: Path
) -> None:
    x = np.random.default_rng(0).random(shape)
    np.save("x.npy", x)
    output = everyformer("run", "out", "--input", "x.npy", "--output", "y.npy").stdout
    y = np.load("y.npy")
    assert y.shape == shape
    assert np.array_equal(y, ef.load(swap_mean_4 / "network.safetensors")(x))
    assert f"Wrote y.npy: shape {shape}, float64, literal executor." in output


def test_run_takes_a_file_and_replaces_the_output(
    everyformer: Command, swap_mean_4: Path
) -> None:
    np.save("x.npy", np.array([[0], [1], [2]], dtype=np.int8))
    Path("y.npy").write_text("old")
    network = swap_mean_4 / "network.safetensors"
    everyformer("run", network, "--input", "x.npy", "--output", "y.npy")
    assert np.load("y.npy").tolist() == [[0], [0], [0]]  # 2 lies outside the box
    assert {p.name for p in Path().iterdir()} == {"out", "x.npy", "y.npy"}


def test_run_that_fails_leaves_the_old_output(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 2, "-o", "out")
    np.save("x.npy", np.array([[0.5], [3.0]]))
    Path("y.npy").write_text("old")
    arguments = ("run", "out", "--input", "x.npy", "--output", "y.npy")
    assert "lies outside [0, 1]" in everyformer(*arguments, code=2).stderr
    assert Path("y.npy").read_text() == "old"
    assert {p.name for p in Path().iterdir()} == {"out", "x.npy", "y.npy"}


def test_run_keeps_its_input(everyformer: Command, swap_mean_4: Path) -> None:
    np.save("x.npy", np.zeros((3, 1)))
    Path("same.npy").symlink_to("x.npy")
    for output in ("x.npy", "./x.npy", "same.npy"):
        arguments = ("run", swap_mean_4, "--input", "x.npy", "--output", output)
        assert "is the input itself" in everyformer(*arguments, code=2).stderr


def test_run_with_a_chosen_executor(
    everyformer: Command, swap_mean_4: Path, tmp_path: Path
) -> None:
    x = tmp_path / "x.npy"
    np.save(x, np.array([[[0.1], [0.5], [0.9]]]))
    results: list[np.ndarray] = []
    for name in ("literal", "reference", "folded"):
        y = tmp_path / f"{name}.npy"
        output = everyformer(
            "run", swap_mean_4, "--input", x, "--output", y, "--executor", name
        )
        assert f"{name} executor" in output.stdout
        results.append(np.load(y))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    wrong = everyformer(
        "run",
        swap_mean_4,
        "--input",
        x,
        "--output",
        x.with_name("z.npy"),
        "--executor",
        "warp",
        code=2,
    )
    assert "--executor warp does not exist" in wrong.output
