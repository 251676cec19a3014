"""Runs in two processes, and runs that are killed with -9 and resumed.

`torchrun --nproc-per-node 2 kills.py FOLDER`: torch is imported once in each of the two,
and each kills children of its own before the two train together. They leave in FOLDER, for
each kill, how far the run had come, whether it was killed, and whether log and weights are
those of a run that nobody killed.
"""

import atexit
import json
import os
import random
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests.train.runs import ragged_run, tiny_run

from everyformer.train.processes import agreed, process_state
from everyformer.train.run_folder import CHECKPOINT, LOG, read_log
from everyformer.train.weights_from import ENCODER

ALONE = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
"""What torchrun tells a process of the others, and a child is not to know."""

STEPS = 24
"""Three checkpoints and two evaluations of `tiny_run`, and some steps after them."""


def run(folder: Path) -> None:
    """Dropout on: its masks must come again too."""
    tiny_run(
        folder, dropout=0.2, steps=STEPS, resume=True, watch=partial(count_lines, folder)
    )


def run_with_parent(folder: Path) -> None:
    """A second stage: the run starts from the weights of another."""
    tiny_run(
        folder, dropout=0.2, steps=STEPS, resume=True, parent=folder.parent / "whole",
        watch=partial(count_lines, folder),
    )  # fmt: skip


def count_lines(folder: Path, line: Mapping[str, Any]) -> None:
    """A byte for each line, beside the folder."""
    with folder.with_suffix(".lines").open("a") as file:
        file.write("." if "loss" in line else "")


def ragged(folder: Path) -> None:
    """Two terms, two lengths, filling."""
    ragged_run(folder, resume=True, steps=STEPS)


def child(work: Callable[[Path], None], folder: Path, dies_at: str | None = None) -> int:
    """The id of a new process that does the work, and maybe dies in a write."""
    pid = os.fork()
    if pid:
        return pid
    for name in [name for name in os.environ if name in ALONE]:
        del os.environ[name]
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


def resumed(
    work: Callable[[Path], None], folder: Path, whole: Path, was_killed: bool
) -> dict[str, Any]:
    """Resume, compare, and say what was found."""
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
    return {
        "name": folder.name, "killed": was_killed, "reached": reached, "done": done,
        "same": same,
    }  # fmt: skip


def kills(
    folder: Path,
    whole: Callable[[Path], None],
    other: Callable[[Path], None],
    writes: tuple[str, ...] = (),
    times: int = 5,
    lines: int = 0,
) -> list[dict[str, Any]]:
    """Kills at random moments, of two kinds of runs in turn, and some in a write.

    Moments of the whole time of a run; or, of one that trains in a small part of it, of the
    time in which it has logged so many lines at most.
    """
    works = {"other": other, "whole": whole}
    seconds: dict[str, float] = {}
    for name in ("whole", "other"):  # the other may begin with the weights of the first
        started = time.monotonic()
        killed(child(works[name], folder / name))
        seconds[name] = time.monotonic() - started
    draws = random.Random(os.getpid())
    found: list[dict[str, Any]] = []
    for turn in range(times):
        name, work = list(works.items())[turn % 2]
        place = folder / f"random-{turn}"
        pid = child(work, place)
        started = time.monotonic()
        if lines:
            _wait_for_lines(place, pid, draws.randint(1, lines))
        else:
            _wait(pid, started + draws.uniform(0.1, 0.9) * seconds[name])
        took = time.monotonic() - started
        os.kill(pid, signal.SIGKILL)
        was_killed = killed(pid)
        if not was_killed:  # the machine has become faster, or less busy
            seconds[name] = took
        found.append(resumed(work, place, folder / name, was_killed))
    for name in writes:
        place = folder / f"writing-{name.split('.')[0]}"
        was_killed = killed(child(whole, place, dies_at=name))
        found.append(resumed(whole, place, folder / "whole", was_killed))
    return found


def _ended(pid: int) -> bool:
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, ended) is not None


def _wait(pid: int, until: float) -> None:
    """Until a moment, or until a child has ended."""
    while not _ended(pid) and time.monotonic() < until:
        time.sleep(0.001)


def _wait_for_lines(folder: Path, pid: int, count: int) -> None:
    """Until a child has logged them, or has ended."""
    counted = folder.with_suffix(".lines")
    while not _ended(pid):
        if counted.exists() and len(counted.read_text()) >= count:
            return
        time.sleep(0.001)


def together(folder: Path) -> None:
    """Two runs of both processes, and what they know of each other."""
    groups: list[Callable[[], object]] = []
    atexit.register(_tell_who_left, folder, groups)  # after what train registers
    done = tiny_run(folder)
    ragged_run(folder / "ragged")
    if torch.distributed.is_initialized():
        groups.append(weakref.ref(torch.distributed.group.WORLD))
    (folder / f"processes-{done.processes}").touch()
    rank = process_state().process_index
    (folder / f"agreed-{rank}-{agreed(rank == 1)}").touch()


def _tell_who_left(folder: Path, groups: list[Callable[[], object]]) -> None:
    """Whoever left the group, and whose group is gone with its threads."""
    gone = all(group() is None for group in groups)
    if gone and not torch.distributed.is_initialized():
        (folder / f"left-{os.environ.get('RANK', 0)}").touch()


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    import_module("torch.utils.tensorboard")  # before the children do, one by one
    other, writes = ((run_with_parent, ()), (ragged, (CHECKPOINT, ENCODER)))[rank]
    place = folder / f"kills-{rank}"
    place.mkdir()
    (folder / f"kills-{rank}.json").write_text(json.dumps(kills(place, run, other, writes)))
    together(folder / "two")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
