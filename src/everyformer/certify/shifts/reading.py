"""What given weights compute on every cell: one representative for each, run to the end.

The quantiser is constant on the plateau of a cell, so one representative stands for all of
it. From there on tokens are followed exactly, with a bound on what softmax or float64 add.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.on_cells.reading import Interval, Outside, Plateaus
from everyformer.certify.on_cells.values import Values as Values
from everyformer.certify.shifts.context import UP, Ids, Mode, run_attention, to_real
from everyformer.certify.shifts.layers import Tokens
from everyformer.certify.shifts.lookup import (
    FEW_LAYERS,
    Windows,
    follow_layers,
    look_up,
    read_windows,
)
from everyformer.certify.shifts.piecewise import clamp_of, clamped_range, layer_function
from everyformer.certify.shifts.quantiser import find_plateaus
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights
from everyformer.papers import YUN2020, Citation
from everyformer.targets.box import Box, Grid


@dataclass(frozen=True)
class ShiftReading:
    """A network as the prover reads it, ready to be asked about cells.

    Attributes:
        grid: n, K and the box.
        plateaus: What the first stages do.
        stages: The stages after them, in order; long ones as windows.
        softmax: Whether attention is softmax.
        exact: Whether weights are rationals.
        positional: Whether there are positions, or a gain; without them copies of a token
            stay equal.
        ranges: Where the last stage keeps each coordinate of the output.
        clamps_twice: Whether it does so by two clamps in a row, as float64 needs it.
    """

    grid: Grid
    plateaus: Plateaus
    stages: tuple[tuple[str, StageWeights | Windows], ...]
    softmax: bool
    exact: bool
    positional: bool
    ranges: tuple[Interval, ...]
    clamps_twice: bool

    @property
    def last(self) -> str:
        """Name of the last stage."""
        return self.stages[-1][0]

    def outside(self) -> Outside:
        """Not proved of these networks.

        Raises:
            Undecided: Always. On a ramp of the quantiser a softened shift moves an id by
                any share of its height, and so through the windows of the value map, while
                another token is anywhere outside: there the network is not 0, on a set
                without finite measure (docs/constructions/dense.md).
        """
        why = "selective shifts are not proved to be 0 outside the box; use averaging"
        raise Undecided(self.last, why)

    @property
    def noise(self) -> tuple[str, str]:
        """What the radius in real arithmetic is, and where it is explained."""
        what = "softmax instead of hardmax, values as sums" if self.softmax else "rounding"
        return what, str(Citation(YUN2020, "Lemma 9"))

    @property
    def run_obstacle(self) -> Undecided | None:
        """Why no float64 run is followed, or None."""
        if self.plateaus.ramps_run is None:
            return Undecided("quantise", "rounding may move a state off the grid")
        if self.clamps_twice:
            return None
        return Undecided(self.last, "the output is not clamped twice")

    @property
    def run_slack(self) -> tuple[Fraction, ...]:
        """How far a float64 run may leave each range."""
        return tuple(
            Fraction(0) if low is None or high is None else clamp_rounding(low, high)
            for low, high in self.ranges
        )

    def values(self, columns: np.ndarray, mode: Mode) -> Values:
        """The network's values on cells, and how far from them it may be."""
        return realise(self, columns, mode)

    @property
    def spread(self) -> np.ndarray:
        """Lengths of the ranges, rounded up, with room for a float64 clamp; or infinity."""
        return np.array(
            [
                np.inf
                if low is None or high is None
                else float(high - low) * UP + 2 * float(slack) * UP
                for (low, high), slack in zip(self.ranges, self.run_slack, strict=True)
            ]
        )


def clamp_rounding(low: Fraction, high: Fraction) -> Fraction:
    """How far outside [low, high] a float64 run of two clamps may end.

    Let t be above high. The first clamp gives t + (high - t) with two roundings. If t
    exceeds 2^54 |high|, high - t rounds to -t, and the result is 0; otherwise it misses
    high by at most 2^-52 |t| <= 4 |high|. The second clamp starts from at most 5 |high|,
    and misses by at most 2^-52 times that. Below low the same.
    """
    return max(abs(low), abs(high)) / 2**48


def read_network(weights: Weights, box: Box, cells: int) -> ShiftReading:
    """Examine the weights: plateaus of the quantiser, windows, and the clamp.

    Raises:
        Undecided: Naming the stage whose weights are not of the form that is followed.
    """
    plateaus = find_plateaus(weights, box, cells)
    later = weights.stages[plateaus.stages :]
    return ShiftReading(
        grid=Grid(cells, weights.seq_len, box),
        plateaus=plateaus,
        stages=tuple((stage.name, _as_windows(stage)) for stage in later),
        softmax=weights.softmax,
        exact=weights.exact,
        positional=weights.positional,
        ranges=_ranges(weights),
        clamps_twice=_clamps_twice(weights),
    )


def _as_windows(stage: StageWeights) -> StageWeights | Windows:
    """A feed-forward stage as windows, if it is one; a short one may be something else."""
    if stage.half != "feed_forward":
        return stage
    try:
        return read_windows(stage)
    except Undecided:
        if stage.layers > FEW_LAYERS:
            raise
        return stage


def _clamps_twice(weights: Weights) -> bool:
    """Whether the last stage ends, in every coordinate, with the same clamp twice."""
    last = weights.stages[-1]
    if last.half != "feed_forward" or last.layers > FEW_LAYERS:
        return False
    functions = [layer_function(last.layer(k)) for k in range(last.layers)]
    for i in range(weights.d_model):
        own = [f for f in functions if f is None or f.coordinate in (None, i)][-2:]
        ends = [None if f is None else clamp_of(f, i) for f in own]
        if len(ends) < 2 or ends[0] is None or ends[0] != ends[1]:
            return False
    return True


def _ranges(weights: Weights) -> tuple[Interval, ...]:
    """Where the last stage keeps the output, whatever comes before it."""
    d = weights.d_model
    anywhere: tuple[Interval, ...] = ((None, None),) * d
    last = weights.stages[-1]
    if last.half != "feed_forward" or last.layers > FEW_LAYERS:
        return anywhere
    functions = [layer_function(last.layer(k)) for k in range(last.layers)]
    known = [function for function in functions if function is not None]
    if len(known) < len(functions):
        return anywhere
    ranges = clamped_range(known, d)
    return anywhere if ranges is None else tuple(ranges)


def realise(reading: ShiftReading, columns: np.ndarray, mode: Mode) -> Values:
    """The network's values on cells, and how far from them it may be.

    Args:
        reading: The network.
        columns: Column numbers of the cells, shape (count, n); without positions each row
            is sorted.
        mode: The network in real arithmetic, or its float64 run.

    Raises:
        Undecided: If a step cannot be proved, naming the stage.
    """
    state: Ids | Tokens = _start(reading, columns, mode)
    for name, stage in reading.stages:
        if isinstance(stage, StageWeights) and stage.half == "attention":
            if not isinstance(state, Ids):
                raise Undecided(name, "attention comes after feed-forward layers")
            state = run_attention(stage, state, reading.softmax)
            continue
        tokens = _as_tokens(name, reading, state) if isinstance(state, Ids) else state
        if isinstance(stage, Windows):
            state = look_up(name, stage, tokens)
        else:
            state = follow_layers(stage, tokens)
    if isinstance(state, Ids):
        state = _as_tokens(reading.stages[-1][0], reading, state)
    radius = np.where(state.lost[:, None], reading.spread, state.radius)
    if state.lost.any() and not np.isfinite(reading.spread).all():
        raise Undecided(reading.stages[-1][0], "nothing bounds the output of a float64 run")
    shape = (*columns.shape, reading.grid.d_model)
    return Values(state.centre.reshape(shape), radius.reshape(shape))


def _start(reading: ShiftReading, columns: np.ndarray, mode: Mode) -> Ids:
    """The representatives after the quantiser, as integers over one denominator."""
    values = reading.plateaus.values  # [n, d, K]
    unit = math.lcm(*(v.denominator for v in values.flat))
    whole = np.array([int(v * unit) for v in values.flat], dtype=object)
    if max(abs(int(v)) for v in whole) < 2**62:
        whole = whole.astype(np.int64)
    whole = whole.reshape(values.shape)
    digits = reading.grid.digits(columns)  # [count, n, d]
    _, n, d = digits.shape
    numbers = whole[np.arange(n)[:, None], np.arange(d), digits]
    first = np.ones(columns.shape, dtype=bool)
    if not reading.positional:
        first[:, 1:] = columns[:, 1:] != columns[:, :-1]
    return Ids(numbers, unit, first, np.zeros(numbers.shape), mode)


def _as_tokens(stage: str, reading: ShiftReading, ids: Ids) -> Tokens:
    d = ids.numbers.shape[-1]
    numbers = ids.numbers.reshape(-1, d)
    error = to_real(ids.error).reshape(-1, d)
    if reading.exact:
        centre = numbers.astype(object) * Fraction(1, ids.unit)
        return Tokens(centre, error, ids.mode, np.zeros(len(centre), dtype=bool))
    largest = max((abs(int(v)) for v in (numbers.max(), numbers.min())), default=0)
    if largest > 2**53 or ids.unit & (ids.unit - 1):
        raise Undecided(
            stage, f"states of {largest.bit_length()} bits are not float64 numbers"
        )
    nothing = np.zeros(len(numbers), dtype=bool)
    return Tokens(numbers.astype(np.float64) / ids.unit, error, ids.mode, nothing)
