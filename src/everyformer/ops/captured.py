"""CUDA graphs: when one is captured, and what it reads whenever it is replayed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock, local
from typing import Any, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")

_READ: dict[int, object] = {}
"""By their numbers in Python, so that each is held once."""


_HERE = local()
"""`as_if`: whether this thread goes the ways of a capture."""

_LOCK = Lock()
_users = 0
_torch_says: Callable[[], bool] | None = None
"""`torch.cuda.is_current_stream_capturing`, while `_asked` stands in its place."""


def _is_capturing() -> bool:
    return (_torch_says or torch.cuda.is_current_stream_capturing)()


def _asked() -> bool:
    return getattr(_HERE, "as_if", False) or _is_capturing()


@contextmanager
def as_if_captured() -> Generator[None, None, None]:
    """Go the ways of a capture without one, so that all of them are compiled before.

    Whoever asks torch in this thread hears yes: transformers makes another mask while it is
    captured, and what is compiled for it would be compiled within the capture.
    """
    before = getattr(_HERE, "as_if", False)
    _ask_us(+1)
    _HERE.as_if = True
    try:
        yield
    finally:
        _HERE.as_if = before
        _ask_us(-1)


def _ask_us(more: int) -> None:
    """Stand in torch's place from the first to the last who goes as if."""
    global _torch_says, _users
    cuda: Any = torch.cuda
    with _LOCK:
        if _users == 0:
            _torch_says, cuda.is_current_stream_capturing = (
                cuda.is_current_stream_capturing, _asked
            )  # fmt: skip
        _users += more
        if _users == 0:
            cuda.is_current_stream_capturing, _torch_says = _torch_says, None


def is_on_gpu(x: Tensor) -> bool:
    """Whether a CUDA graph could hold what is done with these numbers."""
    return x.is_cuda


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured, or all goes as if: no number is read."""
    return is_on_gpu(x) and torch.cuda.is_current_stream_capturing()


def outlasting(found: Found, x: Tensor) -> Found:
    """What was made before for all calls; for good if a graph with x is being captured.

    A graph knows addresses alone. A store that forgets its oldest entries gives their
    memory to others, and a replay would read what these have written there.
    """
    if is_on_gpu(x) and _is_capturing():
        _READ[id(found)] = found
    return found
