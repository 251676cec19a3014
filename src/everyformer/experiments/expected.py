"""What a paper says, with its source, and whether our number agrees.

`expected.json` of an experiment holds `quantity`, `size` (what the paper ran, and under the
name of another size what its numbers can say) and `entries`. An entry names some labels of
a cell, and:

    paper     the number printed, or null
    source    where it is printed
    valid     whether the number printed is a target itself; else `note` says why not
    target    all that our number must do, or null where nothing is claimed:
              {"at_least": x}, {"at_most": x}, {"near_chance": k}: within k standard errors
              of the number `chance` of the cell, {"below": x}: at most x times the
              finished cell with the labels `than`, {"under_ceiling": k}: not more than k
              standard errors above the number `ceiling` of the cell
    note      why the number printed is not a target, or what to know
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from everyformer.errors import FileFormatError

ROUNDING = 1e-9
TARGETS = ("at_least", "at_most", "near_chance", "below", "under_ceiling")


@dataclass(frozen=True)
class Expected:
    """The numbers of a paper for one experiment."""

    quantity: str
    size: Mapping[str, Any]
    entries: tuple[Mapping[str, Any], ...]

    def of(self, labels: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The first entry all of whose labels these are."""
        for entry in self.entries:
            if entry["cell"].items() <= labels.items():
                return entry
        return None


def load_expected(package: str) -> Expected:
    """The file `expected.json` beside the modules of an experiment.

    Raises:
        FileFormatError: If an entry has no source or an unknown target.
    """
    stored = json.loads((files(package) / "expected.json").read_text())
    for entry in stored["entries"]:
        target = entry["target"] or {}
        known = target.keys() <= {*TARGETS, "than"}
        explained = entry["paper"] is None or entry["valid"] or entry.get("note")
        if not (entry.get("source") and known and explained):
            msg = (
                f"expected.json of {package} has the entry {entry}: every entry needs a "
                f"source, a target of {', '.join(TARGETS)}, and a note where the number "
                "printed is not valid."
            )
            raise FileFormatError(msg)
    return Expected(stored["quantity"], stored["size"], tuple(stored["entries"]))


def verdict(
    entry: Mapping[str, Any] | None,
    result: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    size: str,
) -> str:
    """In a word whether our number does what the entry asks.

    "reproduced" is said of printed numbers that are valid targets, and of the paper's size
    alone; what else is claimed at that size "holds". A small run "agrees", and a smoke run
    shows only that everything runs.
    """
    if entry is None or entry["target"] is None:
        return "no target"
    if size == "smoke":
        return "not judged"
    if not result["complete"]:
        return "stopped early"
    holds = _holds(entry["target"], result, results)
    if holds is None:
        return "nothing to compare"
    if size == "paper" and (entry["paper"] is None or not entry["valid"]):
        return "holds" if holds else "DOES NOT HOLD"
    if size == "paper":
        return "reproduced" if holds else "NOT REPRODUCED"
    return f"agrees ({size})" if holds else f"DIFFERS ({size})"


def _holds(
    target: Mapping[str, Any],
    result: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
) -> bool | None:
    """Whether all parts of a target hold; None if one cannot be told."""
    value, error = result["value_sampled"], result["standard_error_sampled"] or 0.0
    more, holds = result["more"], True
    for name, x in target.items():
        if name == "at_least":
            holds &= value >= x
        elif name == "at_most":
            holds &= value <= x
        elif name == "near_chance":
            holds &= near_chance(value, error, more["chance"], float(x))
        elif name == "under_ceiling":
            holds &= value <= more["ceiling"] + x * error + ROUNDING
        elif name == "below":
            wanted = {**result["labels"], **target["than"]}
            others = [r for r in results if r["labels"] == wanted and r["complete"]]
            if not others:
                return None
            holds &= value <= x * others[0]["value_sampled"]
    return holds


def near_chance(value: float, error: float, chance: float, errors: float = 3.0) -> bool:
    """Whether an accuracy is chance, within some standard errors.

    A model without positions that does better on tokens it never saw has seen them: the
    data leaks.
    """
    return abs(value - chance) <= errors * error + ROUNDING
