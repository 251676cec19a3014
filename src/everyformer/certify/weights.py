"""The weights of a network as they lie on disk, for the prover.

What a network is on disk says `files.network_file`, for whoever reads one; here stands
which networks the prover follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everyformer.certify.padding import without_padding
from everyformer.errors import CertificateError, FileFormatError
from everyformer.files.description import StageKind, kind_of
from everyformer.files.names import check_there
from everyformer.files.network_file import read_network_file
from everyformer.files.shapes import AROUND, PHI, PREFIX, stages_of


@dataclass(frozen=True)
class StageWeights:
    """A run of blocks: either attention layers or feed-forward layers, stacked.

    Attributes:
        name: What the file calls it; for people.
        half: "attention" or "feed_forward"; the other half of each block is the identity.
        arrays: Stacked weights by their short names; float64, or object arrays of
            Fractions. Without what is 0 at the end of heads and units (`certify.padding`).
        same_block: Whether it is the other half of the block of the stage before it.
        kind: Which step of a construction the file says it is. A hint: it chooses how the
            stage is examined, and proves nothing.
    """

    name: str
    half: Literal["attention", "feed_forward"]
    arrays: dict[str, np.ndarray]
    same_block: bool = False
    kind: StageKind | None = None

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
        program: What a compiled network says of itself: hints, as parsed JSON; or None.
    """

    seq_len: int
    d_model: int
    softmax: bool
    positions: np.ndarray | None
    stages: tuple[StageWeights, ...]
    exact: bool
    sha256: str
    registers: RegisterWeights | None = None
    program: Any = None

    @property
    def blocks(self) -> int:
        """The depth: how many blocks all stages have together."""
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


def read_weights(path: Path, max_memory: int | float | None = None) -> Weights:
    """Read and check a file that `Network.save` wrote.

    Args:
        path: The file.
        max_memory: Bytes that its numbers may take; None for as many as there are.

    Raises:
        FileNotFoundError: If there is no such file.
        WorkLimitError: If it is larger than allowed.
        CertificateError: If it does not hold a network, or not one that is followed.
    """
    check_there(path)
    try:
        found = read_network_file(path, max_memory)
    except FileFormatError as error:
        msg = f"{path} does not hold the weights of a network. {error}"
        raise CertificateError(msg) from error
    try:
        return _weights(found.description, found.arrays, found.sha256)
    except ValueError as error:
        msg = f"{path} holds a network, but not one that can be followed: {error}."
        raise CertificateError(msg) from error


def _weights(
    description: dict[str, Any], arrays: dict[str, np.ndarray], sha256: str
) -> Weights:
    spec = description["architecture"]
    softmax = spec["normaliser"] == "softmax"
    W_in, start, W_out = (arrays.get(name) for name in AROUND)
    registers = None
    if W_in is not None and start is not None and W_out is not None:
        registers = RegisterWeights(W_in, start, W_out, arrays.get(PREFIX))
    stages = tuple(_stages(description["stages"], arrays))
    positions = arrays.get("positions")
    exact = any(a.dtype == object for stage in stages for a in stage.arrays.values())
    layers = [stage.arrays for stage in stages if stage.half == "feed_forward"]
    if softmax == exact or any((PHI[0] in own) != exact for own in layers):
        msg = (
            "only softmax with ReLU in float64 and hardmax with Phi in rationals are known"
        )
        raise ValueError(msg)
    if registers is not None and exact:
        msg = "a network with registers has float64 weights"
        raise ValueError(msg)
    masked = any("mask" in stage.arrays for stage in stages)
    if masked and registers is not None and registers.prefix is not None:
        msg = "masks are not followed beside prefix tokens"
        raise ValueError(msg)
    said = description.get("program")
    return Weights(
        seq_len=spec["seq_len"],
        d_model=spec["d_model"],
        softmax=softmax,
        positions=None if positions is None else to_fractions(positions),
        stages=stages,
        exact=exact,
        sha256=sha256,
        registers=registers,
        program=None if said is None else said["claims"],
    )


def _stages(
    listed: list[list[str | None]], arrays: dict[str, np.ndarray]
) -> Iterator[StageWeights]:
    for entry, halves in zip(listed, stages_of(len(listed), arrays), strict=True):
        name, kind = str(entry[0]), kind_of(entry)
        one_block = all(len(a) == 1 for own in halves.values() for a in own.values())
        if len(halves) > 1 and not one_block:
            msg = f"the stage {name!r} has {list(halves)}, not one half of each block"
            raise ValueError(msg)
        for number, (half, own) in enumerate(halves.items()):
            used = without_padding(half, own)
            yield StageWeights(name, half, used, number > 0, kind)  # pyright: ignore[reportArgumentType]


def to_fractions(array: np.ndarray) -> np.ndarray:
    """Every entry as a Fraction; float64 numbers are the dyadic rationals they are."""
    result = np.empty(array.shape, dtype=object)
    result.reshape(-1)[:] = [Fraction(value) for value in array.reshape(-1).tolist()]
    return result
