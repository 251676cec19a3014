"""Run an experiment cell by cell; what is finished is on the disk and stays."""

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from everyformer.bench.results import environment
from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Result, Size, Surroundings
from everyformer.experiments.document import document
from everyformer.experiments.experiment import Experiment
from everyformer.experiments.joining import join
from everyformer.experiments.moving import folder_of, runs_of
from everyformer.experiments.positions_picture import positions_path, positions_picture
from everyformer.experiments.refusals import (
    chosen_cells,
    refuse_early,
    refuse_slow,
    too_little_memory,
)
from everyformer.experiments.report import (
    is_there,
    new_report,
    results_path,
    spent_before,
)
from everyformer.experiments.stored import Stored
from everyformer.experiments.writer import only_writer, stamp
from everyformer.train.loop import Watch, nobody
from everyformer.train.processes import agreed, process_state
from everyformer.train.run_folder import write_whole
from everyformer.train.weights_from import ENCODER


def reproduce(
    experiment: Experiment,
    size: Size,
    *,
    out: Path,
    runs: Path,
    data: Path | None = None,
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    seconds: float | None = None,
    others: Sequence[Path] = (),
    watch: Watch = nobody,
) -> Path:
    """Run the cells of an experiment, and write results, table and picture.

    Args:
        experiment: Which.
        size: Which sizes.
        out: Folder of the results: a JSON file, a table (.md), a picture (.png), and the
            scores of single examples (.scores.npz) where claims need them; the learnt B
            and C (.positions.npz) and their picture where cells have them.
        runs: Folder of logs and checkpoints, one inside for each cell.
        data: Folder of packs.
        seeds: One run of every cell for each.
        only: Patterns of names of cells.
        changes: Settings that differ from the experiment's.
        resume: Whether to keep the cells that are there, and go on from checkpoints.
        seconds: No cell begins later, and the running one ends at its next evaluation.
        others: Files of results by other processes or machines, whose cells are kept too.
        watch: Told of every line of a log, with the name of the cell.

    Returns:
        The JSON file.

    Raises:
        TrainingError: If results lie there already and `resume` is False, the settings of
            some cell cannot work, the time is too short for any, or another process
            writes the same file.
        OSError: If nothing can be written to `out` or `runs`. All this before anything is
            run.
    """
    started = time.monotonic()
    deadline = None if seconds is None else started + seconds
    state = process_state()
    device = state.device or torch.device("cpu")
    path = results_path(out, experiment, size)
    if changes and "seed" in changes:
        msg = (
            f"seed={changes['seed']} would train every cell with one seed under the name "
            "of another. Give the seeds of the cells instead: --seeds."
        )
        raise TrainingError(msg)
    cells = chosen_cells(experiment.cells(size, seeds, changes or {}, data), only)
    if path.exists() and not resume:
        msg = (
            f"{path} holds results already. Keep them and run what is missing with "
            "--resume, or choose another folder."
        )
        raise TrainingError(msg)
    read = stamp(path)
    stored = Stored.load(path) if path.exists() else Stored(new_report(experiment, size))
    if others:
        stored = join(experiment, path, stored, others)
    report = stored.report
    refuse_early(cells, seconds, experiment.least_seconds, state.num_processes, device)
    refuse_slow([cell for cell in cells if not is_there(report, cell)], size, device)
    if state.is_main_process:
        _refuse_unwritable(out, "--out")
        if any("train" in cell.settings for cell in cells):
            _refuse_unwritable(runs, "--runs")
    state.wait_for_everyone()
    place = runs_of(runs, experiment, size)
    with only_writer(path, read) if state.is_main_process else nullcontext():
        _run_cells(experiment, cells, stored, path, place, resume, deadline, watch)
        if state.is_main_process:
            stored.write(path)
            show(experiment, path, data=data)
    state.wait_for_everyone()
    return path


def _run_cells(
    experiment: Experiment,
    cells: Sequence[Cell],
    stored: Stored,
    path: Path,
    place: Path,
    resume: bool,
    deadline: float | None,
    watch: Watch,
) -> None:
    """Run what is missing, one cell after the other, and write what each gave."""
    state, report = process_state(), stored.report
    device = state.device or torch.device("cpu")
    made = {name: environment()[name] for name in ("date", "commit")}
    for done, cell in enumerate(cells):
        if is_there(report, cell):
            continue
        last = None if deadline is None else deadline - experiment.least_seconds
        if agreed(last is not None and time.monotonic() > last):
            break
        missing = _missing_parent(cell, report, place)
        skipped = {**report.get("skipped", {}), cell.name: missing}
        report["skipped"] = {name: reason for name, reason in skipped.items() if reason}
        if missing is not None:
            continue
        steps = cell.settings.get("train", {}).get("steps", 1)
        head = {"cell": cell.name, "done": done, "cells": len(cells), "steps": steps}

        def tell(line: Mapping[str, Any], head: Mapping[str, Any] = head) -> None:
            if state.is_main_process:
                watch({**head, **line})

        tell({})
        parent = None if cell.parent is None else _folder(place, cell.parent)
        around = Surroundings(_folder(place, cell), resume, deadline, tell, parent)
        result = _run(cell, around, device)
        report["wall_s"] = report.get("wall_s", 0.0) + result.more["wall_s"]
        result.more["wall_s"] += spent_before(report, cell)
        single, tables = dict(result.scores), dict(result.positions)
        result = replace(result, scores={}, positions={})
        kept = {"labels": dict(cell.labels), "settings": cell.settings, **asdict(result)}
        del kept["scores"], kept["positions"]
        rest = [r for r in report["results"] if r["labels"] != kept["labels"]]
        report["results"] = experiment.in_order([*rest, kept | made], report["size"])
        if state.is_main_process:
            stored.scores.update({cell.name: single} if single else {})
            stored.positions.update({cell.name: tables} if tables else {})
            stored.write(path)


def show(
    experiment: Experiment,
    path: Path,
    others: Sequence[Path] = (),
    data: Path | None = None,
) -> None:
    """Write table and pictures beside a file of results, first joined with others.

    Numbers that the machine of a run could not compute are added, if this one can.
    """
    if others:
        here = Stored.load(path) if path.exists() else None
        join(experiment, path, here, others).write(path)
    stored = Stored.load(path)
    if experiment.completed is not None:
        report = stored.report
        own = report["results"], stored.scores, report["size"], data
        if experiment.completed(*own):
            stored.write(path)
    text = document(experiment, stored.report, stored.scores)
    write_whole(path.with_suffix(".md"), text)
    experiment.picture(stored.report["results"], path.with_suffix(".png"))
    if stored.positions:
        positions_picture(stored.positions, positions_path(path).with_suffix(".png"))


def _run(cell: Cell, around: Surroundings, device: torch.device) -> Result:
    try:
        return cell.run(around)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise too_little_memory(cell, device) from error
    finally:
        if device.type == "cuda":
            gc.collect()  # a trainer and its graphs refer to each other
            torch.cuda.empty_cache()


def _refuse_unwritable(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not tell
    except OSError as error:
        reason = f"{error.strerror}. Give a folder that can be written ({option})"
        raise OSError(error.errno, reason, str(folder)) from error


def _folder(place: Path, cell: Cell) -> Path:
    return place / folder_of(cell.name)


def _missing_parent(cell: Cell, report: Mapping[str, Any], place: Path) -> str | None:
    """Why a cell cannot begin with its parent's weights; None if it can, or has none."""
    parent = cell.parent
    if parent is None:
        return None
    if not is_there(report, parent):
        return (
            f"it begins with the weights of {parent.name}, which has not been trained to "
            f"its end with these settings. Run it too: --only '{parent.name}'."
        )
    folder = _folder(place, parent)
    if not (folder / ENCODER).is_file():
        return (
            f"it begins with the weights of {parent.name}, which was trained elsewhere: "
            f"{folder / ENCODER} is missing. Copy that folder here, or run both anew into "
            f"another folder: --only '{parent.name}' --only '{cell.name}' --out DIR."
        )
    return None


def is_main() -> bool:
    """Whether this process writes and prints; of several by torchrun, the first."""
    return process_state().is_main_process
