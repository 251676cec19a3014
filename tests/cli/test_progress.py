import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from rich.console import Console

from everyformer.cli import progress


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Generator[Path, None, None]:
    """A file that the bar takes for a terminal."""
    path = tmp_path / "terminal.txt"
    with path.open("w") as file:

        def console(*, stderr: bool) -> Console:
            assert stderr
            return Console(file=file, force_terminal=True, force_interactive=True, width=80)

        monkeypatch.setattr(progress, "Console", console)
        yield path


def test_long_work_shows_a_bar(terminal: Path) -> None:
    with progress.progress_bar(delay=0.01) as report:
        report("quantise", 8, 8)
        report("value map", 3, 4)
        time.sleep(0.3)
    text = terminal.read_text()
    assert "value map" in text
    assert "75%" in text


def test_short_work_shows_nothing(terminal: Path) -> None:
    with progress.progress_bar(delay=60.0) as report:
        report("quantise", 1, 8)
    assert terminal.read_text() == ""


def test_a_log_has_lines_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while a step reports nothing, and none when the work is over."""
    told: list[str] = []

    def wait_for(line: str, times: int) -> None:
        until = time.monotonic() + 60.0  # of a very busy machine
        while sum(re.fullmatch(line, one) is not None for one in told) < times:
            assert time.monotonic() < until, told
            time.sleep(0.01)
            shown = capfd.readouterr()
            assert shown.out == ""
            told.extend(shown.err.splitlines())

    with progress.progress_bar(every=0.02) as report:
        report("quantise", 1, 8)
        wait_for(r"quantise: 1 of 8, after [\d,]+ s", 2)
        report("value map", 1000, 4000)
        wait_for(r"value map: 1,000 of 4,000, after [\d,]+ s", 2)
    capfd.readouterr()
    time.sleep(0.1)
    assert capfd.readouterr() == ("", "")


def test_a_log_of_short_work_has_none(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar(delay=0.01) as report:
        report("quantise", 1, 8)
        time.sleep(0.05)
    assert capfd.readouterr() == ("", "")
