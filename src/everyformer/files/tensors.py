"""A safetensors file: eight bytes (the length of the header), a JSON header, tensors."""

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.files.strict_json import read_json

NUMPY = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
"""The kinds of number that a file of a network may hold, by their names there."""

MAX_HEADER = 100_000_000
MAX_AXES = 8
CHUNK = 2**24


@dataclass(frozen=True)
class Tensors:
    """The content of a file.

    Attributes:
        metadata: The strings of its `__metadata__`.
        arrays: The tensors by name, little-endian as they lie there; writable.
        sha256: Hash of the whole file.
    """

    metadata: dict[str, str]
    arrays: dict[str, np.ndarray]
    sha256: str


@dataclass(frozen=True)
class _Entry:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def read_tensors(path: Path, max_bytes: int | float | None = None) -> Tensors:
    """Read and hash a file; no byte of it is read if it is larger than `max_bytes`.

    The header is checked before the tensors are read, so that a file with a hole costs no
    more memory than its header says.

    Raises:
        OverflowError: If the file is larger than `max_bytes`.
        ValueError: If it is not a safetensors file of numbers of these kinds.
    """
    size = path.stat().st_size
    if max_bytes is not None and size > max_bytes:
        msg = f"the file has {size:,} bytes, more than the limit of {max_bytes:,}"
        raise OverflowError(msg)
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            msg = "the file is shorter than a header"
            raise ValueError(msg)
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MAX_HEADER, size - 8):
            msg = f"the header should have {length} bytes"
            raise ValueError(msg)
        text = file.read(length)
        metadata, entries = _header(text, size - 8 - length)
        digest = hashlib.sha256(prefix + text)
        body = memoryview(bytearray(size - 8 - length))
        for start in range(0, len(body), CHUNK):
            part = body[start : start + CHUNK]
            if file.readinto(part) != len(part):  # pyright: ignore[reportAttributeAccessIssue]
                msg = "the file ends too early"
                raise ValueError(msg)
            digest.update(part)
    arrays = {
        name: np.require(
            np.frombuffer(body[entry.start : entry.stop], entry.dtype).reshape(entry.shape),
            requirements="A",
        )
        for name, entry in entries.items()
    }
    return Tensors(metadata, arrays, digest.hexdigest())


def _header(text: bytes, space: int) -> tuple[dict[str, str], dict[str, _Entry]]:
    """The strings of `__metadata__`, and where each tensor lies."""
    header = read_json(text)
    if not isinstance(header, dict):
        msg = "the header is not a JSON object"
        raise ValueError(msg)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        msg = "__metadata__ is not a JSON object of strings"
        raise ValueError(msg)
    entries = {name: _entry(name, values) for name, values in header.items()}
    places = sorted((entry.start, entry.stop) for entry in entries.values())
    starts, stops = [start for start, _ in places], [stop for _, stop in places]
    if [*starts, space] != [0, *stops]:
        msg = "the tensors do not fill the file, each byte once"
        raise ValueError(msg)
    return metadata, entries


def _entry(name: str, values: Any) -> _Entry:
    keys = {"dtype", "shape", "data_offsets"}
    if not isinstance(values, dict) or set(values) != keys:
        msg = f"the tensor {name!r} does not have a dtype, a shape and data_offsets alone"
        raise ValueError(msg)
    dtype, shape, offsets = (values[key] for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in NUMPY:
        known = ", ".join(NUMPY)
        msg = f"the tensor {name!r} has dtype {str(dtype)[:40]!r}; a network has {known}"
        raise ValueError(msg)
    if not _are_sizes(shape) or len(shape) > MAX_AXES:
        msg = f"the tensor {name!r} has shape {str(shape)[:80]}"
        raise ValueError(msg)
    if not _are_sizes(offsets) or len(offsets) != 2:
        msg = f"the tensor {name!r} has data_offsets {str(offsets)[:80]}"
        raise ValueError(msg)
    start, stop = offsets
    if stop - start != math.prod(shape) * NUMPY[dtype].itemsize:
        msg = f"the tensor {name!r} does not fit its place in the file"
        raise ValueError(msg)
    return _Entry(NUMPY[dtype], tuple(shape), start, stop)


def _are_sizes(values: Any) -> bool:
    """Whether these are whole numbers that a 64-bit computer can count to."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**62 for value in values
    )
