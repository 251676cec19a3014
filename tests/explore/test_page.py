"""The page as people use it: drag, step, play, break, tour."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.errors import InputError
from everyformer.explore.links import Links
from everyformer.explore.tour import read_tour, tour_network

Written = Callable[[str], Path]
Opened = Callable[..., Any]


def settled(page: Any) -> None:
    """After the next frame, and after the address was written."""
    page.evaluate("() => new Promise(done => setTimeout(done, 220))")


def numbers(page: Any, kind: str) -> list[float]:
    cells = page.locator(f"td[data-{kind}]").all()
    return [float(cell.get_attribute("data-value")) for cell in cells]


def test_dragging_a_token_moves_everything_and_the_address_remembers(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-3"), "#block=16")
    settled(page)
    before = {
        name: page.inner_html(name) for name in ("#ids .drawing", "#function .drawing")
    }
    told = page.inner_text("#sentence")
    box = page.locator("[data-entry='0']").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] - 120, middle[1], steps=4)
    page.mouse.up()
    page.click("[data-action='next-change']")
    page.click("[data-action='previous-change']")
    settled(page)
    x = numbers(page, "x")
    assert x[0] < 0.3
    assert all(page.inner_html(name) != was for name, was in before.items())
    assert page.inner_text("#sentence") != told
    address = page.url
    assert f"{x[0]}" in address
    shown = [page.inner_text("#sentence"), numbers(page, "g"), page.inner_html("#ids svg")]
    again = opened(written("theorem-3"), "#" + address.partition("#")[2])
    settled(again)
    assert shown == [
        again.inner_text("#sentence"),
        numbers(again, "g"),
        again.inner_html("#ids svg"),
    ]


def test_the_sentence_has_the_numbers_of_the_block(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-2"), "#block=8")
    assert page.inner_text("#sentence") == (
        "Block 8: token 1 has the id 1/2 = l and moves by 4 (max − min) = 4 (3 − 1/2) "
        "= 10, to 21/2."
    )
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert "no token has the id l = 1/4" in page.inner_text("#sentence")
    page.keyboard.press("Shift+ArrowRight")
    settled(page)
    assert page.inner_text(".count") == "block 8 of 39"


def test_a_token_on_a_ramp_is_not_said_to_be_on_the_grid(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-2"), "#block=4&x=0.4999999995,0.13,0.88")
    assert "which is not on the grid" in page.inner_text("#sentence")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    settled(page)
    told = page.inner_text("#sentence")
    assert "off the grid but within δ/2 of l = 1/4" in told


def test_play_runs_to_the_end_and_stops(written: Written, opened: Opened) -> None:
    page = opened(written("theorem-3"), "#block=70", reduced_motion="reduce")
    page.select_option(".player select", "fast")
    page.keyboard.press("Escape")
    page.click("[data-action='play']")
    page.locator(".count", has_text="block 83 of 83").wait_for(timeout=20000)
    settled(page)
    assert page.get_attribute("[data-action='play']", "aria-label") == "Play (space)"
    assert page.inner_text(".count") == "block 83 of 83"


def test_permuted_tokens_permute_outputs_and_equal_tokens_give_0(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-2"), "#x=0.3,0.8,0.05")
    before = numbers(page, "g")
    page.click("[data-action='permute']")
    settled(page)
    assert numbers(page, "g") == [*before[1:], before[0]]
    page.click("[data-action='equal']")
    settled(page)
    assert numbers(page, "g") == [0, 0, 0]
    page.click("[data-action='outside']")
    settled(page)
    assert max(numbers(page, "x")) > 1
    assert numbers(page, "g") == [0, 0, 0]


def test_equal_tokens_spread_where_positions_are_known(
    built: Callable[[str], ef.Built], written: Written, opened: Opened
) -> None:
    page = opened(written("urpe"), "#x=0.4,0.4")
    x = np.array([[0.4], [0.4]])
    assert numbers(page, "g") == built("urpe").network(x)[:, 0].tolist()
    assert page.locator("[data-action='outside']").is_disabled()


def test_all_sequences_agree_with_the_library(
    built: Callable[[str], ef.Built], written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-3"), "#tab=all")
    cells = [k / 4 for k in range(4)]  # quantised, and with positions 5/4 apart
    sequences = np.array([[[a], [b + 5 / 4]] for a in cells for b in cells])
    found = ef.contextual_mapping(built("theorem-3").network, sequences)
    assert found.smallest_gap == 9 / 2
    told = page.inner_text("#mapping")
    assert told.startswith("16 sequences, no collision")
    assert "The smallest gap is 9/2," in told
    assert page.locator("[data-band]").count() == 16


@pytest.mark.parametrize("switch", ["no-global", "fewer", "small"])
def test_breaking_the_lemma_names_two_sequences_that_collide(
    switch: str, written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-3"), "#tab=all")
    page.check(f"[data-break='{switch}']")
    settled(page)
    told = page.inner_text("#mapping")
    pattern = r"Token (\d) of (\(.*?\)) and token (\d) of (\(.*?\)) share the id (\S+):"
    found = re.search(pattern, told)
    assert found is not None, told
    assert found[2] != found[4]
    assert page.is_visible(".chip.bad")
    assert "The network that runs now was changed" in page.inner_text("#function")
    assert "PROVED" not in page.inner_text("#function")
    ids = page.evaluate(
        """(columns) => {
          const { network } = everyformer.session;
          const end = network.stages.findIndex(s => s.kind === "global shift") + 1;
          return columns.map(c => network.ids(network.until(c.map(v => v + 0.125), end)));
        }""",
        [[float(eval_fraction(v)) for v in found[k][1:-1].split(", ")] for k in (2, 4)],
    )
    assert ids[0][int(found[1]) - 1] == ids[1][int(found[3]) - 1]


def eval_fraction(text: str) -> float:
    top, _, below = text.partition("/")
    return float(top) / float(below or 1)


def test_a_sweep_downwards_leaves_the_interval(written: Written, opened: Opened) -> None:
    page = opened(written("theorem-2"), "#tab=all&broken=down")
    told = page.inner_text("#mapping")
    assert "on the wrong side of [t_l, t_r) = [3072, 12\u202f288)" in told
    page.uncheck("[data-break='down']")
    settled(page)
    assert "wrong side" not in page.inner_text("#mapping")


def test_softer_softmax_leaks_and_the_ramp_is_a_ramp(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-2"), "#tab=softmax&sharp=-14")
    assert "goes where hardmax gives none" in page.inner_text("#tab-panel")
    assert page.is_visible(".chip.bad")
    page.click("#tab-ramp")
    page.fill("#zoom", "9")
    settled(page)
    assert "a ramp of width 9.3·10⁻¹⁰" in page.inner_text("#tab-panel")


def test_the_tour_visits_every_stop(written: Written, opened: Opened) -> None:
    """The last stops run networks of Theorem 3, sparse attention and URPE."""
    page = opened(written("theorem-2"))
    page.click("[data-action='tour']")
    titles: list[str] = []
    others: dict[str, tuple[Any, Any]] = {}
    while True:
        settled(page)
        titles.append(page.inner_text("#tour-title"))
        name = page.evaluate("everyformer.store.state.network")
        if name:
            others[name] = numbers(page, "x"), numbers(page, "g")
        assert "{" not in page.inner_text(".tour-card")
        if not page.is_visible("[data-action='tour-next']"):
            break
        page.keyboard.press("ArrowRight")
    assert 12 <= len(titles) <= 15
    assert len(set(titles)) == len(titles)
    described = read_tour()["networks"]
    assert list(others) == list(described) == ["theorem-3", "sparse", "urpe"]
    for name, (x, g) in others.items():
        network = tour_network(described[name]).network
        assert network(np.array(x)[:, None])[:, 0].tolist() == g
    address = page.url
    assert "network=urpe" in address
    again = opened(written("theorem-2"), "#" + address.partition("#")[2])
    assert again.inner_text("h1") == "prefix_mean"
    assert numbers(again, "g") == others["urpe"][1]
    page.click("[data-action='tour-end']")
    settled(page)
    assert not page.is_visible(".tour-card")
    assert page.inner_text("h1") == "smooth_rank"


@pytest.mark.parametrize(
    ("tour", "message"),
    [
        ("[]", "is not a tour: write"),
        ('{"stops": []}', "a list that is not empty"),
        ('{"stops": [{"title": "a"}]}', "stop 1 has no 'text'"),
        ('{"stops": [{"title": "a", "text": [1]}]}', "a list of paragraphs"),
        ('{"stops": [{"title": "a", "text": [], "stge": "b"}]}', "mean 'stage'"),
        ('{"stops": [{"title": "a", "text": [], "network": "b"}]}', "not describe"),
        ('{"networks": {"b": {"target": "sort"}}, "stops": [1]}', "has no 'n'"),
        ('{"stops": NaN}', "cannot be read"),
    ],
)
def test_what_is_not_a_tour_is_refused(tour: str, message: str, tmp_path: Path) -> None:
    place = tmp_path / "tour.json"
    place.write_text(tour)
    with pytest.raises(InputError, match=message):
        read_tour(place)


def test_a_tour_of_ones_own(
    built: Callable[[str], ef.Built], opened: Opened, tmp_path: Path
) -> None:
    place = tmp_path / "tour.json"
    place.write_text('{"stops": [{"title": "Look", "text": ["<b>n = {n}</b>"]}]}')
    page = built("theorem-3").explore(tour=place).save(tmp_path / "page.html")
    shown = opened(page, "#tour=0")
    assert shown.inner_text("#tour-title").split() == ["1", "/", "1", "Look"]
    assert shown.inner_text(".tour-text") == "<b>n = 2</b>"


def test_stages_lead_to_source_and_description(
    built: Callable[[str], ef.Built], written: Written, opened: Opened, tmp_path: Path
) -> None:
    """Where addresses are known; a page alone names files and leads nowhere."""
    assert opened(written("theorem-2"), "#block=9").locator("p.code a").count() == 0
    shown = built("theorem-2").explore(site="../site/", code="https://host/blob/main")
    page = opened(shown.save(tmp_path / "linked.html"), "#block=9")
    found = page.locator("p.code a")
    code, docs = (found.nth(k).get_attribute("href") for k in range(2))
    quantise = r"https://host/blob/main/src/everyformer/construct/shifts/\w+\.py#L\d+"
    assert re.fullmatch(quantise, code)
    assert docs == "../site/constructions/dense.html"


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", " data:text/html,x", "", "ftp:a"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="not the address of a page"):
        Links(site=address)
    with pytest.raises(InputError, match="code="):
        Links(code=address)


def test_a_program_shows_its_registers(written: Written, opened: Opened) -> None:
    page = opened(written("compile"), "#block=2")
    assert page.locator("[data-action='tour']").count() == 0  # it tells another proof
    told = page.inner_text("#ids")
    assert "found by the verifier just now" in told
    assert "logistic" in told or "sigmoid" in told or "tanh" in told
    assert "gallery.py" in page.inner_html("#ids")


def test_an_index_behind_a_bracket_belongs_to_all_that_it_encloses(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-2"), "#block=8")
    bases = page.evaluate(
        """() => [...document.querySelectorAll("math msub")]
             .map(node => node.firstElementChild.textContent)"""
    )
    assert "(ψ(X;l−δ/2)−ψ(X;l+δ/2))" in bases
    assert ")" not in bases


def test_a_phone_and_the_dark_are_served(written: Written, opened: Opened) -> None:
    page = opened(
        written("theorem-2"),
        "#block=8",
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
    )
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    for tab in ("ids", "all", "softmax", "ramp"):
        page.click(f"#tab-{tab}")
        drawn = page.wait_for_function(
            "document.querySelector('#ids .picture')?.getBoundingClientRect().right"
        )
        assert drawn.json_value() <= 380, f"{tab} fits its pane"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == "rgb(18, 21, 26)"
    small = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter(node => {
             const texts = [...node.childNodes].filter(c => c.nodeType === 3);
             return node.checkVisibility() && texts.some(c => c.data.trim())
               && !node.closest("math, script, style")
               && parseFloat(getComputedStyle(node).fontSize) < 12;
           }).map(node => node.outerHTML)"""
    )
    assert small == []


def test_chips_beside_a_short_name_stay_in_their_lines(
    written: Written, opened: Opened
) -> None:
    page = opened(written("theorem-3"), viewport={"width": 390, "height": 844})
    chips = page.locator(".chip:visible").all()
    assert len(chips) >= 4
    assert max(chip.bounding_box()["height"] for chip in chips) < 40
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_frame_in_a_notebook_runs_the_network(
    built: Callable[[str], ef.Built], tmp_path: Path, opened: Opened
) -> None:
    place = tmp_path / "notebook.html"
    shown = built("theorem-3").explore()._repr_html_()  # pyright: ignore[reportPrivateUsage]
    place.write_text(f"<!DOCTYPE html><meta charset=utf-8>{shown}", encoding="utf-8")
    frame = opened(place).frame_locator("iframe")
    frame.locator("[data-action='permute']").click()
    frame.locator("[data-action='last']").click()
    frame.locator(".count", has_text="block 83 of 83").wait_for(timeout=5000)


def test_a_picture_can_be_kept(written: Written, opened: Opened, tmp_path: Path) -> None:
    page = opened(written("theorem-2"), "#block=8")
    for kind, first in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.click(f"#ids button[aria-label$='{kind}']")
        place = tmp_path / f"ids.{kind.lower()}"
        waiting.value.save_as(place)
        assert place.read_bytes().startswith(first)
