from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.cli import tables
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network, StageState
from everyformer.model.stacks import FeedForwardStack, Stage

Command = Callable[..., Any]


def save(*sequences: list[float]) -> None:
    np.save("x.npy", np.array(sequences)[..., None])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_inspect_shows_moves_and_stages(everyformer: Command, swap_mean_4: Path) -> None:
    save([0.1, 0.6, 0.9])
    lines = everyformer("inspect", swap_mean_4, "--input", "x.npy").stdout.splitlines()
    rows = [cells(line) for line in lines if line.startswith("│")]
    # K = 4: a shift adds 4 (max - min), in the order of the ids 0, 1/2, 3/4.
    assert rows[:3] == [
        ["1", "1", "0", "3"],
        ["3", "2", "0.5", "10.5"],
        ["4", "3", "0.75", "39.75"],
    ]
    assert rows[3] == ["input", "0.1", "0.6", "0.9"]
    assert ["selective shifts", "3", "10.5", "39.75"] in rows
    assert "Drew the ids in out/ids.png." in lines
    assert (swap_mean_4 / "ids.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_chooses_a_sequence_and_a_picture(
    everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.1, 0.6, 0.9], [0.9, 0.6, 0.1])
    network = swap_mean_4 / "network.safetensors"
    arguments = ("--input", "x.npy", "--sequence", 1, "--picture", "p.png")
    output = everyformer("inspect", network, *arguments).stdout
    assert "0.9" in next(line for line in output.splitlines() if "input" in line).split()[3]
    assert Path("p.png").exists()
    assert not (swap_mean_4 / "ids.png").exists()


def test_inspect_of_equal_tokens_and_of_tokens_outside(
    everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.3, 0.3, 0.3], [0.1, 2.0, 0.9])
    output = everyformer("inspect", swap_mean_4, "--input", "x.npy").stdout
    assert "no token moved" in output
    everyformer("inspect", swap_mean_4, "--input", "x.npy", "--sequence", 1)


def test_inspect_of_rationals_shows_fractions(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 3, "--with", "softened=false", "-o", "out")
    save([0.5, 0.5])
    output = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "1/3" in output


def test_inspect_of_a_single_token_has_stages_only(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 2, "-n", 1, "-o", "out")
    save([0.3])
    output = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "no selective shifts" in output
    assert "quantise" in output
    assert not Path("out/ids.png").exists()


def test_tables_of_many_tokens_are_cut_short() -> None:
    assert tables.tokens(np.zeros((7, 1))) == ["0"] * 6 + ["..."]
    assert tables.tokens(np.zeros((1, 2))) == ["(0, 0)"]
    steps = [StageState(f"block {i}", np.zeros((1, 1)), np.array([i])) for i in range(42)]
    assert tables.shift_moves(steps).row_count == 40
    assert tables.shift_moves(steps).caption == "and 1 more"


def test_inspect_of_a_network_that_was_not_constructed(everyformer: Command) -> None:
    spec = ArchitectureSpec(2, 1, 2, 1, 4, "softmax", "relu", False)
    zeros = FeedForwardStack(
        np.zeros((1, 4, 1)), np.zeros((1, 4)), np.zeros((1, 1, 4)), np.zeros((1, 1))
    )
    stage = Stage("nothing", "by hand", feed_forward=zeros)
    Network(spec, (stage,)).save("plain.safetensors")
    save([0.3, 0.4])
    output = everyformer("inspect", "plain.safetensors", "--input", "x.npy").stdout
    assert "was not constructed" in output


@pytest.mark.parametrize("sequence", [-1, 2])
def test_inspect_refuses_a_sequence_that_is_not_there(
    sequence: int, everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.1, 0.6, 0.9], [0.9, 0.6, 0.1])
    arguments = ("inspect", swap_mean_4, "--input", "x.npy", "--sequence", sequence)
    assert "x.npy holds 2, from 0" in everyformer(*arguments, code=2).stderr


COMPILED = """\
import numpy as np
import everyformer as ef

def f(x):
    w = np.exp(-((x - np.swapaxes(x, -1, -2)) ** 2))
    return (w / w.sum(-1, keepdims=True)) @ x

target = ef.Target(f, 2, 1)
"""


def test_inspect_names_steps_by_lines_and_asks_the_verifier(everyformer: Command) -> None:
    """Errors that the file says are not shown; words of it do not move the cursor."""
    Path("mine.py").write_text(COMPILED)
    np.save("x.npy", [[0.25], [0.5]])
    everyformer(
        "construct", "mine.py:target", "--tol", "1e-3", "--method", "compile", "-o", "out"
    )
    shown = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "(w / w.sum(-1, keepdims=True)) @ x  [mine.py:6]" in shown
    assert "found by the verifier just now" in shown
    network = ef.load("out/network.safetensors")
    assert network.program is not None
    said = tuple(
        replace(step, line="\x1b[2J[bold]mine", e=1e-77) for step in network.program.steps
    )
    program = replace(network.program, steps=said, listing=("\x1b]0;owned\x07",))
    replace(network, program=program).save("out/network.safetensors")
    lying = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "?[2J[bold]mine" in lying
    assert "?]0;owned?" in lying
    assert "\x1b" not in lying
    assert "1.0e-77" not in lying
    program = replace(program, claims={**program.claims, "macros": 7})
    replace(network, program=program).save("out/network.safetensors")
    refused = everyformer("inspect", "out", "--input", "x.npy").stdout
    assert "No errors are proved: " in refused
