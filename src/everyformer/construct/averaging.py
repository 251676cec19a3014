"""Averaging attention: one attention layer whose softmax is a plain mean.

Feed-forward layers turn a token into an integer, the mean of these integers times n names
the whole quantised sequence, and a look-up gives the value. With docs/constructions/
averaging.md; the letters are those of docs/notation.md. With positions:

    digits     A_j = sum_i k_ij K^(i + dj),     k_ij the cell of coordinate i of token j
    sum        C = n mean_j A_j, an integer in [0, K^N), N = nd
    look-up    out_j = table[C + K^N j]

Without positions (permutation equivariant):

    symbols    S_j = sum_i k_ij K^i
    codes      A_j = phi(S_j), phi a Bose-Chowla set
    sum        C = n mean_j A_j, which names the multiset of symbols
    look-up    out_j = table[V C + S_j]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from everyformer.construct.codes import bose_chowla
from everyformer.construct.sizes import Sizes
from everyformer.construct.staircase import Layout, Units, lookup, staircase
from everyformer.construct.table import Table
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage

Variant = Literal["wide", "narrow", "two-step"]
"""Few blocks with many hidden units; two hidden units a block; digits in two steps."""

SOURCE = "everyformer, docs/constructions/averaging.md"
NARROW = 2
"""Hidden units of a block of the narrow variant."""

LOOKUP_RAMP = Fraction(1, 4)


@dataclass(frozen=True)
class Averaging(Sizes):
    """Sizes and constants of the construction.

    Attributes:
        grid: n, d, K and the box (of `Sizes`).
        positional: Whether tokens know their position.
        variant: How hidden units are spread over blocks.
        ramp: rho, the width of the ramps between digits, in widths of the box.
    """

    positional: bool
    variant: Variant
    ramp: Fraction

    @property
    def sequences(self) -> int:
        """K^N."""
        return self.grid.sequences

    @cached_property
    def layout(self) -> Layout:
        """data (d), A, C, pos or S, out (d); and m (d) in two steps."""
        data = [f"data{i}" for i in range(self.d)]
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
    def d_ff(self) -> int | None:
        """Hidden units of a block; None for all in one."""
        return NARROW if self.variant == "narrow" else None


def read_in_out(a: Averaging) -> Registers:
    """data_i = (x_i - low_i)/width_i, plus j where there are positions; pos = j."""
    layout, box = a.layout, a.grid.box
    W_in = np.zeros((layout.width, a.d))
    start = np.zeros((a.n, layout.width))
    for i, (low, width) in enumerate(zip(box.lows, box.widths, strict=True)):
        W_in[i, i] = float(1 / width)
        moved = -Fraction(low) / width
        start[:, i] = [float(moved + (j if a.positional else 0)) for j in range(a.n)]
    if a.positional:
        start[:, layout.names.index("pos")] = np.arange(a.n)
    return Registers(W_in, start, a.out)


def digits(a: Averaging) -> Units:
    """FFN-1: a staircase in t = data_i = x_i + j for each i, written to A.

    Thresholds m/K, m = 1 .. nK - 1; value on plateau m: (m mod K) K^(i + d floor(m/K)).
    Off the ramps A_j = sum_i k_ij K^(i + dj). 2 d (nK - 1) hidden units.
    """
    return Units.together(
        staircase(
            a.layout.vector(**{f"data{i}": 1}),
            a.layout.rows("A"),
            np.arange(1, a.n * a.K) / a.K,
            _place_values(a, i),
            a.ramp,
        )
        for i in range(a.d)
    )


def _place_values(a: Averaging, i: int) -> np.ndarray:
    """(m mod K) K^(i + d floor(m/K)) for m = 0 .. nK - 1, as float64, shape (nK, 1)."""
    values = [m % a.K * a.K ** (i + a.d * (m // a.K)) for m in range(a.n * a.K)]
    return np.array([[float(value)] for value in values])


def whole_digits(a: Averaging) -> Units:
    """FFN-1a of the two-step variant: m_i = floor(K data_i), with ramp rho."""
    cells = a.n * a.K
    return Units.together(
        staircase(
            a.layout.vector(**{f"data{i}": 1}),
            a.layout.rows(f"m{i}"),
            np.arange(1, cells) / a.K,
            np.arange(cells, dtype=np.float64)[:, None],
            a.ramp,
        )
        for i in range(a.d)
    )


def placed_digits(a: Averaging) -> Units:
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


def symbols(a: Averaging) -> Units:
    """FFN-a: S = sum_i k_i K^i. Thresholds m/K, m = 1 .. K - 1, value m K^i."""
    return Units.together(
        staircase(
            a.layout.vector(**{f"data{i}": 1}),
            a.layout.rows("S"),
            np.arange(1, a.K) / a.K,
            np.arange(a.K, dtype=np.float64)[:, None] * a.K**i,
            a.ramp,
        )
        for i in range(a.d)
    )


def symbol_codes(a: Averaging) -> Units:
    """FFN-b: A = phi(S). 2 (V - 1) hidden units."""
    values = a.code.astype(np.float64)[:, None]
    reads, writes = a.layout.vector(S=1), a.layout.rows("A")
    return lookup(reads, writes, np.arange(a.V), values, LOOKUP_RAMP)


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


def look_up(a: Averaging, table: Table) -> Units:
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
    return lookup(reads, a.out, keys, values[first], LOOKUP_RAMP)


def table_keys(a: Averaging, columns: np.ndarray) -> np.ndarray:
    """The key of every token of sequences of columns, (count, n) to (count, n)."""
    if a.positional:
        places = np.array([a.V**j for j in range(a.n)])
        cells = (columns * places).sum(axis=-1, keepdims=True)
        return cells + a.sequences * np.arange(a.n)
    total = a.code[columns].sum(axis=-1, keepdims=True)
    return a.V * total + columns


def averaging_stages(a: Averaging, table: Table) -> Iterator[Stage]:
    """All stages, in order. The wide variants have attention and look-up in one block."""
    r = a.d_ff
    if not a.positional:
        yield _layers("symbols", symbols(a).layers(r))
        yield _layers("codes", symbol_codes(a).layers(r))
    elif a.variant == "two-step":
        yield _layers("whole digits", whole_digits(a).layers(r))
        yield _layers("placed digits", placed_digits(a).layers(r))
    else:
        yield _layers("digits", digits(a).layers(r))
    attention, last = averaging_sum(a.layout, a.n), look_up(a, table).layers(r)
    if a.variant == "narrow":
        yield Stage("sum", SOURCE, attention=attention)
        yield _layers("look-up", last)
    else:
        yield Stage("sum and look-up", SOURCE, attention=attention, feed_forward=last)


def _layers(name: str, stack: FeedForwardStack) -> Stage:
    return Stage(name, SOURCE, feed_forward=stack)
