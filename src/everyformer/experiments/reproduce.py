"""Run an experiment cell by cell; what is finished is on the disk and stays."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import torch
from accelerate import PartialState

from everyformer.bench.results import environment, gpu_name
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.cell import Cell, Size, Surroundings
from everyformer.experiments.experiment import Experiment, markdown
from everyformer.train.config import TrainConfig, check
from everyformer.train.loop import Watch, nobody
from everyformer.train.processes import agreed, process_state
from everyformer.train.run_folder import write_whole

LEAST_SECONDS = 5.0
"""A cell that would have less time than this is not begun."""

REPORT = {"experiment", "size", "environment", "results"}
MACHINE = {"gpu", "cpu", "date", "commit"}
KEPT = {
    "labels", "settings", "value_sampled", "standard_error_sampled", "complete", "more",
}  # fmt: skip
"""What a file of results, its environment and each of its results must have."""


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
        TrainingError: If results lie there already and `resume` is False, the settings of
            some cell cannot work, or the time is too short for any.
        OSError: If nothing can be written to `out`. All this before anything is run.
    """
    started = time.monotonic()
    deadline = None if seconds is None else started + seconds
    state = process_state()
    path = results_path(out, experiment, size)
    if changes and "seed" in changes:
        msg = (
            f"seed={changes['seed']} would train every cell with one seed under the name "
            "of another. Give the seeds of the cells instead: --seeds."
        )
        raise TrainingError(msg)
    cells = chosen_cells(experiment.cells(size, seeds, changes or {}), only)
    if path.exists() and not resume:
        msg = (
            f"{path} holds results already. Keep them and run what is missing with "
            "--resume, or choose another folder."
        )
        raise TrainingError(msg)
    report = load_report(path) if path.exists() else _new_report(experiment, size)
    _refuse_early(cells, seconds, state)
    if state.is_main_process:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    made = {name: environment()[name] for name in ("date", "commit")}
    state.wait_for_everyone()
    for done, cell in enumerate(cells):
        if _is_there(report, cell):
            continue
        late = deadline is not None and time.monotonic() > deadline - LEAST_SECONDS
        if agreed(late):
            break
        folder = runs / f"{experiment.name}_{size}" / cell.name.replace("/", "_")
        steps = cell.settings.get("train", {}).get("steps", 1)
        head = {"cell": cell.name, "done": done, "cells": len(cells), "steps": steps}

        def tell(line: Mapping[str, Any], head: Mapping[str, Any] = head) -> None:
            if state.is_main_process:
                watch({**head, **line})

        tell({})
        result = cell.run(Surroundings(folder, resume, deadline, tell))
        report["wall_s"] = report.get("wall_s", 0.0) + result.more["wall_s"]
        result.more["wall_s"] += _spent_before(report, cell)
        kept = {"labels": dict(cell.labels), "settings": cell.settings, **asdict(result)}
        others = [r for r in report["results"] if r["labels"] != kept["labels"]]
        report["results"] = experiment.in_order([*others, kept | made], size)
        if state.is_main_process:
            write_whole(path, json.dumps(report) + "\n")
    if state.is_main_process:
        show(experiment, path)
    state.wait_for_everyone()
    return path


def show(experiment: Experiment, path: Path) -> None:
    """Write the table and the picture beside a file of results."""
    report = load_report(path)
    headings, rows = experiment.table(report["results"], report["size"])
    first = report["environment"]
    made = [first | result for result in report["results"]] or [first]
    days = sorted(m["date"][:10] for m in made)
    dates = (days[0], days[-1])
    commits = dict.fromkeys((m["commit"] or "unknown")[:12] for m in made)
    text = [
        f"{experiment.name}, size {report['size']}: {experiment.expected.quantity}. "
        f"{first['gpu'] or first['cpu']}, {' to '.join(dict.fromkeys(dates))}, commit "
        f"{', '.join(commits)}, {report.get('wall_s', 0.0):,.0f} s of training.",
        markdown(headings, rows),
        "\n".join(f"- {note}" for note in experiment.notes(report["results"])),
    ]
    write_whole(path.with_suffix(".md"), "\n\n".join(text) + "\n")
    experiment.picture(report["results"], path.with_suffix(".png"))


def load_report(path: Path) -> dict[str, Any]:
    """The file that `reproduce` wrote.

    Raises:
        FileFormatError: If it is none, or that of another experiment or size: a name must
            not turn a small run into one of the paper's size.
    """
    report: Any = None
    with suppress(ValueError):
        report = json.loads(path.read_text())
    if not _is_report(report):
        msg = f"{path} holds no results of an experiment. Delete or move it."
        raise FileFormatError(msg)
    name = f"{report['experiment']}_{report['size']}"
    if not path.name.startswith(f"{name}_"):
        msg = f"{path} holds results of {name}, which its name does not say. Move it."
        raise FileFormatError(msg)
    return cast("dict[str, Any]", report)


def _is_report(report: Any) -> bool:
    """Whether all is there that is read later."""
    if not isinstance(report, dict) or not report.keys() >= REPORT:
        return False
    machine, results = report["environment"], report["results"]
    if not isinstance(machine, dict) or not isinstance(results, list):
        return False
    whole = (isinstance(result, dict) and result.keys() >= KEPT for result in results)
    return machine.keys() >= MACHINE and all(whole)


def _refuse_early(
    cells: Sequence[Cell], seconds: float | None, state: PartialState
) -> None:
    """Refuse what some cell would refuse, before the first is trained."""
    if seconds is not None and seconds < LEAST_SECONDS:
        msg = (
            f"{seconds:g} seconds are too few: no cell begins with less than "
            f"{LEAST_SECONDS:g} left. Give more --minutes."
        )
        raise TrainingError(msg)
    device = state.device or torch.device("cpu")
    for cell in cells:
        if "train" in cell.settings:
            config = TrainConfig.from_json(cell.settings["train"])
            check(config, state.num_processes, device)
            if seconds is not None and not config.evaluate_every:
                msg = (
                    f"{cell.name} has evaluate_every=0, and a run looks at the clock when "
                    "it evaluates. Set evaluate_every, or leave out --minutes."
                )
                raise TrainingError(msg)


def _new_report(experiment: Experiment, size: Size) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "size": size,
        "environment": environment(),
        "results": [],
    }


def _is_there(report: Mapping[str, Any], cell: Cell) -> bool:
    """Whether the cell is finished, with the same settings."""
    return any(r["complete"] for r in _runs_of(report, cell))


def _spent_before(report: Mapping[str, Any], cell: Cell) -> float:
    """Seconds of the runs of this cell that a deadline ended, and that it went on from."""
    begun = (r for r in _runs_of(report, cell) if not r["complete"])
    return sum((r["more"]["wall_s"] for r in begun), 0.0)


def _runs_of(report: Mapping[str, Any], cell: Cell) -> list[Mapping[str, Any]]:
    """Results of the cell with the same settings."""
    wanted = json.loads(json.dumps(cell.settings))
    return [
        r
        for r in report["results"]
        if r["labels"] == dict(cell.labels) and filled(r["settings"]) == wanted
    ]


def filled(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a result as today's code names them.

    A setting of training that is newer than the result had its default then. How many
    sequences an evaluation has was a setting of training once, and is one of the task.
    """
    if "train" not in settings:
        return settings
    defaults = TrainConfig(steps=1, batch=1, lr=1.0).to_json()
    train, task = defaults | settings["train"], settings["task"]
    if "evaluate_sequences" in train:
        task = {**task, "evaluated": train.pop("evaluate_sequences")}
    return {**settings, "task": task, "train": train}


def is_main() -> bool:
    """Whether this process writes and prints; of several by torchrun, the first."""
    return process_state().is_main_process
