"""Every relative link of the pages leads to a file and a heading that exist."""

import re
from pathlib import Path

import pytest
from website.links import Link, anchors, faults, links, loaded_from_elsewhere, relinked
from website.results import benchmarks_page

import everyformer

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)


def test_all_links_lead_somewhere() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/certificates.md"} <= {*PAGES}
    assert [fault for page in PAGES for fault in faults(ROOT, page)] == []
    assert sum(len([*links((ROOT / page).read_text())]) for page in PAGES) > 200


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("[a](missing.md)", "docs/missing.md does not exist"),
        ("![a](pictures/missing.png)", "does not exist"),
        ("[a](../../outside.md)", "does not exist"),
        ("[a](other.md#nothing)", "docs/other.md has no such heading"),
        ("[a](#nothing)", "docs/page.md has no such heading"),
        ("[a](other.md#in-code)", "no such heading"),
        ('[a](missing.md "with a title")', "does not exist"),
        ("[a][b]\n\n[b]: missing.md", "does not exist"),
        ('<img src="missing.png">', "does not exist"),
        ("[a](other.md#two-words-2)", "no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path, link: str, fault: str) -> None:
    other = "# Two words\n\n```\n# In code\n```\n\n## Two words\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text(other)
    good = "# Page\n\n[a](other.md#two-words) [b](#page) [c](other.md#two-words-1)\n"
    page = tmp_path / "docs" / "page.md"
    page.write_text(f"{good}`[code](missing.md)` <https://example.org/missing>\n")
    assert faults(tmp_path, "docs/page.md") == []
    page.write_text(good + link)
    (told,) = faults(tmp_path, "docs/page.md")
    assert told.startswith("docs/page.md:")
    assert fault in told


def test_links_are_led_elsewhere_and_code_stays() -> None:
    def moved(link: Link) -> str:
        return "new/" + link.target

    text = "[a](b.md#c) `[a](b.md)`\n\n```\n[a](b.md)\n```\n[x](https://b.md) ![p](q.png)"
    assert relinked(text, moved) == text.replace("b.md#c", "new/b.md#c", 1).replace(
        "q.png", "new/q.png"
    )


def test_what_a_page_loads_from_elsewhere_is_seen() -> None:
    near = '<script src="a.js"></script><a href="https://a.org">a</a><img src="data:x">'
    assert loaded_from_elsewhere(near) == []
    far = '<link rel="stylesheet" href="https://a.org/b.css"><script async src=//c.org/d>'
    assert loaded_from_elsewhere(near + far) == ["https://a.org/b.css", "//c.org/d"]


def test_anchors_are_those_of_github() -> None:
    headings = "## Section 5.4: *optimal*, in `order`\n### [Link](a.md) & more\n"
    assert anchors(headings) == {"section-54-optimal-in-order", "link--more"}


def test_the_site_has_every_page() -> None:
    shown = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert there - {*shown} == set()
    assert len(shown) == len({*shown})
    tutorials = {f"tutorials/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    made = {"benchmarks.md", "results.md", "changelog.md", "contributing.md"}
    assert {*shown} - there - made == tutorials


def test_the_page_of_benchmarks_has_every_stored_result() -> None:
    stored = ROOT / "benchmarks" / "results"
    page = benchmarks_page(stored)
    assert [one.name for one in stored.glob("*.json") if one.name not in page] == []


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    shown = set(re.findall(r"^::: everyformer\S*\.(\w+)$", text, re.MULTILINE))
    modules = {"patterns", "targets"}  # have a heading each
    assert {*everyformer.__all__} - shown == modules
    assert all(f"## {name.title()}" in text for name in modules)
