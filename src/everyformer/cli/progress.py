"""The library's reports of progress: a bar on the terminal, lines in a log."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread, Timer

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

EVERY = 30.0
"""Seconds between two lines of a log."""


@contextmanager
def progress_bar(
    delay: float = DELAY, every: float = EVERY
) -> Generator[Progress, None, None]:
    """Shows on stderr how far work is that lasts: a bar, or lines if it is no terminal.

    Args:
        delay: Seconds before a bar appears.
        every: Seconds before each line.
    """
    console = Console(stderr=True)
    with _bar(console, delay) if console.is_interactive else _lines(every) as report:
        yield report


@contextmanager
def _bar(console: Console, delay: float) -> Generator[Progress, None, None]:
    """A timer starts the bar, so that it appears even while a step reports nothing."""
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
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


@contextmanager
def _lines(every: float) -> Generator[Progress, None, None]:
    """A thread writes them, so that there is one even while a step reports nothing."""
    began, over = time.monotonic(), Event()
    current = "prepare"

    def report(what: str, done: int, total: int) -> None:
        nonlocal current
        current = f"{what}: {done:,} of {total:,}"

    def tell() -> None:
        while not over.wait(every):
            seconds = round(time.monotonic() - began)
            print(f"{current}, after {seconds:,} s", file=sys.stderr, flush=True)  # noqa: T201

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()
