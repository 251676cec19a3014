"""How far f is from the table of its values at the centres of cells.

That distance every piecewise constant method has in common: a network adds to it only what
happens on ramps, in cells it gives up, and by softmax and rounding. So it says which grid a
tolerance needs before any network is built.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.cells import SHARD, Cells, mean_slack, sum_up
from everyformer.certify.distances import distances, float_up
from everyformer.certify.known import Declared
from everyformer.certify.moments import UP, power
from everyformer.certify.shards import map_shards
from everyformer.certify.verify import declare, known_of
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
    """

    grid: Grid
    p: Fraction
    distinct: Fraction
    repeated: Fraction
    ranges: tuple[tuple[Fraction, Fraction], ...]

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
    workers: int | None = 1,
    progress: Progress = no_progress,
) -> TableDistance:
    """Measure f against its values at the centres, cell by cell, rounded up.

    Args:
        cells: The cells, or one of each orbit if f is equivariant.
        known: f as an expression, or what is declared of it.
        p: The exponent.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).

    Raises:
        CertificateError: If f has no finite bound on some cell.
    """
    work = _Work(cells, known, p)
    what = f"f on {cells.grid.cells} cells per axis"
    results = map_shards(
        _one_shard, work, cells.shards, what=what, workers=workers, progress=progress
    )
    undecided = next((s["undecided"] for s in results if s["undecided"]), None)
    if undecided is not None:
        where = cells.grid.describe(np.array(undecided))
        raise CertificateError(f"f has no finite bound on {where}.")
    sums = [
        sum((Fraction(shard[name]) for shard in results), start=Fraction(0))
        for name in ("distinct", "repeated")
    ]
    ranges = tuple(
        (
            min(Fraction(shard["low"][i]) for shard in results),
            max(Fraction(shard["high"][i]) for shard in results),
        )
        for i in range(cells.grid.d_model)
    )
    return TableDistance(cells.grid, p, sums[0], sums[1], ranges)


class TableErrors:
    """The distance of one target from its table, for one grid after the other.

    Args:
        target: f.
        p: The exponent.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).
    """

    def __init__(
        self,
        target: Target,
        p: Fraction,
        workers: int | None = 1,
        progress: Progress = no_progress,
    ) -> None:
        self._target, self._p = target, p
        self._workers, self._progress = workers, progress
        self._found: dict[int, TableDistance] = {}

    def at(self, K: int) -> TableDistance:
        """The distance for K cells per axis.

        Raises:
            ToleranceError: If there are too many cells to look at.
            CertificateError: If f has no finite bound on one of them.
        """
        if K not in self._found:
            self._found[K] = self._measure(K)
        return self._found[K]

    @property
    def looked_at(self) -> dict[int, TableDistance]:
        """What was measured so far, by K, coarse to fine."""
        return dict(sorted(self._found.items()))

    def _measure(self, K: int) -> TableDistance:
        target = self._target
        grid = Grid(K, target.seq_len, target.domain)
        same = target.equivariant
        if target.expression is not None:
            same = is_equivariant(target.expression)
        count = grid.num_multisets if same else grid.sequences
        if count > MAX_CELLS:
            msg = (
                f"grid={K} has {count:,} cells, and a comparison looks at {MAX_CELLS:,} "
                "at most. To go on, construct with this method alone"
            )
            raise ToleranceError(msg)
        cells = Cells.of(grid, symmetric=same)
        known = target.expression
        if known is None:
            known = known_of(declare(target, cells), cells)
        return table_error(
            cells, known, self._p, workers=self._workers, progress=self._progress
        )


@dataclass(frozen=True)
class _Work:
    cells: Cells
    known: Known
    p: Fraction


def _one_shard(work: _Work, index: int) -> dict[str, Any]:
    """Sums over the cells of a shard, and f's range on them; exact numbers as strings."""
    grid = work.cells.grid
    rows = work.cells.rows(index * SHARD, (index + 1) * SHARD)
    weights = work.cells.weights(rows)
    if isinstance(work.known, Declared):
        values = work.known.values[index * SHARD : (index + 1) * SHARD]
        slack = float_up(work.known.omega)
        upper = np.full(values.shape, float_up(mean_slack(work.known, grid, work.p)))
        low, high = values.min(axis=(0, 1)) - slack, values.max(axis=(0, 1)) + slack
        with np.errstate(over="ignore"):
            powers = power(upper, work.p).sum(axis=(1, 2)) * UP
    else:
        shards = work.cells.shards
        found = distances(work.known, grid, rows, weights, work.p, None, shards=shards)
        powers, (low, high) = found.powers, found.ranges
    powers = powers * UP * weights
    if not np.isfinite(powers).all():
        return {"undecided": rows[int(np.argmin(np.isfinite(powers)))].tolist()}
    ordered = np.sort(rows, axis=-1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    return {
        "distinct": sum_up(powers[~repeated]),
        "repeated": sum_up(powers[repeated]),
        "low": [str(Fraction(float(v))) for v in low],
        "high": [str(Fraction(float(v))) for v in high],
        "undecided": None,
    }
