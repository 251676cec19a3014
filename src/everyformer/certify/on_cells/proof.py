"""The bound on d_p(f, g) for a network that is constant on cells, off its ramps.

The domain splits into the plateaus of the quantiser, where the network is within a radius
of a constant, and the ramps between them, where it stays in the range of the clamp:

    d_p(f, g)^p <= sum over cells of vol(S) mean_S |f - g(S)|^p
                   + (measure of the ramps) * (sum over entries of (range)^p)

Over a region the cells are its pieces. Over all of R^(n x d) a strip around the box is
added, beyond which f and g are 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import current_versions
from everyformer.certify.hypotheses import BOTH, EQUIVARIANCE, FLOAT64, SUPPORT, Claim
from everyformer.certify.known import Declared, Known
from everyformer.certify.on_cells.cells import CellExamination, Cells, examine
from everyformer.certify.on_cells.distances import BALL_PRECISION
from everyformer.certify.on_cells.reading import CellReading
from everyformer.certify.overflow import LARGEST, outside
from everyformer.certify.proof import Proof, Work, obstacle_of
from everyformer.certify.shards import map_shards
from everyformer.certify.support import vanishes_outside
from everyformer.certify.undecided import Obstacle, Undecided
from everyformer.certify.weights import Weights
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.papers import YUN2020, Citation, implements
from everyformer.targets.box import Box

SOURCE = "docs/certificates.md"

NO_RUN_EVERYWHERE = (
    "a float64 run overflows far from the box: over all of R^(n x d) only real arithmetic "
    "has a bound"
)

Read = Callable[[Weights, Box, int], CellReading]
"""Examines the weights, for a box and so many cells per axis; or raises Undecided."""


def prove_on_cells(
    weights: Weights,
    read: Read,
    cells: Cells,
    known: Known,
    p: Fraction | None,
    work: Work,
    *,
    check_run: Callable[[Weights, Box], None] | None = None,
) -> Proof:
    """Bound d_p(f, g) from the weights.

    Args:
        weights: The network.
        read: Reads it.
        cells: The cells to examine.
        known: What is known of f.
        p: The exponent; None for the supremum, which has no bound here.
        work: Where shards run.
        check_run: Raises Undecided where a float64 run may overflow.

    Raises:
        CertificateError: If shards cannot be run.
    """
    if p is None:
        why = (
            "p = infinity: the ramps between cells never vanish; only a partition of unity "
            "has a bound there"
        )
        return Proof(obstacles=(Obstacle(BOTH, "", why),))
    grid, computing = cells.grid, work.computing
    try:
        reading = read(weights, grid.box, grid.cells)
    except (Undecided, OverflowError) as error:
        return Proof(obstacles=(obstacle_of(error, weights),))
    obstacles = [] if weights.exact else _run_obstacles(weights, reading, check_run)
    if cells.everywhere and not weights.exact:
        obstacles = [Obstacle(("float64",), "domain", NO_RUN_EVERYWHERE, own=True)]
    run = not weights.exact and not obstacles
    results: list[dict[str, Any]] | None = None
    for with_run in (True, False) if run else (False,):
        examination = CellExamination(reading, cells, known, p, with_run, work.balls)
        try:
            results = map_shards(
                examine,
                examination,
                cells.shards,
                what="certify cells",
                scheduler=computing.scheduler,
                workers=computing.workers,
                work=computing.work,
                key=_key(weights, examination, work.purpose),
                progress=computing.progress,
            )
            break
        except (Undecided, OverflowError) as error:
            stopped: tuple[Claim, ...] = ("float64",) if with_run else BOTH
            obstacles.append(obstacle_of(error, weights, stopped))
    if results is None:
        return Proof(obstacles=tuple(obstacles[-1:]))
    try:
        return _combine(reading, cells, known, p, results, obstacles)
    except OverflowError as error:
        return Proof(obstacles=(obstacle_of(error, weights),))
    except Undecided as error:
        # The lower bound stands without an upper one.
        found = _lower(reading, cells, known, results)
        return replace(found, obstacles=(*obstacles, obstacle_of(error, weights)))


def _run_obstacles(
    weights: Weights,
    reading: CellReading,
    check_run: Callable[[Weights, Box], None] | None,
) -> list[Obstacle]:
    """Why no float64 run is followed; nothing, if one is."""
    found: list[Undecided] = []
    if reading.run_obstacle is not None:
        found.append(reading.run_obstacle)
    large = outside(weights, 0.0, LARGEST)
    if large is not None:
        found.append(Undecided(large, "weights are so large that a run may overflow"))
    if check_run is not None:
        try:
            check_run(weights, reading.grid.box)
        except Undecided as error:
            found.append(error)
    return [obstacle_of(error, weights, ("float64",)) for error in found]


def _key(weights: Weights, work: CellExamination, purpose: str) -> str:
    """Everything a shard's result depends on."""
    known = work.known
    box = work.cells.grid.box
    symmetric = work.cells.columns is not None
    where = (work.cells.region, work.cells.everywhere)
    parts = (
        purpose,
        current_versions(),
        weights.sha256,
        known.sha256,
        work.p,
        work.run,
        work.balls,
        symmetric,
    )
    kept = repr((*parts, work.cells.grid.cells, box.lows, box.highs))
    return kept if where == (None, False) else kept + repr(where)


def _lower(
    reading: CellReading,
    cells: Cells,
    known: Known,
    results: Sequence[dict[str, Any]],
) -> Proof:
    """The lower bound, what it rests on, and counts, from all shards."""
    grid = cells.grid
    cell = grid.box.volume(grid.seq_len) / grid.sequences
    declared = isinstance(known, Declared)
    hypotheses = known.hypotheses if declared else ()
    if declared and cells.columns is not None:
        hypotheses = (*hypotheses, EQUIVARIANCE)
    summary: dict[str, Any] = {
        "count": grid.sequences if cells.region is None else cells.count,
        "representatives": cells.count,
        "method": "declared modulus" if declared else "mean value form",
        "by_balls": sum(shard["by_balls"] for shard in results),
        "precision": f"float64 intervals rounded outward; balls of {BALL_PRECISION} bits",
        "radius": str(max(Fraction(shard["radius"]) for shard in results)),
        "worst": max(
            (shard["worst"] for shard in results if shard["worst"]),
            key=lambda worst: Fraction(worst[1]),
            default=None,
        ),
    }
    lower = cell * reading.plateaus.shortest * _sum(results, "lower")
    return Proof(lower=lower, hypotheses=hypotheses, summary=summary)


def _sum(results: Iterable[dict[str, Any]], name: str) -> Fraction:
    return sum((Fraction(shard[name]) for shard in results), start=Fraction(0))


def _combine(
    reading: CellReading,
    cells: Cells,
    known: Known,
    p: Fraction,
    results: Sequence[dict[str, Any]],
    obstacles: Sequence[Obstacle],
) -> Proof:
    """The bounds, from the sums of all shards.

    Raises:
        Undecided: If f has no bound on a cell, or the network none on the ramps.
    """
    grid = cells.grid
    volume = cells.volume
    cell = grid.box.volume(grid.seq_len) / grid.sequences
    proof = _lower(reading, cells, known, results)
    proof = replace(proof, obstacles=tuple(obstacles))
    undecided = next((s["undecided"] for s in results if s["undecided"]), None)
    if undecided is not None:
        where = grid.describe(np.array(undecided))
        raise Undecided("target", f"f has no finite bound on {where}")

    def share(name: str, reason: str, source: str) -> Bound:
        return Bound(power_up(cell * _sum(results, name), 1 / p), reason, source)

    def deviation(name: str, radius: str) -> Fraction:
        """The p-norm of the distance: from its sum, or its largest value everywhere."""
        everywhere = volume * grid.seq_len * grid.d_model
        uniform = Fraction(radius) * power_up(everywhere, 1 / p)
        return min(power_up(cell * _sum(results, name), 1 / p), uniform)

    count = proof.summary["count"]
    parts = [share("cells", _cells_reason(count, known), _cite("Lemma 8"))]
    if not reading.positional and grid.seq_len > 1:
        reason = "duplicates: cells with equal columns, g as the weights have it there"
        parts.append(share("duplicates", reason, _cite("Proposition 4")))
    if cells.everywhere:
        parts.append(_strip(reading, p))
        if not vanishes_outside(known, grid.box):
            proof = replace(proof, hypotheses=(*proof.hypotheses, SUPPORT))
    ranges = _ranges(reading, results)
    ramps = _ramps(cells, p, reading.plateaus.ramps, ranges)
    real = Bound.p_norm([*parts, *ramps], p, "f and the values read off the weights")
    noise, source = reading.noise
    radius = proof.summary["radius"]
    reason = f"{noise}: within {float(Fraction(radius)):.2g}"
    softmax = Bound(deviation("real", radius), reason, source)
    bound = Bound.total([real, softmax], f"d_p(f, g), p = {p}, in real arithmetic")
    if "float64" not in results[0]:
        return replace(proof, real=bound)
    assert reading.plateaus.ramps_run is not None, "else float64 is not run"  # noqa: S101
    wider = tuple(
        (low - slack, high + slack)
        for (low, high), slack in zip(ranges, reading.run_slack, strict=True)
    )
    ramps = _ramps(cells, p, reading.plateaus.ramps_run, wider)
    run = Bound.p_norm([*parts, *ramps], p, "f and the values read off the weights")
    radius = str(max(Fraction(shard["run_radius"]) for shard in results))
    reason = f"float64 instead of real arithmetic: within {float(Fraction(radius)):.2g}"
    noise = Bound(deviation("float64", radius), reason, SOURCE)
    float64 = Bound.total([run, noise], f"d_p(f, g), p = {p}, as float64 runs it")
    return replace(
        proof,
        real=bound,
        float64=float64,
        hypotheses=(*proof.hypotheses, FLOAT64),
        summary=proof.summary | {"run_radius": radius},
    )


@implements(YUN2020, "Theorem 2")
def _strip(reading: CellReading, p: Fraction) -> Bound:
    """What R^(n x d) outside the box adds, where f = 0.

    Beyond the strip the network is 0 as well. The strip is the widened box without the box:
    its measure is prod (w_i + s_ji) - prod w_i, and there |f - g| = |g|.

    Raises:
        Undecided: If the network is not proved to be 0 beyond a strip.
    """
    found, widths = reading.outside(), reading.grid.box.widths
    wider = math.prod((found.strip + np.array(widths, dtype=object)).flat)
    measure = wider - reading.grid.box.volume(reading.grid.seq_len)
    powers = sum((power_up(size, p) for size in found.sizes.flat), start=Fraction(0))
    reason = (
        f"outside the box: g = 0 beyond a strip of measure {float(measure):.3g}, in it "
        f"within {float(max(found.sizes.flat)):.4g}"
    )
    return Bound(power_up(measure * powers, 1 / p), reason, SOURCE)


def _cells_reason(count: int, known: Known) -> str:
    if isinstance(known, Expression):
        return f"cells: {count:,} cells, f enclosed with its slopes"
    text = f"cells: {count:,} cells, |f - f(centre)| <= {float(known.omega):.4g}"
    return f"{text} as declared"


def _cite(result: str) -> str:
    return str(Citation(YUN2020, result))


def _ranges(
    reading: CellReading, results: Iterable[dict[str, Any]]
) -> tuple[tuple[Fraction, Fraction], ...]:
    """For each coordinate an interval that holds f and the network's output.

    Raises:
        Undecided: If nothing bounds the output on the ramps.
    """
    found: list[tuple[Fraction, Fraction]] = []
    ramps = any(v for v in reading.plateaus.ramps.flat)
    for i, (low, high) in enumerate(reading.ranges):
        if ramps and (low is None or high is None):
            raise Undecided(
                reading.last, f"coordinate {i + 1} of the output is not clamped"
            )
        lows = [Fraction(shard["low"][i]) for shard in results]
        highs = [Fraction(shard["high"][i]) for shard in results]
        lows += [] if low is None else [low]
        highs += [] if high is None else [high]
        found.append((min(lows), max(highs)))
    return tuple(found)


@implements(YUN2020, "Lemma 9")
def _ramps(
    cells: Cells,
    p: Fraction,
    lengths: np.ndarray,
    ranges: Sequence[tuple[Fraction, Fraction]],
) -> list[Bound]:
    """Measure of the ramps times the range of f and g; an empty list without ramps."""
    n, measure = cells.grid.seq_len, cells.measure(lengths)
    share = measure / cells.volume
    if share == 0:
        return []
    powers = sum((power_up(high - low, p) for low, high in ranges), start=Fraction(0))
    widest = max(high - low for low, high in ranges)
    reason = (
        f"ramps: share {float(share):.3g} of the domain, f and g within {float(widest):.4g}"
    )
    return [Bound(power_up(measure * n * powers, 1 / p), reason, SOURCE)]
