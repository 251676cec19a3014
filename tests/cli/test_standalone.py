"""The verifier as one file: what is in it, and that it needs nothing else."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import run_program

import everyformer as ef
from everyformer.cli.standalone import verifier_modules, write_standalone

Command = Callable[..., Any]

REFUSED = (
    "beartype cloudpickle dask distributed jaxtyping matplotlib numba rich safetensors "
    "scipy torch typer"
)
WITHOUT_THEM = f"""
import runpy, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED.split()}:
            raise AssertionError(name)

sys.meta_path.insert(0, Refusing())
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    import everyformer
    assert everyformer.__file__.startswith(sys.argv[0]), everyformer.__file__
"""


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make verifier` writes it."""
    path = tmp_path_factory.mktemp("standalone") / "dist" / "everyformer-verify.pyz"
    command = [sys.executable, "-m", "everyformer.cli.standalone", path]
    assert "Wrote " in run_program(*command).stdout
    return path


def run(verifier: Path, *arguments: object, code: int) -> str:
    """stdout, or stderr where there is no verdict."""
    command = [sys.executable, "-I", "-c", WITHOUT_THEM, verifier, *arguments]
    done = run_program(*command, code=code)
    told, silent = (done.stderr, done.stdout) if code == 2 else (done.stdout, done.stderr)
    assert silent == ""
    return told


def edit(folder: Path, **claim: str) -> None:
    path = folder / "certificate.json"
    values = json.loads(path.read_text())
    values["claim"].update(claim)
    path.write_text(json.dumps(values))


def test_nothing_that_builds_or_draws_is_inside(verifier: Path) -> None:
    with zipfile.ZipFile(verifier) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    packages = {name.split("/")[1] for name in texts if name.count("/") == 2}
    assert packages == {"certify", "files", "numerics", "targets"}
    assert {f"{name.replace('.', '/')}.py" for name in verifier_modules()} < set(texts)
    assert "everyformer/certify/from_files.py" in texts
    assert "everyformer/numerics/elementary.py" in texts  # `from package import module`
    assert "everyformer/targets/target.py" not in texts  # f is what the file says of it
    assert all(not text for name, text in texts.items() if name.endswith("__init__.py"))


def test_the_page_says_how_much_a_verdict_rests_on() -> None:
    page = Path(__file__).parents[2] / "docs" / "security.md"
    told = re.search(r"(\d+) modules with ([\d,]+) lines", page.read_text())
    assert told is not None
    sources = verifier_modules().values()
    sizes = len(sources), sum(text.count("\n") for text in sources)
    for said, found in zip(told.groups(), sizes, strict=True):
        assert abs(int(said.replace(",", "")) - found) <= 0.03 * found, sizes


def test_it_imports_numpy_and_what_python_brings() -> None:
    outside: set[str] = set()
    for source in verifier_modules().values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                outside |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                outside.add(str(node.module).partition(".")[0])
    assert outside - sys.stdlib_module_names == {"everyformer", "numpy"}


def test_the_same_sources_give_the_same_bytes(verifier: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pyz"
    again.write_text("old")
    write_standalone(again)
    assert again.read_bytes() == verifier.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.pyz"]


def test_python_runs_it(verifier: Path, swap_mean_4: Path) -> None:
    command = [sys.executable, "-I", verifier, swap_mean_4]
    done = run_program(*command)
    assert (done.stdout, done.stderr) == (f"{ef.verify(swap_mean_4)}\n", "")
    assert done.stdout.startswith("PROVED: d_2(f, g) <= 0.39")


def test_it_says_what_the_command_says(
    verifier: Path, everyformer: Command, swap_mean_4: Path
) -> None:
    """0 PROVED, 1 REFUTED, 3 UNKNOWN, 2 no verdict; in words and as JSON."""
    for eps, code in (("1", 0), ("1/10", 1), ("39/100", 3)):
        edit(swap_mean_4, eps=eps)
        shown = everyformer("verify", swap_mean_4, "--json", code=code).stdout
        assert run(verifier, swap_mean_4, "--json", code=code) == shown
    (swap_mean_4 / "network.safetensors").unlink()
    told = everyformer("verify", swap_mean_4, code=2).stderr
    assert run(verifier, swap_mean_4, code=2) == told


def test_declared_functions(verifier: Path, declared_4: Path) -> None:
    told = run(verifier, declared_4, code=0)
    assert told.startswith("PROVED, CONDITIONAL on the declared max|f(X) - f(Y)| <= 1.5 ")
    edit(declared_4, p="1")
    assert run(verifier, declared_4, code=3).startswith("UNKNOWN: d_1(f, g)")


def test_balls_are_there(verifier: Path, everyformer: Command) -> None:
    Path("mine.py").write_text(
        "import everyformer as ef\n"
        "target = ef.Target(lambda x: 1 / (1 + 2 * (x * x - x)), 1, 1, name='f')\n"
    )
    everyformer("construct", "mine.py:target", "--grid", 2, "-o", "out")
    assert json.loads(Path("out/certificate.json").read_text())["cells"]["by_balls"] > 0
    assert run(verifier, "out", code=0).startswith("PROVED: d_2(f, g)")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("certificate.json", b"{"),
        ("network.safetensors", b"weights"),
        ("target_values.npy", b"\x93NUMPY"),
    ],
)
def test_no_verdict_on_damaged_files(
    name: str, data: bytes, verifier: Path, declared_4: Path
) -> None:
    (declared_4 / name).write_bytes(data)
    told = run(verifier, declared_4, code=2)
    assert told.startswith("Error: ")
    assert name in told


def test_no_verdict_without_a_folder(verifier: Path, tmp_path: Path) -> None:
    assert "There is no file" in run(verifier, tmp_path / "nowhere", code=2)
    told = " ".join(run(verifier, code=2).split())
    assert told.startswith("usage: everyformer-verify [-h] [--json] [--max-work SECONDS]")
    assert "required: DIR" in told


def test_limits_can_be_set(verifier: Path, declared_4: Path) -> None:
    told = run(verifier, declared_4, "--max-work", "1e-9", code=2)
    assert "seconds on one core, more than the limit of 1e-09" in told
    assert "max_work=nan is not" in run(verifier, declared_4, "--max-work", "nan", code=2)


def test_an_error_of_its_own_is_no_verdict(verifier: Path, declared_4: Path) -> None:
    """Python ends with 1 after an error, and 1 means REFUTED."""
    broken = shutil.copy(verifier, "broken.pyz")
    with zipfile.ZipFile(broken, "a") as archive, pytest.warns(UserWarning, match="Dup"):
        archive.writestr(
            "everyformer/certify/from_files.py",
            "def verify_files(folder, **limits):\n    1 / 0\n",
        )
    told = run(Path(broken).resolve(), declared_4, code=2)
    assert told == "Error: ZeroDivisionError('division by zero')\n"


def ended(verifier: Path, folder: Path, stdout: int) -> tuple[int, str]:
    """The exit code and stderr, where stdout goes to a file that is closed here."""
    command = [sys.executable, "-I", str(verifier), str(folder)]
    try:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(stdout)
    return done.returncode, done.stderr


def test_a_closed_pipe_is_no_verdict(verifier: Path, declared_4: Path) -> None:
    """As the command: Python would end with 120 and a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    assert ended(verifier, declared_4, writing) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="Linux has /dev/full")
def test_a_full_disk_is_no_verdict(verifier: Path, declared_4: Path) -> None:
    told = ended(verifier, declared_4, os.open("/dev/full", os.O_WRONLY))
    assert told == (2, "Error: No space left on device.\n")
