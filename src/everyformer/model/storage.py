"""Named arrays on disk: one safetensors file, bit-exact for float64 and for rationals.

A float64 array is one tensor. An array of rationals is stored as integers over one common
denominator D: a tensor of int64 with one more axis, the digits of D * value in base 2^62,
lowest first (the sign is on every digit), and D in the metadata.
"""

import json
import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from everyformer.files.network_file import FORMAT, NetworkFile, version_of
from everyformer.numerics.rationals import common_denominator, exact_array

_DIGIT_BITS = 62


def write_arrays(
    path: Path, arrays: dict[str, np.ndarray], description: dict[str, Any]
) -> None:
    """Write arrays and a description; the file appears complete or not at all."""
    tensors: dict[str, np.ndarray] = {}
    denominators: dict[str, str] = {}
    for name, array in arrays.items():
        if array.dtype == object:
            tensors[name], denominator = _digits(array)
            denominators[name] = str(denominator)
        else:
            tensors[name] = np.ascontiguousarray(array)
    version = version_of(arrays)
    header = {"version": version, "denominators": denominators, **description}
    with whole_or_not(path) as temporary:
        _save(tensors, temporary, {FORMAT: json.dumps(header)})


@contextmanager
def whole_or_not(path: Path) -> Generator[str]:
    """A place to write to, which becomes the file if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield temporary
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _save(tensors: dict[str, np.ndarray], path: str, metadata: dict[str, str]) -> None:
    """Write a safetensors file.

    Raises:
        OSError: If it cannot be written; safetensors has an error of its own for that.
    """
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def simplified(found: NetworkFile) -> dict[str, np.ndarray]:
    """The arrays of a file, rationals as ints where they are."""
    return {
        name: exact_array(array) if array.dtype == object else array
        for name, array in found.arrays.items()
    }


def _digits(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Integers D * value as signed digits in base 2^62, and D."""
    denominator = common_denominator([array])
    numbers = exact_array(array * denominator)
    signs = np.where(np.asarray(numbers < 0, dtype=bool), -1, 1)
    rest = abs(numbers)
    digits: list[np.ndarray] = []
    while True:
        digits.append((rest % (1 << _DIGIT_BITS)).astype(np.int64) * signs)
        rest = rest // (1 << _DIGIT_BITS)
        if not np.asarray(rest, dtype=bool).any():
            return np.stack(digits, axis=-1), denominator
