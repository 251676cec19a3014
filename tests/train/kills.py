"""Runs that are killed with -9 and resumed: `python kills.py FOLDER RANDOM_KILLS`.

Children of one process, so that torch is imported once. Prints, for each, how far it had
come, whether it was killed, and whether log and weights are those of a run that nobody
killed.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests.train.runs import ragged_run, tiny_run

from everyformer.train.run_folder import CHECKPOINT, LOG, read_log
from everyformer.train.weights_from import ENCODER


def run(folder: Path) -> None:
    """Dropout on: its masks must come again too."""
    tiny_run(folder, dropout=0.2, steps=40, resume=True, watch=partial(_count, folder))


def run_with_parent(folder: Path) -> None:
    """A second stage: the run starts from the weights of another."""
    tiny_run(
        folder, dropout=0.2, steps=40, resume=True, parent=folder.parent / "whole",
        watch=partial(_count, folder),
    )  # fmt: skip


def _count(folder: Path, line: Mapping[str, Any]) -> None:
    """A byte for each line, beside the folder."""
    with folder.with_suffix(".lines").open("a") as file:
        file.write("." if "loss" in line else "")


def ragged(folder: Path) -> None:
    """Two terms, two lengths, filling."""
    ragged_run(folder, resume=True, steps=40)


def child(work: Callable[[Path], None], folder: Path, dies_at: str | None = None) -> int:
    """The id of a new process that does the work, and maybe dies in a write."""
    pid = os.fork()
    if pid:
        return pid
    if dies_at is not None:
        _die_in_writing(dies_at)
    try:
        work(folder)
    except BaseException as error:  # a fork must not go on in the parent's code
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    os._exit(0)


def _die_in_writing(name: str) -> None:
    """This process kills itself with half of the file of that name on the disk."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name == f".{name}":
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = fsync


def killed(pid: int) -> bool:
    """Whether it ended by a kill; an error of its own ends everything."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    if os.WEXITSTATUS(status):
        sys.exit(1)
    return False


def tell(work: Callable[[Path], None], folder: Path, whole: Path, was_killed: bool) -> None:
    """Resume, compare, print."""
    lines = read_log(folder)
    reached = lines[-1]["step"] if lines else 0
    if lines:  # a line that the kill cut short
        with (folder / LOG).open("a") as file:
            file.write('{"step": 99999, "lo')
    counted = folder.with_suffix(".lines")
    counted.write_text("")
    killed(child(work, folder))
    done = len(counted.read_text())
    same = [
        read_log(folder) == read_log(whole),
        (folder / ENCODER).read_bytes() == (whole / ENCODER).read_bytes(),
    ]
    told: dict[str, Any] = {
        "name": folder.name,
        "killed": was_killed,
        "reached": reached,
        "done": done,
    }
    told["same"] = same
    sys.stdout.write(json.dumps(told) + "\n")


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    import_module("torch.utils.tensorboard")  # before the children do, one by one
    works = {"whole": run, "child": run_with_parent, "ragged": ragged}
    seconds: dict[str, float] = {}
    for name, work in works.items():
        started = time.monotonic()
        killed(child(work, folder / name))
        seconds[name] = time.monotonic() - started
    draws = random.Random(os.getpid())
    for turn in range(kills):
        name, work = list(works.items())[turn % len(works)]
        place = folder / f"random-{turn}"
        pid = child(work, place)
        time.sleep(draws.uniform(0.1, 1.0) * seconds[name])
        os.kill(pid, signal.SIGKILL)
        tell(work, place, folder / name, killed(pid))
    for name in (CHECKPOINT, ENCODER):
        place = folder / f"writing-{name.split('.')[0]}"
        tell(run, place, folder / "whole", killed(child(run, place, dies_at=name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
