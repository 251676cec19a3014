"""Unfinished runs of an experiment, from one machine to the next."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everyformer.errors import TrainingError
from everyformer.experiments.arrays import name_of
from everyformer.experiments.experiment import Experiment
from everyformer.train.state import LARGEST, export_state, import_state


def runs_of(runs: Path, experiment: Experiment, size: str) -> Path:
    """The folder of the runs of an experiment of that size."""
    return runs / f"{experiment.name}_{size}"


def folder_of(name: str) -> str:
    """The folder of a cell among them."""
    return name.replace("/", "_")


def refuse_filled(to: Path) -> None:
    """Before anything is run: states are exported into a new or empty folder.

    Raises:
        TrainingError: If something is there.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        msg = f"--export-state {to} is not an empty folder. Choose another."
        raise TrainingError(msg)


def export_runs(
    report: Mapping[str, Any], place: Path, to: Path, largest: int = LARGEST
) -> dict[str, str]:
    """Copy the runs that are not finished, and the parents of those that have one.

    Args:
        report: What is finished.
        place: Where the runs are.
        to: A new or empty folder.
        largest: Bytes of a run that may be moved.

    Returns:
        The runs that stay here, and why.
    """
    begun = [result for result in report["results"] if not result["complete"]]
    names = [name_of(result["labels"]) for result in begun]
    names += [r["settings"]["parent"]["name"] for r in begun if "parent" in r["settings"]]
    left: dict[str, str] = {}
    to.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(names):
        try:
            export_state(place / folder_of(name), to, largest)
        except TrainingError as error:
            left[name] = str(error)
    return left


def import_runs(exported: Path, place: Path) -> list[str]:
    """Copy exported runs among those of this machine; a run that is here already stays.

    Returns:
        The names of those that came.

    Raises:
        TrainingError: If the folder holds no run, or one that is not whole.
    """
    found = sorted(run for run in exported.iterdir() if run.is_dir() and run.name[0] != ".")
    if not found:
        msg = (
            f"--import-state {exported} holds no run. Give the folder that --export-state "
            "wrote on the other machine."
        )
        raise TrainingError(msg)
    new = [run for run in found if not (place / run.name).exists()]
    return [import_state(run, place).name for run in new]
