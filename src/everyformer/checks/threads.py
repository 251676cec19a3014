"""How many threads torch takes while a module is checked."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from everyformer.checks.subject import Subject

SMALL = 2**22
"""Parameters of a module whose forwards are so short that threads wait for each other."""


@contextmanager
def threads_for(subject: Subject) -> Generator[None, None, None]:
    """One thread for a small module; as many as before for others, and afterwards."""
    before = torch.get_num_threads()
    module = subject.module
    numbers = 0 if module is None else sum(p.numel() for p in module.parameters())
    if numbers <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
