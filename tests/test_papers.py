"""Every citation names a place that exists, and every place of the papers has an entry."""

import os
import re
import string
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.papers_page import (
    PAGE,
    SOURCE,
    Entry,
    current_page,
    entries,
    faults,
    marked_code,
    out_of_order,
    places_without_entry,
)

from everyformer.papers import LUO2022, YUN2020, YUN2020B, Citation, implements
from everyformer.verdict import Verdict


def found() -> list[Entry]:
    return entries(SOURCE.read_text(), marked_code())


def test_every_place_of_the_papers_has_an_entry() -> None:
    assert places_without_entry(found()) == []
    assert out_of_order(found()) == []


def test_every_entry_has_something_that_exists_or_says_why_not() -> None:
    assert [fault for entry in found() for fault in faults(entry)] == []


def test_the_page_is_up_to_date() -> None:
    if os.environ.get("EVERYFORMER_SNAPSHOTS") == "write":
        PAGE.write_text(current_page())
    assert PAGE.read_text() == current_page()


@pytest.mark.parametrize("place", ["Lemma 10", "Footnote 2", "Table 1"])
def test_a_place_without_an_entry_is_named(place: str) -> None:
    parts = re.split(r"(?=^\[\[)", SOURCE.read_text(), flags=re.MULTILINE)
    kept = [part for part in parts if not re.search(rf'^place = "{place}"', part, re.M)]
    missing = places_without_entry(entries("".join(kept), marked_code()))
    assert f"Yun et al. 2020, {place}" in missing


ENTRY = Entry(
    "yun2020",
    "Lemma 5",
    "quantise",
    code=("construct.shifts.quantise.quantise",),
    test=("test_papers.py::test_the_page_is_up_to_date",),
    page=("notation.md",),
)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"code": ()}, "has nothing, and does not say why"),
        ({"test": ()}, "has no test"),
        ({"page": ()}, "has no page"),
        ({"why": "later"}, "says why it has nothing"),
        ({"code": ("construct.shifts.quantise.quantize",)}, "does not exist"),
        ({"code": ("construct.shift.quantise",)}, "does not exist"),
        ({"test": ("test_papers.py::test_nothing",)}, "does not exist"),
        ({"test": ("test_papers.py",)}, "does not exist"),
        ({"test": ("test_paper.py::test_the_page_is_up_to_date",)}, "does not exist"),
        ({"page": ("dense.md",)}, "does not exist"),
        ({"page": ("notation.md#no-such-heading",)}, "does not exist"),
        ({"command": ("everyformer reproduce molecules",)}, "does not exist"),
        ({"command": ("everyformer conquer sort",)}, "does not exist"),
        ({"command": ("everyformer plan sort --gird 16",)}, "does not exist"),
        ({"command": ("python examples/none.py",)}, "does not exist"),
    ],
)
def test_what_is_missing_is_seen(change: dict[str, object], fault: str) -> None:
    assert faults(ENTRY) == []
    (told,) = faults(replace(ENTRY, **change))  # type: ignore[arg-type]
    assert fault in told


def test_places_are_numbered_without_gaps() -> None:
    """Yun et al. number claims, theorems, propositions and lemmas together."""
    results = [
        place.split()[-1]
        for place in YUN2020.results
        if re.match(r"(Claim|Theorem|Proposition|Lemma) ", place)
    ]
    assert results == [str(k) for k in range(1, 11)]
    for kind, last in (("Equation", 6), ("Footnote", 3), ("Figure", 1), ("Table", 1)):
        of_kind = [place for place in YUN2020.results if place.startswith(f"{kind} ")]
        assert of_kind == [f"{kind} {k}" for k in range(1, last + 1)]
    for kind in ("Section", "Appendix"):
        numbers = [p.split()[1] for p in YUN2020.results if p.startswith(f"{kind} ")]
        for one, other in pairwise(numbers):
            assert other in _followers(one), f"{kind} {one} is followed by {other}"
    assert sorted(LUO2022.results[-6:])[-4:] == [f"Table {k}" for k in range(1, 5)]


def _followers(number: str) -> set[str]:
    """The numbers that may come after that of a section: a part of it, or the next."""
    parts = number.split(".")
    found = {f"{number}.1"}
    for length in range(1, len(parts) + 1):
        *before, last = parts[:length]
        letters = string.ascii_uppercase
        after = letters[letters.index(last) + 1] if last in letters else str(int(last) + 1)
        found.add(".".join([*before, after]))
    return found


@pytest.mark.parametrize("result", ["Theorem 3", "Proposition 4"])
def test_urpe_has_code(result: str) -> None:
    marked = marked_code()[Citation(LUO2022, result)]
    assert "construct.shifts.position_layer.position_layer" in marked


def test_sparse_attention_has_code() -> None:
    marked = marked_code()[Citation(YUN2020B, "Theorem 1")]
    assert {f"construct.shifts.sparse.{one}_shifts" for one in ("chain", "max")} <= {
        *marked
    }
    first = marked_code()[Citation(YUN2020B, "Assumption 1")]
    assert "patterns.assumption_1.assumption_1" in first


def test_a_result_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="has no Lemma 99"):
        implements(YUN2020, "Lemma 99")


def test_a_verdict_is_no_bool() -> None:
    with pytest.raises(TypeError, match="not a bool"):
        bool(Verdict.UNKNOWN)
