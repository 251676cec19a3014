"""What the user may give wrong: exit code 2, one message, no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.construct import pipeline

Command = Callable[..., Any]

MINE = """
import everyformer as ef

def identity(x):
    return x

target = ef.Target(identity, 2, 1, equivariant=True)
ordered = ef.Target(lambda x: x * [[1], [2]], 2, 1, equivariant=True)
shrinking = ef.Target(lambda x: x[:, :1], 2, 1)
branching = ef.Target(lambda x: x if x.mean() < 2 else -x, 2, 1, name="branching")
steep = ef.Target(lambda x: 3 * x, 2, 1, lipschitz=1, name="steep")
number = 3

def failing():
    raise RuntimeError("no luck")

def wrong():
    return 4
"""

CONSTRUCT: list[tuple[list[str], str]] = [
    (["nonsense", "--grid", "4"], "'nonsense' is neither file.py:attribute nor"),
    (["mine.py", "--grid", "4"], "mine.py is a file, not a target in it. Its targets:"),
    (["mine.py:", "--grid", "4"], "is neither file.py:attribute nor"),
    (["none.py:target", "--grid", "4"], "There is no file none.py"),
    (
        ["mine.py:other", "--grid", "4"],
        "Its targets: mine.py:target, mine.py:ordered",
    ),
    (["mine.py:number", "--grid", "4"], "is of type int, not an everyformer.Target"),
    (["mine.py:wrong", "--grid", "4"], "is of type int, not an everyformer.Target"),
    (["mine.py:identity", "--grid", "4"], "everyformer.Target(identity"),
    (["mine.py:failing", "--grid", "4"], "mine.py:failing() failed: RuntimeError: no luck"),
    (["broken.py:target", "--grid", "4"], "broken.py failed while it was read: NameError"),
    (["leaving.py:target", "--grid", "4"], "SystemExit: 0"),
    (
        ["syntax.py:target", "--grid", "4"],
        "syntax.py failed while it was read: SyntaxError",
    ),
    (["mine.py:target", "--grid", "4", "-n", "3"], "whose size is in its file"),
    (["mine.py:ordered", "--grid", "4"], "is declared equivariant but is not"),
    (["mine.py:shrinking", "--grid", "4"], "returned shape"),
    (["mine.py:branching", "--tol", "0.1"], "declares neither lipschitz nor modulus"),
    (["sort"], "Give either --tol or --grid"),
    (["sort", "--grid", "4", "--tol", "0.1"], "Give either --tol or --grid"),
    (["sort", "--grid", "6"], "grid=6 is not a power of two"),
    (["sort", "--grid", "1"], "must be an integer >= 2"),
    (["sort", "--grid", "four"], "Invalid value for '--grid'"),
    (["sort", "--grid", "0.1"], "For a distance write --tol 0.1"),
    (
        ["sort", "--grid", "4", "-n", "0"],
        "Invalid value for '--seq-len' / '-n': 0 is too small; give at least 1.",
    ),
    (["sort", "--grid", "4", "-n", "three"], "'three' is not an integer; write it in"),
    (["sort", "--grid", "4", "-p", "two"], "'two' is not a number; write it in digits"),
    (["sort", "--grid", "4", "--with", "positional=false"], "is not declared equivariant"),
    (["sort", "--grid", "4", "--method", "rpe"], "--method rpe does not exist"),
    (
        ["centring", "--grid", "4", "--method", "urpe", "--with", "positional=false"],
        "method urpe has no such setting. It has softened, spacing.",
    ),
    (["sort", "--tol", "-1"], "is not a positive number"),
    (["sort", "--tol", "1e-9", "--max-memory", "0.0001"], "No network that can be built"),
    (["sort", "--tol", "0.3", "-p", "0.5"], "is not a number >= 1"),
    (["sort", "--grid", "64", "--max-memory", "0.0001"], "more than the limit of"),
    (["sort", "--grid", "4", "--max-memory", "nan"], "--max-memory nan is not a positive"),
    (["sort", "--grid", "4", "--max-memory", "inf"], "--max-memory inf is not a positive"),
    (["sort", "--grid", "4", "--colour"], "No such option"),
    (
        ["mine.py:target", "--tol", "0.5", "--no-trace"],
        "identity, which declares neither lipschitz nor modulus, and cannot be traced: "
        "trace=False (--no-trace) forbids it.",
    ),
    (
        ["mine.py:steep", "--grid", "2", "--no-trace"],
        "declares max|f(X) - f(Y)| <= 1 max|X - Y|, which is false: entry [0, 0] of f",
    ),
    (["sort", "--grid", "2", "--workers", "0"], "Invalid value for '--workers'"),
    (["sort", "--grid", "2", "--scheduler", "nowhere"], "missing port number"),
    (["sort", "--grid", "2", "--work", "mine.py"], "cannot be kept in mine.py"),
    (["sort", "--grid", "2", "--work", "no/such"], "cannot be kept in no/such"),
]


@pytest.mark.parametrize(("arguments", "message"), CONSTRUCT)
def test_construct_refuses(
    arguments: list[str], message: str, everyformer: Command
) -> None:
    Path("mine.py").write_text(MINE)
    Path("broken.py").write_text("target = no_such_name\n")
    Path("leaving.py").write_text("import sys\nsys.exit(0)\n")
    Path("syntax.py").write_text("target = (\n")
    result = everyformer("construct", *arguments, "-o", "out", code=2)
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert "Error: " in result.stderr
    assert not [path for path in Path().iterdir() if "out" in path.name]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("no/such/out", "its parent folder does not exist"),
        ("file", "file is a file"),
        ("file/out", "its parent folder does not exist"),
    ],
)
def test_construct_refuses_a_place(out: str, message: str, everyformer: Command) -> None:
    Path("file").write_text("mine")
    result = everyformer("construct", "sort", "--grid", 4, "-o", out, code=2)
    assert message in result.stderr
    assert Path("file").read_text() == "mine"


def test_a_read_only_place_is_refused_before_building(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_access(*args: object) -> bool:
        return False

    monkeypatch.setattr("os.access", no_access)  # root may write anywhere
    result = everyformer("construct", "sort", "--grid", 4, "-o", "out", code=2)
    assert "parent folder is read-only" in result.stderr


@pytest.mark.parametrize(
    ("network", "x", "y", "message"),
    [
        ("nowhere", "x.npy", "y.npy", "'nowhere' does not exist"),
        ("bare", "x.npy", "y.npy", "bare holds no network.safetensors"),
        ("text.npy", "x.npy", "y.npy", "is not a readable safetensors file"),
        ("out", "none.npy", "y.npy", "'none.npy' does not exist"),
        ("out", "text.npy", "y.npy", "text.npy is not a .npy file of numbers"),
        ("out", "empty.npy", "y.npy", "empty.npy is not a .npy file of numbers"),
        ("out", "objects.npy", "y.npy", "objects.npy is not a .npy file of numbers"),
        ("out", "several.npz", "y.npy", "several.npz is not a .npy file of numbers"),
        ("out", "cut.npy", "y.npy", "cut.npy is not a .npy file of numbers"),
        ("out", "complex.npy", "y.npy", "x has dtype complex128"),
        ("out", "wide.npy", "y.npy", "shape (3, 2), but this network takes (*batch, 3, 1)"),
        ("out", "flat.npy", "y.npy", "shape (3,), but this network takes (*batch, 3, 1)"),
        ("out", "nan.npy", "y.npy", "is not finite"),
        ("out", "far.npy", "y.npy", "lies outside [0, 1]"),
        ("out", "x.npy", "y.txt", "does not end in .npy"),
        ("out", "x.npy", "no/y.npy", "its parent folder does not exist"),
        ("out", "x.npy", "bare", ": 'bare' is a folder, not a file"),
    ],
)
@pytest.mark.usefixtures("swap_mean_4")
def test_run_refuses(
    network: str, x: str, y: str, message: str, everyformer: Command
) -> None:
    Path("bare").mkdir()
    Path("text.npy").write_text("some text that is longer than a header")
    Path("empty.npy").touch()
    np.save("x.npy", np.zeros((3, 1)))
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-4])
    np.save("objects.npy", np.array([[1], ["a"], [None]], dtype=object))
    np.savez("several.npz", x=np.zeros((3, 1)))
    np.save("complex.npy", np.zeros((3, 1), dtype=complex))
    np.save("wide.npy", np.zeros((3, 2)))
    np.save("flat.npy", np.zeros(3))
    np.save("nan.npy", np.array([[0.0], [np.nan], [1.0]]))
    np.save("far.npy", np.array([[0.0], [1e300], [1.0]]))
    before = set(Path().rglob("*"))
    result = everyformer("run", network, "--input", x, "--output", y, code=2)
    assert message in " ".join(result.stderr.split())
    assert "Error: " in result.stderr
    assert set(Path().rglob("*")) == before


@pytest.mark.usefixtures("swap_mean_4")
def test_inspect_refuses_a_picture_it_cannot_write(everyformer: Command) -> None:
    np.save("x.npy", np.zeros((3, 1)))
    arguments = ("inspect", "out", "--input", "x.npy", "--picture")
    refused = " ".join(everyformer(*arguments, "p.bmp", code=2).stderr.split())
    assert "p.bmp ends in .bmp" in refused
    assert "ends in .png, .pdf or .svg" in refused
    assert "does not exist" in everyformer(*arguments, "no/p.png", code=2).stderr


def test_no_memory_is_said_in_words(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pipeline, "construct", full)
    result = everyformer("construct", "sort", "--grid", 4, "-o", "out", code=2)
    assert result.stderr.startswith("Error: Not enough memory.")
