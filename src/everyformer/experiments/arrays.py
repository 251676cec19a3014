"""Arrays of cells in a file beside the results: `<cell>:<name>` in a `.npz`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from everyformer.errors import FileFormatError
from everyformer.train.run_folder import replace_whole

Arrays = Mapping[str, Mapping[str, np.ndarray]]
"""By name of a cell, then by a name of its own."""


def name_of(labels: Mapping[str, str | int]) -> str:
    """The name of a cell: its labels, joined."""
    return "/".join(map(str, labels.values()))


def load_arrays(path: Path, what: str) -> dict[str, dict[str, np.ndarray]]:
    """The file that `save_arrays` wrote; nothing without such a file.

    Args:
        path: The file.
        what: It holds, for the error.

    Raises:
        FileFormatError: If it is damaged, or no such file. Nothing in it is executed.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    if not path.exists():
        return found
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            for key in stored.files:
                cell, _, name = key.rpartition(":")
                found.setdefault(cell, {})[name] = stored[key]
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        msg = (
            f"{path} cannot be read as {what} ({error}). Delete it: --resume makes those "
            "of cells whose checkpoints are on this machine anew."
        )
        raise FileFormatError(msg) from error
    return found


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Replace the file whole; 32 bits for a number, and bytes as they are."""
    named = {
        f"{cell}:{name}": _narrow(values)
        for cell, own in arrays.items()
        for name, values in own.items()
    }
    replace_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **named))


def _narrow(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:  # texts
        return values
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
