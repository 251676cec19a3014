"""Averaging attention: one attention layer whose softmax is a plain mean.

Feed-forward layers turn a token into an integer, the mean of these integers times n names
the whole quantised sequence, and a look-up gives the value. With docs/constructions/
averaging.md; the letters are those of docs/notation.md. With positions:

    read-in    data_ij = x_ij + j (1 + 1/K), x in [0, 1]: an empty cell between positions
    digits     A_j = sum_i k_ij K^(i + dj),     k_ij the cell of coordinate i of token j
    sum        C = n mean_j A_j, an integer in [0, K^N), N = nd
    look-up    out_j = table[C + K^N j]

Without positions (permutation equivariant):

    symbols    S_j = sum_i k_ij K^i
    codes      A_j = phi(S_j), phi a Bose-Chowla set
    sum        C = n mean_j A_j, which names the multiset of symbols
    look-up    out_j = table[V C + S_j]
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from everyformer.construct.averaging.codes import bose_chowla
from everyformer.construct.sizes import Sizes
from everyformer.construct.staircase import (
    Layout,
    Units,
    ending_at_zero,
    lookup,
    staircase,
    well,
)
from everyformer.construct.table import Table
from everyformer.model.mixing import MIXER_KINDS, MixerName
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage

Variant = Literal["wide", "narrow", "two-step"]
"""Few blocks with many hidden units; two hidden units a block; digits in two steps."""

Mixing = Literal["attention", MixerName]
"""Who takes the sum: a head whose softmax is a mean, or a layer that is not attention."""

SOURCE = "everyformer, docs/constructions/averaging.md"
NARROW = 2
"""Hidden units of a block of the narrow variant."""

LOOKUP_RAMP = Fraction(1, 4)

CLOSING = 8
"""Steps behind the last key that bring the look-up back to exactly 0."""

GUARD = Fraction(1, 4)
"""Ramps end this many of their widths below a border of cells, more than rounding moves."""


@dataclass(frozen=True)
class AveragingSizes(Sizes):
    """Sizes and constants of the construction.

    Attributes:
        grid: n, d, K and the box (of `Sizes`).
        positional: Whether tokens know their position.
        variant: How hidden units are spread over blocks.
        ramp: rho, the width of the ramps between digits, in widths of the box.
        mixer: Which layer is to take the sum.
        everywhere: Whether the network is 0 outside the box.
    """

    positional: bool
    variant: Variant
    ramp: Fraction
    mixer: Mixing = "attention"
    everywhere: bool = False

    @property
    def sequences(self) -> int:
        """K^N, the number of sequences of cells."""
        return self.grid.sequences

    @cached_property
    def layout(self) -> Layout:
        """data (d), A, C, pos or S, out (d); m (d) in two steps, and place (d)."""
        data = [f"data{i}" for i in range(self.d)]
        if self.everywhere and self.positional:
            data += [f"place{i}" for i in range(self.d)]
        steps = [f"m{i}" for i in range(self.d)] if self.variant == "two-step" else []
        middle = ["A", "C", "pos"] if self.positional else ["S", "A", "C"]
        out = [f"out{i}" for i in range(self.d)]
        return Layout((*data, *middle, *steps, *out))

    @cached_property
    def code(self) -> np.ndarray:
        """phi, for the equivariant case."""
        return bose_chowla(self.V, self.n)

    @property
    def out(self) -> np.ndarray:
        """The registers of the result, as rows."""
        return self.layout.rows(*(f"out{i}" for i in range(self.d)))

    @property
    def largest_key(self) -> int:
        """No key of the look-up is larger."""
        if self.positional:
            return self.n * self.sequences - 1
        return self.V * self.n * int(self.code.max()) + self.V - 1

    @property
    def span(self) -> Fraction:
        """n + (n-1)/K: no data_i is larger."""
        return self.n + Fraction(self.n - 1, self.K) if self.positional else Fraction(1)

    @property
    def alarm(self) -> int:
        """What a coordinate outside the box adds to A: more than all keys together.

        A power of two; the keys behind the last one leave room for `CLOSING` steps.
        """
        return 1 << (self.largest_key + CLOSING + 2).bit_length()

    @property
    def d_ff(self) -> int | None:
        """Hidden units of a block; None for all in one."""
        return NARROW if self.variant == "narrow" else None


def read_in_out(a: AveragingSizes) -> Registers:
    """data_i = (x_i - low_i)/width_i, plus j (1 + 1/K) where there are positions; pos = j.

    Were positions 1 apart, the upper edge of position j would be the lower edge of position
    j + 1, as in Theorem 3 of Yun et al. 2020 (see `Constants.spacing`).
    """
    layout, box = a.layout, a.grid.box
    W_in = np.zeros((layout.width, a.d))
    start = np.zeros((a.n, layout.width))
    for i, (low, width) in enumerate(zip(box.lows, box.widths, strict=True)):
        W_in[i, i] = float(1 / width)
        moved = -Fraction(low) / width
        apart = 1 + Fraction(1, a.K) if a.positional else 0
        start[:, i] = [float(moved + j * apart) for j in range(a.n)]
        if a.everywhere and a.positional:
            place = layout.names.index(f"place{i}")
            W_in[place, i], start[:, place] = W_in[i, i], float(moved)
    if a.positional:
        start[:, layout.names.index("pos")] = np.arange(a.n)
    return Registers(W_in, start, a.out)


def thresholds(a: AveragingSizes) -> np.ndarray:
    """theta_m, m = 1 .. nK - 1 (K - 1 without positions), between plateaus of data_i.

        theta_m = (m + floor(m/K))/K - 3 rho/4   between the cells of a position
        theta_m = (m + floor(m/K) - 1/2)/K       for m = jK: half-way between positions

    The ramps are theta +- rho/2, so they end rho/4 below a border of cells, inside the cell
    under it: the border and all float64 numbers near it belong to the cell above, and the
    ends of the domain to the first and the last cell.
    """
    below = a.ramp * (Fraction(1, 2) + GUARD)
    found: list[Fraction] = []
    for m in range(1, (a.n if a.positional else 1) * a.K):
        between = m % a.K == 0
        border = Fraction(m + m // a.K, a.K)
        found.append(border - (Fraction(1, 2 * a.K) if between else below))
    return np.array([float(theta) for theta in found])


def digits(a: AveragingSizes) -> Units:
    """FFN-1: a staircase in t = data_i for each i, written to A.

    Value on plateau m = 0 .. nK - 1: (m mod K) K^(i + d floor(m/K)). Off the ramps A_j =
    sum_i k_ij K^(i + dj). 2 d (nK - 1) hidden units.
    """
    return _staircases(a, (("A", _place_values(a, i)) for i in range(a.d)))


def _staircases(a: AveragingSizes, parts: Iterable[tuple[str, np.ndarray]]) -> Units:
    """A staircase in each data_i: where it is added, and its values on the plateaus."""
    return Units.together(
        staircase(
            a.layout.vector(**{f"data{i}": 1}),
            a.layout.rows(into),
            thresholds(a),
            values,
            a.ramp,
        )
        for i, (into, values) in enumerate(parts)
    )


def _place_values(a: AveragingSizes, i: int) -> np.ndarray:
    """(m mod K) K^(i + d floor(m/K)) for m = 0 .. nK - 1, as float64, shape (nK, 1)."""
    values = [m % a.K * a.K ** (i + a.d * (m // a.K)) for m in range(a.n * a.K)]
    return np.array([[float(value)] for value in values])


def whole_digits(a: AveragingSizes) -> Units:
    """FFN-1a of the two-step variant: m_i, the number of the plateau that data_i is on."""
    numbers = np.arange(a.n * a.K, dtype=np.float64)[:, None]
    return _staircases(a, ((f"m{i}", numbers) for i in range(a.d)))


def placed_digits(a: AveragingSizes) -> Units:
    """FFN-1b of the two-step variant: m_i to (m_i mod K) K^(i + d floor(m_i/K))."""
    return Units.together(
        lookup(
            a.layout.vector(**{f"m{i}": 1}),
            a.layout.rows("A"),
            np.arange(a.n * a.K),
            _place_values(a, i),
            LOOKUP_RAMP,
        )
        for i in range(a.d)
    )


def symbols(a: AveragingSizes) -> Units:
    """FFN-a: S = sum_i k_i K^i, a staircase in each data_i with the values m K^i."""
    numbers = np.arange(a.K, dtype=np.float64)[:, None]
    return _staircases(a, (("S", numbers * a.K**i) for i in range(a.d)))


def symbol_codes(a: AveragingSizes) -> Units:
    """FFN-b: A = phi(S). 2 (V - 1) hidden units."""
    values = a.code.astype(np.float64)[:, None]
    reads, writes = a.layout.vector(S=1), a.layout.rows("A")
    return lookup(reads, writes, np.arange(a.V), values, LOOKUP_RAMP)


def alarms(a: AveragingSizes) -> Units:
    """Outside the box: a coordinate that is not in its interval adds `alarm` to A.

    place_i = (x_i - low_i)/width_i without the position, which data_i has: far below its
    interval, token j looks like token j - 1 in data_i. All other terms of A and C are >= 0,
    whatever the input (hull property), so C >= alarm if any coordinate of any token is
    outside, and the look-up has ended. The ramps lie outside the box, rho/4 from it.
    """
    name = "place" if a.positional else "data"
    guard = float(GUARD * a.ramp)
    return Units.together(
        well(
            a.layout.vector(**{f"{name}{i}": 1}),
            a.layout.rows("A"),
            (-guard, 1 + guard),
            float(a.alarm),
            a.ramp,
        )
        for i in range(a.d)
    )


def averaging_sum(layout: Layout, n: int, into: str = "C") -> AttentionStack:
    """W_Q = W_K = 0: all scores are 0 and softmax is the plain mean.

    W_V reads A, W_O writes n times the mean into C, so every token holds C = sum_j A_j. No
    temperature, no limit.
    """
    w = layout.width
    nothing = np.zeros((1, 1, 1, w))
    return AttentionStack(
        W_Q=nothing,
        b_Q=np.zeros((1, 1, 1)),
        W_K=nothing,
        W_V=layout.vector(A=1).reshape(1, 1, 1, w),
        W_O=layout.vector(**{into: n}).reshape(1, 1, w, 1),
    )


def look_up(a: AveragingSizes, table: Table) -> Units:
    """FFN-2: the value of key C + K^N pos; of V C + S in the equivariant case.

    The table of the equivariant case has one row for each multiset of columns; every
    token of it is a key, tokens with equal columns one and the same.
    """
    keys = table_keys(a, table.columns).reshape(-1)
    values = table.values.reshape(-1, a.d)
    if a.positional:
        reads = a.layout.vector(C=1, pos=a.sequences)
    else:
        reads = a.layout.vector(C=a.V, S=1)
    keys, first = np.unique(keys, return_index=True)
    found = lookup(reads, a.out, keys, values[first], LOOKUP_RAMP)
    if a.everywhere:
        return ending_at_zero(found, reads, a.out, int(keys[-1]), CLOSING)
    return found


def table_keys(a: AveragingSizes, columns: np.ndarray) -> np.ndarray:
    """The key of every token of sequences of columns, (count, n) to (count, n)."""
    if a.positional:
        places = np.array([a.V**j for j in range(a.n)])
        cells = (columns * places).sum(axis=-1, keepdims=True)
        return cells + a.sequences * np.arange(a.n)
    total = a.code[columns].sum(axis=-1, keepdims=True)
    return a.V * total + columns


def averaging_stages(a: AveragingSizes, table: Table) -> Iterator[Stage]:
    """All stages, in order. The wide variants have attention and look-up in one block."""
    r = a.d_ff

    def first(name: str, units: Units) -> Stage:
        more = [alarms(a)] if a.everywhere else []
        return _layers(name, Units.together([units, *more]).layers(r))

    if not a.positional:
        yield first("symbols", symbols(a))
        yield _layers("codes", symbol_codes(a).layers(r))
    elif a.variant == "two-step":
        yield first("whole digits", whole_digits(a))
        yield _layers("placed digits", placed_digits(a).layers(r))
    else:
        yield first("digits", digits(a))
    attention, last = averaging_sum(a.layout, a.n), look_up(a, table).layers(r)
    kind = None if a.mixer == "attention" else MIXER_KINDS[a.mixer]
    if a.variant == "narrow":
        yield Stage("sum", SOURCE, attention, kind=kind)
        yield _layers("look-up", last)
    else:
        yield Stage("sum and look-up", SOURCE, attention, last, kind)


def _layers(name: str, stack: FeedForwardStack) -> Stage:
    return Stage(name, SOURCE, feed_forward=stack)
