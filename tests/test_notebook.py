"""What a notebook shows: a line or two of text, and tables without foreign tags."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer import notebook
from everyformer.checks.subject import Subject
from everyformer.model.attention_spec import AttentionSpec

HOSTILE = "</script><script>alert(1)</script>\x1b[2J\n" + 'x" onload="' + "y" * 9000


@cache
def built() -> Any:
    """Two tokens, named by somebody who does not wish you well."""
    target = ef.Target(np.sin, 2, 1, equivariant=True, name=HOSTILE)
    made = ef.construct(target, grid=4)
    assert made.certificate.verdict is ef.Verdict.PROVED
    return made


def report() -> Any:
    spec = AttentionSpec("none")
    return ef.check(Subject(HOSTILE, None, spec, 4, 4))


MADE: dict[str, Callable[[], Any]] = {
    "built": built,
    "network": lambda: built().network,
    "plan": lambda: built().plan,
    "compiled plan": lambda: ef.plan(built().target, tol=0.1, method="compile"),
    "certificate": lambda: built().certificate,
    "report": report,
    "comparison": lambda: ef.compare(built().target, 0.5),
    "pattern": lambda: replace(ef.patterns.strided(64, 8), name=HOSTILE),
    "report of a pattern": lambda: ef.check(
        replace(ef.patterns.strided(64, 8), name=HOSTILE)
    ),
}


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("name", MADE)
def test_a_result_is_short_in_words_and_a_table_in_html(name: str) -> None:
    made = MADE[name]()
    said = repr(made)
    assert len(said) <= 260
    assert said.count("\n") <= 1
    assert "\x1b" not in said
    tags = Tags()
    tags.feed(made._repr_html_())
    assert {tag for tag, *_ in tags.found} <= {
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "p", "br", "b", "pre")
    }
    assert {attribute for _, *names in tags.found for attribute in names} <= {
        *("class", "style")
    }
    assert "\x1b" not in tags.words
    if name not in ("plan", "compiled plan"):  # a plan's table does not name the target
        assert "</script>" in tags.words


def test_nothing_is_computed_for_a_line() -> None:
    fresh = replace(built())
    assert "PROVED" not in repr(fresh)
    assert "PROVED" not in fresh._repr_html_()
    assert "certificate" not in vars(fresh)
    assert "\n  PROVED" in repr(built())


def test_a_file_s_words_are_called_that(tmp_path: Any) -> None:
    from everyformer.certify.certificate_file import read_certificate

    built().save(tmp_path)
    read: Any = read_certificate(tmp_path)
    assert repr(read).startswith("Certificate(the file says, unchecked: PROVED")
    assert "<b>the file" not in read._repr_html_()
    found: Any = ef.verify(tmp_path)
    assert repr(found).startswith("Verification(PROVED: d_2(f, g) <= ")
    assert "<script" not in found._repr_html_()
    assert re.search("<caption[^>]*>the file says, unchecked: ", read._repr_html_())


def test_colours_are_of_the_news() -> None:
    moods = [notebook.News.of(verdict).mood for verdict in ef.Verdict]
    assert moods == ["good", "bad", "open"]
    assert notebook.News("REFUTED", good=None).mood == ""
    table = notebook.html_table("", [[notebook.News("<i>", good=False)]])
    assert f'<b style="color: {notebook.COLOURS["bad"]}">&lt;i&gt;</b>' in table
