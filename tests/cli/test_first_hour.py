"""The table of docs/first_hour.md: every slip is made, and gets the answer shown."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Command

import everyformer as ef
from everyformer.errors import TargetError

PAGE = Path(__file__).parents[2] / "docs" / "first_hour.md"
ROWS = re.findall(r"^\| `(.*?)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
SHELL = [row for row in ROWS if row[0].startswith("everyformer ")]
PYTHON = [row for row in ROWS if row not in SHELL]

MINE = """import everyformer as ef
def f(x):
    y = x + 1
    return y + no_such_name
target = ef.Target(f, seq_len=2, d_model=1)
"""


def test_there_are_more_than_ten() -> None:
    assert len(PYTHON) >= 20
    assert len(SHELL) >= 6


@pytest.mark.unhooked
@pytest.mark.parametrize(("slip", "answer"), PYTHON)
def test_in_python(slip: str, answer: str) -> None:
    target = ef.targets.sort(2, 1)
    names: dict[str, Any] = {
        "ef": ef,
        "np": np,
        "math": math,
        "torch": torch,
        "target": target,
    }
    if slip.startswith("network"):
        names["network"] = ef.construct(target, grid=2).network
    with pytest.raises((ValueError, AttributeError)) as caught:
        eval(slip, names)
    assert answer in str(caught.value)


@pytest.mark.parametrize(("slip", "answer"), SHELL)
def test_in_the_shell(slip: str, answer: str, everyformer: Command) -> None:
    Path("my_file.py").write_text(MINE)
    Path("plain.py").write_text("def g(x):\n    return x\n")
    result = everyformer(*slip.split()[1:], code=2)
    assert answer in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_line_in_a_helper_of_the_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the line of numpy that raised, nor a line of ours."""
    monkeypatch.chdir(tmp_path)
    source = "import numpy as np\n\ndef h(x):\n    return np.ones(3) @ x\n"
    Path("helper.py").write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "helper.py"), "exec"), names)
    target = ef.Target(names["h"], 2, 1)
    line = r"\(helper\.py, line 4: return np\.ones\(3\) @ x\)"
    with pytest.raises(TargetError, match=line):
        ef.construct(target, grid=2)
