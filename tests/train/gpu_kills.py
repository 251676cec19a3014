"""Recorded runs on a GPU that are killed with -9 and resumed: `gpu_kills.py FOLDER`.

The parent never touches the GPU, so that its forks may.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.train.kills import count_lines, kills
from tests.train.runs import tiny_run

SETTINGS: dict[str, Any] = {
    "dim": 64, "dropout": 0.1, "steps": 1500, "log_every": 25, "evaluate_every": 500,
    "checkpoint_every": 100, "precision": "bf16", "record": True, "resume": True,
}  # fmt: skip


def recorded(folder: Path, **more: Any) -> None:
    """Updates replayed from a CUDA graph, dropout on."""
    tiny_run(folder, watch=partial(count_lines, folder), **SETTINGS, **more)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    other = partial(recorded, compile=True)
    most = SETTINGS["steps"] // SETTINGS["log_every"]
    found = kills(place, recorded, other, times=4, lines=most - 5)
    (place / "kills.json").write_text(json.dumps(found))
