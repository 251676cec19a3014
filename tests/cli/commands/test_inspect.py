import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.cli import tables
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network
from everyformer.model.stacks import FeedForwardStack, Stage

Command = Callable[..., Any]
EXAMPLES = Path(__file__).parents[3] / "examples"


def save(*sequences: list[float]) -> None:
    np.save("x.npy", np.array(sequences)[..., None])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_inspect_tells_the_proof(everyformer: Command, swap_mean_4: Path) -> None:
    save([0.1, 0.6, 0.9])
    shown = everyformer("inspect", swap_mean_4, "--input", "x.npy").stdout
    lines = shown.splitlines()
    assert (
        lines[0]
        == "swap_mean: Theorem 2 of Yun et al. 2020, n = 3, d = 1, K = 4 cells per axis"
    )
    assert "T^{2,1,4}: Transformers with 2 heads of size 1 and 4 hidden units" in lines[1]
    # K = 4: a shift adds 4 (max - min), in the order of the ids 0, 1/2, 3/4.
    for told in (
        "0.1 lies in [0, 0.25) and becomes 0",
        "layer 1, token 1: its id is l = 0: 0 + 4 (0.75 - 0) = 3",
        "layer 3, token 2: its id is l = 0.5: 0.5 + 4 (3 - 0.5) = 10.5",
        "layer 4, token 3: its id is l = 0.75: 0.75 + 4 (10.5 - 0.75) = 39.75",
        "f at the centre (0.125, 0.625, 0.875) of this cell is",
        "claims d_2(f, g) <= 0.3972, g in real arithmetic and as float64 runs it (a mean",
    ):
        assert told in shown
    rows = [cells(line) for line in lines if line.startswith("│")]
    assert rows[0] == ["input x", "0.1", "0.6", "0.9"]
    assert ["selective shifts", "3", "10.5", "39.75"] in rows
    target = runpy.run_path(str(EXAMPLES / "swap_mean.py"))["target"]
    f = target(np.array([[0.1], [0.6], [0.9]]))
    assert [row[2] for row in rows[-3:]] == [tables.vector(token) for token in f]
    assert "Drew the ids in out/ids.png." in lines
    assert (swap_mean_4 / "ids.png").read_bytes().startswith(b"\x89PNG")
    given = everyformer("inspect", swap_mean_4, "--x", "0.1,0.6,0.9").stdout
    assert given == shown


def test_inspect_as_json_has_every_number(
    everyformer: Command, swap_mean_4: Path, tmp_path: Path
) -> None:
    (swap_mean_4 / "ids.png").unlink(missing_ok=True)
    shown = everyformer("inspect", swap_mean_4, "--x", "0.1,0.6,0.9", "--json").stdout
    found = json.loads(shown)
    network = ef.load(swap_mean_4 / "network.safetensors")
    x = np.array([[0.1], [0.6], [0.9]])
    assert found["x"] == x.tolist()
    assert found["g"] == network(x).tolist()
    assert np.abs(np.array(found["f"]) - found["g"]).tolist() == found["gap"]
    trace = network.trace(x)
    assert [one["after"] for one in found["states"]] == [one.stage for one in trace]
    assert [one["tokens"] for one in found["states"]] == [t.state.tolist() for t in trace]
    assert found["states"][2]["ids"] == [0, 0.5, 0.75]
    assert "0 + 4 (0.75 - 0) = 3" in json.dumps(found["steps"])
    assert found["claim_unchecked"].startswith("d_2(f, g) <= 0.3972")
    assert not (swap_mean_4 / "ids.png").exists()  # only where --picture asks for it
    built = ef.construct(ef.targets.centring(2, 1), tol=0.1, method="compile")
    built.save(tmp_path / "compiled")
    told = everyformer("inspect", tmp_path / "compiled", "--x", "0.1,0.6", "--json").stdout
    program = json.loads(told)["program"]
    assert program
    assert all(set(one) >= {"value", "ideal", "e", "line"} for one in program)


def test_inspect_of_theorem_3_begins_with_the_true_input(everyformer: Command) -> None:
    everyformer("construct", "sort", "--grid", 4, "-n", 3, "--workers", 1, "-o", "out")
    shown = everyformer("inspect", "out", "--x", "0.1,0.5,0.9").stdout
    assert "token 3: 0.9 + 2.5 = 3.4" in shown
    assert "its id is l = 0: 0 + 4 (3.25 - 0) = 13" in shown
    rows = [cells(line) for line in shown.splitlines() if line.startswith("│")]
    assert rows[0] == ["input x", "0.1", "0.5", "0.9"]
    assert rows[-1] == ["3", "0.9", "0.9", "0.875", "0.025"]
    everyformer("inspect", "out")  # tokens of its own choice
    own = everyformer("inspect", "out", "--x", "0.1 0.5 0.9", "--target", "reverse").stdout
    assert "f is reverse, as given." in own
    other = everyformer("inspect", "out", "--x", "1/8,1/2,0.9").stdout
    assert "token 1: 0.125 + 0 = 0.125" in other


WRONG = {
    "0.1,0.5": "--x has 2 numbers, but the network takes 3 tokens of 1 number: 3 in all",
    "0.1,x,0.9": "--x 0.1,x,0.9: x is not a finite number",
    "1/0,1,1": "--x 1/0,1,1: 1/0 is not",
    "0.1,0.5,nan": "--x 0.1,0.5,nan: nan is not",
    "1e400,0,0": "--x 1e400,0,0: ",
}


@pytest.mark.parametrize("numbers", WRONG)
def test_inspect_refuses_numbers_that_are_not_an_input(
    numbers: str, everyformer: Command, swap_mean_4: Path
) -> None:
    found = everyformer("inspect", swap_mean_4, "--x", numbers, code=2).stderr
    assert " ".join(WRONG[numbers].split()) in " ".join(found.split())


def test_inspect_refuses_two_inputs_and_another_target(
    everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.1, 0.6, 0.9])
    both = ("inspect", swap_mean_4, "--x", "1,1,1")
    assert "either --x or --input" in everyformer(*both, "--input", "x.npy", code=2).stderr
    assert "of --input" in everyformer(*both, "--sequence", 1, code=2).stderr
    Path("two.py").write_text(
        "import everyformer as ef\ntarget = ef.Target(lambda x: x, 2, 1)\n"
    )
    given = everyformer(*both, "--target", "two.py:target", code=2).stderr
    assert "takes 2 tokens of 1, the network 3 of 1" in " ".join(given.split())


def test_inspect_does_not_compare_with_the_function_of_other_weights(
    everyformer: Command, swap_mean_4: Path
) -> None:
    """A certificate that lies beside a network is not thereby its own."""
    everyformer(
        "construct", "centring", "-n", 3, "--grid", 4, "--no-certificate", "-o", "c"
    )
    shutil.copy(swap_mean_4 / "certificate.json", "c")
    shown = everyformer("inspect", "c", "--x", "0.1,0.6,0.9").stdout
    assert "f(x) is not known: the certificate beside the network is of other" in shown
    assert "f(x) against" not in shown
    assert "claims" not in shown
    Path("c/certificate.json").write_text("{}")
    shown = everyformer("inspect", "c", "--x", "0.1,0.6,0.9").stdout
    assert "is not a certificate that can be read" in shown


def test_inspect_chooses_a_sequence_and_a_picture(
    everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.1, 0.6, 0.9], [0.9, 0.6, 0.1])
    network = swap_mean_4 / "network.safetensors"
    arguments = ("--input", "x.npy", "--sequence", 1, "--picture", "p.png")
    output = everyformer("inspect", network, *arguments).stdout
    rows = [cells(line) for line in output.splitlines() if line.startswith("│")]
    assert rows[0] == ["input x", "0.9", "0.6", "0.1"]
    assert Path("p.png").exists()
    assert not (swap_mean_4 / "ids.png").exists()


def test_inspect_of_equal_tokens_and_of_tokens_outside(
    everyformer: Command, swap_mean_4: Path
) -> None:
    save([0.3, 0.3, 0.3], [0.1, 2.0, 0.9])
    output = everyformer("inspect", swap_mean_4, "--input", "x.npy").stdout
    assert "Nothing moves: all ids are equal" in output
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
