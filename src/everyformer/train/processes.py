"""The processes of a run, whoever started them."""

import atexit
import gc
from functools import cache

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list


def accelerator() -> Accelerator:
    """This process among those that torchrun or accelerate launch started, or alone.

    Without a GPU, Accelerate joins the processes of torchrun only when told to use the CPU.
    """
    _leave_at_exit()
    return Accelerator(cpu=not torch.accelerator.is_available())


def process_state() -> PartialState:
    """The same, where nothing is trained yet."""
    _leave_at_exit()
    return PartialState(cpu=not torch.accelerator.is_available())


def agreed(answer: bool) -> bool:
    """The answer of the first process, in all: where clocks differ, one has the say."""
    return bool(broadcast_object_list([answer])[0])


@cache
def _leave_at_exit() -> None:
    """Who ends without leaving the group aborts, now and then, in a thread of gloo."""
    atexit.register(_leave)


def _leave() -> None:
    """Leave the group, and let its threads end while the interpreter still runs.

    A wrapped model is part of a cycle and holds the group: without a collection the group
    and its threads are there until the very end, where an abort is a matter of luck.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        gc.collect()
