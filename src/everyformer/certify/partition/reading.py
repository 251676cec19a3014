"""Networks with prefix tokens and softmax over them: what given weights compute.

Everything is read off the weights, by what they do and not by what they are called. Data
tokens are affine functions of the input (`affine`) up to the second attention
layer, whose result G is an average of what the prefix tokens hold, and affine functions of
the input and G after it. With u the input in unit coordinates, the scores of token j are

    s_jv = sum_k u_k lambda_jvk + mu_jv.

They are compared with beta (2 u.v - |v|^2), v on a lattice: the n (N + 1) numbers lambda
and mu of each prefix token say by how much, eta, at most. Everything else follows from the
lattice (`lattice`). The table of values, the share of data tokens and what else reaches
the output are read off too; so are the roundings of a float64 run.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.overflow import outside
from everyformer.certify.partition.affine import (
    Affine,
    Range,
    check_prefix_unchanged,
    feed_forward,
)
from everyformer.certify.partition.bounds import leak, reweighting
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.scores import Head, Scores, product
from everyformer.certify.register_stages import Mean, read_stage
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import (
    RegisterWeights,
    StageWeights,
    Weights,
    to_fractions,
)
from everyformer.targets.box import Grid

SMALLEST = 2.0**-100
"""Smaller numbers may vanish in products, and larger ones may hide them."""

UNDERFLOW = Fraction(1, 2**200)
"""More than inputs near 0 can do: they lose 2^-1075 at most, times eight weights."""

MAX_ETA = Fraction(1, 4)
"""Scores that are further off than this are not those of a lattice."""


@dataclass(frozen=True)
class PartitionReading:
    """A softmax partition of unity as the prover reads it.

    Attributes:
        lattice: The lattice and D.
        table: What each anchor adds to each entry, (P, N), entry 0 of the lattice slowest.
        table_error: How far that may be from the weights' own products.
        eta: Scores are within it of those of the lattice, but for a common term.
        suppression: B: no data token has a score above -B.
        offset: What reaches the output besides the average, at most.
        largest: A bound on the values that are averaged.
        run: How far a float64 run may be from real arithmetic, in every entry.
    """

    lattice: Lattice
    table: np.ndarray
    table_error: Fraction
    eta: Fraction
    suppression: Fraction
    offset: Fraction
    largest: Fraction
    run: Fraction


def read_partition(weights: Weights, grid: Grid) -> PartitionReading:
    """Examine the weights of a network with prefix tokens.

    Args:
        weights: The network.
        grid: K, n and the box that the lattice is said to have; nothing else is taken
            from there, and that it is so is checked.

    Raises:
        Undecided: Naming the stage whose weights are not of this form.
    """
    with np.errstate(over="raise", invalid="raise"):
        try:
            return _read(weights, grid)
        except FloatingPointError:
            raise Undecided("weights", "numbers are too large to be followed") from None


def _read(weights: Weights, grid: Grid) -> PartitionReading:
    held = weights.registers
    assert held is not None, "only networks with registers come here"  # noqa: S101
    assert held.prefix is not None, "and with prefix tokens"  # noqa: S101
    halves = [stage.half for stage in weights.stages]
    if halves != ["feed_forward", "attention", "attention", "feed_forward"]:
        why = f"stages are {halves}, not feed-forward, attention twice, feed-forward"
        raise Undecided("stages", why)
    _check_sizes(weights)
    slots, mean, softmax, select = weights.stages
    check_prefix_unchanged(slots, held.prefix)
    state = feed_forward(slots, _read_in(held, grid))
    state, written = _mean(mean, state, held.prefix)
    head = Head.of(softmax, held.prefix, written)
    scores = Scores.of(head, state, grid)
    lattice, order = scores.lattice(grid)
    eta = scores.eta(lattice, order)
    if eta > MAX_ETA:
        why = f"scores are off by {float(eta):.3g} from those of a lattice with K = "
        raise Undecided(softmax.name, f"{why}{grid.cells}, margin {lattice.margin}")
    values, slack = head.values()
    own = state.mapped(head.W_V, np.zeros(len(head.W_V))).mapped(head.W_O, head.nothing)
    largest = max(_up(np.abs(values) + slack), max(own.sizes().flat))
    suppression = -scores.of_data()
    moved = scores.rounding()
    hidden = suppression - eta - 2 * moved
    terms = head.W_V.shape[1] + head.W_O.shape[1]
    error = _run_error(lattice, max(largest, head.gross()), moved, hidden, terms)
    state = _with_average(state, head, largest, error)
    state = feed_forward(select, state)
    result = state.mapped(held.W_out, np.zeros(len(held.W_out)))
    table, table_error, offset, factor = _result(result, values, slack, grid)
    return PartitionReading(
        lattice=lattice,
        table=table[order],
        table_error=table_error,
        eta=eta,
        suppression=suppression,
        offset=offset,
        largest=largest * max(factor, Fraction(1)),
        run=max(result.error.flat) + UNDERFLOW,
    )


def _check_sizes(weights: Weights) -> None:
    """See that no product of weights on the way to the output leaves float64.

    An entry of the output is a sum of products of at most ten numbers, weights or entries
    of the input. If weights are 0 or between 2^-100 and 2^100, none of those underflows
    to 0, here or in a run, and none overflows.

    Raises:
        Undecided: If a weight is smaller or larger.
    """
    name = outside(weights, SMALLEST, 1 / SMALLEST)
    if name is not None:
        raise Undecided(name, "a number is not 0 and not between 2^-100 and 2^100")


def _up(values: np.ndarray) -> Fraction:
    """The largest, as a rational."""
    return Fraction(float(values.max(initial=0.0)))


def _read_in(held: RegisterWeights, grid: Grid) -> Affine:
    """Registers of the data tokens as functions of x, variable k = j d + i."""
    n, d = grid.seq_len, grid.d_model
    box: list[Range] = [
        (Fraction(low), Fraction(high))
        for low, high in zip(grid.box.lows, grid.box.highs, strict=True)
    ]
    W_in, start = to_fractions(held.W_in), to_fractions(held.start)
    slopes = np.full((n, len(W_in), n * d), Fraction(0), dtype=object)
    for j in range(n):
        slopes[j, :, j * d : (j + 1) * d] = W_in
    state = Affine.of(start, slopes, box * n)
    size = [max(abs(low), abs(high)) for low, high in box]
    products = np.abs(W_in) @ np.array(size, dtype=object)  # [w]
    terms = (held.W_in != 0).sum(axis=1)
    rounds = np.array([gamma(int(k) + 1) if k else Fraction(0) for k in terms])
    error = rounds * (products + np.abs(start))
    return Affine(state.slopes, state.constants, state.radius, error, state.ranges)


def _mean(
    stage: StageWeights, state: Affine, prefix: np.ndarray
) -> tuple[Affine, np.ndarray]:
    """Add M times the mean of all tokens, and say which registers that writes.

    Raises:
        Undecided: If it is not a mean, or reads what prefix tokens hold.
    """
    n, tokens = len(state.constants), len(state.constants) + len(prefix)
    found = read_stage(stage, n)
    if not isinstance(found, Mean):
        raise Undecided(stage.name, "it is not a mean of tokens")
    read, written = (np.asarray(found.sizes.any(axis=axis)) for axis in (0, 1))
    if (prefix[:, read] != 0).any():
        raise Undecided(stage.name, "its mean reads what tokens before the sequence hold")
    M, sizes, share = found.matrix, to_fractions(found.sizes), Fraction(1, tokens)
    arrays = stage.layer(0)
    terms = sum(int((arrays[k] != 0).sum(axis=-1).max()) for k in ("W_V", "W_O"))
    # A share is rounded, and its product; those of prefix tokens are 0.
    rounds = gamma(n + terms + len(arrays["W_O"]) + 3)
    seen = sizes @ state.sizes().sum(axis=0) * share
    carried = sizes @ state.error.sum(axis=0) * share

    def everywhere(row: np.ndarray) -> np.ndarray:
        return np.broadcast_to(row, (n, *row.shape))

    update = Affine(
        everywhere(M @ state.slopes.sum(axis=0) * share),
        everywhere(M @ state.constants.sum(axis=0) * share),
        everywhere(sizes @ state.radius.sum(axis=0) * share),
        everywhere(carried + rounds * seen),
        state.ranges,
    )
    return state.plus(update), written


def _run_error(
    lattice: Lattice, largest: Fraction, moved: Fraction, hidden: Fraction, terms: int
) -> Fraction:
    """How far the average of a float64 run is from that in real arithmetic.

    Scores are off by `moved`. Data tokens, `hidden` below 0, may have their share in one
    and not in the other. exp is within 4 ulp, or 2^-1000 where it underflows, and P + n
    numbers are added up, in the denominator and in the average; `terms` are those of the
    products with W_V and W_O.
    """
    tokens = lattice.anchors + lattice.grid.seq_len
    leaked = 2 * leak(lattice, largest, hidden).value
    sums = gamma(2 * tokens + terms + 24)
    under = Fraction(tokens, 2**1000)
    return reweighting(moved, largest, "").value + leaked + (sums + under) * largest


def _with_average(state: Affine, head: Head, largest: Fraction, error: Fraction) -> Affine:
    """Add the average G, a variable for each register that is written."""
    writes = head.writes
    wider = state.with_variables([(-largest, largest)] * len(writes))
    n, w, V = wider.slopes.shape
    slopes = np.full((n, w, V), Fraction(0), dtype=object)
    slopes[:, writes, V - len(writes) + np.arange(len(writes))] = Fraction(1)
    nothing = np.full((n, w), Fraction(0), dtype=object)
    errors = nothing.copy()
    errors[:, writes] = error
    return wider.plus(Affine(slopes, nothing, nothing, errors, wider.ranges))


def _result(
    result: Affine, values: np.ndarray, slack: np.ndarray, grid: Grid
) -> tuple[np.ndarray, Fraction, Fraction, Fraction]:
    """The table of the entries, its error, what else reaches the output, and a factor.

    No entry is more than that factor times the largest value averaged.
    """
    n, d, N = grid.seq_len, grid.d_model, grid.seq_len * grid.d_model
    mixing = result.slopes[..., N:].reshape(N, -1)
    table, error = product(values, slack, mixing)
    rest = Affine(
        result.slopes[..., :N],
        result.constants,
        result.radius,
        np.full((n, d), Fraction(0), dtype=object),
        result.ranges[:N],
    )
    factor = max(np.abs(mixing).sum(axis=1))
    return table, _up(error), max(rest.sizes().flat), factor
