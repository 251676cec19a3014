"""Whose arithmetic the updates of a run were done in: its bits depend on nothing else.

Settings and seed decide an update up to the order of its sums, which a library chooses by
device, threads and version. A run that goes on with others ends with other bits.
"""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator

UNKNOWN = "not recorded"
"""Of the updates in a checkpoint of an older version."""


def arithmetic(accelerator: Accelerator) -> str:
    """What decides the order of sums, such as `CPU, 2 threads, torch 2.13.0`."""
    if accelerator.device.type == "cuda":
        where = torch.cuda.get_device_name(accelerator.device)
    else:
        threads = torch.get_num_threads()
        where = f"{accelerator.device.type.upper()}, {threads} thread{'s'[: threads > 1]}"
    many = accelerator.num_processes
    shared = f", {many} processes" if many > 1 else ""
    return f"{where}{shared}, torch {torch.__version__}"


def continued(stored: Mapping[str, Any] | None, own: str) -> dict[str, str]:
    """By the number of updates done before: the arithmetic of those that follow.

    Args:
        stored: The checkpoint that is resumed, if one is.
        own: `arithmetic` of this process.
    """
    if stored is None:
        return {"0": own}
    before: dict[str, str] = dict(stored.get("arithmetic", {"0": UNKNOWN}))
    last = list(before.values())[-1]
    return before if last == own else before | {str(stored["step"]): own}
