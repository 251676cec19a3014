import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.cli import pictures

Command = Callable[..., Any]
FILES = {"network.safetensors", "cost.json", "plot.png"}


def names(folder: Path = Path()) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_construct_writes_network_cost_and_plot(swap_mean_4: Path) -> None:
    assert names(swap_mean_4) == FILES
    assert names() == {"out"}
    network = ef.load(swap_mean_4 / "network.safetensors")
    assert (
        network.blocks
        == json.loads((swap_mean_4 / "cost.json").read_text())["cost"]["blocks"]
    )
    assert (swap_mean_4 / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_cost_file_holds_plan_cost_and_bound(swap_mean_4: Path) -> None:
    def swap_mean(x: np.ndarray) -> np.ndarray:
        return x.mean(-2, keepdims=True) - 0.5 * x

    target = ef.Target(swap_mean, 3, 1, lipschitz=1.5, equivariant=True)
    built = ef.construct(target, grid=4)
    assert built.distance_bound is not None
    report = json.loads((swap_mean_4 / "cost.json").read_text())
    assert report == {
        "plan": built.plan.to_json(),
        "cost": built.cost.to_json(),
        "distance_bound": {
            "value": built.distance_bound.format_value(),
            "text": str(built.distance_bound),
        },
    }
    assert float(report["distance_bound"]["value"]) >= float(built.distance_bound.value)


def test_construct_prints_plan_bound_and_place(everyformer: Command) -> None:
    output = everyformer("construct", "sort", "--grid", 4, "-o", "out").stdout
    assert "sort: Theorem 3" in output
    assert "<= 1.768e-01  d_p(f, g) with p = 2" in output
    assert "[Yun et al. 2020, Lemma 8]" in output
    assert "Wrote network.safetensors, cost.json and plot.png to out." in output


def test_tolerance_chooses_the_grid(everyformer: Command) -> None:
    arguments = ("construct", "sort", "--tol", 0.3, "-p", 1, "-o", "out", "--json")
    report = json.loads(everyformer(*arguments).stdout)
    assert report["plan"]["grid"] == 4
    assert float(report["distance_bound"]["value"]) <= 0.3
    assert "p = 1" in report["distance_bound"]["text"]
    assert report["folder"] == "out"


def test_exact_network_of_a_grid_that_is_not_dyadic(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 3, "--exact", "-o", "out")
    assert ef.load("out/network.safetensors").is_exact


def test_several_coordinates_and_one_token(everyformer: Command) -> None:
    everyformer("construct", "reverse", "--grid", 2, "-d", 2, "-o", "wide")
    everyformer("construct", "sort", "--grid", 4, "-n", 1, "-o", "single")
    assert names(Path("wide")) == names(Path("single")) == FILES


def test_no_bound_without_a_modulus(everyformer: Command) -> None:
    Path("mine.py").write_text(
        "import everyformer as ef\n"
        "print('read')\n"
        "def shout(x):\n    print('called')\n    return x\n"
        "def make():\n    return ef.Target(shout, 2, 1)\n"
    )
    result = everyformer("construct", "mine.py:make", "--grid", 2, "-o", "out", "--json")
    assert json.loads(result.stdout)["distance_bound"] is None
    assert "read" in result.stderr
    assert "called" in result.stderr
    result = everyformer("construct", "mine.py:make", "--grid", 2, "-o", "other")
    assert "No bound on the distance" in result.stdout


def test_overwrite_replaces_a_folder_of_ours(
    everyformer: Command, swap_mean_4: Path
) -> None:
    before = (swap_mean_4 / "network.safetensors").read_bytes()
    arguments = ("construct", "sort", "--grid", 2, "-o", swap_mean_4)
    result = everyformer(*arguments, code=2)
    assert "Error: out is not empty" in result.stderr
    assert (swap_mean_4 / "network.safetensors").read_bytes() == before
    everyformer(*arguments, "--overwrite")
    assert ef.load(swap_mean_4 / "network.safetensors").architecture.seq_len == 2
    assert names() == {"out"}


def test_an_empty_folder_is_filled(everyformer: Command) -> None:
    Path("out").mkdir()
    everyformer("construct", "sort", "--grid", 2, "-o", "out")
    assert names(Path("out")) == FILES


@pytest.mark.parametrize("present", [{"thesis.tex"}, FILES | {"thesis.tex"}])
def test_overwrite_never_deletes_what_is_not_ours(
    present: set[str], everyformer: Command
) -> None:
    Path("out").mkdir()
    for name in present:
        (Path("out") / name).write_text("mine")
    arguments = ("construct", "sort", "--grid", 2, "-o", "out", "--overwrite")
    assert "never replaced" in everyformer(*arguments, code=2).stderr
    assert names(Path("out")) == present
    assert (Path("out") / "thesis.tex").read_text() == "mine"


def test_overwrite_keeps_the_old_folder_when_building_fails(
    everyformer: Command, swap_mean_4: Path
) -> None:
    before = (swap_mean_4 / "network.safetensors").read_bytes()
    everyformer("construct", "sort", "--grid", 3, "-o", "out", "--overwrite", code=2)
    assert (swap_mean_4 / "network.safetensors").read_bytes() == before
    assert names() == {"out"}


def test_a_link_is_followed(everyformer: Command) -> None:
    Path("disk").mkdir()
    Path("out").symlink_to("disk")
    everyformer("construct", "sort", "--grid", 2, "-o", "out")
    assert Path("out").is_symlink()
    assert names(Path("disk")) == FILES


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (OSError("disk full"), 2)]
)
def test_interrupted_construct_leaves_nothing(
    raised: BaseException,
    code: int,
    everyformer: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*args: object) -> None:
        hidden = [name for name in names() if name.startswith(".out.")]
        assert names(Path(hidden[0]) / "new") == {"network.safetensors", "cost.json"}
        raise raised

    monkeypatch.setattr(pictures, "along_a_line", interrupted)
    everyformer("construct", "sort", "--grid", 2, "-o", "out", code=code)
    assert names() == set()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_are_handled_during_a_command_alone(
    number: int, everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*args: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(pictures, "along_a_line", signalled)
    before = signal.getsignal(number)
    everyformer("construct", "sort", "--grid", 2, "-o", "out", code=128 + number)
    assert signal.getsignal(number) == before
    assert names() == set()


SLOW_TARGET = """
import time, pathlib
import everyformer as ef

def slow(x):
    pathlib.Path("started").touch()
    time.sleep(60)
    return x

target = ef.Target(slow, 2, 1)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing(number: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TARGET)
    program = "from everyformer.cli.app import main; main()"
    command = [sys.executable, "-B", "-c", program, "construct", "slow.py:target"]
    with subprocess.Popen(
        [*command, "--grid", "2", "-o", "out"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        hidden = [name for name in names(tmp_path) if name.startswith(".out.")]
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert len(hidden) == 1
    assert process.returncode == code
    assert told.strip() in {"Interrupted.", "Terminated."}
    assert names(tmp_path) == {"slow.py", "started"}
