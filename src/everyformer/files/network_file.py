"""What a network is on disk; whoever reads one, to run it or to prove something, asks here.

A network is one safetensors file. Its metadata describe it in JSON: a version, the
architecture, the stages (name, source, and the kind where it is not the name), how it was
constructed, and the denominators of the arrays that are rationals. Rationals are integers
over one denominator, in digits of base 2^62, lowest first, as one more axis of an array of
int64.

Which kind of number an array may have is part of the format:

    positions, W_*, b_*, gain, phi.breaks, phi.slopes, phi.intercepts    F64, or I64 digits
    registers.*                                                          F64
    attention.mask, phi.closed                                           BOOL
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.errors import FileFormatError, WorkLimitError
from everyformer.files.description import check_description, check_lengths
from everyformer.files.shapes import check_shapes
from everyformer.files.strict_json import read_json
from everyformer.files.tensors import read_tensors

FORMAT = "everyformer-network"
VERSION = 1
URPE_VERSION = 2
"""Of files with a gain or a bias of the value, and of no others."""

REGISTERS_VERSION = 3
"""Of files with a read-in and a read-out, and of no others."""

SPARSE_VERSION = 4
"""Of files with masks, and of no others."""

URPE_ARRAYS = (".attention.b_V", ".attention.gain")
MASK_ARRAYS = ".attention.mask"
REGISTERS = "registers."
DIGIT = 2**62
MAX_DENOMINATOR = 4000
"""Digits of a denominator, in decimal."""

FLOAT64, DIGITS, TRUTH = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
KINDS: dict[str, tuple[np.dtype[Any], ...]] = {
    "positions": (FLOAT64, DIGITS),
    "registers.W_in": (FLOAT64,),
    "registers.start": (FLOAT64,),
    "registers.W_out": (FLOAT64,),
    "registers.prefix": (FLOAT64,),
    "attention.W_Q": (FLOAT64, DIGITS),
    "attention.b_Q": (FLOAT64, DIGITS),
    "attention.W_K": (FLOAT64, DIGITS),
    "attention.W_V": (FLOAT64, DIGITS),
    "attention.b_V": (FLOAT64, DIGITS),
    "attention.W_O": (FLOAT64, DIGITS),
    "attention.gain": (FLOAT64, DIGITS),
    "attention.mask": (TRUTH,),
    "feed_forward.W_1": (FLOAT64, DIGITS),
    "feed_forward.b_1": (FLOAT64, DIGITS),
    "feed_forward.W_2": (FLOAT64, DIGITS),
    "feed_forward.b_2": (FLOAT64, DIGITS),
    "feed_forward.phi.breaks": (FLOAT64, DIGITS),
    "feed_forward.phi.closed": (TRUTH,),
    "feed_forward.phi.slopes": (FLOAT64, DIGITS),
    "feed_forward.phi.intercepts": (FLOAT64, DIGITS),
}
"""Which kind of number each array may have; "stages.3." and the like are left out."""

MAX_MEMORY = 2**33
"""Bytes that the numbers of a file may take, unless more are allowed."""

CONTENT_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a value of the wrong type may raise."""

RATIONAL_BYTES = 40
"""Memory that one digit of a rational takes as a Fraction, for each byte on disk, about."""


@dataclass(frozen=True)
class NetworkFile:
    """A file that holds a network.

    Attributes:
        description: Its metadata.
        arrays: float64, object arrays of Fractions, or booleans, by name.
        sha256: Hash of the file.
    """

    description: dict[str, Any]
    arrays: dict[str, np.ndarray]
    sha256: str


def read_network_file(path: Path, max_memory: int | float | None = None) -> NetworkFile:
    """Read a network, and check everything that does not depend on what it computes.

    Args:
        path: The file.
        max_memory: Bytes that its numbers may take; None for as many as there are.

    Raises:
        FileNotFoundError: If there is no such file.
        WorkLimitError: If it is larger than allowed.
        FileFormatError: If it does not hold a network.
    """
    found = read_arrays(path, max_memory)
    try:
        check_kinds(found.arrays)
        check_description(found.description)
        check_shapes(found.description, found.arrays)
        check_lengths(found.description)
    except CONTENT_ERRORS as error:
        raise FileFormatError(damaged(path, error)) from error
    return found


def read_arrays(path: Path, max_memory: int | float | None = None) -> NetworkFile:
    """Read the description and the arrays, whatever they are called.

    Raises:
        FileNotFoundError: If there is no such file.
        WorkLimitError: If it is larger than allowed.
        FileFormatError: If it is not a file of ours, or one of another version.
    """
    if not path.is_file():
        msg = f"{path} is not a file. Give the .safetensors file of a network."
        raise FileNotFoundError(msg)
    try:
        tensors = read_tensors(path, max_memory)
    except OverflowError as error:
        msg = f"{path} cannot be read: {error}. Allow more with max_memory."
        raise WorkLimitError(msg) from error
    except ValueError as error:
        msg = f"{path} is not a readable safetensors file ({error}). Write it again."
        raise FileFormatError(msg) from error
    if FORMAT not in tensors.metadata:
        msg = (
            f"{path} is a safetensors file, but not one of an everyformer network. "
            "Load it with the library that wrote it."
        )
        raise FileFormatError(msg)
    try:
        description = read_json(tensors.metadata[FORMAT])
        stated = description["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(damaged(path, error)) from error
    version = version_of(tensors.arrays)
    if type(stated) is not int or stated != version:
        msg = (
            f"{path} has format version {str(stated)[:40]}, not {version}, which a file "
            "with such arrays has; versions up to 4 are known. Install the version of "
            "everyformer that wrote it, or write it again."
        )
        raise FileFormatError(msg)
    try:
        denominators = description["denominators"]
        arrays = _with_rationals(tensors.arrays, denominators, max_memory)
    except WorkLimitError as error:
        msg = f"{path} cannot be read: {error}. Allow more with max_memory."
        raise WorkLimitError(msg) from error
    except CONTENT_ERRORS as error:
        raise FileFormatError(damaged(path, error)) from error
    return NetworkFile(description, arrays, tensors.sha256)


def damaged(path: Path, error: BaseException) -> str:
    """The message on a file that has the form of ours and not the content."""
    return f"{path} is damaged: {error!r}. Write the network again."


def version_of(arrays: dict[str, np.ndarray]) -> int:
    """The version of the format: that of the first program which can read the arrays."""
    if any(name.endswith(MASK_ARRAYS) for name in arrays):
        return SPARSE_VERSION
    if any(name.startswith(REGISTERS) for name in arrays):
        return REGISTERS_VERSION
    return URPE_VERSION if any(n.endswith(URPE_ARRAYS) for n in arrays) else VERSION


def check_kinds(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that have no place in a network, or the wrong kind of number.

    Args:
        arrays: float64, object arrays of Fractions, or booleans.

    Raises:
        ValueError: Naming the first such array.
    """
    for name, array in arrays.items():
        parts = name.split(".")
        staged = parts[0] == "stages" and len(parts) > 2
        short = ".".join(parts[2:]) if staged else name
        known = KINDS.get(short)
        if known is None or staged != short.startswith(("attention.", "feed_forward.")):
            msg = f"the array {name!r} belongs to no stage, and to nothing else"
            raise ValueError(msg)
        dtype = DIGITS if array.dtype == object else array.dtype
        if dtype not in known:
            allowed = " or ".join("rationals" if k == DIGITS else k.name for k in known)
            msg = f"{name} holds numbers of the kind {array.dtype.name}, not {allowed}"
            raise ValueError(msg)
        if dtype == FLOAT64 and not np.isfinite(array).all():
            msg = f"{name} holds numbers that are not finite"
            raise ValueError(msg)
        if dtype == TRUTH and array.size and array.view(np.uint8).max() > 1:
            msg = f"{name} holds bytes that are neither true nor false"
            raise ValueError(msg)


def _with_rationals(
    arrays: dict[str, np.ndarray], denominators: Any, max_memory: int | float | None
) -> dict[str, np.ndarray]:
    """The arrays, with digits made rationals.

    Raises:
        ValueError: If there are digits without a denominator, or the other way round.
        WorkLimitError: If they would take too much memory.
    """
    if not isinstance(denominators, dict):
        msg = "the denominators are not a JSON object"
        raise TypeError(msg)
    digits = {name for name, array in arrays.items() if array.dtype == DIGITS}
    for name in sorted(digits - set(denominators)):
        msg = f"{name} holds integers without a denominator"
        raise ValueError(msg)
    for name in sorted(set(denominators) - digits):
        msg = f"there is a denominator of {name[:80]!r}, which holds no digits of rationals"
        raise ValueError(msg)
    needed = RATIONAL_BYTES * sum(arrays[name].nbytes for name in digits)
    if max_memory is not None and needed > max_memory:
        msg = f"its rationals need about {needed:,} bytes, more than {max_memory:,}"
        raise WorkLimitError(msg)
    read = {name: _rationals(arrays[name], denominators[name]) for name in digits}
    return {name: read.get(name, array) for name, array in arrays.items()}


def _rationals(digits: np.ndarray, denominator: Any) -> np.ndarray:
    """Integers in digits of base 2^62, over the denominator, as Fractions."""
    if not isinstance(denominator, str) or not (
        denominator.isascii() and denominator.isdigit()
    ):
        msg = f"the denominator {str(denominator)[:40]!r} is not the text of an integer"
        raise ValueError(msg)
    if len(denominator) > MAX_DENOMINATOR or int(denominator) == 0:
        msg = f"a denominator of {len(denominator)} digits, of {MAX_DENOMINATOR}, or 0"
        raise ValueError(msg)
    if digits.ndim == 0 or digits.shape[-1] == 0:
        msg = f"digits of shape {digits.shape} are not rationals"
        raise ValueError(msg)
    numbers = np.zeros(digits.shape[:-1], dtype=object)
    for place in reversed(range(digits.shape[-1])):
        numbers = numbers * DIGIT + digits[..., place].astype(object)
    whole = int(denominator)
    result = np.empty(numbers.shape, dtype=object)
    flat = [Fraction(number, whole) for number in numbers.reshape(-1).tolist()]
    result.reshape(-1)[:] = flat
    return result
