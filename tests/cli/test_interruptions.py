"""A full disk, a mount point, Ctrl-C at any moment: a sentence, and nothing left behind."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import everyformer as ef
from everyformer.cli import saving

Command = Callable[..., Any]

PRINTING = """
import everyformer as ef
print("read")
def f(x):
    print("called")
    return x * 0.5
target = ef.Target(f, seq_len=2, d_model=1)
declared = ef.Target(f, seq_len=2, d_model=1, lipschitz=0.5, trace=False)
"""


@pytest.mark.parametrize("name", ["target", "declared"])
def test_json_stays_json_when_the_target_prints(everyformer: Command, name: str) -> None:
    Path("mine.py").write_text(PRINTING)
    mine = f"mine.py:{name}"
    for arguments in (
        ("construct", mine, "--grid", 4, "-o", "out"),
        ("plan", mine, "--grid", 4),
        ("plan", mine, "--tol", 0.2),
        ("plan", mine, "--tol", 0.2, "--compare"),
        ("verify", "out", "--target", mine),
    ):
        result = everyformer(*arguments, "--json")
        assert json.loads(result.stdout)
        assert "read" in result.stderr
    assert "called" in everyformer("plan", mine, "--tol", 0.2, "--json").stderr


@contextmanager
def no_file_larger_than(size: int) -> Generator[None, None, None]:
    """The system refuses to write more, as on a full disk.

    Python keeps what it compiles of a module cut off there, and takes it for whole.
    """
    before, compiled = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = compiled


@pytest.mark.parametrize("size", [0, 2_000, 12_000])
def test_a_full_disk(
    everyformer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The network, the certificate and the picture do not fit, one after the other."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    with no_file_larger_than(size):
        result = everyformer("construct", "sort", "--grid", 2, "-o", "out", code=2)
    assert "Nothing was left behind." in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_full_disk_leaves_what_was_there(everyformer: Command, swap_mean_4: Path) -> None:
    before = {path.name: path.read_bytes() for path in swap_mean_4.iterdir()}
    np.save("x.npy", np.full((1, 3, 1), 0.3))
    with no_file_larger_than(100):
        again = ("construct", "sort", "--grid", 2, "-o", swap_mean_4, "--overwrite")
        assert "Nothing was left behind" in everyformer(*again, code=2).stderr
        run = ("run", swap_mean_4, "--input", "x.npy", "--output", "y.npy")
        assert "Nothing was left behind" in everyformer(*run, code=2).stderr
        onnx = ("export", swap_mean_4, "--onnx", "g.onnx")
        assert "Nothing was left behind" in everyformer(*onnx, code=2).stderr
    assert {path.name: path.read_bytes() for path in swap_mean_4.iterdir()} == before
    assert {path.name for path in Path().iterdir()} == {"out", "x.npy"}
    with no_file_larger_than(100), pytest.raises(OSError, match="File too large"):
        ef.load(swap_mean_4 / "network.safetensors").save("again.safetensors")


def test_a_full_disk_keeps_the_checkpoints_of_an_experiment(everyformer: Command) -> None:
    run = ("reproduce", "urpe-zinc", "--size", "smoke", "--only", "*/gin/*", "-o", "r")
    with no_file_larger_than(20_000):
        told = everyformer(*run, "--runs", "runs", code=2).stderr
    assert "Nothing was left behind" not in told
    assert "are kept. Make room and go on with --resume" in told
    assert Path("runs/urpe-zinc_smoke/zinc12k_gin_0/log.jsonl").exists()
    assert "not judged" in everyformer(*run, "--runs", "runs", "--resume").stdout


@pytest.mark.parametrize("folder", ["results", "runs"])
def test_folders_of_an_experiment_that_cannot_be_written(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Said before anything is trained, and of the folder that was given."""

    def refused(dir: Path) -> Any:
        if dir.name == folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir / "tmp1234"))
        return Mock()

    monkeypatch.setattr("everyformer.experiments.reproduce.TemporaryFile", refused)
    run = ("reproduce", "urpe-zinc", "--size", "smoke", "--only", "*/gin/*")
    told = everyformer(*run, "--out", "results", "--runs", "runs", code=2).stderr
    option = "--out" if folder == "results" else "--runs"
    wanted = f"Error: {folder}: Read-only file system. Give a folder that can be written"
    assert told == f"{wanted} ({option}).\n"


def test_a_mount_point_is_refused_before_anything_is_built(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("disk").mkdir()

    def is_mount(path: Path) -> bool:
        return path.name == "disk"

    monkeypatch.setattr(saving.Path, "is_mount", is_mount)
    said = everyformer("construct", "sort", "--grid", 2, "-o", "disk", code=2).stderr
    assert "disk is a mount point and cannot be replaced. Give a folder inside it." in said
    everyformer("construct", "sort", "--grid", 2, "-o", "disk/out")
    assert Path("disk/out/network.safetensors").exists()


def test_a_folder_that_takes_no_files_is_named_as_it_was_given(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, dir: Path, prefix: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file", str(dir / f"{prefix}x1"))

    monkeypatch.setattr(saving.tempfile, "mkdtemp", refused)
    said = everyformer("construct", "sort", "--grid", 2, "-o", "odd", code=2).stderr
    assert said == "Error: odd: nothing can be written there (No such file).\n"


INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            if {swallowed!r} == "in a callback":
                Dying()
                return
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if {swallowed!r} == "by a library":
                    raise ImportError("a library says it in its own words")
                raise

sys.meta_path.insert(0, Interrupting())
from everyformer.cli.start import main
sys.argv = ["everyformer", "construct", "sort", "--grid", "2", "-o", "out"]
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("swallowed", ["", "by a library", "in a callback"])
@pytest.mark.parametrize(
    "module",
    ["typer", "everyformer.cli.commands.construct", "everyformer.construct.pipeline"],
)
def test_interrupted_while_something_is_imported(
    module: str, swallowed: str, tmp_path: Path
) -> None:
    program = INTERRUPTED_IMPORT.format(module=module, swallowed=swallowed)
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "Interrupted.\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("verify", "out"), "everyformer.certify.verify.verify"),
        (("check", "none", "-n", 3), "everyformer.cli.checking.judge"),
        (("run", "out", "--input", "x.npy", "--output", "y.npy"), "numpy.save"),
    ],
)
def test_interrupted_in_the_middle(
    everyformer: Command,
    swap_mean_4: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[Any, ...],
    where: str,
) -> None:
    np.save("x.npy", np.full((1, 3, 1), 0.3))
    # A job in the background of a plain shell ignores SIGINT.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGINT)

    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(where, interrupted)
    try:
        result = everyformer(*arguments, code=130)
        assert (result.stdout, result.stderr) == ("", "Interrupted.\n")
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert {path.name for path in Path().iterdir()} == {"out", "x.npy"}
