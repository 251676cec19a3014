"""The stages of a network with registers: what they are, and what they do on plateaus.

Registers are known exactly, as integers over one denominator; beside them goes a bound on
how far a float64 run may be.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from everyformer.certify.on_cells.values import Mode
from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.ridge import SLACK, Ridge, whole
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, to_fractions

UNIT = 2.0**-53 * (1 + SLACK)
OUTWARD = 1 + SLACK


@dataclass(frozen=True)
class Layer:
    """Feed-forward layers that write nothing they read.

    Attributes:
        name: The stage.
        ridges: Its hidden units, by the row they look at.
        shift: The sum of all b_2, Fractions of shape (w,).
        shift_sizes: The sum of all |b_2|, float64, rounded up.
        writes: Registers that a layer writes, even if another one takes it back.
        count: How many layers.
        units: Hidden units of each.
    """

    name: str
    ridges: tuple[Ridge, ...]
    shift: np.ndarray
    shift_sizes: np.ndarray
    writes: np.ndarray
    count: int
    units: int

    @property
    def shift_rounding(self) -> np.ndarray:
        """What a run loses by adding b_2 to the units' sum, in whatever order."""
        return float(gamma(self.units + 3)) * self.shift_sizes * OUTWARD


@dataclass(frozen=True)
class Mean:
    """An attention layer that adds M times the mean of all tokens.

    Attributes:
        name: The stage.
        matrix: M = sum over heads of W_O W_V, Fractions of shape (w, w).
        sizes: The same with absolute values, float64, rounded up; above 0 wherever a head
            reads and writes, even if heads cancel.
        roundings: How many roundings a term of it meets.
    """

    name: str
    matrix: np.ndarray
    sizes: np.ndarray
    roundings: int

    @property
    def writes(self) -> np.ndarray:
        """Registers that a head writes, even if another one takes it back."""
        return (self.sizes != 0).any(axis=1)


@dataclass(frozen=True)
class Exact:
    """Registers of tokens on plateaus, exactly, and how far a float64 run may be.

    Attributes:
        numbers: Integers over `unit`, shape (..., w); of inputs they say nothing.
        unit: The denominator.
        error: Bounds, float64, shape (..., w).
    """

    numbers: np.ndarray
    unit: int
    error: np.ndarray

    def sizes(self) -> np.ndarray:
        """|registers| of a float64 run, rounded up."""
        near = np.abs(self.numbers.astype(np.float64)) / float(self.unit)
        return (near * OUTWARD + self.error) * OUTWARD


@dataclass(frozen=True)
class Update:
    """What the ridges of a stage add to registers on plateaus.

    Attributes:
        amount: Exactly, Fractions of shape (..., w).
        size: The sum of absolute values of all that is added on the way, rounded up.
        error: How far a float64 run may be off.
    """

    amount: np.ndarray
    size: np.ndarray
    error: np.ndarray

    @classmethod
    def nothing(cls, shape: tuple[int, ...]) -> "Update":
        """An update of 0."""
        amount = np.full(shape, Fraction(0), dtype=object)
        return cls(amount, np.zeros(shape), np.zeros(shape))

    def add(self, ridge: Ridge, table: np.ndarray, which: np.ndarray, mode: Mode) -> None:
        """The values of a ridge: row `which` of a table of Fractions, shape (count, c)."""
        self.amount[..., ridge.writes] += table[which]
        if mode == "float64":
            sizes = np.abs(table.astype(np.float64)) * OUTWARD + ridge.walk
            self.size[..., ridge.writes] += sizes[which] * OUTWARD


def read_stage(stage: StageWeights, n: int) -> Layer | Mean:
    """A stage as the prover follows it, for n tokens.

    Raises:
        Undecided: If it is neither a sum of ridges nor a mean.
    """
    return _read_mean(stage, n) if stage.half == "attention" else _read_layer(stage)


def _read_layer(stage: StageWeights) -> Layer:
    """The ridges of a stage.

    Raises:
        Undecided: If a layer writes what a layer of the stage reads.
    """
    W_1, b_1, W_2 = (stage.arrays[name] for name in ("W_1", "b_1", "W_2"))
    layers, r, w = W_1.shape
    columns = np.swapaxes(W_2, 1, 2).reshape(-1, w)
    rows, biases = W_1.reshape(-1, w), b_1.reshape(-1)
    number = np.repeat(np.arange(layers), r)
    used = np.asarray(columns.any(axis=1))
    rows, biases, columns, number = rows[used], biases[used], columns[used], number[used]
    b_2 = stage.arrays["b_2"]
    written = np.asarray(columns.any(axis=0) | b_2.any(axis=0))
    if (rows.any(axis=0) & written).any() and layers > 1:
        which = int(np.argmax(rows.any(axis=0) & written))
        why = f"its layers write register {which + 1}, which they read"
        raise Undecided(stage.name, why)
    entry = np.where(rows != 0, rows, 0.0)
    lead = np.take_along_axis(entry, (rows != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
    signs = np.where(lead < 0, -1.0, 1.0)
    directions, which = np.unique(rows * signs[:, None], axis=0, return_inverse=True)
    which = which.reshape(-1)
    ridges = tuple(
        Ridge.of(
            row,
            signs[which == k],
            biases[which == k],
            columns[which == k],
            number[which == k],
            r,
        )
        for k, row in enumerate(directions)
    )
    return Layer(
        name=stage.name,
        ridges=ridges,
        shift=to_fractions(b_2).sum(axis=0),
        shift_sizes=np.abs(b_2).sum(axis=0) * OUTWARD,
        writes=written,
        count=layers,
        units=r,
    )


def _read_mean(stage: StageWeights, n: int) -> Mean:
    """M of an attention layer whose scores are all 0.

    Raises:
        Undecided: If a head that writes anything looks at the tokens.
    """
    if stage.layers != 1:
        raise Undecided(stage.name, "several attention layers follow each other")
    arrays = stage.layer(0)
    if "gain" in arrays or "b_V" in arrays or "mask" in arrays:
        why = "attention has a gain, a bias of the value, or a mask"
        raise Undecided(stage.name, why)
    h, w, m = arrays["W_O"].shape
    total = np.full((w, w), Fraction(0), dtype=object)
    sizes = np.zeros((w, w))
    for head in range(h):
        W_O, W_V = arrays["W_O"][head], arrays["W_V"][head]
        if not W_O.any():
            continue
        still = not arrays["W_Q"][head].any() and not arrays["b_Q"][head].any()
        if arrays["W_K"][head].any() and not still:
            why = f"head {head + 1} has scores that are not 0, so its softmax is not a mean"
            raise Undecided(stage.name, why)
        total += to_fractions(W_O) @ to_fractions(W_V)
        own = np.abs(W_O) @ np.abs(W_V) * OUTWARD
        touched = (W_O != 0).astype(np.int64) @ (W_V != 0).astype(np.int64) > 0
        sizes += np.where(touched & (own == 0), UNDERFLOW, own)
    return Mean(stage.name, total, sizes, n + w + m + h + 10)


def _tau(ridge: Ridge, state: Exact) -> tuple[list[Fraction], np.ndarray]:
    """The different numbers that a ridge sees, exactly, and which token sees which."""
    row, used = whole(ridge.row), np.flatnonzero(ridge.row)
    seen = np.asarray(state.numbers[..., used].astype(object) @ row.numbers[used])
    distinct, which = np.unique(seen.reshape(-1), return_inverse=True)
    unit = state.unit * row.unit
    return [Fraction(int(v), unit) for v in distinct], which.reshape(seen.shape)


def add_ridges(
    stage: Layer,
    state: Exact,
    inputs: np.ndarray,
    mode: Mode,
    update: Update | None = None,
) -> Exact:
    """A feed-forward stage on registers that are known exactly.

    Args:
        stage: The layers.
        state: The registers.
        inputs: Registers that vary, which the ridges may not read.
        mode: Whether to follow a float64 run.
        update: What ridges add that look at the input, and are not among the stage's; it
            is used up.

    Raises:
        Undecided: If a float64 run may see another piece, or a ridge reads the input.
    """
    update = update or Update.nothing(state.numbers.shape)
    for ridge in stage.ridges:
        if ridge.row[inputs].any():
            raise Undecided(
                stage.name, "a hidden unit reads a register that varies in a cell"
            )
        try:
            tau, which = _tau(ridge, state)
            values = ridge.values(tau)
        except Undecided as found:
            raise Undecided(stage.name, found.why) from None
        table = np.empty((len(values), len(ridge.writes)), dtype=object)
        table[:] = values
        update.add(ridge, table, which, mode)
        if mode == "float64":
            near = np.array([float(t) for t in tau])[which]
            off = state.error @ np.abs(ridge.row) * OUTWARD
            if not ridge.flat(*_around(near, off)).all():
                raise Undecided(stage.name, "rounding may move a key to another value")
            size = state.sizes() @ np.abs(ridge.row) * OUTWARD
            rounding = ridge.rounding(near + off * OUTWARD, size, len(ridge.row))
            update.error[..., ridge.writes] += rounding
    amount = update.amount + stage.shift
    unit = lcm(state.unit, *{v.denominator for v in amount.flat})
    factor = unit // state.unit
    added = np.array([v.numerator * (unit // v.denominator) for v in amount.flat], object)
    numbers = state.numbers.astype(object) * factor + added.reshape(amount.shape)
    if mode == "real":
        return _compact(Exact(numbers, unit, state.error))
    change = update.size + stage.shift_sizes
    error = update.error + stage.shift_rounding
    sums = 3 * UNIT * stage.count * (state.sizes() + change + error)
    total = state.error + error + np.where((change == 0) & (error == 0), 0.0, sums)
    if not np.isfinite(total).all():
        raise Undecided(stage.name, "nothing bounds the rounding of its layers")
    return _compact(Exact(numbers, unit, total * OUTWARD))


def _around(near: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """near - off and near + off, rounded outward; near itself where nothing is off."""
    low = np.nextafter(near - off, -np.inf)
    high = np.nextafter(near + off, np.inf)
    return np.where(off == 0, near, low), np.where(off == 0, near, high)


def _compact(state: Exact) -> Exact:
    """The same numbers as int64, where they fit."""
    numbers = state.numbers
    if numbers.size and max(abs(numbers.max()), abs(numbers.min())) < 2**62:
        return Exact(numbers.astype(np.int64), state.unit, state.error)
    return state


def add_mean(stage: Mean, state: Exact, inputs: np.ndarray, mode: Mode) -> Exact:
    """M times the mean of all tokens, added to each.

    Raises:
        Undecided: If it reads a register that varies.
    """
    if stage.sizes[:, inputs].any():
        raise Undecided(stage.name, "attention reads a register that varies in a cell")
    n = state.numbers.shape[-2]
    factor = lcm(*(v.denominator for v in stage.matrix.flat), 1)
    M = np.array([int(v * factor) for v in stage.matrix.flat], dtype=object)
    total = state.numbers.astype(object).sum(axis=-2, keepdims=True)
    unit = state.unit * factor * n
    added = total @ M.reshape(stage.matrix.shape).T
    numbers = state.numbers.astype(object) * (factor * n) + added
    shared = np.gcd.reduce(numbers, axis=None) if numbers.size else 1
    divisor = gcd(int(shared), unit) or 1
    error = state.error
    if mode == "float64":
        sizes = state.sizes()
        seen = sizes.mean(axis=-2, keepdims=True) @ stage.sizes.T
        carried = error.mean(axis=-2, keepdims=True) @ stage.sizes.T
        own = float(gamma(stage.roundings)) * seen
        change = np.where(seen > 0, 2 * UNIT * (sizes + seen + carried), 0.0)
        error = (error + carried + own + change) * (1 + 8 * SLACK) + UNDERFLOW
        if not np.isfinite(error).all():
            raise Undecided(stage.name, "nothing bounds the rounding of its heads")
    return _compact(Exact(numbers // divisor, unit // divisor, error))
