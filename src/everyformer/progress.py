"""How long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) now and then during long work."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""
