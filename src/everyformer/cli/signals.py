"""Signals that end a command become exceptions, so that it removes its files first."""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from everyformer.cli.start import quit_now

SOON = 0.05
"""Seconds until an interrupt that was lost is raised again."""


class TerminatedError(BaseException):
    """Somebody asked the program to end; a BaseException, so that it cleans up first."""


@contextmanager
def signals_raise(heard: list[int]) -> Generator[None, None, None]:
    """While the block runs, SIGTERM, SIGHUP and SIGINT raise, unless somebody handles them.

    Args:
        heard: Gets the number of SIGINT when it comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers: dict[int, Any] = {getattr(signal, name): _terminate for name in names}
    handlers[signal.SIGINT] = interrupt
    free = (signal.SIG_DFL, signal.default_int_handler, quit_now)
    before = {n: signal.getsignal(n) for n in handlers}
    ours = [n for n in handlers if before[n] in free]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        with _none_is_lost():
            yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError(128 + number)


@contextmanager
def _none_is_lost() -> Generator[None, None, None]:
    """Raise again what came while Python ran a callback, whose exceptions it drops.

    The lock of an import, a finaliser and a function that C calls are such callbacks.
    """
    told_before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def told(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            number = int(signal.SIGINT)
        elif issubclass(dropped.exc_type, TerminatedError):
            number = dropped.exc_value.args[0] - 128
        else:
            told_before(dropped)
            return
        timers.append(threading.Timer(SOON, signal.raise_signal, [number]))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = told
    try:
        yield
    finally:
        sys.unraisablehook = told_before
        for timer in timers:
            timer.cancel()
