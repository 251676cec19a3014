"""Networks with registers and averaging attention: what given weights compute on cells.

Everything is read off the weights, by what they do and not by what they are called.

1. Registers that no stage writes are *inputs*: affine functions of one coordinate of the
   token, or constants of its position. All other registers start as constants.
2. A feed-forward stage whose layers write nothing that they read is a sum of ridges
   (`certify/ridge.py`). A ridge that looks at one coordinate is constant on pieces of it:
   the longest one in each cell is the cell's plateau, the rest is ramp. A ridge that looks
   at registers known on plateaus takes there one exact value. All registers are carried
   through the stages, for every token and column: what was written is what is read.
3. A head with W_K = 0, or with W_Q = 0 and b_Q = 0, has scores 0: softmax is the mean.
4. A ridge that is constant far out keeps what it writes in the range of its values at its
   bends, for every input: no clamp is needed on the ramps.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import numpy as np

from everyformer.certify.averaging.outside import outside
from everyformer.certify.averaging.plateaus import PlateauSearch
from everyformer.certify.on_cells.reading import Outside, Plateaus
from everyformer.certify.on_cells.values import Mode, Values
from everyformer.certify.overflow import LARGEST, UNDERFLOW
from everyformer.certify.register_stages import (
    OUTWARD,
    UNIT,
    Exact,
    Layer,
    Mean,
    Update,
    add_mean,
    add_ridges,
    read_stage,
)
from everyformer.certify.ridge import SLACK, outward, whole
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, Weights
from everyformer.targets.box import Box, Grid


@dataclass(frozen=True)
class RegisterReading:
    """A network with registers as the prover reads it.

    Attributes:
        grid: n, K and the box.
        plateaus: Where everything that looks at the input is constant.
        tokens: The registers of every token and column before attention, (n, V, w).
        early: What comes before attention.
        later: Attention and what comes after it.
        inputs: Which registers vary on a plateau.
        registers: The read-in and the read-out.
        positional: Whether positions are told apart.
        ranges: An interval for each coordinate of the output, for every input.
        run_slack: By how much a float64 run may leave it.
        run_obstacle: Why no float64 run is followed, or None.
        last: Name of the last stage.
    """

    grid: Grid
    plateaus: Plateaus
    tokens: Exact
    early: tuple[Layer | Mean, ...]
    later: tuple[Layer | Mean, ...]
    inputs: np.ndarray
    registers: RegisterWeights
    positional: bool
    ranges: tuple[tuple[Fraction | None, Fraction | None], ...]
    run_slack: tuple[Fraction, ...]
    run_obstacle: Undecided | None
    last: str
    exact: bool = False

    @property
    def noise(self) -> tuple[str, str]:
        """What the radius in real arithmetic is, and where it is explained."""
        return "values of the network as float64 numbers", "docs/certificates.md"

    def outside(self) -> Outside:
        """Where the network is exactly 0, in real arithmetic.

        Raises:
            Undecided: If it is not proved to be 0 outside some strip around the box.
        """
        return outside(self.registers, (*self.early, *self.later), self.grid)

    def values(self, columns: np.ndarray, mode: Mode) -> Values:
        """The network's values on cells, and how far from them it may be.

        Raises:
            Undecided: If a step cannot be proved, naming the stage.
        """
        n = columns.shape[1]
        at = (np.arange(n), columns)
        error = self.tokens.error[at]
        if mode == "real":
            error = np.zeros_like(error)
        state = Exact(self.tokens.numbers[at], self.tokens.unit, error)
        for stage in self.later:
            if isinstance(stage, Mean):
                state = add_mean(stage, state, self.inputs, mode)
            else:
                state = add_ridges(stage, state, self.inputs, mode)
        return self._read_out(state, mode)

    def _read_out(self, state: Exact, mode: Mode) -> Values:
        W = whole(self.registers.W_out)
        numbers = np.asarray(state.numbers.astype(object) @ W.numbers.T)
        exact = [Fraction(int(v), state.unit * W.unit) for v in numbers.reshape(-1)]
        centre = np.array([float(v) for v in exact])
        off = (abs(Fraction(c) - v) for c, v in zip(centre.tolist(), exact, strict=True))
        radius = np.array([float(v) for v in off]).reshape(numbers.shape) * OUTWARD
        if mode == "float64":
            size = np.abs(self.registers.W_out).T
            own = float(gamma(len(size) + 2)) * OUTWARD
            radius = radius + (state.error @ size + own * (state.sizes() @ size)) * OUTWARD
            radius = radius + UNDERFLOW
        return Values(centre.reshape(numbers.shape), radius)


def read_registers(weights: Weights, box: Box, cells: int) -> RegisterReading:
    """Examine the weights of a network with registers.

    Raises:
        Undecided: Naming the stage whose weights are not of the form that is followed.
    """
    registers = weights.registers
    assert registers is not None, "only networks with registers come here"  # noqa: S101
    if registers.prefix is not None:
        raise Undecided("registers", "tokens before the sequence are not followed here")
    n = weights.seq_len
    stages = [read_stage(stage, n) for stage in weights.stages]
    inputs = _inputs(registers, stages)
    if (registers.W_out[:, inputs] != 0).any():
        raise Undecided("registers", "the read-out reads a register that varies in a cell")
    first = next((k for k, s in enumerate(stages) if isinstance(s, Mean)), len(stages))
    grid = Grid(cells, n, box)
    early, why = stages[:first], None
    try:
        plateaus, tokens = _before_attention(registers, early, inputs, grid, "float64")
    except Undecided as found:
        plateaus, tokens = _before_attention(registers, early, inputs, grid, "real")
        why = found.with_traceback(None)
    reading = RegisterReading(
        grid=grid,
        plateaus=plateaus,
        tokens=tokens,
        early=tuple(early),
        later=tuple(stages[first:]),
        inputs=inputs,
        registers=registers,
        positional=weights.positional,
        ranges=(),
        run_slack=(),
        run_obstacle=why,
        last=weights.stages[-1].name,
    )
    with np.errstate(invalid="ignore"):  # infinite ranges have no middle, and stay so
        return _with_ranges(reading, stages, box)


def _inputs(registers: RegisterWeights, stages: list[Layer | Mean]) -> np.ndarray:
    """Registers that depend on the token's coordinates; no stage may write them."""
    inputs = np.asarray(registers.W_in.any(axis=1))
    for stage in stages:
        if (stage.writes & inputs).any():
            raise Undecided(stage.name, "it writes a register that holds the input")
    return inputs


def _before_attention(
    registers: RegisterWeights,
    stages: list[Layer | Mean],
    inputs: np.ndarray,
    grid: Grid,
    mode: Mode,
) -> tuple[Plateaus, Exact]:
    """Plateaus of all cells, and the registers of every token and column on them."""
    n, d, K, V = grid.seq_len, grid.d_model, grid.cells, grid.columns
    search = PlateauSearch(registers, inputs, grid, mode)
    start = whole(np.where(inputs, 0.0, registers.start))
    numbers = np.broadcast_to(start.numbers[:, None], (n, V, len(inputs)))
    # A read-in of constants is 0 x + start: nothing rounds.
    tokens = Exact(numbers, start.unit, np.zeros(numbers.shape))
    for stage in stages:
        assert isinstance(stage, Layer), "attention comes later"  # noqa: S101
        looking = [ridge for ridge in stage.ridges if ridge.row[inputs].any()]
        rest = tuple(ridge for ridge in stage.ridges if not ridge.row[inputs].any())
        update = Update.nothing(tokens.numbers.shape)
        for ridge in looking:
            search.add(stage.name, ridge, tokens, update)
        tokens = add_ridges(replace(stage, ridges=rest), tokens, inputs, mode, update)
    lengths = search.lengths()
    ramps = np.array(
        [[grid.box.widths[i] - sum(lengths[j][i]) for i in range(d)] for j in range(n)],
        dtype=object,
    )
    shares = (min(lengths[j][i]) * K / grid.box.widths[i] for j, i in np.ndindex(n, d))
    shortest = prod(shares, start=Fraction(1))
    ramps_run = ramps + 2 * K * search.lost
    nothing = np.empty((n, d, 0), dtype=object)
    return Plateaus(nothing, ramps, ramps_run, shortest, len(stages)), tokens


def _with_ranges(
    reading: RegisterReading, stages: list[Layer | Mean], box: Box
) -> RegisterReading:
    """Where every register stays for every input, in real arithmetic and in float64."""
    held = reading.registers
    far = np.array([max(abs(a), abs(b)) for a, b in zip(box.lows, box.highs, strict=True)])
    reach = np.abs(held.W_in) @ far * OUTWARD
    low, high = _plus(held.start.min(axis=0), held.start.max(axis=0), -reach, reach)
    slack = ((np.abs(low) + np.abs(high)) * SLACK + UNDERFLOW) * reading.inputs
    obstacle = reading.run_obstacle
    w = len(low)
    for stage in stages:
        size = np.maximum(np.abs(low), np.abs(high)) + slack
        obstacle = obstacle or _too_large(stage.name, size)
        if isinstance(stage, Mean):
            # The mean of all tokens lies in the range of each register.
            middle, spread = _middle_and_spread(stage.matrix, stage.sizes, low, high)
            low, high = _plus(low, high, *_minus_plus(middle, spread))
            rounds = float(gamma(stage.roundings)) + 4 * UNIT
            extra = _product(stage.sizes, slack + rounds * size)
            slack = (slack + extra + np.where(extra == 0, 0.0, 4 * UNIT * size)) * OUTWARD
            slack = slack + UNDERFLOW
            continue
        least, most = (np.array([outward(v, s) for v in stage.shift]) for s in (-1, 1))
        low, high = _plus(low, high, least, most)
        before, walk = size, stage.shift_sizes.copy()
        slack = slack + stage.shift_rounding
        for ridge in stage.ridges:
            at, (least, most) = ridge.writes, ridge.range
            low[at], high[at] = _plus(low[at], high[at], least, most)
            walk[at] += ridge.walk + np.maximum(np.abs(least), np.abs(most))
            seen = float(_product(np.abs(ridge.row)[None], before)[0]) * OUTWARD
            if not ridge.forward or not np.isfinite(seen):
                unseen = "nothing bounds what its hidden units see"
                obstacle = obstacle or Undecided(stage.name, unseen)
                continue
            most_seen = np.array([seen])
            slack[at] += ridge.rounding(most_seen, most_seen, w)[0]
        size = (before + walk + slack) * OUTWARD
        slack = slack + np.where(stage.writes, 3 * UNIT * stage.count * size, 0.0)
    W = held.W_out
    bottom, top = _minus_plus(*_middle_and_spread(W, np.abs(W), low, high))
    size = np.maximum(np.abs(low), np.abs(high)) + slack
    obstacle = obstacle or _too_large(reading.last, size)
    extra = _product(np.abs(W), slack + float(gamma(w + 2)) * size) * OUTWARD + UNDERFLOW
    ranges: list[tuple[Fraction | None, Fraction | None]] = [
        (Fraction(float(a)), Fraction(float(b)))
        if np.isfinite([a, b]).all()
        else (None, None)
        for a, b in zip(bottom, top, strict=True)
    ]
    if not np.isfinite(extra).all():
        why = "nothing bounds the rounding of the output"
        obstacle = obstacle or Undecided(reading.last, why)
        extra = np.zeros_like(extra)
    return replace(
        reading,
        ranges=tuple(ranges),
        run_slack=tuple(Fraction(float(e)) for e in extra),
        run_obstacle=obstacle,
    )


def _too_large(stage: str, size: np.ndarray) -> Undecided | None:
    """Why a run may overflow, or None."""
    if (size <= LARGEST).all():
        return None
    return Undecided(stage, "registers may exceed 2^200, and a run may overflow")


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A matrix times a vector that may have infinite entries, where 0 times them is 0."""
    with np.errstate(invalid="ignore"):
        return np.where(matrix == 0, 0.0, matrix * vector).sum(axis=-1)


def _middle_and_spread(
    matrix: np.ndarray, sizes: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """M z lies within `spread` of `middle` for z in [low, high]; sizes bound |M|."""
    with np.errstate(invalid="ignore"):
        centre, half = (low + high) / 2, (high - low) / 2
        rounded = (np.maximum(np.abs(low), np.abs(high)) + half) * SLACK
    return _product(matrix.astype(np.float64), centre), _product(sizes, half + rounded)


def _minus_plus(middle: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """middle - spread and middle + spread, rounded outward."""
    return np.nextafter(middle - spread, -np.inf), np.nextafter(middle + spread, np.inf)


def _plus(
    low: np.ndarray, high: np.ndarray, least: np.ndarray, most: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """[low, high] + [least, most], rounded outward."""
    return np.nextafter(low + least, -np.inf), np.nextafter(high + most, np.inf)
