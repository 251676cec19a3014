"""How far f is from the table of its values at the centres of cells.

That distance every piecewise constant method has in common: a network adds to it only what
happens on ramps, in cells it gives up, and by softmax and rounding. So it says which grid a
tolerance needs before any network is built.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.from_files import known_of
from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import SHARD, Cells, mean_slack, sum_up
from everyformer.certify.on_cells.distances import distances, float_up
from everyformer.certify.on_cells.moments import UP, power
from everyformer.certify.shards import map_shards
from everyformer.certify.verify import declare
from everyformer.errors import CertificateError, ToleranceError
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.numerics.symmetry import is_equivariant
from everyformer.papers import YUN2020, Citation, implements
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

Known = Expression | Declared

MAX_CELLS = 2**20
"""Cells that a comparison looks at; a core does about 50,000 in a second."""

FIRST_LOOK = 128
"""Cells, spread evenly, of the first look at a grid that has more."""

MOST_SHARDS = 16
"""Shards of cells that are looked at before a network is built."""

NEAR = Fraction(1001, 1000)
"""What a proof finds may be so much less: values of a network are not f at the centres."""


@dataclass(frozen=True)
class TableDistance:
    """The distance of f from its table, and the range of f.

    Attributes:
        grid: The cells.
        p: The exponent.
        distinct: Sum of the p-th powers over cells with different columns, in units of a
            cell's volume.
        repeated: The same over cells in which two tokens have the same column.
        ranges: For each coordinate an interval that holds f.
        zeroed: Over the cells with the same columns, of f from 0; 0 if it was not asked
            for.
        share: Of the cells, those that were looked at.
    """

    grid: Grid
    p: Fraction
    distinct: Fraction
    repeated: Fraction
    ranges: tuple[tuple[Fraction, Fraction], ...]
    zeroed: Fraction = Fraction(0)
    share: Fraction = Fraction(1)

    @property
    def _volume(self) -> Fraction:
        return self.grid.box.volume(self.grid.seq_len)

    def _root(self, power_sum: Fraction) -> Fraction:
        return power_up(power_sum, 1 / self.p)

    def _everywhere(self) -> Fraction:
        """Sum over all entries of (range)^p; 0 belongs to the range of a network."""
        zero = Fraction(0)
        powers = [
            power_up(max(high, zero) - min(low, zero), self.p) for low, high in self.ranges
        ]
        return self.grid.seq_len * sum(powers, start=Fraction(0))

    def least(self, *, gives_up_repeated: bool) -> Fraction:
        """About the least that can be proved of a network with this table.

        Where cells with equal columns are given up, the network is 0 on them.
        """
        lost = self.zeroed if gives_up_repeated else self.repeated
        return self._root(self._volume / self.grid.sequences * (self.distinct + lost))

    @implements(YUN2020, "Lemma 8", "Lemma 9", "Proposition 4")
    def bound(self, *, ramps: Fraction, gives_up_repeated: bool) -> Bound:
        """d_p(f, g) for any g that equals the table off its ramps, in real arithmetic.

        Args:
            ramps: Share of the domain that is on a ramp.
            gives_up_repeated: Whether nothing is promised in cells with equal columns but
                that g stays in the range of f and 0.
        """
        cell = self._volume / self.grid.sequences
        kept = self.distinct if gives_up_repeated else self.distinct + self.repeated
        count = f"{self.grid.sequences:,} cells"
        parts = [Bound(self._root(cell * kept), f"table: {count}", _cite("Lemma 8"))]
        if gives_up_repeated:
            share = self.grid.repeated_share
            lost = int(share * self.grid.sequences)
            value = self._root(self._volume * share * self._everywhere())
            reason = f"duplicates: {lost:,} cells with equal columns"
            parts.append(Bound(value, reason, _cite("Proposition 4")))
        value = self._root(self._volume * ramps * self._everywhere())
        parts.append(Bound(value, f"ramps: share {float(ramps):.3g}", _cite("Lemma 9")))
        return Bound.p_norm(parts, self.p, "d_p(f, g) as planned, in real arithmetic")


def _cite(result: str) -> str:
    return str(Citation(YUN2020, result))


def table_error(
    cells: Cells,
    known: Known,
    p: Fraction,
    *,
    zeroed: bool = False,
    workers: int | None = 1,
    progress: Progress = no_progress,
) -> TableDistance:
    """Measure f against its values at the centres, cell by cell, rounded up.

    Args:
        cells: The cells, or one of each orbit if f is equivariant.
        known: f as an expression, or what is declared of it.
        p: The exponent.
        zeroed: Whether to measure f against 0 too, on cells with equal columns.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).

    Raises:
        CertificateError: If f has no finite bound on some cell.
    """
    work = _Work(cells, known, p, zeroed, cells.shards)
    what = f"f on {cells.grid.cells} cells per axis"
    results = map_shards(
        _one_shard, work, cells.shards, what=what, workers=workers, progress=progress
    )
    return _summed(work, results)


def _summed(work: "_Work", results: Sequence[dict[str, Any]]) -> TableDistance:
    """The distance from the sums of shards; of some shards alone, that of their cells.

    Raises:
        CertificateError: If f has no finite bound on some cell.
    """
    grid = work.cells.grid
    undecided = next((s["undecided"] for s in results if s["undecided"]), None)
    if undecided is not None:
        where = grid.describe(np.array(undecided))
        raise CertificateError(f"f has no finite bound on {where}.")
    sums = {
        name: sum((Fraction(shard[name]) for shard in results), start=Fraction(0))
        for name in ("distinct", "repeated", "zeroed")
    }
    ranges = tuple(
        (
            min(Fraction(shard["low"][i]) for shard in results),
            max(Fraction(shard["high"][i]) for shard in results),
        )
        for i in range(grid.d_model)
    )
    share = Fraction(sum(shard["cells"] for shard in results), grid.sequences)
    return TableDistance(grid, work.p, ranges=ranges, share=share, **sums)


class TableErrors:
    """The distance of one target from its table, for one grid after the other.

    Args:
        target: f.
        p: The exponent.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).
        most: Grids with more cells are not looked at; by default a part of them is, to see
            whether they are too coarse.
    """

    def __init__(
        self,
        target: Target,
        p: Fraction,
        workers: int | None = 1,
        progress: Progress = no_progress,
        most: int | None = None,
    ) -> None:
        self._target, self._p = target, p
        self._workers, self._progress = workers, progress
        self._most, self._whole = MAX_CELLS if most is None else most, most is None
        self._found: dict[int, TableDistance] = {}
        self._seen: dict[int, tuple[list[TableDistance], Iterator[TableDistance]]] = {}

    def limited(self, most: int) -> "TableErrors":
        """The same, of grids with fewer cells; what was measured is kept."""
        found = TableErrors(self._target, self._p, self._workers, self._progress, most)
        found._found, found._seen = self._found, self._seen
        return found

    def at(self, K: int) -> TableDistance:
        """The distance for K cells per axis.

        Raises:
            ToleranceError: If there are too many cells to look at.
            CertificateError: If f has no finite bound on one of them.
        """
        if K not in self._found:
            grid, count = self._cells(K)
            if count > self._most:
                msg = (
                    f"grid={K} has {count:,} cells, and a comparison looks at "
                    f"{self._most:,} at most. To go on, construct with this method alone"
                )
                raise ToleranceError(msg)
            cells, known = self._known(grid)
            self._found[K] = table_error(
                cells,
                known,
                self._p,
                zeroed=self._zeroed,
                workers=self._workers,
                progress=self._progress,
            )
        return self._found[K]

    def beyond(
        self, K: int, allowed: Fraction, *, gives_up_repeated: bool
    ) -> Fraction | None:
        """About what is proved for K cells per axis, if that is more than allowed.

        Cells are looked at until their sum is too large: a few of them tell where a
        tolerance is far out of reach. A sum over some cells is at most the sum over all,
        which the certificate of a network with this table has too, so that nothing is ruled
        out which would be proved.

        Returns:
            A number above `allowed`; None if a network may do, or if nobody knows.

        Raises:
            CertificateError: If f has no finite bound on a cell.
        """
        found = self._found.get(K)
        for look in self._looked(K) if found is None else [found]:
            least = look.least(gives_up_repeated=gives_up_repeated)
            if least > allowed * NEAR:
                return least * power_up(1 / look.share, 1 / self._p)
        return None

    def _looked(self, K: int) -> Iterator[TableDistance]:
        """Looks that were taken before, then further ones."""
        seen, further = self._seen.setdefault(K, ([], self._looks(K)))
        yield from seen
        for look in further:
            seen.append(look)
            yield look

    def _looks(self, K: int) -> Iterator[TableDistance]:
        """The distance on more and more cells, up to all of them; that one is kept."""
        grid, count = self._cells(K)
        if count <= self._most:
            cells, known = self._known(grid)
        elif self._whole and self._target.expression and grid.sequences < 2**62:
            cells, known = Cells(grid, None), self._target.expression
        else:
            return
        work = _Work(cells, known, self._p, self._zeroed, -(-count // SHARD))
        if cells.count > FIRST_LOOK:
            yield _summed(work, [_sums(work, 0, cells.count, cells.count // FIRST_LOOK)])
        results: list[dict[str, Any]] = []
        for index in range(0, cells.shards, -(-cells.shards // MOST_SHARDS)):
            self._progress(f"f on {K} cells per axis", index, cells.shards)
            results.append(_one_shard(work, index))
            found = _summed(work, results)
            if len(results) == cells.shards:
                self._found[K] = found
            yield found

    @property
    def looked_at(self) -> dict[int, TableDistance]:
        """What was measured so far, by K, coarse to fine."""
        return dict(sorted(self._found.items()))

    @property
    def _zeroed(self) -> bool:
        """Whether a network may be 0 where columns are equal."""
        return self._target.equivariant and self._target.seq_len > 1

    @cached_property
    def _same(self) -> bool:
        """Whether one cell of each orbit is enough."""
        known = self._target.expression
        return self._target.equivariant if known is None else is_equivariant(known)

    def _cells(self, K: int) -> tuple[Grid, int]:
        """The grid, and how many of its cells must be looked at."""
        grid = Grid(K, self._target.seq_len, self._target.domain)
        return grid, grid.num_multisets if self._same else grid.sequences

    def _known(self, grid: Grid) -> tuple[Cells, Known]:
        cells = Cells.of(grid, symmetric=self._same)
        known = self._target.expression
        if known is None:
            known = known_of(declare(self._target, cells), cells)
        return cells, known


@dataclass(frozen=True)
class _Work:
    cells: Cells
    known: Known
    p: Fraction
    zeroed: bool
    shards: int


def _one_shard(work: _Work, index: int) -> dict[str, Any]:
    """Sums over the cells of a shard, and f's range on them; exact numbers as strings."""
    return _sums(work, index * SHARD, (index + 1) * SHARD)


def _sums(work: _Work, start: int, stop: int, step: int = 1) -> dict[str, Any]:
    """The same over cells start, start + step, ... before stop."""
    grid = work.cells.grid
    rows = work.cells.rows(start, stop, step)
    weights = work.cells.weights(rows)
    ordered = np.sort(rows, axis=-1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    zeroed = np.zeros(0)
    if isinstance(work.known, Declared):
        values = work.known.values[start:stop:step]
        slack = float_up(work.known.omega)
        mean = float_up(mean_slack(work.known, grid, work.p))
        upper = np.full(values.shape, mean)
        low, high = values.min(axis=(0, 1)) - slack, values.max(axis=(0, 1)) + slack
        with np.errstate(over="ignore"):
            powers = power(upper, work.p).sum(axis=(1, 2)) * UP
            if work.zeroed:
                sizes = power(np.abs(values[repeated]) * UP + mean, work.p)
                zeroed = sizes.sum(axis=(1, 2)) * UP * weights[repeated]
    else:
        found = distances(work.known, grid, rows, weights, work.p, None, shards=work.shards)
        powers, (low, high) = found.powers, found.ranges
        if work.zeroed and repeated.any():
            same, many = rows[repeated], weights[repeated]
            nothing = np.zeros((len(same), grid.seq_len, grid.d_model))
            lost = distances(
                work.known, grid, same, many, work.p, nothing, shards=work.shards
            )
            zeroed = lost.powers * UP * many
    powers = powers * UP * weights
    if not np.isfinite(powers).all():
        return {"undecided": rows[int(np.argmin(np.isfinite(powers)))].tolist()}
    return {
        "distinct": sum_up(powers[~repeated]),
        "repeated": sum_up(powers[repeated]),
        "zeroed": sum_up(zeroed),
        "low": [str(Fraction(float(v))) for v in low],
        "high": [str(Fraction(float(v))) for v in high],
        "cells": int(weights.sum()),
        "undecided": None,
    }
