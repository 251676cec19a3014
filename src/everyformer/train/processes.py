"""The processes of a run, whoever started them."""

import torch
from accelerate import Accelerator, PartialState


def accelerator() -> Accelerator:
    """This process among those that torchrun or accelerate launch started, or alone.

    Without a GPU, Accelerate joins the processes of torchrun only when told to use the CPU.
    """
    return Accelerator(cpu=not torch.accelerator.is_available())


def process_state() -> PartialState:
    """The same, where nothing is trained yet."""
    return PartialState(cpu=not torch.accelerator.is_available())
