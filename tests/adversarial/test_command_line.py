"""Wrong input on the command line: an exit code as documented, words, and no debris."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from typer.testing import CliRunner

import everyformer as ef
from everyformer.cli.app import app

TERMINAL = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
HUGE, LONG = "1" + "0" * 30, "9" * 5000
NUMBERS = ("", "nan", "-1", "1e400", "five", HUGE, LONG)
PLACES = ("missing", "folder", "empty", "latin.txt", "no/such/place", "loop")
NAMES = ("", *PLACES[1:4], "loop", "a\nb", "\udcff", ":x", "empty:target")
FILES = (*(f"{name}.npy" for name in PLACES), "", "\udcff.npy")
PICTURES = ("folder.png", "pipe.png", "no/such/p.png", "p.bmp", "loop.png")
SMALL = ("sort", "--grid", "2")

WRONG: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    ("demo",): {"--out": ("folder/x/y", "loop", "latin.txt", "net", "no/such/place")},
    ("plan", *SMALL): {
        "TARGET": NAMES,
        "--grid": NUMBERS,
        "--seq-len": NUMBERS,
        "--d-model": NUMBERS,
        "--method": NAMES,
        "-p": NUMBERS,
        "--with": (
            *(*NAMES, "=", f"w={LONG}"),
            *(f"{key}={value}" for key in ("softened", "spacing") for value in NUMBERS),
        ),
    },
    ("plan", *SMALL, "--method", "sparse"): {
        "--with": tuple(f"pattern={name}" for name in (*NAMES, *FILES, "x.npy", ",")),
    },
    ("plan", *SMALL, "-n", "4", "--method", "sparse", "--with=pattern=bigbird"): {
        "--with": tuple(
            f"{key}={value}"
            for key in ("gamma", "variant", "seed", "random", "a\nb", "")
            for value in NUMBERS[:-2]
        ),
    },
    ("plan", *SMALL, "--method", "partition"): {
        "--with": tuple(
            f"{key}={value}" for key in ("decay", "margin") for value in NUMBERS
        ),
    },
    ("construct", *SMALL, "-o", "out", "--workers", "1"): {
        "TARGET": NAMES,
        "-o": ("latin.txt", "folder/x/y", "loop", "no/such/place", "x" * 300),
        "--max-memory": ("", "nan", "-1", "0", "1e400", "1e308", "1e-40", "10 parsecs"),
        "--with": ("softened=", "softened=maybe", "positional=1", "\udcff=1"),
        "--work": ("latin.txt", "no/such/place", "loop"),
    },
    ("construct", "sort", "-o", "out", "--workers", "1"): {"--tol": NUMBERS[:-2]},
    ("verify", "net", "--workers", "1"): {
        "DIR": (*NAMES, "latin.txt"),
        "--target": NAMES,
        "--seq-len": (*NUMBERS, "2"),
        "--max-work": ("", "nan", "-1", "0", "1e400", "five"),
        "--max-memory": ("", "nan", "-1", "0", "1e400", "10 parsecs"),
    },
    ("run", "net", "--input", "x.npy", "--output", "y.npy"): {
        "NETWORK": NAMES,
        "--input": FILES,
        "--output": ("", "folder.npy", "no/such/y.npy", "y.txt", "x.npy", "pipe.npy"),
        "--executor": NAMES,
    },
    ("inspect", "net", "--input", "x.npy", "--picture", "p.png"): {
        "--input": FILES,
        "--sequence": NUMBERS,
        "--picture": PICTURES,
    },
    ("check", "urpe"): {
        "LAYER": NAMES,
        "-n": NUMBERS,
        "-d": NUMBERS,
        "--heads": NUMBERS,
        "--trials": NUMBERS[:-2],
        "--seed": NUMBERS,
        "-o": ("latin.txt", "loop", "no/such/place"),
        "--replay": FILES,
    },
    ("check-module", "mine.py:layer"): {
        "FILE": NAMES,
        "--layout": NAMES,
        "-o": ("latin.txt", "loop", "no/such/place"),
    },
    ("check-pattern", "strided", "-n", "4", "--with", "width=2"): {
        "PATTERN": (*NAMES, *FILES, "x.npy", ","),
        "-n": NUMBERS,
        "--with": tuple(
            f"{key}={value}"
            for key in ("width", "self_loops", "zero_based", "seed")
            for value in NUMBERS
        ),
        "--time-limit": ("", "nan", "-1", "1e400", "five"),
        "--rho": (*NAMES, "top-k:0", "top-k:nan", "entmax:nan", "sparsegen:inf"),
        "--gamma": (*NAMES, "1,2", "1,2,3,5"),
        "--picture": ("no/such/p.png", "folder.png"),
    },
    ("explain", "EF003"): {"CODE": NAMES},
    ("bench", "nothing"): {"THEME": NAMES[:2]},
    ("reproduce", "urpe-synthetic"): {
        "NAME": NAMES[:2],
        "--size": NAMES[:2],
        "--seeds": NUMBERS,
        "--minutes": ("", "nan", "-1", "1e400"),
    },
    ("targets",): {"EXTRA": NAMES[1:3]},
}
"""For each command, for each of its options or its argument: what may not be given."""

CASES = [(base, option) for base, options in WRONG.items() for option in options]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "net"
    ef.construct(ef.targets.sort(2), grid=2).save(folder)
    return folder


@pytest.fixture
def place(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(built, "net")
    np.save("x.npy", np.zeros((3, 2, 1)))
    for name in ("latin.txt", "latin.txt.npy", "latin.py"):
        Path(name).write_bytes(b"caf\xe9 \xff\xfe")
    for name in ("empty", "empty.npy", "mine.py"):
        Path(name).touch()
    Path("mine.py").write_text("import torch; layer = torch.nn.Identity()")
    for name in ("folder", "folder.npy", "folder.png"):
        Path(name).mkdir()
    for name in ("loop", "loop.npy", "loop.png"):
        Path(name).symlink_to(name)
    os.mkfifo("pipe")  # stands for a device: both would be replaced by a file
    for name in ("pipe.npy", "pipe.png"):
        Path(name).symlink_to("pipe")
    return tmp_path


def arguments(base: tuple[str, ...], option: str, value: str) -> list[str]:
    """The command with one thing changed."""
    if option.isupper():
        return [base[0], value, *base[2:]]
    given = list(base)
    if option in given:
        given[given.index(option) + 1] = value
        return given
    return [*given, option, value]


def present(place: Path) -> Iterator[tuple[str, int]]:
    for path in place.rglob("*"):
        if "__pycache__" not in path.parts:
            yield str(path), 0 if path.is_dir() else path.lstat().st_mtime_ns


def ids(case: tuple[tuple[str, ...], str]) -> str:
    return f"{case[0][0]} {case[1]}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_wrong_input_is_refused_in_words(
    case: tuple[tuple[str, ...], str], place: Path
) -> None:
    base, option = case
    before = dict(present(place))
    for value in WRONG[base][option]:
        given = arguments(base, option, value)
        result = CliRunner().invoke(app, given, env=TERMINAL)
        told = f"{given}\n{result.output[-2000:]}\n{result.exception!r}"
        assert "Traceback" not in result.output, told
        assert result.exit_code == 2, told
        assert "Error: " in result.stderr, told
        assert len(result.stderr) < 8000, told
        words = "".join(result.stderr.split())
        escaped = value.encode("unicode_escape").decode()
        parts = (value.strip(), value.partition(":")[0] or ":", escaped)
        setting = [part for part in (*value.split("=", 1), *escaped.split("=", 1)) if part]
        named = (*parts, *setting, option.lstrip("-"), option.lower())
        short = {"".join(name.split())[:12] for name in named}
        assert any(name.replace("-", "_") in words.replace("-", "_") for name in short), (
            told
        )
        assert dict(present(place)) == before, told


def test_names_that_are_no_text(place: Path) -> None:
    """A result was written, and its name could not be: a traceback, and exit code 2."""
    name = "\udcff.npy"
    result = CliRunner().invoke(
        app, ["run", "net", "--input", "x.npy", "--output", name], env=TERMINAL
    )
    assert result.exit_code == 0, result.output
    assert "\\udcff.npy" in result.stdout
    assert np.load(name).shape == (3, 2, 1)


def test_a_demo_replaces_no_network_of_others(place: Path) -> None:
    before = (place / "net" / "network.safetensors").read_bytes()
    result = CliRunner().invoke(app, ["demo", "--out", "net"], env=TERMINAL)
    assert result.exit_code == 2
    assert "net holds a network that is not of this demo" in result.stderr
    assert (place / "net" / "network.safetensors").read_bytes() == before


def run_with_stdout(file: IO[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of a verification whose stdout is a file."""
    monkeypatch.setattr(sys, "stdout", file)
    with pytest.raises(SystemExit) as ended:
        app(["verify", "net", "--workers", "1"])
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        file.close()
    return ended.value.code


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="Linux has /dev/full")
def test_a_full_disk_is_no_verdict(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python tries to write only at its end: exit code 120, which means nothing."""
    full = os.open("/dev/full", os.O_WRONLY)
    assert run_with_stdout(os.fdopen(full, "w"), monkeypatch) == 2
    assert capsys.readouterr().err == "Error: No space left on device.\n"


def test_a_closed_pipe_is_not_refuted(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code that rich and click give is 1, which means REFUTED."""
    reading, writing = os.pipe()
    os.close(reading)
    assert run_with_stdout(os.fdopen(writing, "w"), monkeypatch) == 141
    assert capsys.readouterr().err == ""
