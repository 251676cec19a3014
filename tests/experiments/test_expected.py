"""What papers say, with sources, and how a verdict is found."""

from typing import Any

import pytest

from everyformer.experiments.expected import Expected, verdict
from everyformer.experiments.registry import EXPERIMENTS


def result(value: float, error: float = 0.01, **more: Any) -> dict[str, Any]:
    return {
        "labels": {"row": more.pop("row", "a")},
        "value_sampled": value,
        "standard_error_sampled": error,
        "complete": more.pop("complete", True),
        "more": more,
    }


def told(
    target: dict[str, Any] | None,
    found: dict[str, Any],
    size: str = "paper",
    *,
    valid: bool = True,
) -> str:
    others = [result(0.8, row="b"), result(0.8, row="begun", complete=False)]
    entry = {"target": target, "paper": 1.0, "valid": valid}
    return verdict(entry, found, [found, *others], size)


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        ({"at_least": 0.9}, result(0.91), result(0.89)),
        ({"at_most": 0.1}, result(0.1), result(0.11)),
        ({"near_chance": 3}, result(0.52, chance=0.5), result(0.54, chance=0.5)),
        ({"near_chance": 3}, result(0.48, chance=0.5), result(0.46, chance=0.5)),
        ({"under_ceiling": 3}, result(0.52, ceiling=0.5), result(0.54, ceiling=0.5)),
        ({"below": 0.9, "than": {"row": "b"}}, result(0.7), result(0.75)),
        ({"at_least": 0.9, "at_most": 0.95}, result(0.93), result(0.97)),
    ],
)
def test_targets(target: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]) -> None:
    assert told(target, good) == "reproduced"
    assert told(target, bad) == "NOT REPRODUCED"
    assert told(target, good, "small") == "agrees (small)"
    assert told(target, bad, "small") == "DIFFERS (small)"
    assert told(target, good, valid=False) == "holds", "our number is not the one printed"
    assert told(target, bad, valid=False) == "DOES NOT HOLD"


def test_nothing_is_reproduced_that_was_not_run() -> None:
    target = {"at_least": 0.9}
    assert told(target, result(1.0), "smoke") == "not judged"
    assert told(target, result(1.0, complete=False)) == "stopped early"
    assert told(None, result(1.0)) == "no target"
    ours = {"target": target, "paper": None}
    assert verdict(ours, result(1.0), [], "paper") == "holds"
    assert verdict(ours, result(0.1), [], "paper") == "DOES NOT HOLD"
    for row in ("c", "begun"):
        below = {"below": 0.9, "than": {"row": row}}
        assert told(below, result(0.1)) == "nothing to compare"


def test_what_the_issue_claims_of_the_paper_size_is_judged() -> None:
    """Each kind of row with a number that must be refused, beside one that is taken."""
    experiment = EXPERIMENTS["urpe-synthetic"]
    cells = experiment.cells("paper", [0], {})
    urpe = [c for c in cells if c.labels["method"] == "urpe"]
    done = [dict(result(1.0), labels=dict(c.labels)) for c in urpe]
    for cell in cells:
        chance = 1 / 128 if cell.labels["task"] == "pi" else 0.5
        # What we measure, what must be refused, and the words for the two.
        low, high, words = {
            "urpe": (0.9985, 0.9995, ("NOT REPRODUCED", "reproduced")),
            "ape": (0.985, 0.995, ("DOES NOT HOLD", "holds")),
            "none": (chance + 0.004, chance + 0.002, ("DOES NOT HOLD", "holds")),
            "t5+special": (0.0, 1.0, ("no target", "no target")),
        }.get(str(cell.labels["method"]), (0.95, 0.6, ("DOES NOT HOLD", "holds")))
        if cell.labels["method"] == "none" and cell.labels["task"] == "etp":
            words = ("NOT REPRODUCED", "reproduced")
        for value, word in zip((low, high), words, strict=True):
            found = dict(result(value, 0.001, chance=chance), labels=dict(cell.labels))
            entry = experiment.expected.of(cell.labels)
            assert verdict(entry, found, [*done, found], "paper") == word, cell.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_entry_has_a_source_and_a_cell(name: str) -> None:
    """Every entry is found by a cell of some size, and every cell of the paper by one."""
    expected = EXPERIMENTS[name].expected
    assert all(len(entry["source"]) > 10 for entry in expected.entries)
    found: list[Any] = []
    for size in ("smoke", "small", "paper"):
        cells = EXPERIMENTS[name].labels(size, [0])
        assert len({tuple(labels.values()) for labels in cells}) == len(cells)
        found += [expected.of(labels) for labels in cells]
    assert all(any(entry is f for f in found) for entry in expected.entries)


def test_the_first_fitting_entry_counts() -> None:
    entries = ({"cell": {"a": 1, "b": 2}}, {"cell": {"a": 1}})
    expected = Expected("accuracy", {}, entries)
    assert expected.of({"a": 1, "b": 2, "seed": 0}) is entries[0]
    assert expected.of({"a": 1, "b": 3}) is entries[1]
    assert expected.of({"a": 2}) is None
