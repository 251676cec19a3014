"""The weights of a network as they lie on disk, read without the library that wrote them.

A safetensors file is eight bytes (the length of the header), a JSON header, and the bytes
of the tensors. Rationals are integers over one denominator, in digits of base 2^62.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everyformer.errors import CertificateError

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
REGISTERS = ("registers.W_in", "registers.start", "registers.W_out")
PREFIX_TOKENS = "registers.prefix"
DIGIT = 2**62
DTYPES = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
MAX_HEADER = 100_000_000
HALVES = {
    "attention": ("W_Q", "b_Q", "W_K", "W_V", "W_O"),
    "feed_forward": ("W_1", "b_1", "W_2", "b_2"),
}
PHI = tuple(f"phi.{name}" for name in ("breaks", "closed", "slopes", "intercepts"))


@dataclass(frozen=True)
class StageWeights:
    """A run of blocks: either attention layers or feed-forward layers, stacked.

    Attributes:
        name: What the file calls it. Names choose how a stage is examined,
            and prove nothing.
        half: "attention" or "feed_forward"; the other half of each block is the identity.
        arrays: Stacked weights by their short names; float64, or object arrays of
            Fractions.
        same_block: Whether it is the other half of the block of the stage before it.
    """

    name: str
    half: Literal["attention", "feed_forward"]
    arrays: dict[str, np.ndarray]
    same_block: bool = False

    @property
    def layers(self) -> int:
        """How many blocks."""
        return len(next(iter(self.arrays.values())))

    def layer(self, index: int) -> dict[str, np.ndarray]:
        """The weights of one block."""
        return {name: array[index] for name, array in self.arrays.items()}


@dataclass(frozen=True)
class RegisterWeights:
    """What stands around the blocks: registers = W_in x + start, result = W_out registers.

    Attributes:
        W_in: Shape (w, d), float64.
        start: Shape (n, w).
        W_out: Shape (d, w).
        prefix: Tokens before the sequence, shape (P, w), or None.
    """

    W_in: np.ndarray
    start: np.ndarray
    W_out: np.ndarray
    prefix: np.ndarray | None


@dataclass(frozen=True)
class Weights:
    """A network as numbers.

    Attributes:
        seq_len: n.
        d_model: d.
        softmax: True for softmax, False for hardmax.
        positions: E as Fractions, shape (n, d), or None.
        stages: The stages, in order.
        exact: True when the weights are rationals, False for float64.
        sha256: Hash of the file.
        registers: The read-in and the read-out, or None.
    """

    seq_len: int
    d_model: int
    softmax: bool
    positions: np.ndarray | None
    stages: tuple[StageWeights, ...]
    exact: bool
    sha256: str
    registers: RegisterWeights | None = None

    @property
    def blocks(self) -> int:
        """The depth."""
        return sum(stage.layers for stage in self.stages if not stage.same_block)

    @property
    def positional(self) -> bool:
        """Whether anything may treat positions differently: E, a gain, a mask, the read-in.

        Without all of them the network is permutation equivariant.
        """
        names = {name for stage in self.stages for name in stage.arrays}
        gains = bool(names & {"gain", "mask"})
        start = None if self.registers is None else self.registers.start
        starts = start is not None and bool((start != start[:1]).any())
        return gains or starts or self.positions is not None


def read_weights(path: Path) -> Weights:
    """Read and check a file that `Network.save` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        CertificateError: If it is not such a file, or its numbers cannot be weights.
    """
    if not path.is_file():
        msg = f"There is no file {path}. Give a folder that `everyformer construct` wrote."
        raise FileNotFoundError(msg)
    data = path.read_bytes()
    try:
        header, tensors = read_tensors(data)
        description = json.loads(header["__metadata__"][FORMAT])
        relative = any(name.endswith(URPE_ARRAYS) for name in tensors)
        version = URPE_VERSION if relative else VERSION
        if any(name.startswith("registers.") for name in tensors):
            version = REGISTERS_VERSION
        if any(name.endswith(MASK_ARRAYS) for name in tensors):
            version = SPARSE_VERSION
        if description["version"] != version:
            msg = f"it has format version {description['version']}, not {version}"
            raise ValueError(msg)
        return _weights(description, tensors, hashlib.sha256(data).hexdigest())
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        msg = f"{path} does not hold the weights of a network: {error!r}. Write it again."
        raise CertificateError(msg) from error


def read_tensors(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors of a safetensors file.

    Raises:
        ValueError: If it is not one.
    """
    if len(data) < 8:
        msg = "the file is shorter than a header"
        raise ValueError(msg)
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MAX_HEADER, len(data) - 8):
        msg = f"the header should have {length} bytes"
        raise ValueError(msg)
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    tensors: dict[str, np.ndarray] = {}
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    pairs = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
    if [start for start, _ in pairs] + [len(body)] != [0, *(stop for _, stop in pairs)]:
        msg = "the tensors do not fill the file, each byte once"
        raise ValueError(msg)
    for name, entry in entries.items():
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        count = int(np.prod(shape, dtype=object))
        if not 0 <= start <= stop <= len(body) or stop - start != count * dtype.itemsize:
            msg = f"{name} does not fit its place in the file"
            raise ValueError(msg)
        tensors[name] = np.frombuffer(body[start:stop], dtype).reshape(shape)
    return header, tensors


def _weights(
    description: dict[str, Any], tensors: dict[str, np.ndarray], sha256: str
) -> Weights:
    arrays = dict(tensors)
    for name, denominator in description["denominators"].items():
        arrays[name] = _rationals(arrays[name], int(denominator))
    for name, array in arrays.items():
        if array.dtype == np.float64 and not np.isfinite(array).all():
            msg = f"{name} holds numbers that are not finite"
            raise ValueError(msg)
        if array.dtype == np.int64:
            msg = f"{name} holds integers without a denominator"
            raise ValueError(msg)
    spec = description["architecture"]
    kinds = {
        array.dtype == object
        for name, array in arrays.items()
        if name != "positions" and array.dtype != bool and name.startswith("stages.")
    }
    if len(kinds) != 1 or spec["normaliser"] not in ("softmax", "hardmax"):
        msg = "float64 and rationals are mixed, or the normaliser is unknown"
        raise ValueError(msg)
    n, d = int(spec["seq_len"]), int(spec["d_model"])
    registers = _registers(arrays, n, d)
    width = d if registers is None else len(registers.W_in)
    stages = tuple(_stages(description["stages"], arrays, n, width))
    known = sum(len(stage.arrays) for stage in stages)
    positions = arrays.get("positions")
    known += sum(name in arrays for name in (*REGISTERS, PREFIX_TOKENS))
    if known + (positions is not None) != len(arrays):
        msg = "there are arrays that belong to no stage"
        raise ValueError(msg)
    if positions is not None:
        if positions.shape != (n, d):
            msg = f"positions have shape {positions.shape}, not {(n, d)}"
            raise ValueError(msg)
        positions = to_fractions(positions)
    for stage in stages:
        breaks = stage.arrays.get(PHI[0])
        if breaks is not None and not (breaks[..., 0] < breaks[..., 1]).all():
            msg = f"the stage {stage.name!r} has breaks that do not increase"
            raise ValueError(msg)
    softmax, exact = spec["normaliser"] == "softmax", kinds.pop()
    layers = [stage.arrays for stage in stages if stage.half == "feed_forward"]
    if softmax == exact or any((PHI[0] in arrays) != exact for arrays in layers):
        msg = (
            "only softmax with ReLU in float64 and hardmax with Phi in rationals are known"
        )
        raise ValueError(msg)
    if registers is not None and (exact or positions is not None):
        msg = "a network with registers has float64 weights, and no positions besides"
        raise ValueError(msg)
    return Weights(n, d, softmax, positions, stages, exact, sha256, registers)


def _registers(arrays: dict[str, np.ndarray], n: int, d: int) -> RegisterWeights | None:
    found = [arrays.get(name) for name in REGISTERS]
    prefix = arrays.get(PREFIX_TOKENS)
    W_in, start, W_out = found
    if W_in is None or start is None or W_out is None:
        if any(part is not None for part in (*found, prefix)):
            msg = "a part of the read-in or the read-out is missing"
            raise ValueError(msg)
        return None
    w = len(W_in)
    shapes = [W_in.shape, start.shape, W_out.shape]
    kinds = {part.dtype for part in (W_in, start, W_out, prefix) if part is not None}
    wrong = prefix is not None and (prefix.ndim != 2 or prefix.shape[1] != w)
    if shapes != [(w, d), (n, w), (d, w)] or wrong or kinds != {np.dtype(np.float64)}:
        msg = f"the read-in and the read-out have shapes {shapes}"
        raise ValueError(msg)
    return RegisterWeights(W_in, start, W_out, prefix)


def _stages(
    names: list[list[str]], arrays: dict[str, np.ndarray], n: int, d: int
) -> Iterator[StageWeights]:
    for index, (name, _) in enumerate(names):
        prefix = f"stages.{index}."
        own = {
            key.removeprefix(prefix): array
            for key, array in arrays.items()
            if key.startswith(prefix)
        }
        halves = sorted({key.split(".")[0] for key in own})
        one_block = all(len(array) == 1 for array in own.values())
        whole = halves == ["attention", "feed_forward"] and one_block
        if halves not in (["attention"], ["feed_forward"]) and not whole:
            msg = f"the stage {name!r} has {halves}, not one half of each block"
            raise ValueError(msg)
        for half in halves:
            short = {
                key.removeprefix(f"{half}."): array
                for key, array in own.items()
                if key.startswith(f"{half}.")
            }
            _check_shapes(name, half, short, n, d)
            second = half != halves[0]
            yield StageWeights(name, half, short, second)  # pyright: ignore[reportArgumentType]


def _check_shapes(
    name: str, half: str, arrays: dict[str, np.ndarray], n: int, d: int
) -> None:
    first = arrays[HALVES[half][0]]
    if half == "attention":
        layers, h, m, _ = first.shape
        row, column = (layers, h, m, d), (layers, h, d, m)
        shapes = {"W_Q": row, "b_Q": row[:3], "W_K": row, "W_V": row, "W_O": column}
        optional = {"b_V": row[:3], "gain": (layers, h, 2 * n - 1), "mask": (layers, n, n)}
        shapes |= {key: shape for key, shape in optional.items() if key in arrays}
    else:
        layers, r, _ = first.shape
        shapes = {"W_1": (layers, r, d), "b_1": (layers, r), "W_2": (layers, d, r)}
        shapes["b_2"] = (layers, d)
        if PHI[0] in arrays:
            sizes = (2, 2, 3, 3)
            shapes |= {k: (layers, r, size) for k, size in zip(PHI, sizes, strict=True)}
    found = {key: array.shape for key, array in arrays.items()}
    if found != shapes or layers == 0:
        msg = f"the stage {name!r} has arrays of shapes {found}, expected {shapes}"
        raise ValueError(msg)
    mask = arrays.get("mask")
    if mask is not None and (mask.dtype != bool or not mask.any(axis=-1).all()):
        msg = f"the stage {name!r} has a mask that leaves a token nothing to attend to"
        raise ValueError(msg)


def _rationals(digits: np.ndarray, denominator: int) -> np.ndarray:
    """Integers in digits of base 2^62, over the denominator, as Fractions."""
    numbers = np.zeros(digits.shape[:-1], dtype=object)
    for place in reversed(range(digits.shape[-1])):
        numbers = numbers * DIGIT + digits[..., place].astype(object)
    result = np.empty(numbers.shape, dtype=object)
    flat = [Fraction(number, denominator) for number in numbers.reshape(-1).tolist()]
    result.reshape(-1)[:] = flat
    return result


def to_fractions(array: np.ndarray) -> np.ndarray:
    """Every entry as a Fraction; float64 numbers are the dyadic rationals they are."""
    result = np.empty(array.shape, dtype=object)
    result.reshape(-1)[:] = [Fraction(value) for value in array.reshape(-1).tolist()]
    return result
