"""The file of results: what is in it, and which cells it holds already."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from everyformer.bench.results import environment, gpu_name
from everyformer.errors import FileFormatError
from everyformer.experiments.cell import Cell, Size
from everyformer.experiments.experiment import Experiment
from everyformer.train.config import TrainConfig

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


def shown_path(
    out: Path, experiment: Experiment, size: Size, others: Sequence[Path] = ()
) -> Path:
    """Which results of a folder are shown: this machine's, else those of another.

    Raises:
        FileFormatError: If the folder holds no such results, or those of several machines.
    """
    own, begins = results_path(out, experiment, size), f"{experiment.name}_{size}_"
    if others:
        return out / others[0].name if others[0].name.startswith(begins) else own
    found = [own] if own.exists() else sorted(out.glob(f"{begins}*.json"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "no such results"
        msg = (
            f"{out} holds {names} of {experiment.name}, size {size}. Show the results of "
            "one machine: give a folder with one such file as --out."
        )
        raise FileFormatError(msg)
    return found[0]


def new_report(experiment: Experiment, size: Size) -> dict[str, Any]:
    """A report without results."""
    return {
        "experiment": experiment.name,
        "size": size,
        "environment": environment(),
        "results": [],
    }


def load_report(path: Path) -> dict[str, Any]:
    """The file that `reproduce` wrote.

    Raises:
        FileFormatError: If it is not a report, or that of another experiment or size: a
            name must not turn a small run into one of the paper's size.
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


def is_there(report: Mapping[str, Any], cell: Cell) -> bool:
    """Whether the cell is finished, with the same settings."""
    return any(r["complete"] for r in _runs_of(report, cell))


def spent_before(report: Mapping[str, Any], cell: Cell) -> float:
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
