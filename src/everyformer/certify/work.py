"""What a verification will cost, from the sizes in the files, before any of it is done.

The estimates are within a factor of about three for honest networks that take longer than
half a second (docs/certificates.md). They are made of sizes that the files state, so that
they cost nothing themselves.

    cells          K^(nd), or multisets of n out of K^d, where only orbits are examined
    lines of f     each with its slopes: one by every entry of x that it may use
    weights        numbers in the file
"""

import math
from dataclasses import dataclass
from pathlib import Path

from everyformer.certify.compile.algebra.sorting import MOST_WIRES
from everyformer.certify.compile.claims import Claimed
from everyformer.certify.on_cells.refinement import most_parts
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.weights import Weights
from everyformer.errors import WorkLimitError
from everyformer.files.names import CERTIFICATE_FILE, VALUES_FILE
from everyformer.files.network_file import MAX_MEMORY
from everyformer.numerics.expression import Expression
from everyformer.numerics.limits import check_limit
from everyformer.targets.box import Grid
from everyformer.targets.region import Region

MAX_WORK = 1800.0
"""Seconds on one core that a verification may take, unless more are allowed."""

CHUNK = 8192
"""Cells that are enclosed at a time."""

PER_BYTE = 2e-7
PER_CELL = 2e-5
PER_LINE = 4e-5
PER_LINE_AND_CELL = 5e-8
PER_WEIGHT = 4e-6
PER_PROGRAM_LINE = 2e-4
PER_TERM = 1e-5
PER_COLUMN = 0.2
PER_MERGED = 1e-8
PER_SCORE = 1e-8
"""Seconds on one core, chosen by what `everyformer bench work` measured."""

PER_OBJECT = 500.0
"""Bytes of a line of f, as read from JSON and as an object."""


@dataclass(frozen=True)
class Limits:
    """What a verification may cost.

    Attributes:
        work: Estimated seconds on one core.
        memory: Estimated bytes.
    """

    work: int | float = MAX_WORK
    memory: int | float = MAX_MEMORY

    def __post_init__(self) -> None:
        """Refuse what is not a limit.

        Raises:
            InputError: With what was given.
        """
        check_limit("max_work", self.work, "seconds")
        check_limit("max_memory", self.memory, "bytes")

    def check(self, what: str, seconds: int | float, memory: int | float) -> None:
        """Refuse what is estimated to cost more.

        Raises:
            WorkLimitError: With the numbers, and how to allow more.
        """
        if not seconds <= self.work:
            msg = (
                f"{what} would take about {seconds:.3g} seconds on one core, more than the "
                f"limit of {float(self.work):g}. If you trust the files, allow more with "
                "max_work (--max-work)."
            )
            raise WorkLimitError(msg)
        if not memory <= self.memory:
            msg = (
                f"{what} would need about {memory:.3g} bytes, more than the limit of "
                f"{float(self.memory):.3g}. If you trust the files, allow more with "
                "max_memory (--max-memory)."
            )
            raise WorkLimitError(msg)


def check_files(folder: Path, limits: Limits) -> None:
    """Refuse files beside the weights by their size, before they are read.

    JSON takes about thirty times its text as objects of Python.

    Raises:
        WorkLimitError: Naming the file.
    """
    for name, factor in ((CERTIFICATE_FILE, 30), (VALUES_FILE, 4)):
        path = folder / name
        size = path.stat().st_size if path.is_file() else 0
        seconds = size * PER_BYTE if name == CERTIFICATE_FILE else 0.0
        limits.check(f"Reading {path} of {size:,} bytes", seconds, float(factor * size))


def check_cells(
    grid: Grid, *, symmetric: bool, most: int, region: Region | None = None
) -> int:
    """How many cells are to be examined, or pieces of a region.

    Raises:
        WorkLimitError: If there are more than `most`, or cells cannot be numbered.
    """
    bits = math.log2(grid.cells) * grid.d_model * grid.seq_len
    if bits <= 62:
        count = grid.num_multisets if symmetric else grid.sequences
        count = count if region is None else region.count(grid)
        if count <= most:
            return count
        bits = math.log2(count)
        text = f"{count:,} cells"
    else:
        text = f"about 2^{bits:.6g} cells"
    hours = math.inf if bits > 900 else 2.0**bits * PER_CELL / 3600
    msg = (
        f"{text} would have to be examined, more than the limit of {most:,}: about "
        f"{hours:.1f} hours on one core. Use a coarser grid."
    )
    raise WorkLimitError(msg)


@dataclass(frozen=True)
class Examined:
    """What a verification examines, in numbers.

    Attributes:
        cells: Cells or orbits of f; with prefix tokens not fewer than these.
        entries: N = n d.
        weights: Numbers of the network.
        anchored: Whether there are prefix tokens, and so second derivatives of f.
        size: Of the program of f, or None where f is known by its values.
    """

    cells: int
    entries: int
    weights: int
    anchored: bool
    size: ProgramSize | None

    @classmethod
    def of(
        cls, weights: Weights, grid: Grid, count: int, size: ProgramSize | None
    ) -> "Examined":
        """The numbers of a network, and of so many cells."""
        held = weights.registers
        prefix = None if held is None else held.prefix
        numbers = sum(a.size for stage in weights.stages for a in stage.arrays.values())
        if held is not None:
            numbers += held.start.size + (0 if prefix is None else prefix.size)
        cells = count if prefix is None else max(count, len(prefix))
        N = grid.seq_len * grid.d_model
        return cls(cells, N, numbers, prefix is not None, size)

    @property
    def order(self) -> int:
        """How many numbers there are for each slope: second derivatives are N for one."""
        return self.entries if self.anchored else 1

    @property
    def seconds(self) -> int | float:
        """On one core."""
        fixed = self.cells * PER_CELL + self.weights * PER_WEIGHT
        if self.size is None:
            return fixed
        slopes = self.size.lines + (self.size.slopes - self.size.lines) * self.order
        chunks = -(-self.cells // CHUNK)
        parts = 0 if self.anchored else most_parts(self.size.slopes, chunks)
        boxes = self.cells + parts * chunks  # cells may be bisected
        return fixed + slopes * (PER_LINE * chunks + PER_LINE_AND_CELL * boxes)

    @property
    def memory(self) -> int | float:
        """An estimate of the memory that the work takes, in bytes."""
        fixed = 100.0 * self.weights + 40.0 * self.cells * self.entries
        if self.size is None:
            return fixed
        chunk = min(self.cells, CHUNK)
        held = self.size.alive * self.order + self.entries**2 * self.order
        return fixed + PER_OBJECT * self.size.lines + 16.0 * chunk * held


def check_work(examined: Examined, limits: Limits) -> None:
    """Refuse a verification that would cost more than is allowed.

    Raises:
        WorkLimitError: With the numbers.
    """
    what = f"Examining {examined.cells:,} cells"
    limits.check(what, examined.seconds, examined.memory)


def check_program(
    weights: Weights, f: Expression, claimed: Claimed, limits: Limits
) -> None:
    """Refuse to follow a compiled network that would cost more than is allowed.

    Every head and every unit has a term for each token and component, and heads that attend
    or mix one for each pair of tokens. Heads that are claimed to move tokens have as many
    weights to be compared, but no more terms. A function of one number is a proof of its
    own: 0.002 to 0.04 seconds for knots that are made for it; for others it is given up
    after about one. For a claimed sort of n tokens f's lines are built again, and a network
    is tried on all merges, in about n^3 bytes.

    Raises:
        WorkLimitError: With the numbers.
    """
    n, terms, numbers, weighed, scores = weights.seq_len, 0, 0, 0, 0
    block = -1
    held = weights.registers
    P = 0 if held is None or held.prefix is None else len(held.prefix)
    for stage in weights.stages:
        block += not stage.same_block
        for name, array in stage.arrays.items():
            numbers += array.size
            if name == "W_Q":
                _, h, m = array.shape[:3]
                moves = claimed.moves[block] if block < len(claimed.moves) else 0
                moves = min(moves, h)
                terms += (h - moves) * n * n * m + moves * n * m
                weighed += moves * n * (n + P)
                scores += h * m * n * (n + P)
            elif name == "W_1":
                terms += n * array.shape[1]
    seconds = len(f.nodes) * PER_PROGRAM_LINE + numbers * PER_WEIGHT
    seconds += (terms + weighed) * PER_TERM
    seconds += scores * PER_SCORE + claimed.columns * PER_COLUMN
    seconds += claimed.sorts * (n**2 * PER_TERM + n**3 * PER_MERGED)
    memory = PER_OBJECT * (4 * len(f.nodes) + terms) + 100.0 * numbers
    memory += 64.0 * n * (n + P) * bool(scores)
    if claimed.sorts and n <= MOST_WIRES:
        memory += float(n**3)  # n^3/4 for 0-1 inputs, and three copies of half a round
    limits.check(f"Following {weights.blocks:,} blocks", seconds, memory)
