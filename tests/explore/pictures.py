"""Pictures of every view of the explorer, in light and dark.

`python -m tests.explore.pictures docs/pictures` writes them; look at them before you commit
them. `python -m tests.explore.pictures docs/pictures ids tour` writes those alone.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import everyformer as ef
from everyformer.checks.patterns import check_pattern
from everyformer.checks.report import check
from everyformer.checks.subject import Subject
from everyformer.explore.attention_page import attention_page
from everyformer.explore.comparison_page import comparison_page
from everyformer.explore.pattern_page import pattern_page
from everyformer.explore.show import explore
from everyformer.layers.by_name import attention_by_name
from everyformer.page import Page

SIZE: Any = {"width": 1280, "height": 720}


def _theorem_2() -> Page:
    return explore(ef.construct(ef.targets.smooth_rank(3, 1), grid=4))


def _theorem_3() -> Page:
    return explore(ef.construct(ef.targets.sort(2, 1), grid=8))


def _compiled() -> Page:
    target = ef.targets.smooth_rank(3, 1)
    return explore(ef.construct(target, tol=0.01, method="compile"))


def _pattern() -> Page:
    return pattern_page(check_pattern(ef.patterns.by_name("strided", n=16, width=4)))


def _layer() -> Page:
    layer = attention_by_name("urpe", seq_len=16, embed_dim=8, num_heads=2)
    subject = Subject.of(layer, 16, 8, "urpe")
    return attention_page(subject, check(subject))


def _methods() -> Page:
    return comparison_page(ef.compare(ef.targets.sort(2, 1), 0.1))


VIEWS: dict[str, tuple[Callable[[], Page], str]] = {
    "ids": (_theorem_2, "#block=8"),
    "all-sequences": (_theorem_2, "#block=10&tab=all"),
    "broken": (_theorem_2, "#block=10&tab=all&broken=small"),
    "softmax": (_theorem_2, "#block=10&tab=softmax&sharp=-10"),
    "ramp": (_theorem_2, "#block=5&tab=ramp&zoom=8.6"),
    "tour": (_theorem_2, "#x=0.62,0.62,0.62&block=1&tour=14&network=urpe"),
    "function": (_theorem_3, "#block=27"),
    "registers": (_compiled, "#block=1"),
    "pattern": (_pattern, "#token=4&layers=2&path=1"),
    "attention": (_layer, ""),
    "comparison": (_methods, ""),
}


def draw(folder: Path, names: list[str]) -> None:
    """Write explorer-VIEW-light.png and explorer-VIEW-dark.png for each view."""
    browser_path = shutil.which("chromium")
    folder.mkdir(parents=True, exist_ok=True)
    pages: dict[Any, Path] = {}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as work:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox"]
        )
        for name in names:
            make, fragment = VIEWS[name]
            if make not in pages:
                pages[make] = make().save(Path(work) / f"{name}.html")
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport=SIZE, color_scheme=scheme)
                page = context.new_page()
                page.goto(pages[make].as_uri() + fragment)
                page.wait_for_timeout(2500 if name == "function" else 600)
                page.screenshot(path=folder / f"explorer-{name}-{scheme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:] or list(VIEWS))
