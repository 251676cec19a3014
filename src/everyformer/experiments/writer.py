"""A file of results has one writer: two would each replace what the other has finished."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from everyformer.errors import TrainingError

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of file systems that cannot hold files."""


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def only_writer(path: Path, read: tuple[int, ...] | None) -> Generator[None, None, None]:
    """Hold a file of results; the system lets go of it when a process dies.

    Where the system cannot hold files for one process, this does nothing.

    Args:
        path: The file.
        read: Its stamp when it was read, or None if it was not there.

    Raises:
        TrainingError: If another process holds it, or has written it since.
    """
    lock = path.with_name(f".{path.name}.lock")
    if find_spec("fcntl") is None:
        yield
        return
    with lock.open("w") as file:
        if not _hold(file, lock):
            raise _busy(path)
        try:
            if stamp(path) != read:
                raise _busy(path)
            yield
        finally:
            lock.unlink(missing_ok=True)


def _busy(path: Path) -> TrainingError:
    return TrainingError(
        f"Another process writes {path}, and each would replace what the other has "
        "finished. Give every process an --out of its own, and join the results: "
        "--show --join."
    )


def _hold(file: IO[str], lock: Path) -> bool:
    """Whether the open file is held now, where files can be, and still has that name."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    now = stamp(lock)
    return now is not None and os.fstat(file.fileno()).st_ino == now[0]
