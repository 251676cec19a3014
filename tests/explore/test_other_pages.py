"""Pages of patterns, layers and comparisons."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import everyformer as ef
from everyformer.checks.patterns import check_pattern
from everyformer.checks.report import check
from everyformer.checks.subject import Subject
from everyformer.explore.attention_page import attention_page
from everyformer.explore.comparison_page import comparison_page
from everyformer.explore.pattern_page import pattern_page
from everyformer.layers.by_name import attention_by_name

Opened = Callable[..., Any]


def test_receptive_fields_grow_as_the_library_counts(
    tmp_path: Path, opened: Opened
) -> None:
    report = check_pattern(ef.patterns.by_name("strided", n=16, width=4))
    hops = report.assumption_1.hops
    assert hops == 3
    page = opened(pattern_page(report).save(tmp_path / "page.html"), "#token=4&layers=1")
    assert "Token 5 has heard of 5 of 16 tokens" in page.inner_text("#sentence")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "All tokens have heard of all others after s = 3" in page.inner_text("#sentence")
    sizes = page.evaluate("everyformer.fields.map(f => Math.min(...f.map(s => s.size)))")
    assert sizes[hops] == 16
    assert sizes[hops - 1] < 16
    page.check("text=path γ")
    assert page.locator(".gamma").count() == 1
    assert "3 of 3" in page.inner_text(".slider")
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    ring = page.locator("#graph .picture").bounding_box()
    assert ring is not None
    assert ring["x"] + ring["width"] <= 390, "the circle fits a phone"
    masks = page.locator(".picture").last.bounding_box()
    assert masks is not None
    assert masks["x"] + masks["width"] <= 390, "and so do the matrices"


def test_the_pair_that_never_meets_is_named(tmp_path: Path, opened: Opened) -> None:
    report = check_pattern(ef.patterns.by_name("block-local", n=8, width=4))
    pair = report.assumption_1.never_meet
    assert pair is not None
    page = opened(pattern_page(report).save(tmp_path / "page.html"))
    told = f"Token {pair[0] + 1} never hears of token {pair[1] + 1}"
    assert told in page.inner_text("#sentence")
    assert page.locator(".node.never").count() == 1


def test_equal_tokens_stay_equal_with_a_bias_and_spread_with_a_gain(
    tmp_path: Path, opened: Opened
) -> None:
    report = None
    for name, told in (("t5", "stay equal"), ("urpe", "tokens spread, by up to")):
        layer = attention_by_name(name, seq_len=4, embed_dim=4, num_heads=2)
        subject = Subject.of(layer, 4, 4, name)
        report = report or check(subject, trials=1)  # its words are not what is tested
        page = opened(attention_page(subject, report).save(tmp_path / f"{name}.html"))
        assert told in page.inner_text("#sentence")
        sums = page.evaluate(
            "everyformer.data.draws[0].A[0].map(row => row.reduce((a, b) => a + b))"
        )
        assert (max(sums) - min(sums) < 1e-12) == (name == "t5")
        assert "PROVED, bad news:" in page.locator(".findings .bad").all_inner_texts()


def test_a_comparison_tells_the_plan_of_a_mark(tmp_path: Path, opened: Opened) -> None:
    found = ef.compare(ef.targets.reverse(2, 1), 0.3)
    page = opened(comparison_page(found).save(tmp_path / "page.html"))
    page.locator("#curves path.token").first.focus()
    assert "parameters in" in page.inner_text("#sentence")
    assert page.locator("#methods tbody tr").count() == len(found.candidates)
