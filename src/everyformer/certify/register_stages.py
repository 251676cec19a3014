"""The stages of a network with registers: what they are, and what they do on plateaus.

Registers are known exactly, as integers over one denominator; beside them goes a bound on
how far a float64 run may be.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.ridge import SLACK, Ridge
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.values import Mode
from everyformer.certify.weights import StageWeights, to_fractions

UNIT = 2.0**-53 * (1 + SLACK)
OUTWARD = 1 + SLACK


@dataclass(frozen=True)
class Layer:
    """Feed-forward layers that write nothing they read.

    Attributes:
        name: The stage.
        ridges: Its hidden units, by the row they look at.
        shift: The sum of all b_2.
        count: How many layers.
    """

    name: str
    ridges: tuple[Ridge, ...]
    shift: np.ndarray
    count: int


@dataclass(frozen=True)
class Mean:
    """An attention layer that adds M times the mean of all tokens.

    Attributes:
        name: The stage.
        matrix: M = sum over heads of W_O W_V, Fractions of shape (w, w).
        sizes: The same with absolute values, float64, rounded up.
        roundings: How many roundings a term of it meets.
    """

    name: str
    matrix: np.ndarray
    sizes: np.ndarray
    roundings: int


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
    shift = to_fractions(stage.arrays["b_2"]).sum(axis=0)
    written = columns.any(axis=0) | (shift != 0).astype(bool)
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
    return Layer(stage.name, ridges, shift, layers)


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
            why = f"head {head + 1} has scores that are not 0, so its softmax is no mean"
            raise Undecided(stage.name, why)
        total += to_fractions(W_O) @ to_fractions(W_V)
        sizes += np.abs(W_O) @ np.abs(W_V) * OUTWARD
    return Mean(stage.name, total, sizes, n + w + m + h + 10)


def nothing_added(tokens: Exact) -> tuple[np.ndarray, np.ndarray]:
    """An update of 0, in Fractions, and its rounding."""
    zeros = np.full(tokens.numbers.shape, Fraction(0), dtype=object)
    return zeros, np.zeros(tokens.numbers.shape)


def _tau(ridge: Ridge, state: Exact) -> tuple[list[Fraction], np.ndarray]:
    """The different numbers that a ridge sees, exactly, and which token sees which."""
    row = to_fractions(ridge.row)
    used = np.flatnonzero(ridge.row)
    factor = lcm(*(value.denominator for value in row.tolist()))
    weights = np.array([int(row[i] * factor) for i in used], dtype=object)
    seen = np.asarray(state.numbers[..., used].astype(object) @ weights)
    distinct, which = np.unique(seen.reshape(-1), return_inverse=True)
    unit = state.unit * factor
    return [Fraction(int(v), unit) for v in distinct], which.reshape(seen.shape)


def add_ridges(
    stage: Layer,
    state: Exact,
    inputs: np.ndarray,
    mode: Mode,
    looking: tuple[list[Ridge], np.ndarray, np.ndarray] | None = None,
) -> Exact:
    """A feed-forward stage on registers that are known exactly.

    Args:
        stage: The layers.
        state: The registers.
        inputs: Registers that vary, which the ridges may not read.
        mode: Whether to follow a float64 run.
        looking: Ridges that look at the input, what they add, and their rounding.

    Raises:
        Undecided: If a float64 run may see another piece, or a ridge reads the input.
    """
    ridges, (done, update, error) = stage.ridges, looking or ([], *nothing_added(state))
    update = update + stage.shift
    sizes = state.sizes()
    for ridge in ridges:
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
        update[..., ridge.writes] += table[which]
        if mode == "float64":
            near = np.array([float(t) for t in tau])[which]
            off = state.error @ np.abs(ridge.row) * OUTWARD
            steady = ridge.flat(near - off, near + off)
            if not steady.all():
                raise Undecided(stage.name, "rounding may move a key to another value")
            size = sizes @ np.abs(ridge.row) * OUTWARD
            error[..., ridge.writes] += ridge.rounding(near + off, size, len(ridge.row))
    unit = lcm(state.unit, *{v.denominator for v in update.flat})
    factor = unit // state.unit
    added = np.array([v.numerator * (unit // v.denominator) for v in update.flat], object)
    numbers = state.numbers.astype(object) * factor + added.reshape(update.shape)
    if mode == "real":
        return _compact(Exact(numbers, unit, state.error))
    walk = np.zeros(numbers.shape[-1])
    for ridge in (*ridges, *done):
        walk[ridge.writes] += ridge.walk
    change = np.abs(update.astype(np.float64))
    moved = np.asarray(change > 0) | (error > 0) | (walk > 0)
    sums = 3 * UNIT * stage.count * (sizes + walk + change + error)
    total = state.error + error + np.where(moved, sums, 0.0)
    if not np.isfinite(total).all():
        raise Undecided(stage.name, "nothing bounds the rounding of its layers")
    return _compact(Exact(numbers, unit, total * OUTWARD))


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
    if (stage.matrix[:, inputs] != 0).any():
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
    return _compact(Exact(numbers // divisor, unit // divisor, error))
