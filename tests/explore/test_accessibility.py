"""axe-core looks at every view, in light and dark."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everyformer as ef
from everyformer.checks.patterns import check_pattern
from everyformer.explore.comparison_page import comparison_page
from everyformer.explore.pattern_page import pattern_page

AXE = Path(__file__).parent / "vendor/axe-core/axe.min.js"
VIEWS = [
    ("theorem-2", "#block=8"),
    ("theorem-2", "#block=10&tab=all&broken=small"),
    ("theorem-2", "#block=10&tab=softmax&tour=3"),
    ("theorem-3", "#tab=ramp&zoom=9"),
    ("compile", "#block=1"),
]
SERIOUS = ("serious", "critical")


def test_the_copy_is_the_one_that_its_readme_names() -> None:
    digest = hashlib.sha256(AXE.read_bytes()).hexdigest()
    assert digest in AXE.with_name("README.md").read_text()


def test_axe_finds_nothing_serious(
    written: Callable[[str], Path], opened: Callable[..., Any], tmp_path: Path
) -> None:
    wrong: list[str] = []
    pattern = check_pattern(ef.patterns.by_name("block-local", n=8, width=4))
    others = {
        "pattern": pattern_page(pattern),
        "comparison": comparison_page(ef.compare(ef.targets.reverse(2, 1), 0.3)),
    }
    places = {n: page.save(tmp_path / f"{n}.html") for n, page in others.items()}
    for scheme in ("light", "dark"):
        for name, fragment in [*VIEWS, *((n, "") for n in places)]:
            place = places[name] if name in places else written(name)
            page = opened(place, fragment, color_scheme=scheme, bypass_csp=True)
            page.evaluate("() => new Promise(done => setTimeout(done, 250))")
            page.add_script_tag(path=AXE)
            found = page.evaluate("async () => (await axe.run()).violations")
            wrong += [
                f"{name}{fragment} {scheme}: {one['id']}: {node['html'][:120]}"
                for one in found
                if one["impact"] in SERIOUS
                for node in one["nodes"][:2]
            ]
            page.context.close()
    assert wrong == []
