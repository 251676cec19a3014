"""Names, files and certificates that want to be more than text on a page."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.explore.conftest import browser as browser
from tests.explore.conftest import opened as opened

import everyformer as ef
from everyformer.certify.bound import Bound
from everyformer.errors import MemoryLimitError, NumberKindError
from everyformer.explore import network_data
from everyformer.explore.show import network_page
from everyformer.model.compiled import CompiledProgram, ProgramStep

EVIL = (
    """</script><script>alert(1)</script><img src=x onerror="alert('2')">'"\u2028{{data}}"""
)


@pytest.fixture(scope="module")
def evil() -> ef.Built:
    target = ef.Target(lambda x: x / 2, 2, 1, lipschitz=1, equivariant=True, name=EVIL)
    return ef.construct(target, grid=2)


def test_a_hostile_name_is_shown_as_text(
    evil: ef.Built, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    known = evil.network.construction
    assert known is not None
    stages = tuple(replace(s, name=EVIL, source=EVIL) for s in evil.network.stages)
    network = replace(evil.network, stages=stages)
    bound = evil.certificate.bound
    assert bound is not None
    huge = Bound(Fraction(10) ** 400, EVIL, EVIL, (Bound(Fraction(10**308), EVIL),), "sum")
    certificate = replace(evil.certificate, bound=huge, obstacles=())
    page = opened(
        network_page(network, evil.target, certificate).save(tmp_path / "evil.html")
    )
    assert page.inner_text("h1") == EVIL.replace("\u2028", "?")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert "</script>" in page.inner_text("#proof")
    assert "</script>" in page.inner_text("#function")
    assert page.evaluate("everyformer.evaluate([0.3, 0.8])") == [0.125, 0.375]


@pytest.mark.parametrize(
    "fragment",
    [
        "#x=NaN,Infinity&block=1e400&tab=<b>&tour=99&broken=__proto__",
        "#__proto__=1&constructor=2&x=%E0%A4%A&zoom=-1e308&token=17&axis=0.5&out=-3",
        "#block=-5&sharp=-1e9&token=-1&tour=-7",
    ],
)
def test_a_hostile_address_shows_the_page(
    fragment: str, evil: ef.Built, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    page = opened(evil.explore().save(tmp_path / "evil.html"), fragment)
    assert page.is_visible("#tokens")
    assert page.locator("b").count() == 0
    for name in ("all", "softmax", "ramp", "ids"):
        page.click(f"#tab-{name}")
    assert page.inner_text(".count").startswith("block ")


@pytest.mark.parametrize("lie", ["nothing", "grid", "kinds", "program"])
def test_a_network_that_lies_about_itself_is_still_run(
    lie: str, evil: ef.Built, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    network = evil.network
    known = network.construction
    assert known is not None
    if lie == "nothing":
        network = replace(network, construction=None)
    elif lie == "grid":
        network = replace(network, construction=replace(known, grid=2**61))
    elif lie == "kinds":
        kinds = [stage.kind for stage in network.stages]
        stages = zip(network.stages, reversed(kinds), strict=True)
        network = replace(network, stages=tuple(replace(s, kind=k) for s, k in stages))
    else:
        steps = (ProgramStep(99, ((7, 1e308), (0, 1.0)), EVIL, EVIL, e=1e308),)
        program = CompiledProgram(EVIL, (0.0,), (1.0,), {}, (EVIL,), steps)
        network = replace(network, construction=None, program=program)
    page = opened(network_page(network, evil.target).save(tmp_path / "page.html"))
    assert page.evaluate("everyformer.evaluate([0.3, 0.8])") == [0.125, 0.375]
    for tab in page.locator("[role=tab]").all():
        tab.click()
    for _ in range(4):
        page.keyboard.press("Shift+ArrowRight")
    page.click("[data-action='last']")
    page.locator(".count", has_text="block 13 of 13").wait_for(timeout=5000)


def test_a_frame_in_a_notebook_shares_nothing(evil: ef.Built) -> None:
    shown = evil.explore()._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    assert shown.count("<") == 2
    assert len(repr(evil.explore())) < 400


def test_too_many_blocks_are_refused_with_the_size(
    evil: ef.Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_data, "MAX_BLOCKS", 10)
    with pytest.raises(MemoryLimitError, match=r"has 13 blocks .* K = 2: use a smaller"):
        evil.explore()


def test_rationals_beyond_float64_are_refused() -> None:
    target = ef.Target(lambda x: x / 3, 2, 1, lipschitz=1, equivariant=True)
    built = ef.construct(target, grid=3, method=ef.SelectiveShifts(softened=False))
    with pytest.raises(NumberKindError, match="computes in float64"):
        built.network.explore()
