"""A terminal of fixed width, a runner of commands, and folders that they wrote."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everyformer.cli.app import app

EXAMPLES = Path(__file__).parents[2] / "examples"
TERMINAL = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}

Command = Callable[..., Any]


def invoke(*args: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(arg) for arg in args], env=TERMINAL)
    told = f"{result.output}\n{result.exception!r}"
    assert result.exit_code == code, told
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    return result


@pytest.fixture
def everyformer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `everyformer` in an empty folder and expect an exit code."""
    monkeypatch.chdir(tmp_path)
    return invoke


@pytest.fixture(scope="session")
def swap_mean() -> str:
    """The target of an example, as the command line names it."""
    return f"{EXAMPLES / 'swap_mean.py'}:target"


@pytest.fixture(scope="session")
def constructed(
    tmp_path_factory: pytest.TempPathFactory, swap_mean: str
) -> dict[str, Path]:
    """Folders to copy from: n = 3, d = 1, K = 4, with f by its expression or declared."""
    place = tmp_path_factory.mktemp("constructed")
    arguments = ("construct", swap_mean, "--grid", 4, "--workers", 1)
    invoke(*arguments, "-o", place / "expression")
    invoke(*arguments, "--no-trace", "-o", place / "modulus")
    return {path.name: path for path in place.iterdir()}


@pytest.fixture
def swap_mean_4(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, constructed: dict[str, Path]
) -> Path:
    """A folder `out` with a small network; f is known by its expression."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(constructed["expression"], "out"))


@pytest.fixture
def declared_4(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, constructed: dict[str, Path]
) -> Path:
    """A folder `declared` with the same network; f is known by its Lipschitz constant."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(constructed["modulus"], "declared"))
