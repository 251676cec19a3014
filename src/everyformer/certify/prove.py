"""The bound on d_p(f, g), from given weights and what is known of f.

The domain splits into the plateaus of the quantiser, where the network is within a radius
of a constant, and the ramps between them, where it stays in the range of the clamp:

    d_p(f, g)^p <= sum over cells of vol(S) mean_S |f - g(S)|^p
                   + (measure of the ramps) * (sum over entries of (range)^p)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.cells import (
    Cells,
    Declared,
    Examination,
    examine,
)
from everyformer.certify.certificate import current_versions
from everyformer.certify.distances import BALL_PRECISION
from everyformer.certify.hypotheses import (
    BOTH,
    EQUIVARIANCE,
    FLOAT64,
    Claim,
    Hypothesis,
)
from everyformer.certify.overflow import LARGEST, check_reach, outside
from everyformer.certify.partition_prove import Shards, prove_partition
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.realise import Reading, read_network
from everyformer.certify.registers import RegisterReading, read_registers
from everyformer.certify.shards import Progress, map_shards, no_progress
from everyformer.certify.undecided import OWN_STAGES, Obstacle, Undecided
from everyformer.certify.weights import Weights
from everyformer.certify.work import Examined, Limits, check_cells, check_work
from everyformer.errors import CertificateError
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.numerics.symmetry import is_equivariant
from everyformer.papers import YUN2020, Citation, implements
from everyformer.targets.box import Box, Grid

MAX_REPRESENTATIVES = 2**24
SOURCE = "docs/certificates.md"


@dataclass(frozen=True)
class Proof:
    """What is proved of a network and a function.

    Attributes:
        real: A bound on d_p(f, g), g the network in real arithmetic; None if none.
        float64: A bound on d_p(f, g), g the network as float64 runs it; None if none.
        lower: A lower bound on d_p(f, g), to the p-th power, g in real arithmetic.
        obstacles: What stopped a bound, each with the claim and the stage.
        hypotheses: What the bounds rest on, the lower one too.
        summary: Counts and extremes, for the certificate.
    """

    real: Bound | None = None
    float64: Bound | None = None
    lower: Fraction = Fraction(0)
    obstacles: tuple[Obstacle, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)

    def obstacles_to(self, claim: Claim) -> tuple[Obstacle, ...]:
        """What stopped the bound of one claim."""
        return tuple(one for one in self.obstacles if claim in one.claims)


@dataclass(frozen=True)
class Computing:
    """Where and how shards run; none of it changes a result.

    Attributes:
        scheduler: Address of a Dask scheduler, or None for this machine.
        workers: Processes on this machine; None for one on each core. With more than
            one, a script needs `if __name__ == "__main__":`, as for multiprocessing.
        work: A folder that keeps finished shards.
        progress: Called as progress(what, done, total).
    """

    scheduler: str | None = None
    workers: int | None = 1
    work: Path | None = None
    progress: Progress = no_progress


def cells_of(
    weights: Weights,
    box: Box,
    cells: int,
    known: Expression | None,
    *,
    equivariant: bool,
    limits: Limits = Limits(),  # noqa: B008
) -> Cells:
    """The cells to examine.

    Orbits instead of cells, where network and function are equivariant: the network because
    it has neither positions nor a gain, f because its expression says so or, without one,
    by declaration. With prefix tokens and a declared f: cells around the grid's points.

    Raises:
        WorkLimitError: If there are too many, or examining them would take too long.
    """
    grid = Grid(cells, weights.seq_len, box)
    size = None if known is None else ProgramSize.of(known)
    check_work(Examined.of(weights, grid, 1, size), limits)
    prefix = weights.registers is not None and weights.registers.prefix is not None
    if prefix and known is None:
        grid = around_points(grid)
    symmetric = not prefix and not weights.positional
    if symmetric:
        symmetric = equivariant if known is None else is_equivariant(known)
    count = check_cells(grid, symmetric=symmetric, most=MAX_REPRESENTATIVES)
    check_work(Examined.of(weights, grid, count, size), limits)
    return Cells.of(grid, symmetric=symmetric)


def around_points(grid: Grid) -> Grid:
    """Cells whose centres are the K + 1 points of each axis that divide it into K.

    Raises:
        CertificateError: If they reach beyond float64.
    """
    steps = [width / grid.cells for width in grid.box.widths]
    ends = zip(grid.box.lows, grid.box.highs, steps, strict=True)
    try:
        pairs = [
            (float(Fraction(a) - h / 2), float(Fraction(b) + h / 2)) for a, b, h in ends
        ]
    except OverflowError as error:
        msg = f"Half a cell beyond {grid.box} float64 has no numbers. Use a smaller domain."
        raise CertificateError(msg) from error
    lows, highs = zip(*pairs, strict=True)
    return Grid(grid.cells + 1, grid.seq_len, Box(tuple(lows), tuple(highs)))


def prove(
    weights: Weights,
    cells: Cells,
    known: Expression | Declared,
    p: Fraction | None,
    computing: Computing = Computing(),  # noqa: B008
    *,
    balls: bool = False,
    purpose: str = "construct",
    grid: Grid | None = None,
) -> Proof:
    """Bound d_p(f, g) from the weights.

    Args:
        weights: The network.
        cells: The cells to examine.
        known: f as an expression, or what is declared of it.
        p: The exponent; None for the supremum, which networks with prefix tokens have.
        computing: Where shards run.
        balls: Enclose f in Arb balls on every cell, instead of float64 intervals first.
        purpose: Part of the name of kept shards: a verifier reads none that a builder left.
        grid: That of the domain, where `cells` may be others.

    Raises:
        CertificateError: If shards cannot be run.
    """
    grid = grid or cells.grid
    if weights.registers is not None and weights.registers.prefix is not None:
        return _of_partition(weights, grid, known, p, computing, balls, purpose)
    if p is None:
        why = (
            "p = infinity: the ramps between cells never vanish; only a partition of unity "
            "has a bound there"
        )
        return Proof(obstacles=(Obstacle(BOTH, "", why),))
    try:
        read = read_network if weights.registers is None else read_registers
        reading = read(weights, grid.box, grid.cells)
    except (Undecided, OverflowError) as error:
        return Proof(obstacles=(_obstacle(error, weights),))
    obstacles = [] if weights.exact else _run_obstacles(weights, reading)
    run = not weights.exact and not obstacles
    results: list[dict[str, Any]] | None = None
    for with_run in (True, False) if run else (False,):
        work = Examination(reading, cells, known, p, with_run, balls)
        try:
            results = map_shards(
                examine,
                work,
                cells.shards,
                what="certify cells",
                scheduler=computing.scheduler,
                workers=computing.workers,
                work=computing.work,
                key=_key(weights, work, purpose),
                progress=computing.progress,
            )
            break
        except (Undecided, OverflowError) as error:
            stopped: tuple[Claim, ...] = ("float64",) if with_run else BOTH
            obstacles.append(_obstacle(error, weights, stopped))
    if results is None:
        return Proof(obstacles=tuple(obstacles[-1:]))
    try:
        return _combine(reading, cells, known, p, results, obstacles)
    except OverflowError as error:
        return Proof(obstacles=(_obstacle(error, weights),))
    except Undecided as error:
        # The lower bound stands without an upper one.
        found = _lower(reading, cells, known, results)
        return replace(found, obstacles=(*obstacles, _obstacle(error, weights)))


def _of_partition(
    weights: Weights,
    grid: Grid,
    known: Expression | Declared,
    p: Fraction | None,
    computing: Computing,
    balls: bool,
    purpose: str,
) -> Proof:
    """The proof for a network with prefix tokens."""
    box = grid.box
    parts = (purpose, current_versions(), weights.sha256, known.sha256, grid.cells)
    shards = Shards(
        computing.scheduler,
        computing.workers,
        computing.work,
        computing.progress,
        repr((*parts, box.lows, box.highs)),
    )
    try:
        found = prove_partition(weights, grid, known, p, shards, balls=balls)
    except (Undecided, OverflowError) as error:
        return Proof(obstacles=(_obstacle(error, weights),))
    return Proof(
        found.real, found.float64, found.lower, (), found.hypotheses, found.summary
    )


def _obstacle(
    error: Undecided | OverflowError,
    weights: Weights,
    claims: tuple[Claim, ...] = BOTH,
) -> Obstacle:
    """What stops a proof; a stage that the file names is not our word for one."""
    if isinstance(error, OverflowError):
        why = f"numbers are too large to be followed ({error})"
        return Obstacle(claims, "weights", why, own=True)
    named = any(stage.name == error.stage for stage in weights.stages)
    own = error.stage in OWN_STAGES and not named
    return Obstacle(claims, error.stage, error.why, own)


def _run_obstacles(weights: Weights, reading: Reading | RegisterReading) -> list[Obstacle]:
    """Why no float64 run is followed; nothing, if one is."""
    found: list[Undecided] = []
    if reading.run_obstacle is not None:
        found.append(reading.run_obstacle)
    large = outside(weights, 0.0, LARGEST)
    if large is not None:
        found.append(Undecided(large, "weights are so large that a run may overflow"))
    if weights.registers is None:
        try:
            check_reach(weights, reading.grid.box)
        except Undecided as error:
            found.append(error)
    return [_obstacle(error, weights, ("float64",)) for error in found]


def _key(weights: Weights, work: Examination, purpose: str) -> str:
    """Everything a shard's result depends on."""
    known = work.known
    box = work.cells.grid.box
    symmetric = work.cells.columns is not None
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
    return repr((*parts, work.cells.grid.cells, box.lows, box.highs))


def _lower(
    reading: Reading | RegisterReading,
    cells: Cells,
    known: Expression | Declared,
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
        "count": grid.sequences,
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
    reading: Reading | RegisterReading,
    cells: Cells,
    known: Expression | Declared,
    p: Fraction,
    results: Sequence[dict[str, Any]],
    obstacles: Sequence[Obstacle],
) -> Proof:
    """The bounds, from the sums of all shards.

    Raises:
        Undecided: If f has no bound on a cell, or the network none on the ramps.
    """
    grid = cells.grid
    volume = grid.box.volume(grid.seq_len)
    cell = volume / grid.sequences
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

    parts = [share("cells", _cells_reason(grid.sequences, known), _cite("Lemma 8"))]
    if not reading.positional and grid.seq_len > 1:
        reason = "duplicates: cells with equal columns, g as the weights have it there"
        parts.append(share("duplicates", reason, _cite("Proposition 4")))
    ranges = _ranges(reading, results)
    ramps = _ramps(reading, volume, p, reading.plateaus.ramps, ranges)
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
    ramps = _ramps(reading, volume, p, reading.plateaus.ramps_run, wider)
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


def _cells_reason(count: int, known: Expression | Declared) -> str:
    if isinstance(known, Expression):
        return f"cells: {count:,} cells, f enclosed with its slopes"
    text = f"cells: {count:,} cells, |f - f(centre)| <= {float(known.omega):.4g}"
    return f"{text} as declared"


def _cite(result: str) -> str:
    return str(Citation(YUN2020, result))


def _ranges(
    reading: Reading | RegisterReading, results: Iterable[dict[str, Any]]
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
    reading: Reading | RegisterReading,
    volume: Fraction,
    p: Fraction,
    lengths: np.ndarray,
    ranges: Sequence[tuple[Fraction, Fraction]],
) -> list[Bound]:
    """Measure of the ramps times the range of f and g; nothing, if there are none."""
    widths = reading.grid.box.widths
    n = reading.grid.seq_len
    share = sum(
        (lengths[j, i] / widths[i] for j in range(n) for i in range(len(widths))),
        start=Fraction(0),
    )
    if share == 0:
        return []
    powers = sum((power_up(high - low, p) for low, high in ranges), start=Fraction(0))
    widest = max(high - low for low, high in ranges)
    reason = (
        f"ramps: share {float(share):.3g} of the domain, f and g within {float(widest):.4g}"
    )
    return [Bound(power_up(volume * share * n * powers, 1 / p), reason, SOURCE)]
