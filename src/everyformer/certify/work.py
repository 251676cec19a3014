"""What a verification will cost, from the sizes in the files, before any of it is done.

The estimates are rough, within a factor of about ten: they tell seconds from hours. They
are made of sizes that the files state, so that they cost nothing themselves.

    cells          K^(nd), or multisets of n out of K^d, where only orbits are examined
    lines of f     each with its slopes: one by every entry of x that it may use
    weights        numbers in the file
"""

import math
from dataclasses import dataclass
from pathlib import Path

from everyformer.certify.certificate import CERTIFICATE_FILE, VALUES_FILE
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.refinement import most_parts
from everyformer.certify.weights import Weights
from everyformer.errors import WorkLimitError
from everyformer.files.network_file import MAX_MEMORY
from everyformer.targets.box import Grid

MAX_WORK = 1800.0
"""Seconds on one core that a verification may take, unless more are allowed."""

CHUNK = 8192
"""Cells that are enclosed at a time."""

PER_BYTE = 2e-7
PER_CELL = 2e-5
PER_LINE = 1e-4
PER_LINE_AND_CELL = 5e-8
PER_WEIGHT = 2e-6
"""Seconds on one core: guesses of the order of magnitude, not calibrated."""

MOST_CELLS = 2**62
"""Cells that can be numbered."""


@dataclass(frozen=True)
class Limits:
    """What a verification may cost.

    Attributes:
        work: Estimated seconds on one core.
        memory: Estimated bytes.
    """

    work: int | float = MAX_WORK
    memory: int | float = MAX_MEMORY

    def check(self, what: str, seconds: int | float, memory: int | float) -> None:
        """Refuse what is estimated to cost more.

        Raises:
            WorkLimitError: With the numbers, and how to allow more.
        """
        if not seconds <= self.work:
            msg = (
                f"{what} would take about {seconds:.3g} seconds on one core, more than the "
                f"limit of {self.work:g}. If you trust the files, allow more with max_work "
                "(--max-work)."
            )
            raise WorkLimitError(msg)
        if not memory <= self.memory:
            msg = (
                f"{what} would need about {memory:.3g} bytes, more than the limit of "
                f"{self.memory:.3g}. If you trust the files, allow more with max_memory "
                "(--max-memory)."
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


def check_cells(grid: Grid, *, symmetric: bool, most: int) -> int:
    """How many cells are to be examined.

    Raises:
        WorkLimitError: If there are more than `most`, or cells cannot be numbered.
    """
    bits = math.log2(grid.cells) * grid.d_model * grid.seq_len
    if bits <= 62:
        count = grid.num_multisets if symmetric else grid.sequences
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


def check_work(
    weights: Weights, grid: Grid, count: int, size: ProgramSize | None, limits: Limits
) -> None:
    """Refuse a verification that would cost more than is allowed.

    Args:
        weights: The network.
        grid: n, K and the box.
        count: How many cells are to be examined.
        size: Of the program of f, or None where f is known by its values.
        limits: What is allowed.

    Raises:
        WorkLimitError: With the numbers.
    """
    n, d = grid.seq_len, grid.d_model
    N = n * d
    numbers = sum(a.size for stage in weights.stages for a in stage.arrays.values())
    held = weights.registers
    prefix = held is not None and held.prefix is not None
    if held is not None:
        numbers += held.start.size + (0 if held.prefix is None else held.prefix.size)
    anchors = 0 if held is None or held.prefix is None else len(held.prefix)
    cells = max(count, anchors)
    seconds = cells * PER_CELL + numbers * PER_WEIGHT
    memory = 100.0 * numbers + 40.0 * cells * N
    if size is not None:
        chunk = min(cells, CHUNK)
        parts = 0 if prefix else most_parts(size.slopes, -(-cells // CHUNK))
        order = N if prefix else 1  # a partition needs second derivatives
        slopes = size.lines + (size.slopes - size.lines) * order
        boxes = cells + parts * -(-cells // CHUNK)  # cells may be bisected
        seconds += slopes * (PER_LINE * -(-cells // CHUNK) + PER_LINE_AND_CELL * boxes)
        memory += 16.0 * chunk * (size.alive * order + N * N * order)
    limits.check(f"Examining {cells:,} cells", seconds, memory)
