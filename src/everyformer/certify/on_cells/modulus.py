"""A declared modulus of continuity against the values that f has at the cells' centres.

Centres k cells apart, in every coordinate at most, are within k max(w)/K of each other. If
their values differ by more than omega(k max(w)/K), the declaration is false. For a
Lipschitz constant k = 1 finds every contradiction: a long step is made of short ones.

Centres are rounded, by 2^-53 of the farthest end each. What a step is longer by, as a share
of it, is granted to omega: enough for a constant, and for all that is concave.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.on_cells.cells import Cells
from everyformer.errors import CertificateError
from everyformer.targets.box import Grid

MAX_CELLS = 2**22
LARGEST = 2**1023
ROUNDING = 2.0**-40
"""Share of its size by which a computed value of f may be off before it counts."""


@dataclass(frozen=True)
class Contradiction:
    """Two cells whose values differ by more than was declared.

    Attributes:
        cells: Their column numbers, (2, n).
        entry: Token and coordinate of the output.
        gap: By how much the values differ.
        allowed: What the declaration allows.
    """

    cells: np.ndarray
    entry: tuple[int, int]
    gap: float
    allowed: float

    def describe(self, grid: Grid) -> str:
        """Both cells in words."""
        first, second = (grid.describe(cell) for cell in self.cells)
        j, i = self.entry
        return (
            f"entry [{j}, {i}] of f differs by {self.gap:.6g} between {first} and "
            f"{second}; the declared modulus allows {self.allowed:.6g}"
        )


def step_sizes(grid: Grid) -> tuple[int, ...]:
    """Distances in cells at which a modulus is held against the values: 1, 2, 4, ..."""
    return tuple(1 << e for e in range(grid.cells.bit_length()) if 1 << e < grid.cells)


def step_length(grid: Grid, step: int) -> Fraction:
    """The distance of centres `step` cells apart, at most."""
    return step * max(grid.box.widths) / grid.cells


def _longer(grid: Grid, step: int) -> float:
    """By which share of it a step between rounded centres may be longer, at most 1."""
    farthest = max(map(abs, (*grid.box.lows, *grid.box.highs)))
    return float(min(Fraction(farthest) / 2**51 / step_length(grid, step), 1))


def half_cell(grid: Grid) -> Fraction:
    """The distance of a point of a cell from its centre, at most."""
    return max(grid.box.widths) / (2 * grid.cells)


def contradiction(
    cells: Cells, values: np.ndarray, allowed: dict[int, Fraction]
) -> Contradiction | None:
    """Two cells that contradict a declaration, or None.

    Args:
        cells: The cells.
        values: f at the centre of each representative, (count, n, d).
        allowed: omega(k max(w)/K) for distances k in cells.

    Raises:
        CertificateError: If a value is not finite: it contradicts any declaration.
    """
    grid = cells.grid
    if not np.isfinite(values).all():
        msg = "f has values at the cells' centres that are not finite. Restrict the domain."
        raise CertificateError(msg)
    if grid.sequences > MAX_CELLS:
        return None
    everywhere = _on_all_cells(cells, values)  # [K^(nd), n, d]
    shape = (grid.cells,) * (grid.seq_len * grid.d_model)
    for step, exact in sorted(allowed.items()):
        omega = float(exact) if exact < LARGEST else math.inf
        granted = omega * (1 + _longer(grid, step))
        for j, i in np.ndindex(grid.seq_len, grid.d_model):
            field = everywhere[:, j, i].reshape(shape)
            gap = _highest_nearby(field, step) - field
            limit = granted + (np.abs(field).max() + omega) * ROUNDING
            if (gap > limit).any():
                low = np.unravel_index(int(np.argmax(gap)), shape)
                return _found(grid, field, low, step, (j, i), omega)
    return None


def _found(
    grid: Grid,
    field: np.ndarray,
    low: tuple[np.intp, ...],
    step: int,
    entry: tuple[int, int],
    omega: float,
) -> Contradiction:
    window = tuple(slice(max(int(k) - step, 0), int(k) + step + 1) for k in low)
    inside = np.unravel_index(int(np.argmax(field[window])), field[window].shape)
    high = tuple(int(k) + cut.start for k, cut in zip(inside, window, strict=True))
    lowest = tuple(int(k) for k in low)
    places = [np.ravel_multi_index(place, field.shape) for place in (lowest, high)]
    rows = Cells(grid, None).rows(0, grid.sequences)[places]
    return Contradiction(rows, entry, float(field[high] - field[lowest]), omega)


def _highest_nearby(field: np.ndarray, step: int) -> np.ndarray:
    """The maximum over the cube of half-width `step` cells around each cell."""
    for axis in range(field.ndim):
        highest = np.moveaxis(field, axis, 0).copy()
        reached = 0
        while reached < min(step, len(highest) - 1):
            # Three windows of `reached` cells to each side that leave no gap.
            k = min(max(reached, 1), step - reached, len(highest) - 1)
            before = highest.copy()
            np.maximum(highest[k:], before[:-k], out=highest[k:])
            np.maximum(highest[:-k], before[k:], out=highest[:-k])
            reached += k
        field = np.moveaxis(highest, 0, axis)
    return field


def _on_all_cells(cells: Cells, values: np.ndarray) -> np.ndarray:
    """The values on every cell; first token slowest, first coordinate fastest."""
    if cells.columns is None:
        return values
    grid = cells.grid
    V, n = grid.columns, grid.seq_len
    rows = Cells(grid, None).rows(0, grid.sequences)
    order = np.argsort(rows, axis=-1, kind="stable")
    places = V ** np.arange(n)[::-1]
    known = cells.columns @ places
    sorter = np.argsort(known)
    found = sorter[
        np.searchsorted(known[sorter], np.take_along_axis(rows, order, -1) @ places)
    ]
    return np.take_along_axis(values[found], np.argsort(order, axis=-1)[..., None], axis=1)
