"""Where the program begins: Ctrl-C ends it in a word, from the first moment on.

Until a command runs there is nothing to clean up, and an exception would come out of the
middle of some import. So the program ends at once; commands, which have files to remove,
see a KeyboardInterrupt instead (`signals.signals_raise`).
"""

import os
import signal
import threading
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the program; everything heavier than this module is imported here."""
    quit_on_interrupt()
    from everyformer.cli.app import main as run

    run()


def quit_on_interrupt() -> None:
    """Let Ctrl-C end the program, unless somebody ignores or handles it."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, quit_now)


def quit_now(number: int, frame: FrameType | None) -> None:
    """Say so, and end without a traceback."""
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
