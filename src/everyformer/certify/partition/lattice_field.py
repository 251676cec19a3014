"""f, its slopes and its curves on every cell of a lattice of anchors."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.samples import Samples, fine_parts, rounded
from everyformer.errors import CertificateError
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.conditions import compared_by_terms
from everyformer.numerics.curvature import (
    EXTREMES,
    Curvature,
    enclose_curvature,
)
from everyformer.numerics.expression import Expression

MAX_CELLS = 2**20
"""Cells of the lattice, the margin included, that are enclosed at most."""

BOXES = 2**15
"""Cells are divided into equal parts, for sharper enclosures, up to this many boxes."""

MAX_PARTS = 8
"""Parts of a cell along an axis."""


@dataclass(frozen=True)
class Slab:
    """Cells of a lattice with some numbers along the first axis.

    Attributes:
        first: The first number whose cells are meant.
        stop: The first behind them.
        reach: How many more are known on either side, where the lattice has them.
    """

    first: int
    stop: int
    reach: int = 0

    def known(self, cells: int) -> tuple[int, int]:
        """The first number that is known, and the first behind."""
        return max(self.first - self.reach, 0), min(self.stop + self.reach, cells)


@dataclass(frozen=True)
class LatticeField:
    """f, its slopes and its curves on the cells of a lattice, out to the margin.

    Attributes:
        cells: Cells along an axis, K + 2m.
        margin: m.
        found: The enclosures; entry 0 of the sequence slowest.
        slab: Which cells of the grid are meant; None for all.
        whole: With a slab: the hull over the whole lattice, as a single box.
        samples: f on the parts of the cells that are meant, and at the anchors.
    """

    cells: int
    margin: int
    found: Curvature
    slab: Slab | None = None
    whole: Curvature | None = None
    samples: Samples | None = None

    @property
    def rows(self) -> tuple[int, int, int, int]:
        """Numbers along the first axis: the first known, first and last meant, the end."""
        meant = self.margin, self.cells - self.margin
        if self.slab is None:
            return 0, *meant, self.cells
        start, stop = self.slab.known(self.cells)
        first = max(self.slab.first, meant[0])
        return start, first, max(min(self.slab.stop, meant[1]), first), stop

    def hull(self) -> Curvature:
        """One box around all that is known."""
        return joined(self.found, (1, len(self.found.low)))

    @property
    def is_finite(self) -> bool:
        """Whether f is known to be finite on all of it."""
        return all(
            bool(np.isfinite(end).all()) for end in (self.found.low, self.found.high)
        )

    @property
    def largest(self) -> Fraction:
        """A bound on |f| over all of it.

        Raises:
            CertificateError: If f is not known to be finite there.
        """
        size = float(np.maximum(self.found.high, -self.found.low).max())
        if not math.isfinite(size):
            msg = (
                "The target is not known to be finite on the anchors' box, which goes "
                "beyond its domain. Clip it to the domain, or restrict the domain."
            )
            raise CertificateError(msg)
        return Fraction(size)


def parts_of(lattice: Lattice, boxes: int = BOXES) -> int:
    """Into how many parts a cell is divided along an axis, for so many boxes in all."""
    cells, N = lattice.grid.cells + 2 * lattice.margin, lattice.size
    fit = [s for s in range(1, MAX_PARTS + 1) if (cells * s) ** N <= boxes]
    return max(fit, default=1)


def lattice_field(
    expression: Expression,
    lattice: Lattice,
    *,
    boxes: int = BOXES,
    balls: bool = False,
    slab: Slab | None = None,
    whole: Curvature | None = None,
) -> LatticeField:
    """Enclose f on the cells of the lattice; D plays no part in it.

    Args:
        expression: f, as it is; maxima that cancel are removed.
        lattice: The lattice.
        boxes: Divide cells into parts as long as there are no more boxes than this.
        balls: Use Arb balls.
        slab: Only these cells.
        whole: With a slab: the hull over the whole lattice.

    Raises:
        CertificateError: If there are more than `MAX_CELLS` cells.
    """
    cells, N = lattice.grid.cells + 2 * lattice.margin, lattice.size
    if cells**N > MAX_CELLS:
        msg = (
            f"The lattice has {cells}^{N} cells, more than {MAX_CELLS}. Use a coarser "
            "grid, or declare a Lipschitz constant, which needs no cells."
        )
        raise CertificateError(msg)
    parts = parts_of(lattice, boxes)
    steps, numbers = [h / parts for h in lattice.steps], [range(cells * parts + 1)] * N
    lows, highs = rounded(lattice.lows, steps, numbers)
    lows, highs = [axis[:-1] for axis in lows], [axis[1:] for axis in highs]
    rows = (0, cells) if slab is None else slab.known(cells)
    lows[0], highs[0] = (
        axis[rows[0] * parts : rows[1] * parts] for axis in (lows[0], highs[0])
    )
    low, high = (
        np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
        for axes in (lows, highs)
    )
    smooth = without_cancelling_maxima(compared_by_terms(expression))
    found = enclose_curvature(
        smooth,
        low.reshape(-1, expression.seq_len, expression.d_model),
        high.reshape(-1, expression.seq_len, expression.d_model),
        balls=balls,
    )
    shape = (rows[1] - rows[0], parts) + (cells, parts) * (N - 1)
    field = LatticeField(cells, lattice.margin, joined(found, shape), slab, whole)
    inner, meant = _inner(found, field, parts)
    fine = fine_parts(lattice, parts, boxes)
    samples = Samples(lattice, parts, fine, expression, smooth, inner, meant, balls)
    return replace(field, samples=samples)


def _inner(
    found: Curvature, field: LatticeField, parts: int
) -> tuple[Curvature, tuple[int, int]]:
    """What was found on the parts of cells that are meant, and their rows in the grid."""
    N, m = found.low.shape[1], field.margin
    start, first, last, stop = field.rows
    shape = ((stop - start) * parts, *(field.cells * parts,) * (N - 1))
    across = slice(m * parts, (field.cells - m) * parts)
    inside = (slice((first - start) * parts, (last - start) * parts), *(across,) * (N - 1))
    shaped = (values.reshape(*shape, *values.shape[1:])[inside] for values in found.arrays)
    inner = Curvature(*(values.reshape(-1, *values.shape[N:]) for values in shaped))
    return inner, (first - m, last - m)


def joined(found: Curvature, shape: tuple[int, ...]) -> Curvature:
    """The hull over the parts of each cell; parts are every second axis of the shape."""
    axes, cells = tuple(range(1, len(shape), 2)), math.prod(shape[::2])
    joined = [
        extreme(values.reshape(*shape, *values.shape[1:]), axis=axes)
        for values, extreme in zip(found.arrays, EXTREMES, strict=True)
    ]
    return Curvature(
        *(values.reshape(cells, *values.shape[len(axes) :]) for values in joined)
    )
