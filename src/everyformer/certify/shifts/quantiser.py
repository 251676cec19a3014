"""The first layers, one coordinate at a time: where they are constant, and on what.

First constants may be added: positions, or attention layers that make them. Then every
coordinate of every token goes through layers that look at nothing else. Each cell of
the grid is pushed through them as an interval, exactly, and split wherever a layer bends. A
piece that ends as a single point is a plateau; all the rest is counted as ramp. Nothing is
taken from the formulas of the construction: thresholds and ramps are those of the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import frexp

import numpy as np

from everyformer.certify.on_cells.reading import Plateaus
from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.rounding import PRECISION, gamma, lowest_bits, sums_exactly
from everyformer.certify.shifts.piecewise import LayerFunction, layer_function
from everyformer.certify.shifts.position_layer import Additions, additions, carried_rounding
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights
from everyformer.targets.box import Box

LAST_STAGE = "quantise"


@dataclass(frozen=True)
class Piece:
    """Inputs (start, end) of a cell on which the state is slope * x + offset.

    Attributes:
        start: Lower end, in the user's coordinates.
        end: Upper end.
        slope: 0 on a plateau.
        offset: The state, on a plateau.
        carried: By how much the state of a float64 run may be off.
        lost: What float64 loses at each end of the plateau, in the user's coordinates.
        since: Layers before the plateau was reached.
        exact_run: False where float64 may give something else on the plateau.
    """

    start: Fraction
    end: Fraction
    slope: Fraction
    offset: Fraction
    carried: Fraction
    lost: Fraction = Fraction(0)
    since: int = 0
    exact_run: bool = True

    def at(self, x: Fraction) -> Fraction:
        """The state at x."""
        return self.slope * x + self.offset

    @cached_property
    def about(self) -> tuple[float, float]:
        """The range of the state, in floats, a little too wide."""
        ends = sorted((float(self.at(self.start)), float(self.at(self.end))))
        margin = 2.0**-40 * (1 + max(abs(ends[0]), abs(ends[1])))
        return ends[0] - margin, ends[1] + margin


def find_plateaus(weights: Weights, box: Box, cells: int) -> Plateaus:
    """Push every cell of every coordinate and token through the first stages.

    Raises:
        Undecided: If the layers mix coordinates, or a cell has no plateau.
    """
    n, d = weights.seq_len, weights.d_model
    kinds = [stage.kind for stage in weights.stages]
    if LAST_STAGE not in kinds:
        why = f"there is no stage {LAST_STAGE!r} to start from"
        raise Undecided(weights.stages[0].name, why)
    count = kinds.index(LAST_STAGE) + 1
    added, read = additions(weights, weights.stages[:count])
    functions = coordinate_functions(weights.stages[read:count], d)
    values = np.empty((n, d, cells), dtype=object)
    ramps = np.empty((n, d), dtype=object)
    ramps_run = np.empty((n, d), dtype=object)
    decided, shortest = True, Fraction(1)
    found: dict[tuple[int, Additions], list[Piece]] = {}
    for j in range(n):
        for i in range(d):
            key = (i, added[j, i])
            if key not in found:
                found[key] = _coordinate(functions[i], i, added[j, i], box, cells)
            plateaus = found[key]
            values[j, i] = [piece.offset for piece in plateaus]
            lengths = [piece.end - piece.start for piece in plateaus]
            length = sum(lengths)
            shortest *= min(lengths) * cells / box.widths[i]
            lost = sum(2 * piece.lost for piece in plateaus)
            ramps[j, i] = box.widths[i] - length
            ramps_run[j, i] = ramps[j, i] + lost
            decided &= all(piece.exact_run for piece in plateaus)
    return Plateaus(values, ramps, ramps_run if decided else None, shortest, count)


def coordinate_functions(
    stages: Sequence[StageWeights], d: int
) -> list[list[LayerFunction]]:
    """The layers of each coordinate, in order.

    Raises:
        Undecided: If a layer does not look at one coordinate alone.
    """
    functions: list[list[LayerFunction]] = [[] for _ in range(d)]
    for stage in stages:
        if stage.half != "feed_forward":
            raise Undecided(stage.name, "there is attention before the grid is reached")
        for index in range(stage.layers):
            function = layer_function(stage.layer(index))
            i = None if function is None else function.coordinate
            if function is None or i is None:
                raise Undecided(stage.name, f"layer {index} mixes coordinates")
            functions[i].append(function)
    return functions


def _coordinate(
    functions: list[LayerFunction], i: int, added: Additions, box: Box, cells: int
) -> list[Piece]:
    """The plateau of each cell: the longest piece that ends as a point."""
    low, width = Fraction(box.lows[i]), box.widths[i]
    size = max(abs(low), abs(low + width))
    shift, carried = carried_rounding(size, added)
    idle_outside = [_idle_outside(function, i) for function in functions]
    plateaus: list[Piece] = []
    for k in range(cells):
        start, end = low + k * width / cells, low + (k + 1) * width / cells
        pieces = [Piece(start, end, Fraction(1), shift, carried)]
        for layer, function in enumerate(functions):
            pieces = [
                new
                for piece in pieces
                for new in _idle(piece, *idle_outside[layer])
                or _push(function, i, layer, piece)
            ]
        flat = [piece for piece in pieces if piece.slope == 0]
        if not flat:
            why = f"coordinate {i + 1} is nowhere constant on cell {k} of {cells}"
            raise Undecided(LAST_STAGE, why)
        plateaus.append(max(flat, key=lambda piece: piece.end - piece.start))
    stays = _points_stay(functions, i, plateaus)
    return [
        replace(piece, exact_run=piece.exact_run and bool(exact))
        for piece, exact in zip(plateaus, stays, strict=True)
    ]


def _idle(piece: Piece, below: float, above: float) -> list[Piece]:
    """The piece, if a layer that is idle outside [below, above] leaves it alone."""
    low, high = piece.about
    if high < below:
        return [piece]
    if low > above:  # ReLUs cancel there, in float64 only for states on the grid
        return [piece if piece.slope == 0 else replace(piece, exact_run=False)]
    return []


def _idle_outside(function: LayerFunction, i: int) -> tuple[float, float]:
    """States below the first number, and above the second, are left alone.

    Below all breaks no ReLU may be active: float64 is to be idle as well.
    """
    w, inf = function.direction[i], float("inf")
    if w <= 0 or not function.breaks:
        return -inf, inf
    used = [(row[i], bias) for row, bias, column in function.units if column[i]]
    # Breaks at which ReLUs cancel belong to the float64 run, not to the function.
    kinks = [-bias / row for row, bias in used if row > 0]
    first = float(min([function.breaks[0] / w, *kinks]))
    last = float(function.breaks[-1] / w)
    below = not (any(function.slopes[0]) or any(function.offsets[0]) or any(function.shift))
    below &= all(row > 0 or (row == 0 and bias <= 0) for row, bias in used)
    above = not (any(function.slopes[-1]) or any(function.offsets[-1]))
    # Above, ReLUs are active and cancel: `_points_stay` looks after float64 there.
    return (
        first - 2.0**-40 * (1 + abs(first)) if below else -inf,
        last + 2.0**-40 * (1 + abs(last)) if above else inf,
    )


def _push(function: LayerFunction, i: int, layer: int, piece: Piece) -> list[Piece]:
    """One piece through one layer on coordinate i; more pieces if the layer bends."""
    w = function.direction[i]
    if piece.slope == 0:
        return [_push_point(function, i, piece)]
    t_start, t_end = sorted((w * piece.at(piece.start), w * piece.at(piece.end)))
    touched = function.pieces(t_start, t_end)
    cuts = [t_start, *function.breaks[touched.start : touched.stop - 1], t_end]
    result: list[Piece] = []
    for index, (t_0, t_1) in zip(touched, pairwise(cuts), strict=True):
        part = piece
        if len(touched) > 1:
            ends = sorted((t / w - piece.offset) / piece.slope for t in (t_0, t_1))
            part = replace(piece, start=ends[0], end=ends[1])
        factor = 1 + function.slopes[index][i] * w
        offset = piece.offset * factor + function.offsets[index][i]
        slope = piece.slope * factor
        new = replace(part, slope=slope, offset=offset, since=layer + 1)
        result.append(_run_part(function, i, part, new))
    return result


def _push_point(function: LayerFunction, i: int, piece: Piece) -> Piece:
    update = function.value(function.direction[i] * piece.offset)[i]
    if update == 0:
        return piece
    return replace(piece, offset=piece.offset + update, exact_run=False)


def _points_stay(
    functions: list[LayerFunction], i: int, plateaus: list[Piece]
) -> np.ndarray:
    """Whether float64 leaves each plateau's state alone in all layers after it is reached.

    Every ReLU, its product with W_2, their sum and the sum with the state must be free of
    rounding; that the exact sum is 0 is known.
    """
    with_units = [function for function in functions if function.units]
    if len(with_units) < len(functions):
        return np.zeros(len(plateaus), dtype=bool)
    z = np.array([float(piece.offset) for piece in plateaus])
    fits = np.array([Fraction(float(p.offset)) == p.offset for p in plateaus])
    for layer, function in enumerate(functions):
        rows, biases, columns = (
            np.array([float(entry) for entry in values])
            for values in zip(
                *((row[i], bias, column[i]) for row, bias, column in function.units),
                strict=True,
            )
        )
        seen = np.stack([rows * z[:, None], np.broadcast_to(biases, (len(z), len(rows)))])
        exact = sums_exactly(
            np.moveaxis(seen, 0, -1), np.moveaxis(lowest_bits(seen), 0, -1)
        )
        exact &= np.isin(np.abs(rows), (0.0, 1.0))  # products with others may round
        total = seen.sum(axis=0)
        inactive = total + np.abs(seen).sum(axis=0) * 2.0**-50 <= 0
        inactive |= exact & (total <= 0)
        hidden = np.where(inactive, 0.0, total)
        used = (columns != 0) & ~inactive
        terms = np.where(used, hidden * columns, 0.0)
        places = np.where(used, lowest_bits(hidden) + lowest_bits(columns), 1 << 20)
        fine = (~used | exact).all(axis=-1) & sums_exactly(terms, places)
        fits &= fine | (np.array([piece.since for piece in plateaus]) > layer)
    return fits


def _active(
    function: LayerFunction, i: int, low: Fraction, high: Fraction
) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Row, bias and column of the ReLUs that are not 0 on all of [low, high]."""
    return [
        (row[i], bias, column[i])
        for row, bias, column in function.units
        if column[i] and max(row[i] * low, row[i] * high) + bias > 0
    ]


def exact_difference(theta: Fraction, low: Fraction, high: Fraction) -> bool:
    """Whether z - theta is a float64 number for every float64 z in [low, high], low > 0.

    For theta/2 <= z <= 2 theta it is (Sterbenz). For z > 2 theta it is a multiple of the
    last place of z, if theta is one, and it is smaller than z. The last place of `high` is
    a multiple of those of all z below.
    """
    if not 0 < theta / 2 <= low:
        return False
    last_place = Fraction(2) ** (frexp(float(high))[1] - PRECISION)
    return high <= 2 * theta or theta % last_place == 0


def _run_part(function: LayerFunction, i: int, before: Piece, after: Piece) -> Piece:
    """What a float64 run does on a part where the layer is linear.

    No ReLU is active: nothing happens. One is, and takes z - theta from z: where that
    difference is exact (`exact_difference`) the result is theta exactly, for every float64
    number z of the part. Otherwise the error is carried on.
    """
    low, high = sorted((before.at(before.start), before.at(before.end)))
    active = _active(function, i, low, high)
    if not active and function.shift[i] == 0:
        return after
    if len(active) == 1 and function.shift[i] == 0 and after.slope == 0:
        row, bias, column = active[0]
        theta = -bias * row
        exact = bias == 0 or exact_difference(theta, low, high)
        if abs(row) == 1 and row * column == -1 and exact:
            lost = before.carried / abs(before.slope)
            return replace(after, carried=Fraction(0), lost=lost)
    size = max(abs(low), abs(high))
    terms = sum(abs(column) * (abs(row) * size + abs(bias)) for row, bias, column in active)
    rounding = gamma(len(function.units) + len(function.shift) + 3)
    grown = before.carried * (abs(after.slope / before.slope) if before.slope else 1)
    carried = grown + rounding * (size + before.carried + terms + abs(function.shift[i]))
    carried += Fraction(UNDERFLOW)
    exact = after.exact_run and after.slope != 0
    return replace(after, carried=carried, exact_run=exact)
