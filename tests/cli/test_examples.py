import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"
OTHERS = {
    "add_urpe", "compiled_block", "equal_tokens", "happy_bob", "my_attention",
    "reproduce_gap", "sparse_patterns", "theorem_2", "urpe_molecule", "your_function",
}  # fmt: skip
CONSTRUCTIONS = sorted(path for path in FOLDER.glob("*.py") if path.stem not in OTHERS)


@pytest.mark.parametrize("example", CONSTRUCTIONS, ids=lambda path: path.stem)
def test_examples_run_and_agree(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    values = {
        line[0]: [float(v) for v in line.partition("=")[2].strip("[] ").split()]
        for line in lines
        if line.startswith(("f(x)", "g(x)"))
    }
    assert values["f"] == pytest.approx(values["g"], abs=1 / 16)
    assert any(line.startswith(f"PROVED: d_2({example.stem}, g) <= ") for line in lines)


def test_a_compiled_block(capsys: pytest.CaptureFixture[str]) -> None:
    """Proved, measured below the bound, and not proved with a weight that was moved."""
    runpy.run_path(str(FOLDER / "compiled_block.py"), run_name="__main__")
    *lines, spoiled = capsys.readouterr().out.splitlines()
    (proved,) = (line for line in lines if line.startswith("PROVED"))
    assert proved.startswith("PROVED: sup|block - g| <= 0.01")
    (measured,) = (line for line in lines if line.startswith("measured"))
    assert float(measured.split()[-1]) < 1e-2
    steps = [line for line in lines if "compiled_block.py:" in line and "off by" in line]
    assert any("np.tanh(norm(x) @ first)" in line for line in steps)
    for line in steps:
        off, bound = re.findall(r"(?:off by|proved) ([-+.e\d]+)", line)
        assert float(off) <= float(bound)
    assert spoiled.startswith("UNKNOWN")


def test_the_notebook_runs() -> None:
    """Every cell, in a kernel of its own; the spoiled network is not proved."""
    import nbformat  # comes with nbclient
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(FOLDER / "first_steps.ipynb", as_version=4)  # pyright: ignore
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are stored"
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(one["text"] for one in shown if one["output_type"] == "stream")
    assert text.endswith("PROVED\nUNKNOWN\n")
    assert "PROVED: d_2(swing, g) <= 1e-06" in text
    (picture,) = (one for one in shown if one["output_type"] != "stream")
    assert "image/png" in picture["data"]


def test_happy_and_bob(capsys: pytest.CaptureFixture[str]) -> None:
    """The mean confuses two sentences; the shifts and the memory tell all of them apart."""
    runpy.run_path(str(FOLDER / "happy_bob.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    verdicts = [line.split()[2] for line in lines if "contextual mapping" in line]
    assert verdicts == ["REFUTED", "PROVED", "PROVED"]
    assert "share the id 500" in lines[6]
    assert lines[-1].startswith("wrong sentences: 0")


def test_urpe_on_bert(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "add_urpe.py"), run_name="__main__")
    without, at_1, cost, drawn = capsys.readouterr().out.splitlines()
    assert cost.startswith("URPE: ")
    spreads = [float(line.split()[-1]) for line in (without, at_1, drawn)]
    assert max(spreads[:2]) < 1e-6
    assert spreads[2] > 1e-3


def test_rotary_positions_and_equal_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Positions are found on random tokens; on equal ones, one of n is right."""
    runpy.run_path(str(FOLDER / "equal_tokens.py"), run_name="__main__")
    *_, random, _, equal, spread = capsys.readouterr().out.splitlines()
    assert float(random.split()[4]) > 0.99
    assert float(equal.split()[4]) == 1 / 8
    assert float(spread.split()[-1]) < 1e-12


def test_an_attention_of_ones_own() -> None:
    """At gain 1 both compute the same."""
    made = runpy.run_path(str(FOLDER / "my_attention.py"))
    torch.manual_seed(0)
    plain, urpe = made["MyAttention"](4, 5), made["WithGain"](4, 5)
    urpe.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 5, 4)
    assert torch.equal(plain(x), urpe(x))


def test_the_verdicts_on_ones_own_attention(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "my_attention.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "MyAttention is universal in the sup norm: REFUTED" in out
    assert "attentive and position-aware" in out


def test_the_proof_by_hand_is_that_of_the_network(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = runpy.run_path(str(FOLDER / "theorem_2.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    last_shift = [line for line in lines if line.startswith("l = ")][-1]
    by_hand = [line for line in lines if line.startswith("by hand:")]
    networks = [line.partition(":")[2] for line in lines if line.startswith("the network:")]
    assert last_shift.partition("-> ")[2] == networks[0].strip()
    assert by_hand[0].partition(":")[2].strip() == networks[1].strip()
    assert made["page"].html.startswith("<!DOCTYPE html>")


def test_patterns_that_are_enough_and_one_that_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(FOLDER / "sparse_patterns.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "strided is universal in L^p: PROVED" in out
    assert "REFUTED - in L^p: token 1 never hears token 13" in out
    assert "PROVED: d_2(contrast, g) <= 0.12" in out


def test_a_model_of_molecules_from_smiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdkit")
    monkeypatch.setattr(sys, "argv", ["urpe_molecule.py", "--smoke"])
    torch.set_num_threads(1)
    runpy.run_path(str(FOLDER / "urpe_molecule.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "atoms: C C O O C C C C C C C O O"
    losses = [float(line.split()[-1]) for line in lines if line.startswith("update")]
    assert len(losses) == 6
    errors = [float(line.split()[-1]) for line in lines if line.startswith("error of")]
    assert errors[1] < errors[0], "better than the mean"
    assert sum(line.startswith("C(") for line in lines) == 7
