"""Named arrays on disk: one safetensors file, bit-exact for float64 and for rationals.

A float64 array is one tensor. An array of rationals is stored as integers over one common
denominator D: a tensor of int64 with one more axis, the digits of D * value in base 2^62,
lowest first (the sign is on every digit), and D in the metadata.
"""

import json
import os
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from everyformer.errors import FileFormatError
from everyformer.model.registers import PREFIX
from everyformer.numerics.rationals import common_denominator, exact_array

FORMAT = "everyformer-network"
VERSION = 1
URPE_VERSION = 2
"""Of files with a gain or a bias of the value, which earlier programs cannot read."""

REGISTERS_VERSION = 3
"""Of files with a read-in and a read-out."""

SPARSE_VERSION = 4
"""Of files with masks."""

URPE_ARRAYS = (".attention.b_V", ".attention.gain")
MASK_ARRAYS = ".attention.mask"
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
    version = URPE_VERSION if any(n.endswith(URPE_ARRAYS) for n in arrays) else VERSION
    if any(name.startswith(PREFIX) for name in arrays):
        version = REGISTERS_VERSION
    if any(name.endswith(MASK_ARRAYS) for name in arrays):
        version = SPARSE_VERSION
    header = {"version": version, "denominators": denominators, **description}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, temporary, {FORMAT: json.dumps(header)})
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the description and the arrays that `write_arrays` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        FileFormatError: If it is not a file of ours, or one of another version.
    """
    if not path.is_file():
        msg = f"{path} is not a file. Give the .safetensors file of a network."
        raise FileNotFoundError(msg)
    try:
        with safe_open(path, framework="numpy") as file:
            header = _header(path, file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        msg = f"{path} is not a readable safetensors file ({error}). Write it again."
        raise FileFormatError(msg) from error
    try:
        for name, denominator in header["denominators"].items():
            arrays[name] = _from_digits(arrays[name], int(denominator))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        msg = f"{path} is damaged: {error!r}. Write the network again."
        raise FileFormatError(msg) from error
    return header, arrays


def _header(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if FORMAT not in metadata:
        msg = (
            f"{path} is a safetensors file, but not one of an everyformer network. "
            "Load it with the library that wrote it."
        )
        raise FileFormatError(msg)
    try:
        header = json.loads(metadata[FORMAT])
        version = header["version"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path} is damaged: {error!r}. Write the network again."
        raise FileFormatError(msg) from error
    if version not in (VERSION, URPE_VERSION, REGISTERS_VERSION, SPARSE_VERSION):
        msg = (
            f"{path} has format version {version}, this program reads {VERSION} to "
            f"{SPARSE_VERSION}. Install the version of everyformer that wrote it."
        )
        raise FileFormatError(msg)
    return header


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


def _from_digits(digits: np.ndarray, denominator: int) -> np.ndarray:
    """The inverse of `_digits`."""
    numbers = np.zeros(digits.shape[:-1], dtype=object)
    for place in reversed(range(digits.shape[-1])):
        numbers = numbers * (1 << _DIGIT_BITS) + digits[..., place].astype(object)
    return exact_array(numbers * Fraction(1, denominator))
