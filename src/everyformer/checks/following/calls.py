"""Calls of functions while a module runs, as Python's profiler sees them."""

import sys
import types
from abc import ABC, abstractmethod
from typing import Any


class Calls(ABC):
    """Notes calls while it is entered.

    Attributes:
        taken: Whether somebody put another profiler in its place meanwhile.
    """

    def __init__(self) -> None:
        """Begin with no calls."""
        self.taken = False

    def __enter__(self) -> None:
        """Take the place of the profiler, if there is one."""
        self._before: Any = sys.getprofile()
        sys.setprofile(self.note)

    def __exit__(self, *_: object) -> None:
        """Give it back; that of `cProfile` is not a function, and is begun again."""
        self.taken = sys.getprofile() != self.note
        again = getattr(self._before, "enable", None)
        sys.setprofile(None if again else self._before)
        if again:
            again()

    @abstractmethod
    def note(self, frame: types.FrameType, event: str, function: Any) -> None:
        """What `sys.setprofile` calls."""
