import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
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
