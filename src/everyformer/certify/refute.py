"""A claim refuted on boxes, whatever the network: for weights that no reading follows.

A box is the inner part of a cell, with ends that are float64 numbers. On it the network is
enclosed by `network_on_box`, f by its expression or its declared modulus. Where both
enclosures are apart, by at least gap_ji for entry (j, i),

    d_p(f, g)^p >= sum over boxes of vol(box) sum_ji gap_ji^p,

for the boxes are disjoint and inside the domain. A box on which a step is not decided adds
nothing. That is a lower bound in real arithmetic; it never proves a claim.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path

import numpy as np

from everyformer.certify.certificate import format_decimal
from everyformer.certify.from_files import (
    NETWORK_FILE,
    cells_and_known,
    check_same,
    root_in_words,
)
from everyformer.certify.hypotheses import EQUIVARIANCE
from everyformer.certify.known import Declared, Known
from everyformer.certify.network_on_box import NetworkOnBoxes
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.distances import float_down, float_up
from everyformer.certify.on_cells.moments import power_down
from everyformer.certify.undecided import Undecided
from everyformer.certify.verification import Verification
from everyformer.certify.weights import Weights, read_weights
from everyformer.certify.work import Limits
from everyformer.numerics.enclosure import enclose
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Grid
from everyformer.verdict import Verdict

MARGIN = Fraction(1, 32)
"""Share of a cell that is left out at each end: ramps lie there."""

BOXES = 256
"""About so many are made where the grid of a claim is coarser, or where it has none."""

MOST_CELLS = 2**20
"""With more cells nothing is looked at."""

MOST_WORK = 2**25
"""Products of balls up to which boxes are looked at, by an estimate."""

SHARE, LINE, BOX = 4, 128, 512
"""So many products take as long as a share of softmax, a line of f, and a box of itself."""

Bounds = tuple[np.ndarray, np.ndarray]
"""Lower and upper bounds (n, d)."""


@dataclass(frozen=True)
class Apart:
    """Boxes on which f and a network are apart.

    Attributes:
        lower: A lower bound of d_p(f, g)^p; of the distance, for the supremum.
        boxes: How many there are, cells of an orbit counted once.
        looked_at: How many were looked at.
        low: The lower ends (n, d) of the box that adds most.
        high: Its upper ends.
        network: Bounds of the network there, both (n, d).
        function: Bounds of f there.
    """

    lower: Fraction
    boxes: int
    looked_at: int
    low: np.ndarray
    high: np.ndarray
    network: Bounds
    function: Bounds

    def describe(self) -> str:
        """The box that adds most, in words."""
        where = _intervals(self.low, self.high)
        return (
            f"on {self.boxes} of {self.looked_at} boxes the network is apart from f; most "
            f"for x in {where}, where it is in {_intervals(*self.network)} and f in "
            f"{_intervals(*self.function)}"
        )


def refute(folder: Path, found: Verification, limits: Limits = Limits()) -> Verification:  # noqa: B008
    """The same verdict, or REFUTED if boxes show that the claim is false.

    Args:
        folder: Holds the certificate and the weights that `found` is about.
        found: What the verifier says; only an UNKNOWN claim about real arithmetic is tried.
        limits: What examining the cells may cost.

    Raises:
        CertificateError: If a file is damaged.
        WorkLimitError: If examining the cells would take too long.
    """
    certificate, statement = found.certificate, found.statement
    eps, p = certificate.eps, certificate.p
    tried = found.verdict is Verdict.UNKNOWN and "real" in certificate.claims
    if not tried or eps is None or statement.kind == "nothing":
        return found
    weights = read_weights(folder / NETWORK_FILE)
    check_same(certificate, weights, folder)  # the file may be another by now
    if certificate.grid is None:
        f, on_box = statement.expression, certificate.on_box
        if f is None or not on_box:
            return found
        known: Known = f
        cells = _fine(Cells.of(Grid(2, weights.seq_len, certificate.box), symmetric=False))
    else:
        cells, known = cells_and_known(certificate, statement, weights, limits)
        cells = cells if isinstance(known, Declared) else _fine(cells)
    allowed = eps if p is None else power_up(eps, p)
    apart = boxes_apart(weights, cells, known, p, allowed)
    if apart is None or not apart.lower > allowed:
        return found
    declared = known.hypotheses if isinstance(known, Declared) else ()
    if declared and cells.columns is not None:
        declared = (*declared, EQUIVARIANCE)
    proof = replace(found.proof, lower=apart.lower, hypotheses=declared)
    distance = certificate.distance(statement.name if found.given else "f")
    low = root_in_words(apart.lower, p, eps)
    why = f"{distance} is at least {low}, above {format_decimal(eps)}"
    reasons = (why, apart.describe(), *found.reasons)
    return replace(found, verdict=Verdict.REFUTED, reasons=reasons, proof=proof)


def _fine(cells: Cells) -> Cells:
    """The same cells, each divided where they are few."""
    grid = cells.grid
    N = grid.seq_len * grid.d_model
    parts = -(-int(BOXES ** (1 / N) + 1e-9) // grid.cells)
    if parts <= 1 or cells.region is not None:
        return cells
    finer = Grid(parts * grid.cells, grid.seq_len, grid.box)
    symmetric = cells.columns is not None
    return Cells.of(finer, symmetric=symmetric, everywhere=cells.everywhere)


def boxes_apart(
    weights: Weights, cells: Cells, known: Known, p: Fraction | None, enough: Fraction
) -> Apart | None:
    """Look at boxes until the lower bound is more than enough.

    Args:
        weights: The network.
        cells: The cells; where they are orbits, network and f are equivariant.
        known: What is known of f.
        p: The exponent; None for the supremum.
        enough: A p-th power that need not be exceeded further.

    Returns:
        What was found; None if nothing was apart.
    """
    most = MOST_WORK // work_of(weights, known)
    if not most or cells.count > MOST_CELLS:
        return None
    network, rows = NetworkOnBoxes(weights), cells.rows(0, cells.count)
    least = cells.least_weights(rows)
    step = -(-cells.count // most)
    total, seen, found = Fraction(0), 0, list[Apart]()
    for number in range(0, cells.count, step):
        seen += 1
        low, high = inner_box(cells.grid, rows[number : number + 1])
        if not least[number] or (low > high).any():
            continue  # not all of the cell counts, or no float64 number is inside
        try:
            inside = network.enclose(low, high)
        except Undecided:
            continue
        f = _function_on(known, number, low, high)
        gap = _gap(f, inside)
        added = Fraction(float(gap.max()))
        if p is not None:
            ends = zip(low.flat, high.flat, strict=True)
            volume = prod((Fraction(b) - Fraction(a) for a, b in ends), start=Fraction(1))
            powers = map(Fraction, power_down(gap, p).flat)
            added = volume * int(least[number]) * sum(powers, start=Fraction(0))
        total = max(total, added) if p is None else total + added
        if added:
            found.append(Apart(added, 0, 0, low, high, inside, f))
        if total > enough:
            break
    if not found:
        return None
    worst = max(found, key=lambda one: one.lower)
    return replace(worst, lower=total, boxes=len(found), looked_at=seen)


def _gap(f: Bounds, g: Bounds) -> np.ndarray:
    """How far two enclosures are apart, from below; 0 where they meet."""
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.maximum(f[0] - g[1], g[0] - f[1]) * (1 - 2.0**-50)  # differences round
    return np.maximum(np.nan_to_num(gap, nan=0.0), 0.0)  # infinity: the largest float64


def work_of(weights: Weights, known: Known) -> int:
    """About how many products of balls one box takes, with what is known of f on it."""
    n = weights.seq_len
    prefix = weights.registers and weights.registers.prefix
    tokens = n + (0 if prefix is None else len(prefix))
    numbers = sum(array.size for stage in weights.stages for array in stage.arrays.values())
    heads = sum(
        stage.layers * stage.arrays["W_Q"].shape[1]
        for stage in weights.stages
        if stage.half == "attention"
    )
    lines = 0 if isinstance(known, Declared) else len(known.nodes)
    each = tokens * (numbers + SHARE * tokens * heads) * (1 + n * weights.d_model) // 2
    return each + LINE * lines + BOX


def inner_box(grid: Grid, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle of a cell, rounded inward to float64."""
    digits = grid.digits(row)[0]  # [n, d]
    ends = np.empty((2, *digits.shape))
    for j, i in np.ndindex(*digits.shape):
        low, width = Fraction(grid.box.lows[i]), grid.box.widths[i] / grid.cells
        at = low + int(digits[j, i]) * width
        ends[0, j, i] = float_up(at + MARGIN * width)
        ends[1, j, i] = float_down(at + (1 - MARGIN) * width)
    return ends[0], ends[1]


def _function_on(known: Known, number: int, low: np.ndarray, high: np.ndarray) -> Bounds:
    """Bounds of f on a box inside one cell."""
    if isinstance(known, Declared):
        values, omega = known.values[number], float_up(known.omega)
        slack = omega + (np.abs(values) + omega) * 2.0**-50
        return values - slack, values + slack
    middle = np.clip(low / 2 + high / 2, low, high)  # halves of tiny numbers round
    found = enclose(known, *(end[None] for end in (low, high, middle, middle)))
    return found.low[0], found.high[0]


def _intervals(low: np.ndarray, high: np.ndarray) -> str:
    pairs = zip((low + 0.0).flat, (high + 0.0).flat, strict=True)  # -0 + 0 is 0
    return " x ".join(f"[{a:.4g}, {b:.4g}]" for a, b in pairs)
