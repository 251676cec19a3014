"""The bound on d_p(f, g) of a softmax partition of unity, from given weights.

With F the table that the weights hold, Y the random anchor of the lattice, and for each
entry and every x in the box

    |g - f| <= |E f(Y) - f(x)|              the lattice: `local`, `_direct`
               + max_v |F_v - f(v)|         the table: `values`
               + (e^(2 eta) - 1) max|F|     keys and norms that are rounded
               + leak + offset              data tokens in the softmax, other ways out

all but the first at every x alike. So there is a bound for p = infinity as well. f is its
program, on the margin too, or that program after clipping to the box: what the table fits
better. On the box they agree, so either proves the claim.

A lower bound: if F - f >= c at all anchors, or <= -c, then |g - f| >= c - all the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.hypotheses import EXP, FLOAT64
from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import float_up
from everyformer.certify.on_cells.moments import UP, power_down
from everyformer.certify.partition.bounds import (
    distance,
    everywhere,
    from_lipschitz,
    from_modulus,
    leak,
    named,
    reweighting,
)
from everyformer.certify.partition.direct import refined
from everyformer.certify.partition.lattice import SOURCE, Lattice, extensions
from everyformer.certify.partition.lattice_constants import RADII
from everyformer.certify.partition.lattice_field import BOXES, Slab, lattice_field, parts_of
from everyformer.certify.partition.local import cell_bounds, combined, power_sum
from everyformer.certify.partition.reading import PartitionReading, read_partition
from everyformer.certify.partition.values import Gaps, declared_gaps, traced_gaps
from everyformer.certify.proof import Computing, Proof
from everyformer.certify.shards import map_shards
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import Weights
from everyformer.numerics.curvature import EXTREMES, Curvature
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Grid

SHARD_BOXES = 2**18
"""Boxes of a shard, about; never chosen by the number of workers."""


def prove_partition(
    weights: Weights,
    grid: Grid,
    known: Expression | Declared,
    p: Fraction | None,
    shards: tuple[Computing, str],
    *,
    balls: bool = False,
) -> Proof:
    """Bound d_p(f, g) from the weights; for p = None the supremum.

    Raises:
        Undecided: If the weights are not of this form, or f has no bound.
        CertificateError: If shards cannot be run, or constants have no enclosure.
    """
    reading = read_partition(weights, grid)
    extra = _extra(reading, p)
    if isinstance(known, Declared):
        gaps, smooth, sups = _declared(reading, known, p)
    else:
        gaps, smooth, sups = _traced(reading, known, p, shards, balls=balls)
    terms = [smooth.bound, everywhere(reading.lattice, _table(reading, gaps), p), *extra]
    real = Bound.total(terms, f"{named(p)}, in real arithmetic")
    noise = Bound(
        reading.run,
        f"float64 instead of real arithmetic: within {float(reading.run):.2g}",
        SOURCE,
    )
    run = Bound.total(
        [real, everywhere(reading.lattice, noise, p)], f"{named(p)}, as float64 runs it"
    )
    rest = sum((term.value for term in _extra(reading, None)), start=reading.table_error)
    lower = _lower(reading.lattice, gaps, sups, rest, p)
    summary = {
        "count": grid.sequences,
        "representatives": grid.sequences,
        "method": smooth.method,
        "prefix_tokens": reading.lattice.anchors,
        "decay": str(reading.lattice.D),
        "margin": reading.lattice.margin,
        "clipped": smooth.clipped,
        "precision": "float64 intervals rounded outward",
        "radius": str(reading.eta),
        "run_radius": str(reading.run),
    }
    declared = known.hypotheses if isinstance(known, Declared) else ()
    return Proof(real, run, lower, (), (*declared, FLOAT64, EXP), summary)


@dataclass(frozen=True)
class _Smooth:
    """A bound of |E f(Y) - f|, how it was found, and whether f is clipped."""

    bound: Bound
    method: str
    clipped: bool


def _table(reading: PartitionReading, gaps: Gaps) -> Bound:
    off = Fraction(gaps.largest) + reading.table_error
    reason = f"values: |F - f| at {reading.lattice.anchors} anchors"
    return Bound(off, reason, SOURCE)


def _extra(reading: PartitionReading, p: Fraction | None) -> list[Bound]:
    """What the weights add to the average of their own table."""
    lattice = reading.lattice
    hidden = reading.suppression - reading.eta
    parts = [
        reweighting(reading.eta, reading.largest, "scores: rounded keys and norms"),
        leak(lattice, reading.largest, hidden),
    ]
    if reading.offset:
        reason = "what else reaches the output"
        parts.append(Bound(reading.offset, reason, SOURCE))
    return [everywhere(lattice, part, p) for part in parts]


def _declared(
    reading: PartitionReading, known: Declared, p: Fraction | None
) -> tuple[Gaps, _Smooth, np.ndarray]:
    lattice = reading.lattice
    gaps = declared_gaps(known, lattice, reading.table)
    if known.lipschitz is not None:
        sup = from_lipschitz(lattice, known.lipschitz)
    else:
        sup = from_modulus(lattice, known.omega, known.radius)
    bound = distance(lattice, [sup] * lattice.size, p)
    sups = np.full((1, lattice.size), float(sup.value) * UP)
    return gaps, _Smooth(bound, "declared modulus", True), sups


def _traced(
    reading: PartitionReading,
    known: Expression,
    p: Fraction | None,
    shards: tuple[Computing, str],
    *,
    balls: bool,
) -> tuple[Gaps, _Smooth, np.ndarray]:
    """The extension of f whose values fit the table, enclosed on all cells.

    Raises:
        Undecided: If neither extension is known to be bounded.
    """
    box = reading.lattice.grid.box
    ways = extensions(known, box, almost=p is not None)
    work = [LatticeExamination(reading, way, p, balls) for way in ways]
    values = [
        _map(examine_values, one, shards, f"values {k}") for k, one in enumerate(work)
    ]
    gaps = [Gaps.around([_gaps(part) for part in found]) for found in values]
    for k in sorted(range(len(ways)), key=lambda k: gaps[k].largest):
        if not math.isfinite(gaps[k].largest):
            continue
        whole = _hull([part["hull"] for part in values[k]])
        one = LatticeExamination(reading, ways[k], p, balls, whole)
        found = _map(examine_cells, one, shards, f"cells {k}")
        if all(part["finite"] for part in found):
            sums = [Fraction(part["sum"]) for part in found]
            bound = combined(sums, reading.lattice, p)
            sups = np.array([[float(v) for v in part["sup"]] for part in found])
            method = "f near each cell and at the anchors"
            return gaps[k], _Smooth(bound, method, k > 0), sups
    why = "f has no finite bound, or no slopes, neither on the margin nor clipped"
    raise Undecided("target", why)


@dataclass(frozen=True)
class LatticeExamination:
    """All that a shard needs.

    Attributes:
        reading: The network.
        expression: f, or f after clipping.
        p: The exponent, None for the supremum.
        balls: Enclose f in Arb balls.
        whole: Ends of slopes and curves over the whole lattice, where there are shards.
    """

    reading: PartitionReading
    expression: Expression
    p: Fraction | None
    balls: bool
    whole: Curvature | None = None

    @property
    def rows(self) -> int:
        """Numbers along the first axis of the grid that a shard has."""
        lattice = self.reading.lattice
        cells = lattice.grid.cells + 2 * lattice.margin
        boxes = parts_of(lattice, BOXES) ** lattice.size * cells ** (lattice.size - 1)
        return max(SHARD_BOXES // boxes, 1)

    @property
    def count(self) -> int:
        """How many shards."""
        return -(-self.reading.lattice.grid.cells // self.rows)

    def slab(self, index: int, reach: int = 0) -> Slab:
        """The cells of a shard, numbers of the lattice."""
        m, K = self.reading.lattice.margin, self.reading.lattice.grid.cells
        first = index * self.rows
        return Slab(first + m, min(first + self.rows, K) + m, reach)


def _map(
    task: Any, work: LatticeExamination, shards: tuple[Computing, str], name: str
) -> list[dict[str, Any]]:
    computing, key = shards
    parts = (work.expression.sha256, work.p, work.balls, name)
    return map_shards(
        task,
        work,
        work.count,
        what=f"certify {name.partition(' ')[0]}",
        scheduler=computing.scheduler,
        workers=computing.workers,
        work=computing.work,
        key=repr((key, *parts)),
        progress=computing.progress,
    )


def examine_values(work: LatticeExamination, index: int) -> dict[str, Any]:
    """One shard: the table against f at its anchors; and hulls, if there are more."""
    lattice = work.reading.lattice
    side = lattice.grid.cells + 1 + 2 * lattice.margin
    slab, layer = work.slab(index), side ** (lattice.size - 1)
    first = 0 if index == 0 else slab.first
    stop = side if index == work.count - 1 else slab.stop
    gaps = traced_gaps(
        work.expression, lattice, work.reading.table, first * layer, stop * layer
    )
    hull: list[list[str]] = []
    if work.count > 1:
        known = Slab(first, min(stop, side - 1))
        field = lattice_field(work.expression, lattice, balls=work.balls, slab=known)
        hull = [[str(v) for v in values.flat] for values in field.hull().arrays]
    return {
        "low": [str(v) for v in gaps.low],
        "high": [str(v) for v in gaps.high],
        "hull": hull,
    }


def _gaps(part: dict[str, Any]) -> Gaps:
    return Gaps(*(np.array([float(v) for v in part[end]]) for end in ("low", "high")))


def _hull(parts: Sequence[list[list[str]]]) -> Curvature | None:
    """The hull over all shards; None if there is one shard only."""
    if not parts[0]:
        return None
    N = len(parts[0][0])
    empty = Curvature.of_size(1, N)
    for k, array in enumerate(empty.arrays):
        values = np.array([[float(v) for v in part[k]] for part in parts])
        array[:] = EXTREMES[k](values, axis=0).reshape(array.shape)
    return empty


def examine_cells(work: LatticeExamination, index: int) -> dict[str, Any]:
    """One shard: bounds of |E f(Y) - f| on its cells."""
    lattice = work.reading.lattice
    slab = work.slab(index, RADII) if work.count > 1 else None
    field = lattice_field(
        work.expression, lattice, balls=work.balls, slab=slab, whole=work.whole
    )
    powers, sups = refined(cell_bounds(field, lattice), field, lattice, work.p)
    finite = bool(np.isfinite(powers).all())
    return {
        "finite": finite,
        "sum": str(power_sum(powers, work.p)) if finite else "0",
        "sup": [str(v) for v in sups.max(axis=0)],
    }


def _lower(
    lattice: Lattice, gaps: Gaps, sups: np.ndarray, rest: Fraction, p: Fraction | None
) -> Fraction:
    """A lower bound of d_p(f, g)^p, or of the supremum: F is off in the same direction."""
    least = gaps.certain * (2 - UP) - (sups.max(axis=0) + float_up(rest)) * UP
    least = np.where(np.isfinite(least) & (least > 0), least, 0.0)
    if p is None:
        return Fraction(float(least.max()))
    powers = power_down(least, p).sum() * (2 - UP)
    return Fraction(float(powers)) * lattice.volume
