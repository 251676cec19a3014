"""Memorise a finite set of sequences: averaging attention with a table of just those.

    symbols    m_i = the number of coordinate i among its values; S = sum_i m_i radix_i
    codes      A = code(S, j), random integers; without positions code(S)
    sum        C = n mean_j A_j, another number for every sequence of the set
    ranks      R = the rank of C among the numbers of the set
    look-up    out = table[n R + j];   without positions table[V R + (rank of S)]

All that is added after the symbols are integers and their halves, below 2^52 in every sum,
so float64 adds them without rounding, in whatever order (`certify/rounding.py` has the
lemma). Layers are split where they would exceed that. Single units make integers of what
rounding may have touched, m_i and C: ReLU(t + 3 2^51) - 3 2^51 is t in real arithmetic, for
t > -3 2^51, and in float64 the integer nearest to it.

Differs from averaging attention on a grid: ids are codes of few bits that are checked to
differ on the set. Mixed-radix ids of 48 bits times 10,000 units would exceed 2^52.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from everyformer.construct.averaging.layers import averaging_sum
from everyformer.construct.staircase import Layout, Units, lookup, staircase
from everyformer.errors import TargetError, refuse
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction, Ids
from everyformer.model.cost import Cost, count
from everyformer.model.network import Network
from everyformer.model.registers import Registers
from everyformer.model.stacks import FeedForwardStack, Stage

SOURCE = "everyformer, docs/constructions/averaging.md"
RAMP = Fraction(1, 4)
LARGEST = 2.0**51
"""Sums of integers and their halves stay below this, with a factor of two to spare."""

SHIFT = 3 * 2.0**51
"""Numbers near this have float64 spacing 1."""

PIECE = 24
"""Bits of an output in one register; longer ones take several."""

MAX_PIECES = 8
CODE_TRIES = 16


@dataclass(frozen=True)
class Memory:
    """A network that holds a finite set of sequences.

    Attributes:
        network: The Transformer, exact on the set; of anything else nothing is said.
        inputs: The sequences, shape (count, n, d).
        outputs: What each becomes, shape (count, n, d).
        equivariant: Whether permuted sequences are held as well.
        cost: Sizes of the network.
    """

    network: Network
    inputs: np.ndarray
    outputs: np.ndarray
    equivariant: bool
    cost: Cost

    def wrong(self, threads: int | None = None) -> np.ndarray:
        """Numbers of the sequences that the network does not give back bit for bit."""
        found = self.network(self.inputs, threads=threads)
        return np.flatnonzero((found != self.outputs).any(axis=(1, 2)))


@dataclass(frozen=True)
class _Data:
    """The set, with its symbols numbered.

    Attributes:
        values: The values of each coordinate, increasing.
        tokens: The symbol S of every token, shape (count, n).
        outputs: Shape (count, n, d).
        equivariant: Whether positions are left out.
    """

    values: tuple[np.ndarray, ...]
    tokens: np.ndarray
    outputs: np.ndarray
    equivariant: bool

    @property
    def radices(self) -> tuple[int, ...]:
        """The weight of each coordinate in S."""
        return tuple(prod(len(v) for v in self.values[:i]) for i in range(len(self.values)))

    @property
    def symbols(self) -> int:
        """No S is as large."""
        return prod(len(values) for values in self.values)

    @cached_property
    def keys(self) -> np.ndarray:
        """What codes are for: S, plus `symbols` times the position; shape (count, n)."""
        if self.equivariant:
            return self.tokens
        return self.tokens + self.symbols * np.arange(self.tokens.shape[1])


def memorise(inputs: Any, outputs: Any, *, equivariant: bool = False) -> Memory:
    """Build a Transformer that maps given sequences to given sequences, exactly.

    One attention layer, a plain mean; size linear in the total length of the sequences.

    Args:
        inputs: Token ids or numbers, shape (count, n) or (count, n, d).
        outputs: Of the same shape.
        equivariant: Without positions: a permuted sequence gives the permuted output.

    Returns:
        The network; it takes (*batch, n, d), with d = 1 for token ids.

    Raises:
        TargetError: If shapes do not fit, two equal inputs have different outputs, or
            float64 cannot tell the inputs apart.

    Example:
        >>> memory = memorise([[3, 1, 2], [1, 1, 7]], [[1, 2, 3], [7, 7, 1]])
        >>> memory.network(np.array([[[1.0], [1.0], [7.0]]]))[0, :, 0].tolist()
        [7.0, 7.0, 1.0]
    """
    x, y = _checked(inputs, outputs)
    data = _numbered(x, y, equivariant)
    pieces = _pieces(data.outputs)
    layout = _layout(pieces)
    stages = tuple(_stages(data, layout, pieces))
    w, (_, n, d) = layout.width, x.shape
    read_in = Registers(
        W_in=np.eye(w, d),
        start=np.outer(np.arange(n), layout.vector(own=0 if equivariant else 1)),
        W_out=_read_out(layout, d, pieces),
    )
    widest = max(s.feed_forward.W_1.shape[1] for s in stages if s.feed_forward is not None)
    network = Network(
        ArchitectureSpec(n, d, 1, 1, widest, width=w),
        stages,
        construction=_description(x, data, layout),
        registers=read_in,
    )
    return Memory(network, x, y, equivariant, count(network))


def _checked(inputs: Any, outputs: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(inputs), np.asarray(outputs)
    wrong: list[str] = []
    if x.ndim not in (2, 3) or x.size == 0:
        wrong.append(f"inputs have shape {x.shape}, not (count, n) or (count, n, d)")
    if x.shape != y.shape:
        wrong.append(f"outputs have shape {y.shape}, inputs {x.shape}; give equal shapes")
    for name, array in (("inputs", x), ("outputs", y)):
        if array.dtype.kind not in "fiub":
            wrong.append(
                f"{name} have dtype {array.dtype}, which does not hold real numbers"
            )
            continue
        exact = array.astype(np.float64)
        if not np.isfinite(exact).all() or (exact.astype(array.dtype) != array).any():
            wrong.append(f"{name} hold numbers that are not finite float64 numbers")
    refuse("These sequences cannot be memorised", wrong, TargetError)
    shape = x.shape if x.ndim == 3 else (*x.shape, 1)
    return x.astype(np.float64).reshape(shape), y.astype(np.float64).reshape(shape)


def _numbered(x: np.ndarray, y: np.ndarray, equivariant: bool) -> _Data:
    """Number the symbols, and keep one of each group of equal sequences.

    Raises:
        TargetError: If equal sequences have different outputs.
    """
    values = tuple(np.unique(x[..., i]) for i in range(x.shape[-1]))
    limit = prod(len(v) for v in values) * x.shape[1]
    if limit > 2**40:
        msg = (
            f"Tokens of {x.shape[-1]} coordinates with {[len(v) for v in values]} values "
            f"make {limit:.3g} symbols, more than 2^40. Memorise fewer values, or give "
            "token ids instead of vectors."
        )
        raise TargetError(msg)
    tokens = np.zeros(x.shape[:2], dtype=np.int64)
    radix = 1
    for i, known in enumerate(values):
        tokens += radix * np.searchsorted(known, x[..., i])
        radix *= len(known)
    rows = np.arange(len(x))
    if equivariant:
        order = np.argsort(tokens, axis=1, kind="stable")
        tokens = np.take_along_axis(tokens, order, axis=1)
        y = np.take_along_axis(y, order[..., None], axis=1)
        same = (tokens[:, 1:] == tokens[:, :-1]) & (y[:, 1:] != y[:, :-1]).any(axis=-1)
        if same.any():
            row = int(np.argmax(same.any(axis=1)))
            msg = (
                f"Row {row} has two equal tokens with different outputs: a network without "
                "positions cannot tell them apart. Leave equivariant out, or correct the "
                "outputs."
            )
            raise TargetError(msg)
    kept, first, which = np.unique(tokens, axis=0, return_index=True, return_inverse=True)
    differ = (y != y[first[which.reshape(-1)]]).any(axis=(1, 2))
    if differ.any():
        second = int(np.argmax(differ))
        other = int(rows[first[which.reshape(-1)[second]]])
        same = " up to the order of its tokens" if equivariant else ""
        msg = (
            f"Rows {other} and {second} hold the same input{same}, but their outputs "
            "differ: no function gives both. Remove one of the two."
        )
        raise TargetError(msg)
    return _Data(values, kept, y[first], equivariant)


@dataclass(frozen=True)
class _Pieces:
    """Outputs as integers over 2^-lowest, in digits of PIECE bits with the sign on each."""

    lowest: int
    digits: np.ndarray  # [count, n, d, pieces]


def _pieces(outputs: np.ndarray) -> _Pieces:
    mantissas, exponents = np.frexp(outputs)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    used = whole != 0
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    places = np.where(used, exponents - 53 + trailing, 0)
    lowest = int(places[used].min()) if used.any() else 0
    highest = int(exponents[used].max()) if used.any() else 1
    number = max(1, -(-(highest - lowest) // PIECE))
    if number > MAX_PIECES:
        msg = (
            f"The outputs take {highest - lowest} bits from the largest to the last bit of "
            f"the smallest; {PIECE * MAX_PIECES} can be held. Round the small ones."
        )
        raise TargetError(msg)
    digits = np.empty((*outputs.shape, number))
    rest = np.ldexp(np.abs(outputs), -lowest)
    for piece in reversed(range(number)):
        unit = 2.0 ** (PIECE * piece)
        part = np.floor(rest / unit)
        digits[..., piece] = np.sign(outputs) * part
        rest = rest - part * unit  # exact: both are multiples of 1 with the same top bits
    return _Pieces(lowest, digits)


def _layout(pieces: _Pieces) -> Layout:
    d, number = pieces.digits.shape[-2:]
    names = [f"data{i}" for i in range(d)]
    names += [f"near{i}" for i in range(d)] + [f"m{i}" for i in range(d)]
    names += ["A", "own", "C0", "C", "R"]
    names += [f"out{i}_{piece}" for i in range(d) for piece in range(number)]
    return Layout(tuple(names))


def _read_out(layout: Layout, d: int, pieces: _Pieces) -> np.ndarray:
    """out_i = sum over pieces of 2^(lowest + 24 piece) times the piece."""
    number = pieces.digits.shape[-1]
    factors = {p: 2.0 ** (pieces.lowest + PIECE * p) for p in range(number)}
    return np.stack(
        [layout.vector(**{f"out{i}_{p}": f for p, f in factors.items()}) for i in range(d)]
    )


def _stages(data: _Data, layout: Layout, pieces: _Pieces) -> list[Stage]:
    n = data.tokens.shape[1]
    known = np.unique(data.keys)
    places = np.searchsorted(known, data.keys)  # [count, n]
    code = _distinct_codes(len(known), places)
    sums = code[places].sum(axis=1)
    order = np.argsort(sums)
    own, step = np.broadcast_to(np.arange(n), places.shape), n
    reads = {f"m{i}": radix for i, radix in enumerate(data.radices)}
    told, writes = code[:, None], ["A"]
    if data.equivariant:
        own, step = places, len(known)
        told = np.stack([code, np.arange(len(known))], axis=-1)
        writes = ["A", "own"]
    else:
        reads["own"] = data.symbols
    keys, first = np.unique(step * np.argsort(order)[:, None] + own, return_index=True)
    values = pieces.digits.reshape(places.size, -1)[first]
    outs = [name for name in layout.names if name.startswith("out")]
    ranks = np.arange(len(order))[:, None]
    total = averaging_sum(layout, n, into="C0")
    whole = _whole(layout, "C0", "C").layers()
    d = len(data.values)
    each = Units.together(_whole(layout, f"near{i}", f"m{i}") for i in range(d))
    return [
        _stage("symbols", _symbols(data, layout).layers()),
        _stage("whole symbols", each.layers()),
        _stage("codes", exact_lookup(layout, reads, writes, known, told)),
        Stage("sum", SOURCE, attention=total, feed_forward=whole),
        _stage("ranks", exact_lookup(layout, {"C": 1}, ["R"], sums[order], ranks)),
        _stage("look-up", exact_lookup(layout, {"R": step, "own": 1}, outs, keys, values)),
    ]


def _stage(name: str, stack: FeedForwardStack) -> Stage:
    return Stage(name, SOURCE, feed_forward=stack)


def _symbols(data: _Data, layout: Layout) -> Units:
    """m_i: for each coordinate a staircase with steps of 1 between its values.

    Raises:
        TargetError: If the rounding of these sums may exceed 3/8.
    """
    parts: list[Units] = []
    rounding = 0.0
    units = 2 * sum(len(values) for values in data.values)
    for i, values in enumerate(data.values):
        gaps = np.diff(values)
        nearest = float(gaps.min()) if gaps.size else 1.0
        ramp = Fraction(2) ** (int(np.frexp(nearest)[1]) - 3)  # at most a half of the gap
        middles = values[:-1] + gaps / 2
        steps = np.arange(len(values), dtype=np.float64)[:, None]
        reads, writes = layout.vector(**{f"data{i}": 1}), layout.rows(f"near{i}")
        parts.append(staircase(reads, writes, middles, steps, ramp))
        size = 2 * float(np.abs(values).max()) / float(ramp) + 1
        share = 2.0**-53 * (units + layout.width + 4)
        rounding = max(rounding, share * 2 * len(gaps) * size)
    if rounding > 3 / 8:
        closest = min(float(np.diff(v).min()) for v in data.values if len(v) > 1)
        msg = (
            f"The inputs take {units // 2:,} values, the nearest {closest:.3g} apart: "
            "float64 cannot add up so many steps so steep. Round the inputs to fewer "
            "values, or give token ids."
        )
        raise TargetError(msg)
    return Units.together(parts)


def _whole(layout: Layout, source: str, into: str) -> Units:
    """into += ReLU(t + 3 2^51) - 3 2^51: t, and in float64 the nearest integer."""
    return Units(
        W_1=layout.rows(source),
        b_1=np.array([SHIFT]),
        W_2=layout.rows(into),
        b_2=-SHIFT * layout.vector(**{into: 1}),
    )


def _distinct_codes(keys: int, places: np.ndarray) -> np.ndarray:
    """Random integers for keys, such that the sums over sequences are all different.

    With M sequences and codes below 2^b two sums agree with probability about
    M^2 / 2^(b+1); b grows until they do not. The generator has a fixed seed.
    """
    rng = np.random.default_rng(0)
    bits = max(4, int(np.ceil(2 * np.log2(len(places)))) + 2)
    for attempt in range(CODE_TRIES * 4):
        code = rng.integers(0, 2 ** (bits + attempt // 4), size=keys)
        if len(np.unique(code[places].sum(axis=1))) == len(places):
            return code
    msg = f"{len(places)} different sequences have {CODE_TRIES * 4} times had equal sums."
    raise AssertionError(msg)


def exact_lookup(
    layout: Layout,
    reads: dict[str, int],
    writes: list[str],
    keys: np.ndarray,
    values: np.ndarray,
) -> FeedForwardStack:
    """A look-up of integers whose sums float64 does not round, in whatever order.

    Terms are multiples of 1/2. In a layer the terms of either sign must add up to less than
    2^52 / 2; where they would not, the units are spread over several layers.

    Args:
        layout: The registers.
        reads: The key is the sum of these registers times these integers.
        writes: The registers of the values.
        keys: Integers, increasing.
        values: Integers, shape (len(keys), len(writes)).

    Raises:
        TargetError: If a single term is too large.
    """
    units = lookup(
        layout.vector(**reads), layout.rows(*writes), keys, values.astype(np.float64), RAMP
    )
    height = 4.0 * (float(keys[-1]) - (keys[:-1] / 2 + keys[1:] / 2)) + 1
    terms = np.abs(np.diff(values.astype(np.float64), axis=0)).max(axis=1) * height
    if terms.size == 0:
        return units.layers()
    if terms.max() >= LARGEST or 8.0 * abs(float(keys[-1])) >= LARGEST:
        msg = (
            f"{len(keys):,} keys up to {float(keys[-1]):.3g} with values up to "
            f"{float(np.abs(values).max()):.3g} exceed what float64 adds exactly. Memorise "
            "fewer sequences at once."
        )
        raise TargetError(msg)
    pairs = len(terms)
    while np.add.reduceat(terms, np.arange(0, len(terms), pairs)).max() >= LARGEST:
        pairs = -(-pairs // 2)
    return units.layers(2 * pairs)


def _description(x: np.ndarray, data: _Data, layout: Layout) -> Construction:
    direction = tuple(int(v) for v in layout.vector(C=1))
    return Construction(
        theorem="Memory",
        target=f"memory of {len(data.tokens):,} sequences",
        grid=max(len(values) for values in data.values),
        lows=tuple(float(v) for v in x.min(axis=(0, 1))),
        highs=tuple(float(v) for v in x.max(axis=(0, 1))),
        ids=Ids(direction, Fraction(0), Fraction(2**52)),
        ramp_width=RAMP,
    )
