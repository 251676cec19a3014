"""Results of one experiment from several processes or machines, as one file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.errors import TrainingError
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.report import load_report
from everyformer.experiments.scores import load_scores, scores_path

Scored = dict[str, dict[str, np.ndarray]]


def join(
    experiment: Experiment,
    path: Path,
    report: Mapping[str, Any] | None,
    scores: Scored,
    others: Iterable[Path],
) -> tuple[dict[str, Any], Scored]:
    """What is here and what others have finished; of two runs of a cell, the finished one.

    Args:
        experiment: Whose cells they are.
        path: Where the results are put; its name says experiment, size and machine.
        report: What is there; None before the first run.
        scores: Of the examples of what is there.
        others: Files of results that other processes or machines wrote.

    Returns:
        A report that says it was joined, since seconds of runs at one time add up; scores.

    Raises:
        TrainingError: If a file is of another experiment, size or kind of machine, or a
            cell has finished twice with different results: which of them counts is not
            for a program to choose.
    """
    joined: dict[str, Any] = dict(report or {})
    kept: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for result in joined.get("results", ()):
        kept[_key(result)] = result
    seconds: float = joined.get("wall_s", 0.0)
    scores = dict(scores)
    for other in others:
        found = _load(other, path)
        joined = joined or {**found, "skipped": {}}
        single = load_scores(scores_path(other))
        fresh = [result for result in found["results"] if _is_new(result, kept, other)]
        for result in fresh:
            kept[_key(result)] = {**_made(found), **result}
            name = "/".join(str(label) for label in result["labels"].values())
            scores.update({name: single[name]} if name in single else {})
        seconds += sum(result["more"].get("wall_s", 0.0) for result in fresh)
    results: Sequence[Mapping[str, Any]] = list(kept.values())
    if joined:
        joined["results"] = experiment.in_order(results, joined["size"])
        joined["wall_s"] = seconds
        joined["joined"] = True
    return joined, scores


def _load(other: Path, path: Path) -> dict[str, Any]:
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
    return load_report(other)


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
        told = "/".join(str(label) for label in result["labels"].values())
        msg = (
            f"--join {other}: {told} has finished with {here['value_sampled']!r} here and "
            f"with {result['value_sampled']!r} there (or with other settings). Keep one: "
            "delete the cell from one of the files."
        )
        raise TrainingError(msg)
    return False


def _key(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(result["labels"].items()))


def _made(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: report["environment"][name] for name in ("date", "commit")}
