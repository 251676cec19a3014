"""A file of results has one writer: two would each replace what the other has finished."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from everyformer.errors import TrainingError


@contextmanager
def only_writer(path: Path) -> Generator[None, None, None]:
    """Hold a file of results; the system lets go of it when a process dies.

    Where the system cannot hold files for one process, this does nothing.

    Raises:
        TrainingError: If another process holds it.
    """
    if find_spec("fcntl") is None:
        yield
        return
    import fcntl

    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = (
                f"Another process writes {path}, and each would replace what the other has "
                "finished. Give every process an --out of its own, and join the results: "
                "--show --join."
            )
            raise TrainingError(msg) from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
