"""The library's reports of progress as a bar on the terminal."""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

from everyformer.progress import Progress

DELAY = 0.5
"""Seconds that work must last before a bar appears."""


@contextmanager
def progress_bar(delay: float = DELAY) -> Generator[Progress, None, None]:
    """A bar on stderr for work that lasts; nothing where stderr is not a terminal.

    A timer starts the bar, so that it appears even while a step reports nothing.
    """
    console = Console(stderr=True)
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = bar.add_task("prepare", total=None)
    current = ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal current
        if what != current:  # a task that was complete would stay so
            bar.reset(task, description=what)
            current = what
        bar.update(task, completed=done, total=total)

    timer = Timer(delay, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield report
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
