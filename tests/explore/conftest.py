"""A real browser for the pages, and a page for every construction."""

import os
import shutil
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef
from everyformer.explore.show import explore

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no browser was found: install chromium to run the pages"

CONSTRUCTIONS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "theorem-2": ("smooth_rank", 3, 1, {"grid": 4}),
    "theorem-2-d2": ("smooth_bump", 2, 2, {"grid": 2}),
    "theorem-3": ("sort", 2, 1, {"grid": 4}),
    "hardmax": ("sort", 2, 1, {"grid": 4, "method": ef.SelectiveShifts(softened=False)}),
    "sparse": (
        "sort",
        3,
        1,
        {"grid": 4, "method": ef.SparseShifts(ef.patterns.by_name("star", n=3))},
    ),
    "urpe": ("sort", 2, 1, {"grid": 4, "method": "urpe"}),
    "averaging": ("sort", 2, 1, {"grid": 4, "method": "averaging"}),
    "partition": ("sort", 2, 1, {"grid": 4, "method": "partition"}),
    "compile": ("smooth_rank", 3, 1, {"tol": 0.01, "method": "compile"}),
}
ONE_HOT = {"theorem-2", "theorem-2-d2", "theorem-3", "hardmax", "sparse", "urpe"}
"""Softmax is one-hot on the plateaus, or the weights are exact binary fractions."""

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Generator[Any, None, None]:
    """Debian's chromium, driven by Playwright.

    For a module, not for longer: as long as it runs, nothing else can use asyncio here.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def built() -> Callable[[str], ef.Built]:
    """The networks of `CONSTRUCTIONS`, each built once."""
    known: dict[str, ef.Built] = {}

    def build(name: str) -> ef.Built:
        if name not in known:
            target, n, d, settings = CONSTRUCTIONS[name]
            function = getattr(ef.targets, target)(n, d)
            known[name] = ef.construct(function, **settings)
        return known[name]

    return build


@pytest.fixture(scope="session")
def written(
    tmp_path_factory: pytest.TempPathFactory, built: Callable[[str], ef.Built]
) -> Callable[[str], Path]:
    """Their pages, each written once."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name: str) -> Path:
        place = folder / f"{name}.html"
        return place if place.exists() else explore(built(name)).save(place)

    return write


@pytest.fixture
def opened(browser: Any) -> Generator[Open, None, None]:
    """Open a file in a tab of its own; it may say, ask and load nothing."""
    contexts: list[Any] = []
    heard: list[str] = []

    def open_page(place: Path, fragment: str = "", **settings: Any) -> Any:
        size = {"width": 1280, "height": 720}
        context = browser.new_context(**{"viewport": size, **settings})
        contexts.append(context)
        page = context.new_page()
        for event in ("console", "pageerror", "dialog", "request"):
            page.on(event, partial(_hear, heard, event))
        page.goto(place.as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert heard == []


def _hear(heard: list[str], event: str, told: Any) -> None:
    """Note what a page says; the page itself and its own pictures are no request."""
    if event != "request":
        heard.append(f"{event}: {getattr(told, 'text', told)}")
    elif not told.url.startswith(("data:", "blob:", "file:///")):
        heard.append(f"request: {told.url}")
