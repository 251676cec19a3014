"""A terminal of fixed width, and a runner of commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everyformer.cli.app import app

EXAMPLES = Path(__file__).parents[2] / "examples"
TERMINAL = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}

Command = Callable[..., Any]


@pytest.fixture
def everyformer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `everyformer` in an empty folder and expect an exit code."""
    monkeypatch.chdir(tmp_path)

    def command(*args: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args], env=TERMINAL)
        told = f"{result.output}\n{result.exception!r}"
        assert result.exit_code == code, told
        assert result.exception is None or isinstance(result.exception, SystemExit), told
        return result

    return command


@pytest.fixture(scope="session")
def swap_mean() -> str:
    """The target of an example, as the command line names it."""
    return f"{EXAMPLES / 'swap_mean.py'}:target"


@pytest.fixture
def swap_mean_4(everyformer: Command, swap_mean: str) -> Path:
    """A folder with a small network: n = 3, d = 1, K = 4."""
    everyformer("construct", swap_mean, "--grid", 4, "-o", "out")
    return Path("out")
