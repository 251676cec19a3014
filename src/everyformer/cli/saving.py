"""Files and folders that appear complete or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from everyformer.files.names import CERTIFICATE_FILE, NETWORK_FILE, VALUES_FILE

COST_FILE = "cost.json"
PLOT_FILE = "plot.png"
IDS_FILE = "ids.png"
CERTIFICATE_FILES = frozenset({CERTIFICATE_FILE, VALUES_FILE})
OWN_FILES = CERTIFICATE_FILES | {NETWORK_FILE, COST_FILE, PLOT_FILE, IDS_FILE}
"""What --overwrite may delete: our files, and the picture that `inspect` adds."""


def is_full(error: BaseException) -> bool:
    """Whether there was no room for a file."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, OSError) and error.errno in full


def check_new_folder(folder: Path, own: frozenset[str], *, overwrite: bool) -> None:
    """Refuse to write where something lies that is not ours to delete.

    Args:
        folder: Where to write.
        own: Names of files that an earlier run may have left there.
        overwrite: Whether a folder of an earlier run may be replaced.

    Raises:
        FileNotFoundError: If the folder around it does not exist.
        FileExistsError: If something lies there.
        PermissionError: If nothing can be written there.
    """
    place = resolved(folder)
    check_parent(place, str(folder))
    if not place.exists():
        return
    if not place.is_dir():
        msg = f"{folder} is a file. Give the name of a folder."
        raise FileExistsError(msg)
    if place.is_mount():
        msg = f"{folder} is a mount point and cannot be replaced. Give a folder inside it."
        raise FileExistsError(msg)
    present = {entry.name for entry in place.iterdir()}
    if not present:
        return
    foreign = sorted(present - own)
    if NETWORK_FILE not in present:
        why = f"it has no {NETWORK_FILE}, so everyformer did not write it"
    elif foreign:
        why = f"everyformer did not write {foreign[0]}, which would be lost"
    elif overwrite:
        return
    else:
        msg = f"{folder} is not empty. Give another folder, or --overwrite to replace it."
        raise FileExistsError(msg)
    msg = f"{folder} is not empty and is never replaced: {why}. Give another folder."
    raise FileExistsError(msg)


def check_report_folder(folder: Path | None) -> None:
    """Refuse a folder for a report that is neither new nor empty; None means no folder.

    Raises:
        OSError: As `check_new_folder`.
    """
    if folder is not None:
        check_new_folder(folder, frozenset(), overwrite=False)


def resolved(path: Path) -> Path:
    """The path without links.

    Raises:
        OSError: If its links go round in circles.
    """
    try:
        return path.resolve()
    except RuntimeError as error:  # as Python says it, up to 3.12
        msg = f"{path} is a link that leads back to itself. Give another path."
        raise OSError(msg) from error


def check_parent(path: Path, shown: str) -> None:
    """Refuse a path in a folder that does not exist or cannot be written to."""
    if not path.parent.is_dir():
        msg = f"{shown} cannot be written: its parent folder does not exist. Create it."
        raise FileNotFoundError(msg)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        msg = f"{shown} cannot be written: its parent folder is read-only for you."
        raise PermissionError(msg)


@contextmanager
def _told_of(path: Path) -> Generator[None, None, None]:
    """Errors are told of what was asked for, not of the hidden sibling beside it."""
    try:
        yield
    except OSError as error:
        why = f"nothing can be written there ({error.strerror})"
        raise type(error)(error.errno, why, str(path)) from error


@contextmanager
def new_folder(
    folder: Path, own: frozenset[str], *, overwrite: bool
) -> Generator[Path, None, None]:
    """A folder to write into, which becomes `folder` when the block ends well.

    Until then everything lies in a hidden sibling, which is removed in any case. An
    earlier folder is moved away last, and moved back if the renaming fails.

    Args:
        folder: Where to write.
        own: Names of files that an earlier run may have left there.
        overwrite: Whether a folder of an earlier run may be replaced.

    Raises:
        OSError: As `check_new_folder`.
    """
    check_new_folder(folder, own, overwrite=overwrite)
    place = resolved(folder)
    with _told_of(folder):
        work = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        check_new_folder(folder, own, overwrite=overwrite)
        try:
            if place.exists():
                place.rename(old)
            new.rename(place)
        except BaseException:
            if old.exists() and not place.exists():
                old.rename(place)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Generator[IO[bytes], None, None]:
    """A file to write into, which replaces `path` when the block ends well.

    Raises:
        OSError: If something else than a file lies there; a device would be lost.
    """
    place = resolved(path)
    if place.exists() and not place.is_file():
        msg = f"{path} is not a file that can be replaced. Give another name."
        raise FileExistsError(msg)
    with _told_of(path):
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        temporary.chmod(0o644)
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
