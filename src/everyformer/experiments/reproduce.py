"""Run an experiment cell by cell; what is finished is on the disk and stays."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from everyformer.bench.results import environment, gpu_name
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Cell, Size, Surroundings
from everyformer.experiments.experiment import Experiment, markdown
from everyformer.train.loop import Watch, nobody
from everyformer.train.processes import process_state
from everyformer.train.run_folder import write_whole

LEAST_SECONDS = 5.0
"""A cell that would have less time than this is not begun."""


def results_path(out: Path, experiment: Experiment, size: Size) -> Path:
    """Where the results of an experiment of that size on this machine are."""
    where = (gpu_name() or "cpu").lower().replace(" ", "-")
    return out / f"{experiment.name}_{size}_{where}.json"


def chosen_cells(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells whose names match one of the patterns; all without a pattern.

    Raises:
        TrainingError: If a pattern matches none.
    """
    for pattern in only:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            msg = (
                f"--only {pattern} matches none of the {len(cells)} cells, such as "
                f"{cells[0].name} or {cells[-1].name}. * stands for anything."
            )
            raise TrainingError(msg)
    return [c for c in cells if not only or any(fnmatchcase(c.name, p) for p in only)]


def reproduce(
    experiment: Experiment,
    size: Size,
    *,
    out: Path,
    runs: Path,
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    seconds: float | None = None,
    watch: Watch = nobody,
) -> Path:
    """Run the cells of an experiment, and write results, table and picture.

    Args:
        experiment: Which.
        size: Which sizes.
        out: Folder of the results: a JSON file, a table (.md) and a picture (.png).
        runs: Folder of logs and checkpoints, one inside for each cell.
        seeds: One run of every cell for each.
        only: Patterns of names of cells.
        changes: Settings of `TrainConfig` that differ from the experiment's.
        resume: Whether to keep the cells that are there, and go on from checkpoints.
        seconds: No cell begins later, and the running one ends at its next evaluation.
        watch: Told of every line of a log, with the name of the cell.

    Returns:
        The JSON file.

    Raises:
        TrainingError: If results lie there already and `resume` is False.
    """
    started = time.monotonic()
    deadline = None if seconds is None else started + seconds
    state = process_state()
    path = results_path(out, experiment, size)
    cells = chosen_cells(experiment.cells(size, seeds, changes or {}), only)
    if path.exists() and not resume:
        msg = (
            f"{path} holds results already. Keep them and run what is missing with "
            "--resume, or choose another folder."
        )
        raise TrainingError(msg)
    report = load_report(path) if path.exists() else _new_report(experiment, size)
    state.wait_for_everyone()
    for done, cell in enumerate(cells):
        if _is_there(report, cell):
            continue
        if deadline is not None and time.monotonic() > deadline - LEAST_SECONDS:
            break
        folder = runs / f"{experiment.name}_{size}" / cell.name.replace("/", "_")
        steps = cell.settings.get("train", {}).get("steps", 1)
        head = {"cell": cell.name, "done": done, "cells": len(cells), "steps": steps}

        def tell(line: Mapping[str, Any], head: Mapping[str, Any] = head) -> None:
            if state.is_main_process:
                watch({**head, **line})

        tell({})
        result = cell.run(Surroundings(folder, resume, deadline, tell))
        kept = {"labels": dict(cell.labels), "settings": cell.settings, **asdict(result)}
        stale = [r for r in report["results"] if r["labels"] != kept["labels"]]
        report["results"] = [*stale, kept]
        report["wall_s"] = report.get("wall_s", 0.0) + result.more["wall_s"]
        if state.is_main_process:
            _write(path, report)
    if state.is_main_process:
        show(experiment, path)
    state.wait_for_everyone()
    return path


def show(experiment: Experiment, path: Path) -> None:
    """Write the table and the picture beside a file of results."""
    report = load_report(path)
    headings, rows = experiment.table(report["results"], report["size"])
    machine = report["environment"]["gpu"] or report["environment"]["cpu"]
    text = [
        f"{experiment.name}, size {report['size']}: {experiment.expected.quantity}. "
        f"{machine}, {report['environment']['date'][:10]}, commit "
        f"{(report['environment']['commit'] or 'unknown')[:12]}, "
        f"{report.get('wall_s', 0.0):,.0f} s of training.",
        markdown(headings, rows),
        "\n".join(f"- {note}" for note in experiment.notes(report["results"])),
    ]
    write_whole(path.with_suffix(".md"), "\n\n".join(text) + "\n")
    experiment.picture(report["results"], path.with_suffix(".png"))


def load_report(path: Path) -> dict[str, Any]:
    """The file that `reproduce` wrote.

    Raises:
        FileFormatError: If it is none.
    """
    report: Any = None
    with suppress(ValueError):
        report = json.loads(path.read_text())
    needed = {"results", "size", "environment"}
    if not isinstance(report, dict) or not report.keys() >= needed:
        msg = f"{path} holds no results of an experiment. Delete or move it."
        raise FileFormatError(msg)
    return cast("dict[str, Any]", report)


def _new_report(experiment: Experiment, size: Size) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "size": size,
        "environment": environment(),
        "results": [],
    }


def _is_there(report: Mapping[str, Any], cell: Cell) -> bool:
    """Whether the cell is finished, with the same settings."""
    settings = json.loads(json.dumps(cell.settings))
    return any(
        r["labels"] == dict(cell.labels) and r["settings"] == settings and r["complete"]
        for r in report["results"]
    )


def _write(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(report) + "\n")


def is_main() -> bool:
    """Whether this process writes and prints; of several by torchrun, the first."""
    return process_state().is_main_process
