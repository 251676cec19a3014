"""f, its slopes and its curves on every cell of a lattice of anchors."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.lattice import Partition
from everyformer.errors import CertificateError
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.curvature import (
    Curvature,
    enclose_curvature,
    round_down,
    round_up,
)
from everyformer.numerics.expression import Expression

MAX_CELLS = 2**20
"""Cells of the lattice, the margin included, that are enclosed at most."""

BOXES = 2**15
"""Cells are divided into equal parts, for sharper enclosures, up to this many boxes."""

MAX_PARTS = 8
"""Parts of a cell along an axis."""


@dataclass(frozen=True)
class LatticeField:
    """f, its slopes and its curves on every cell of a lattice, out to the margin.

    Attributes:
        cells: Cells along an axis, K + 2m.
        margin: m.
        found: The enclosures; entry 0 of the sequence slowest.
    """

    cells: int
    margin: int
    found: Curvature

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


def lattice_field(
    expression: Expression, partition: Partition, *, boxes: int = BOXES, balls: bool = False
) -> LatticeField:
    """Enclose f on every cell of the lattice; D plays no part in it.

    Args:
        expression: f, as it is; maxima that cancel are removed.
        partition: The lattice.
        boxes: Divide cells into parts as long as there are no more boxes than this.
        balls: Use Arb balls.

    Raises:
        CertificateError: If there are more than `MAX_CELLS` cells.
    """
    cells, N = partition.grid.cells + 2 * partition.margin, partition.size
    if cells**N > MAX_CELLS:
        msg = (
            f"The lattice has {cells}^{N} cells, more than {MAX_CELLS}. Use a coarser "
            "grid, or the bounds of partition, which need no cells."
        )
        raise CertificateError(msg)
    parts = max(
        [s for s in range(1, MAX_PARTS + 1) if (cells * s) ** N <= boxes], default=1
    )
    ends = [
        [start + k * step / parts for k in range(cells * parts + 1)]
        for start, step in zip(partition.lows, partition.steps, strict=True)
    ]
    lows = [np.array([round_down(a) for a in axis[:-1]]) for axis in ends]
    highs = [np.array([round_up(b) for b in axis[1:]]) for axis in ends]
    shape = (-1, expression.seq_len, expression.d_model)
    low, high = (
        np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
        for axes in (lows, highs)
    )
    smooth = without_cancelling_maxima(expression)
    found = enclose_curvature(smooth, low.reshape(shape), high.reshape(shape), balls=balls)
    return LatticeField(cells, partition.margin, _joined(found, (cells, parts) * N))


def _joined(found: Curvature, shape: tuple[int, ...]) -> Curvature:
    """The hull over the parts of each cell; parts are every second axis of the shape."""
    axes, cells = tuple(range(1, len(shape), 2)), math.prod(shape[::2])
    joined = [
        extreme(values.reshape(*shape, *values.shape[1:]), axis=axes)
        for values, extreme in (
            (found.low, np.min),
            (found.high, np.max),
            (found.slope_low, np.min),
            (found.slope_high, np.max),
            (found.curve_low, np.min),
            (found.curve_high, np.max),
        )
    ]
    return Curvature(
        *(values.reshape(cells, *values.shape[len(axes) :]) for values in joined)
    )
