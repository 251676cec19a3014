"""CUDA graphs: when one is captured, and what it reads whenever it is replayed."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")

_READ: dict[int, object] = {}
"""By their numbers in Python, so that each is held once."""


_ONE_THREAD = RLock()


def _yes() -> bool:
    return True


@contextmanager
def as_if_captured() -> Generator[None, None, None]:
    """Go the ways of a capture without one, so that all of them are compiled before.

    Whoever asks torch hears yes: transformers makes another mask while it is captured, and
    what is compiled for it would be compiled within the capture.
    """
    cuda: Any = torch.cuda
    with _ONE_THREAD:
        before = cuda.is_current_stream_capturing
        cuda.is_current_stream_capturing = _yes
        try:
            yield
        finally:
            cuda.is_current_stream_capturing = before


def is_on_gpu(x: Tensor) -> bool:
    """Whether a CUDA graph could hold what is done with these numbers."""
    return x.is_cuda


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured: these numbers cannot be read now."""
    return is_on_gpu(x) and torch.cuda.is_current_stream_capturing()


def outlasting(found: Found, x: Tensor) -> Found:
    """What was made before for all calls; for good if a graph with x is being captured.

    A graph knows addresses alone. A store that forgets its oldest entries gives their
    memory to others, and a replay would read what these have written there.
    """
    if is_captured(x):
        _READ[id(found)] = found
    return found
