"""Where in the user's program an operation stands.

Known insides need names: a step of a compiled network is called by the line of the user's
file that it computes. While f is recorded, every operation on an array asks once for the
innermost call that is neither numpy's nor the recorder's own. Nothing is proved with it.
"""

import linecache
import os
import sys
from pathlib import Path
from types import FrameType

import numpy as np

from everyformer.errors import printable

Place = tuple[str, int]
"""A file, as Python calls it, and the number of a line."""

LONGEST = 72
"""Characters of a line that are shown."""

_HERE = Path(sys._getframe().f_code.co_filename).parent  # pyright: ignore[reportPrivateUsage]
_RECORDING = str(_HERE / "trace.py")
_OWN = frozenset(
    str(_HERE / f"{name}.py")
    for name in ("places", "recorder", "traced_array", "array_functions")
)
_NUMPY = str(Path(np.__file__).parent) + os.sep
_WRITTEN = ("<@beartype", "<__array_function__")
_CHECKERS = frozenset({"beartype", "jaxtyping", "typeguard"})
"""What others put around functions: code that they write, and calls of theirs."""


def caller() -> Place | None:
    """The line of the user's program that is running; None outside of it."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _RECORDING:
            return None
        own = file in _OWN or file.startswith((_NUMPY, *_WRITTEN))
        if not own and _package(frame) not in _CHECKERS:
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def shown(place: Place) -> str:
    """A place for people: the text of the line, where it can be had, and where it stands.

    Names and texts are the user's own: nothing of them moves a cursor.
    """
    file, number = place
    text = printable(linecache.getline(file, number).strip())
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    where = f"{printable(Path(file).name)}:{number}"
    return f"{text}  [{where}]" if text else where
