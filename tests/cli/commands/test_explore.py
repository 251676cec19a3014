"""`everyformer explore` on folders and targets."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def data_in(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_a_target_is_built_and_its_page_written(everyformer: Command) -> None:
    told = everyformer("explore", "sort", "-n", 2, "--grid", 2, "-o", "page.html").stdout
    assert told.startswith("Wrote page.html (")
    data = data_in(Path("page.html"))
    assert data["title"] == "sort"
    assert data["network"]["construction"]["grid"] == 2
    assert data["certificate"]["verdict"] == "PROVED"
    assert data["function"]["kind"] == "program"


def test_methods_without_a_grid_have_a_tolerance(everyformer: Command) -> None:
    everyformer("explore", "sort", "--method", "compile", "-o", "page.html")
    assert data_in(Path("page.html"))["network"]["program"]["steps"]


def test_the_certificate_of_a_folder_is_what_the_folder_says(
    everyformer: Command, swap_mean_4: Path
) -> None:
    everyformer("explore", swap_mean_4, "-o", "page.html")
    data = data_in(Path("page.html"))
    assert data["certificate"]["unchecked"]
    assert data["function"]["kind"] == "program"


def test_without_a_file_the_address_is_told(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    told = everyformer("explore", "sort", "--grid", 2, "--no-open").stdout
    assert re.search(r"Wrote\s+file:///\S+page\.html", told.replace("\n", ""))
    assert not opened
    everyformer("explore", "sort", "--grid", 2)
    assert len(opened) == 1
    assert opened[0].endswith("/page.html")


def test_patterns_layers_and_comparisons_have_pages(everyformer: Command) -> None:
    pattern = ("--pattern", "strided", "-n", 16, "--with", "width=4")
    everyformer("explore", *pattern, "-o", "pattern.html")
    found = data_in(Path("pattern.html"))
    assert (found["n"], len(found["heard"]), found["verdict"]) == (16, 2, "PROVED")
    everyformer("explore", "--check", "urpe", "-n", 6, "-d", 4, "-o", "layer.html")
    draws = data_in(Path("layer.html"))["draws"]
    assert max(draws[0]["equal"]) - min(draws[0]["equal"]) > 1e-3
    everyformer("explore", "reverse", "--compare", "--tol", 0.3, "-o", "methods.html")
    assert len(data_in(Path("methods.html"))["methods"]) > 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "Give one of these"),
        (("sort", "--pattern", "star"), "Give one of these"),
        (("--pattern", "star", "--grid", 2), "--grid means nothing for a pattern"),
        (("--pattern", "star", "-n", 500), "n = 500 tokens; a page draws up to 128"),
        (("--check", "nonsense"), "not a layer of the library"),
        (("sort", "--compare"), "needs --tol"),
        (("sort", "--grid", 2, "--tol", 1), "not both"),
        (("nonsense",), "neither file.py:attribute"),
        (("sort", "--grid", 2, "-o", "no/where/page.html"), "parent folder does not exist"),
        (("sort", "-n", 3, "--grid", 32), r"has 19\d,\d+ blocks .* use a smaller --grid"),
    ],
)
def test_slips_are_answered(everyformer: Command, given: Any, told: str) -> None:
    output = everyformer("explore", *given, code=2).output
    assert re.search(told, " ".join(output.split()))
    assert not list(Path().glob("*.html"))
