"""The distance of a residual network with one neuron a layer from f (Section 5.4), proved.

The blocks z + v relu(w^T z + c) of `construct.residual` are read in four parts, and nothing
is taken from whoever built them. Weights are the dyadic rationals they are, and every step
is exact.

1. Quantiser, 2 K blocks for each coordinate, which read and write that coordinate alone: a
   continuous function of one number. The image of an interval under one block is spanned by
   its ends and the kink, so the image of a cell, up to the first kink inside it, is known
   exactly. It must be one point; the rest of the cell is ramp.
2. One block that reads nothing: a constant.
3. Values: all blocks read the same u, with thresholds t_1 > t_2 > .. of u^T z. A cell with
   u^T z = s passes the blocks with t_j >= s unchanged, and the next one adds (s - t_j) v_j;
   with the s that this leaves it goes on.
4. Clamp, min and max of every coordinate: it bounds the network on the ramps.

With these, d_p(f, g) is bounded cell by cell like that of any network (`cell_proof`).
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np

from everyformer.certify.known import Known
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.proof import prove_on_cells
from everyformer.certify.on_cells.reading import Interval, Outside, Plateaus
from everyformer.certify.on_cells.values import Mode, Values
from everyformer.certify.proof import Proof, Work
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import Weights, to_fractions
from everyformer.papers import YUN2020, implements
from everyformer.targets.box import Box, Grid

SOURCE = "docs/constructions/comparison.md"

WRITES = 4
"""Blocks that act on a cell, on average, up to which they are followed; one is needed."""


@dataclass(frozen=True)
class Blocks:
    """z + v relu(w^T z + c), one after the other, on a box that is mapped to [0, 1] first.

    Attributes:
        W: Rows w, float64, shape (blocks, N).
        c: Shape (blocks,).
        V: Rows v, shape (blocks, N).
    """

    W: np.ndarray
    c: np.ndarray
    V: np.ndarray

    @property
    def sha256(self) -> str:
        """A hash of all of them."""
        digest = hashlib.sha256()
        for array in (self.W, self.c, self.V):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        return digest.hexdigest()

    def __getitem__(self, rows: slice) -> "Blocks":
        """Some of them."""
        return Blocks(self.W[rows], self.c[rows], self.V[rows])

    def exact(self) -> "Blocks":
        """The same, as Fractions.

        Raises:
            Undecided: If a number is not finite.
        """
        arrays = (self.W, self.c, self.V)
        if not all(np.isfinite(array).all() for array in arrays):
            raise Undecided("weights", "a weight is not finite")
        return Blocks(*map(to_fractions, arrays))


@implements(YUN2020, "Section 5.4")
def prove_residual(
    blocks: Blocks,
    cells: Cells,
    known: Known,
    p: Fraction | None,
    work: Work = Work(),  # noqa: B008
) -> Proof:
    """Bound d_p(f, g) of a residual network in real arithmetic.

    Args:
        blocks: The network, as it is.
        cells: All cells of a grid.
        known: What is known of f.
        p: The exponent; None for the supremum, which has no bound here.
        work: How the proof is made.
    """
    grid = cells.grid
    numbers = Weights(
        grid.seq_len, grid.d_model, False, None, (), exact=True, sha256=blocks.sha256
    )

    def read(weights: Weights, box: Box, K: int) -> ResidualReading:
        return ResidualReading.of(blocks, grid)

    return prove_on_cells(numbers, read, cells, known, p, work)


@dataclass(frozen=True)
class ResidualReading:
    """What the blocks compute: a `CellReading`.

    Attributes:
        grid: n, d, K and the box.
        plateaus: Where the quantiser is constant.
        values_of: Fractions (cells, N), the network on the plateau of every cell, in order.
        ranges: Of each coordinate of a token, after the clamp.
    """

    grid: Grid
    plateaus: Plateaus
    values_of: np.ndarray
    ranges: tuple[Interval, ...]
    positional: bool = True
    exact: bool = True
    run_slack: tuple[Fraction, ...] = ()
    run_obstacle: Undecided | None = None
    last: str = "clamp"
    noise: tuple[str, str] = ("rationals as float64", SOURCE)

    @classmethod
    def of(cls, blocks: Blocks, grid: Grid) -> "ResidualReading":
        """Read the blocks.

        Raises:
            Undecided: If a part is not what it must be, naming the part.
        """
        N, K = grid.seq_len * grid.d_model, grid.cells
        rows = 2 * N * K + 1 + grid.sequences + 2 * N
        if any(len(a) != rows for a in (blocks.W, blocks.c, blocks.V)):
            raise Undecided("weights", f"there are {len(blocks.c)} blocks, not {rows}")
        if blocks.W.shape != (rows, N) or blocks.V.shape != (rows, N):
            raise Undecided("weights", f"blocks do not read and write {N} numbers")
        all_of_them = blocks.exact()
        ends = [
            _Quantised.of(all_of_them[2 * i * K : 2 * (i + 1) * K], i, K) for i in range(N)
        ]
        rest = all_of_them[2 * N * K :]
        digits = grid.digits(grid.all_sequences()).reshape(-1, N)
        points = np.array([one.points for one in ends], dtype=object)
        z = points[np.arange(N), digits] + _constant(rest[:1])
        z = _written(rest[1 : 1 + grid.sequences], z)
        lows, highs = _clamp(rest[1 + grid.sequences :], N)
        z = np.maximum(np.minimum(z, highs), lows)
        shape = (grid.seq_len, grid.d_model)
        widths = np.array(grid.box.widths, dtype=object)
        ramps = np.array([one.ramp for one in ends], dtype=object).reshape(shape) * widths
        shortest = prod((one.shortest for one in ends), start=Fraction(1))
        plateaus = Plateaus(points.reshape(*shape, K), ramps, None, shortest, 1)
        tops = np.maximum(lows, highs).reshape(shape).max(axis=0)
        bottoms = lows.reshape(shape).min(axis=0)
        ranges = tuple(zip(bottoms.tolist(), tops.tolist(), strict=True))
        return cls(grid, plateaus, z, ranges)

    def outside(self) -> Outside:
        """Off the box nothing is known.

        Raises:
            Undecided: Always.
        """
        raise Undecided("domain", "a residual network is not 0 outside the box")

    def values(self, columns: np.ndarray, mode: Mode) -> Values:
        """The network on cells, exactly."""
        n, d = self.grid.seq_len, self.grid.d_model
        powers = self.grid.columns ** np.arange(n - 1, -1, -1)
        found = self.values_of[columns @ powers].reshape(len(columns), n, d)
        return Values(found, np.zeros(found.shape))


@dataclass(frozen=True)
class _Quantised:
    """One coordinate: a point for each cell, off the ramps."""

    points: tuple[Fraction, ...]
    ramp: Fraction
    shortest: Fraction

    @classmethod
    def of(cls, blocks: Blocks, i: int, K: int) -> "_Quantised":
        """Exactly, cell by cell.

        Raises:
            Undecided: If a block reads or writes another coordinate, or a cell has no
                plateau.
        """
        others = np.arange(blocks.W.shape[1]) != i
        if (blocks.W[:, others] != 0).any() or (blocks.V[:, others] != 0).any():
            why = f"a block for coordinate {i + 1} reads or writes another one"
            raise Undecided("quantiser", why)
        maps = list(zip(blocks.W[:, i], blocks.c, blocks.V[:, i], strict=True))
        kinks = sorted(-c / w for w, c, _ in maps if w != 0)
        points: list[Fraction] = []
        lengths: list[Fraction] = []
        for k in range(K):
            low, high = Fraction(k, K), Fraction(k + 1, K)
            inside = kinks[bisect_right(kinks, low) :]
            end = min([high, *inside[:1]])
            image = _image(maps, low, end)
            if image[0] != image[1]:
                why = f"cell {k + 1} of coordinate {i + 1} is not mapped to one point"
                raise Undecided("quantiser", why)
            points.append(image[0])
            lengths.append(end - low)
        return cls(tuple(points), 1 - sum(lengths, start=Fraction(0)), min(lengths) * K)


Map = tuple[Fraction, Fraction, Fraction]


def _image(maps: list[Map], low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """[low, high] under t + v relu(w t + c), one after the other: exactly."""
    for w, c, v in maps:
        places = [low, high]
        if w != 0 and low < -c / w < high:
            places.append(-c / w)
        found = [t + v * max(w * t + c, Fraction(0)) for t in places]
        low, high = min(found), max(found)
    return low, high


def _constant(block: Blocks) -> np.ndarray:
    """What a block adds that reads nothing."""
    if (block.W != 0).any():
        raise Undecided("lift", "its neuron reads a coordinate, so it is not a constant")
    return max(block.c[0], Fraction(0)) * block.V[0]


def _written(blocks: Blocks, z: np.ndarray) -> np.ndarray:
    """The states (cells, N) after the blocks that write values."""
    u = blocks.W[0]
    if (u != blocks.W).any():
        raise Undecided("values", "neurons do not all read the same u")
    rising = list(blocks.c)
    if any(right <= left for left, right in pairwise(rising)):
        raise Undecided("values", "thresholds of u^T z do not decrease")
    result, steps, left = z.copy(), blocks.V @ u, WRITES * len(z)
    for cell, s in enumerate(z @ u):
        j = bisect_right(rising, -s)  # the first block with s + c > 0
        while j < len(rising):
            seen = s + rising[j]
            result[cell] = result[cell] + seen * blocks.V[j]
            s = s + seen * steps[j]
            j = bisect_right(rising, -s, lo=j + 1)
            left -= 1
            if left < 0:
                raise Undecided("values", "cells are written again and again")
    return result


def _clamp(blocks: Blocks, N: int) -> tuple[np.ndarray, np.ndarray]:
    """The ends between which each coordinate is held: min(z, high), then max(z, low)."""
    unit = np.repeat(np.eye(N, dtype=np.int64), 2, axis=0)
    signs = np.tile([1, -1], N)[:, None]
    if (unit * signs != blocks.W).any() or (-unit * signs != blocks.V).any():
        raise Undecided("clamp", "the last blocks are not min and max of a coordinate")
    return blocks.c[1::2], -blocks.c[::2]
