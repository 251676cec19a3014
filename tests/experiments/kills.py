"""A smoke run of mixers-bert that is killed twice: `python kills.py FOLDER PACKS`."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from everyformer.experiments.mixers_bert import MIXERS_BERT
from everyformer.experiments.mixers_bert.cells import cells
from everyformer.experiments.reproduce import reproduce

KILLED = ("mlm-long/attention/0", "squad/attention/0")
LINES = (3, 7)
"""Of their logs together, four each: in pre-training, and in the fine-tuning after it."""

CHANGES = {"checkpoint_every": 3}


def smoke_run(folder: Path, packs: Path, only: Sequence[str] = KILLED) -> None:
    """Some cells, resumed where they were left."""
    torch.set_num_threads(1)
    reproduce(
        MIXERS_BERT, "smoke", out=folder / "out", runs=folder / "runs", data=packs,
        only=only, resume=True, changes=CHANGES,
    )  # fmt: skip


def killed_after(lines: int, folder: Path, packs: Path) -> None:
    """A child that is killed with -9 when its logs have so many lines."""
    pid = os.fork()
    if not pid:
        try:
            smoke_run(folder, packs)
        finally:  # a fork must not go on in the parent's code
            os._exit(1)
    logs = folder / "runs/mixers-bert_smoke"
    while _lines(logs) < lines:
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it ended before it was killed"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"


def _lines(folder: Path) -> int:
    return sum(len(log.read_text().splitlines()) for log in folder.glob("*/log.jsonl"))


if __name__ == "__main__":
    place, given = map(Path, sys.argv[1:])
    cells("smoke", [0], CHANGES, given)  # operations are counted before the children do
    for wanted in LINES:
        killed_after(wanted, place, given)
