"""Results of one experiment from several processes or machines, as one file."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from everyformer.errors import TrainingError
from everyformer.experiments.arrays import name_of
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.stored import Stored


def join(
    experiment: Experiment, path: Path, here: Stored | None, others: Iterable[Path]
) -> Stored:
    """What is here and what others have finished; of two runs of a cell, the finished one.

    Args:
        experiment: Whose cells they are.
        path: Where the results are put; its name says experiment, size and machine.
        here: What is there; None before the first run.
        others: Files of results that other processes or machines wrote; at least one.

    Returns:
        All of it. Its report says that it was joined: seconds of runs at one time add up.

    Raises:
        TrainingError: If a file is of another experiment, size or kind of machine, or a
            cell has finished twice with different results: which of them counts is not
            for a program to choose.
    """
    found = [(other, _load(other, path)) for other in others]
    joined = here or Stored({**found[0][1].report, "results": [], "wall_s": 0.0})
    report: dict[str, Any] = {**joined.report, "joined": True}
    kept = {_key(result): result for result in report["results"]}
    skipped: dict[str, str] = {}
    for other, stored in found:
        skipped |= stored.report.get("skipped", {})
        made = {name: stored.report["environment"][name] for name in ("date", "commit")}
        for result in stored.report["results"]:
            if not _is_new(result, kept, other):
                continue
            kept[_key(result)] = made | result
            name = name_of(result["labels"])
            for mine, theirs in (
                (joined.scores, stored.scores),
                (joined.positions, stored.positions),
            ):
                mine.update({name: theirs[name]} if name in theirs else {})
            report["wall_s"] = report.get("wall_s", 0.0) + result["more"]["wall_s"]
    report["results"] = experiment.in_order(list(kept.values()), report["size"])
    ended = {
        name_of(result["labels"]) for result in report["results"] if result["complete"]
    }
    skipped |= report.get("skipped", {})
    report["skipped"] = {n: reason for n, reason in skipped.items() if n not in ended}
    return replace(joined, report=report)


def _load(other: Path, path: Path) -> Stored:
    if not other.is_file():
        raise TrainingError(
            f"--join {other}: there is no such file. Give a .json of results."
        )
    if other.name != path.name:
        msg = (
            f"--join {other}: results that are joined with {path.name} must be of the same "
            "experiment, size and kind of machine, and have that name."
        )
        raise TrainingError(msg)
    return Stored.load(other)


def _is_new(
    result: Mapping[str, Any],
    kept: Mapping[tuple[Any, ...], Mapping[str, Any]],
    other: Path,
) -> bool:
    """Whether a result adds something to those that are kept."""
    here = kept.get(_key(result))
    if here is None or not here["complete"]:
        return here is None or bool(result["complete"])
    same = ("settings", "value_sampled", "standard_error_sampled")
    if result["complete"] and any(result[name] != here[name] for name in same):
        msg = (
            f"--join {other}: {name_of(result['labels'])} has finished with "
            f"{here['value_sampled']!r} here and with {result['value_sampled']!r} there "
            "(or with other settings). Keep one: delete the cell from one of the files."
        )
        raise TrainingError(msg)
    return False


def _key(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(result["labels"].items()))
