"""The folder of a run: what it is, its log, and a checkpoint to go on from.

run.json             what is trained: config, task, model; another run is refused
log.jsonl            a line for every logged update and evaluation
checkpoint.pt        the latest state; replaced whole or not at all
encoder.safetensors  what a later run may start from, written when the run has ended
tensorboard/         the same numbers, where tensorboard is installed
"""

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import torch

from everyformer.errors import TrainingError

RUN, LOG, CHECKPOINT, BOARD = "run.json", "log.jsonl", "checkpoint.pt", "tensorboard"
STATE = {"model", "optimiser", "step", "ended"}
"""What a checkpoint holds."""


class RunFolder:
    """Files of one run; only the main process writes, and without a folder nobody does.

    Attributes:
        lines: The lines of the log so far.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], *, resume: bool, main: bool
    ) -> None:
        """Make the folder, or make sure that it is the folder of this run.

        Raises:
            TrainingError: If another run lies there, or this one and `resume` is False.
        """
        self.lines: list[dict[str, Any]] = []
        self._resumed = folder if resume else None
        self._folder = folder if main else None
        self._file: IO[str] | None = None
        self._board: Any = None
        if self._folder is not None:
            _claim(self._folder, json.loads(json.dumps(identity)), resume=resume)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The latest state of a run to resume, or None before the first.

        Raises:
            TrainingError: If the file is not a checkpoint.
        """
        path = None if self._resumed is None else self._resumed / CHECKPOINT
        if path is None or not path.exists():
            return None
        try:
            stored = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:
            raise _damaged(path, f"{type(error).__name__} of torch.load") from error
        if not isinstance(stored, dict) or not stored.keys() >= STATE:
            raise _damaged(path, f"it does not hold {', '.join(sorted(STATE))}")
        return cast("dict[str, Any]", stored)

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; a kill at any moment leaves the old or the new one."""
        if self._folder is not None:
            replace_whole(
                self._folder / CHECKPOINT, lambda file: torch.save(dict(state), file)
            )

    def open_log(self, step: int) -> None:
        """Lines after `step`, of a run that was killed, are dropped: it repeats them."""
        if self._folder is None:
            return
        self.lines = [line for line in read_log(self._folder) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_whole(self._folder / LOG, text)
        self._file = (self._folder / LOG).open("a")
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._folder / BOARD), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """One line of the log, on the disk at once."""
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._board is not None:
            for name in line.keys() - {"step"}:
                self._board.add_scalar(name, line[name], line["step"])

    def close(self) -> None:
        """End the log."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last line that a kill cut short does not count.

    Raises:
        TrainingError: If another line is damaged.
    """
    path = folder / LOG
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not all(isinstance(line, dict) and "step" in line for line in lines):
        raise _damaged(path, "a line has no step")
    return lines


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part."""
    replace_whole(path, lambda file: file.write(text.encode()))


def replace_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that a kill at any moment leaves the old or the new one."""
    temporary = path.with_name(f".{path.name}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _claim(folder: Path, identity: Any, *, resume: bool) -> None:
    path = folder / RUN
    if not path.exists():
        if folder.exists() and any(p.name[0] != "." for p in folder.iterdir()):
            msg = (
                f"{folder} is not empty and holds no run, so writing there could destroy "
                "something. Choose a new folder."
            )
            raise TrainingError(msg)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(identity, indent=2) + "\n")
        return
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if found != identity:
        msg = (
            f"{folder} holds another run: {'; '.join(differences(found, identity))}. Give "
            "the settings of that run, or choose a new folder."
        )
        raise TrainingError(msg)
    if not resume:
        msg = (
            f"{folder} holds this run already, begun or ended. Resume it, or choose a new "
            "folder."
        )
        raise TrainingError(msg)


def _damaged(path: Path, why: str) -> TrainingError:
    """The refusal of a file that this module did not write, or that was changed since."""
    return TrainingError(
        f"{path} cannot be read as a file of a run ({why}). Delete the folder "
        f"{path.parent} to begin the run again."
    )


def differences(found: Any, wanted: Any, place: str = "") -> list[str]:
    """Where two records differ, as text."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        told: list[str] = []
        for name in sorted({*found, *wanted}):
            inner = f"{place}.{name}" if place else str(name)
            told += differences(found.get(name), wanted.get(name), inner)
        return told
    return [] if found == wanted else [f"{place} is {found!r} there and {wanted!r} here"]
