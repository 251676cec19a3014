"""A small run, from one machine to another: what it needs to go on, in one folder."""

import shutil
from pathlib import Path

from everyformer.errors import TrainingError
from everyformer.train.run_folder import CHECKPOINT, LOG, RUN
from everyformer.train.weights_from import ENCODER

LARGEST = 16 * 2**20
"""Bytes of a run that is worth moving."""

NEEDED = (RUN, LOG, CHECKPOINT)
MOVED = (*NEEDED, ENCODER)


def export_state(run: Path, to: Path, largest: int = LARGEST) -> Path:
    """Copy what a run needs to be resumed; a kill leaves no half of it.

    Args:
        run: Folder of the run, which must not be running.
        to: Where its folder is made, under the same name.
        largest: Bytes that it may have.

    Returns:
        The new folder.

    Raises:
        TrainingError: If the run has no checkpoint, is too large, or is there already.
    """
    missing = [name for name in NEEDED if not (run / name).is_file()]
    if missing:
        msg = (
            f"{run} cannot be moved: it has no {', '.join(missing)}. Train it with "
            "checkpoint_every first."
        )
        raise TrainingError(msg)
    names = [name for name in MOVED if (run / name).is_file()]
    size = sum((run / name).stat().st_size for name in names)
    if size > largest:
        msg = (
            f"{run} has {size:,} bytes, and states of at most {largest:,} are moved. Train "
            "it to its end on one machine."
        )
        raise TrainingError(msg)
    return _copied(run, to / run.name, names)


def import_state(exported: Path, runs: Path) -> Path:
    """Copy an exported run among those of this machine; `train(resume=True)` goes on.

    Its settings are compared there, as those of any run that is resumed.

    Raises:
        TrainingError: If it is not whole, or a run of that name is there already.
    """
    missing = [name for name in NEEDED if not (exported / name).is_file()]
    if missing:
        msg = (
            f"{exported} is not the state of a run: it has no {', '.join(missing)}. Export "
            "the run again."
        )
        raise TrainingError(msg)
    names = [name for name in MOVED if (exported / name).is_file()]
    return _copied(exported, runs / exported.name, names)


def _copied(source: Path, target: Path, names: list[str]) -> Path:
    """Files first into a hidden folder, which then takes its name."""
    if target.exists():
        msg = f"{target} is there already. Move it, or choose another folder."
        raise TrainingError(msg)
    hidden = target.with_name(f".{target.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    for name in names:
        shutil.copyfile(source / name, hidden / name)
    return hidden.replace(target)
