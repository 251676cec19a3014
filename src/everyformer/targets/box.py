"""Boxes and their grids: cells, centres and the numbers of columns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import comb, perm
from typing import Any

import numpy as np

from everyformer.errors import GridError, TargetError
from everyformer.numerics.limits import end_of_interval, shown
from everyformer.numerics.rationals import is_power_of_two

MAX_CELLS = 2**62
"""Cells per axis that int64 can number."""


@dataclass(frozen=True)
class Box:
    """An interval for each coordinate of a token, the same for every token."""

    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @classmethod
    def per_coordinate(
        cls,
        domain: Sequence[Any],
        d_model: int,
    ) -> "Box":
        """Read `domain=[(low, high), ...]`; one interval serves all coordinates.

        Raises:
            TargetError: If the number of intervals is wrong or one of them is empty.
        """
        try:
            intervals = [
                (end_of_interval(low), end_of_interval(high)) for low, high in domain
            ]
        except (TypeError, ValueError, OverflowError) as error:
            msg = (
                f"domain={shown(domain)} is not a list of (low, high) pairs of numbers of "
                f"float64 ({error})."
            )
            raise TargetError(msg) from error
        if len(intervals) == 1:
            intervals *= d_model
        if len(intervals) != d_model:
            msg = (
                f"domain has {len(intervals)} intervals for d_model={d_model} coordinates. "
                "Give one for each coordinate, or a single one for all."
            )
            raise TargetError(msg)
        for low, high in intervals:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                msg = (
                    f"domain has the interval ({low:g}, {high:g}), which is empty or not "
                    "finite. Give low < high."
                )
                raise TargetError(msg)
        lows, highs = zip(*intervals, strict=True)
        return cls(lows, highs)

    @property
    def is_unit(self) -> bool:
        """True for [0, 1]^d."""
        return all(a == 0 for a in self.lows) and all(b == 1 for b in self.highs)

    @property
    def widths(self) -> tuple[Fraction, ...]:
        """Exact lengths of the intervals."""
        return tuple(
            Fraction(b) - Fraction(a) for a, b in zip(self.lows, self.highs, strict=True)
        )

    def volume(self, seq_len: int) -> Fraction:
        """Volume of the domain of sequences, a box in R^{n x d}."""
        return math.prod(self.widths, start=Fraction(1)) ** seq_len

    def __str__(self) -> str:
        return " x ".join(
            f"[{a:g}, {b:g}]" for a, b in zip(self.lows, self.highs, strict=True)
        )


@dataclass(frozen=True)
class Grid:
    """K cells per axis of a box of sequences.

    A column (a token on the grid) has the number m = sum_i k_i K^i in 0 .. K^d - 1, where
    k_i in 0 .. K-1 is the cell of coordinate i. In units of delta that number is the
    column id u^T L_j of Lemma 6.

    Attributes:
        cells: K = 1/delta.
        seq_len: n.
        box: The domain of a token.
    """

    cells: int
    seq_len: int
    box: Box

    def __post_init__(self) -> None:
        """Refuse a number of cells that is not an integer >= 2."""
        if isinstance(self.cells, np.integer):
            object.__setattr__(self, "cells", int(self.cells))
        K = self.cells
        if isinstance(K, bool) or not isinstance(K, int) or not 2 <= K <= MAX_CELLS:
            msg = (
                f"grid={shown(K)} does not divide the domain into whole cells: it must be "
                "an integer >= 2, and at most 2^62, the number K = 1/delta of cells per "
                "axis."
            )
            raise GridError(msg)

    @property
    def d_model(self) -> int:
        """d, the number of coordinates of a token."""
        return len(self.box.lows)

    @property
    def columns(self) -> int:
        """K^d, the number of columns."""
        return self.cells**self.d_model

    @property
    def sequences(self) -> int:
        """K^(nd), the number of cells in the domain of sequences."""
        return self.columns**self.seq_len

    @property
    def is_dyadic(self) -> bool:
        """True when K is a power of two."""
        return is_power_of_two(self.cells)

    def digits(self, columns: np.ndarray) -> np.ndarray:
        """The cells k_0 .. k_{d-1} of columns; the result has one more axis."""
        K = self.cells
        places = [columns // K**i % K for i in range(self.d_model)]
        return np.stack(places, axis=-1)

    def centres(self, columns: np.ndarray) -> np.ndarray:
        """C_L, the centre of the cell of each column, in the user's coordinates."""
        low, high = np.asarray(self.box.lows), np.asarray(self.box.highs)
        return low + (high - low) * (self.digits(columns) + 0.5) / self.cells

    def all_sequences(self) -> np.ndarray:
        """Column numbers of every sequence, shape (K^(nd), n), first token slowest."""
        flat = np.arange(self.sequences)
        V, n = self.columns, self.seq_len
        return np.stack([flat // V ** (n - 1 - j) % V for j in range(n)], axis=-1)

    def distinct_sets(self) -> np.ndarray:
        """Every set of n different columns, increasing, shape (binom(K^d, n), n)."""
        return self._table(combinations(range(self.columns), self.seq_len))

    def repeated_multisets(self) -> np.ndarray:
        """Every multiset of n columns with a repetition, shape (count, n)."""
        multisets = combinations_with_replacement(range(self.columns), self.seq_len)
        return self._table(c for c in multisets if len(set(c)) < self.seq_len)

    def _table(self, rows: Iterator[tuple[int, ...]]) -> np.ndarray:
        flat = np.fromiter((m for row in rows for m in row), dtype=np.int64)
        return flat.reshape(-1, self.seq_len)

    @property
    def num_distinct_sets(self) -> int:
        """binom(K^d, n)."""
        return comb(self.columns, self.seq_len)

    @property
    def repeated_share(self) -> Fraction:
        """Share of the cells in which two tokens have the same column, exactly.

            1 - V (V - 1) .. (V - n + 1) / V^n,  V = K^d;  at most n (n - 1) / 2 delta^d

        Example:
            >>> Grid(4, 2, Box((0.0,), (1.0,))).repeated_share
            Fraction(1, 4)
        """
        return 1 - Fraction(perm(self.columns, self.seq_len), self.sequences)

    @property
    def num_multisets(self) -> int:
        """binom(K^d + n - 1, n): sequences up to permutations."""
        return comb(self.columns + self.seq_len - 1, self.seq_len)

    def orbit_sizes(self, multisets: np.ndarray) -> np.ndarray:
        """How many different sequences a multiset has: n! over the repeats' factorials."""
        ordered = np.sort(multisets, axis=-1)
        run = np.ones(len(ordered), dtype=np.int64)
        # 21! is more than int64 holds.
        kind = np.int64 if self.seq_len <= 20 else object
        repeats = np.ones(len(ordered), dtype=kind)
        for j in range(1, self.seq_len):
            run = np.where(ordered[:, j] == ordered[:, j - 1], run + 1, 1)
            repeats *= run
        sizes = math.factorial(self.seq_len) // repeats
        return np.asarray(sizes, dtype=np.int64)

    def describe(self, columns: np.ndarray) -> str:
        """A cell in words, for messages: its digits and its centre."""
        digits = self.digits(columns).tolist()
        return f"cell {digits} (centre {self.centres(columns).tolist()})"
