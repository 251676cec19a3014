"""Compact domains that are not one box: finite unions of boxes of sequences.

A part has an interval for each coordinate of each token. The parts' interiors do not meet,
so an integral over the region is the sum over its parts; and a part is cut by the cells of
a grid into *pieces*, which are boxes again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from everyformer.errors import TargetError
from everyformer.numerics.limits import end_of_interval, shown
from everyformer.targets.box import Box, Grid

MAX_PARTS = 256
"""More boxes than that are refused: every pair of them is compared."""

Ends = tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True)
class Region:
    """A finite union of boxes in R^(n x d) whose interiors do not meet.

    Attributes:
        lows: Where each part begins: by part, token and coordinate.
        highs: Where it ends.

    Example:
        >>> corner = Region.of([[[(0, 0.5)], [(0, 1)]], [[(0.5, 1)], [(0, 0.5)]]], 2, 1)
        >>> corner.volume, str(corner.hull)
        (Fraction(3, 4), '[0, 1]')
    """

    lows: Ends
    highs: Ends

    @classmethod
    def of(cls, parts: Any, seq_len: int, d_model: int) -> "Region":
        """Read `region=[part, ...]`, a part being n rows of d pairs (low, high).

        Raises:
            TargetError: If there are no parts, an interval is empty, or two parts overlap.
        """
        n, d = seq_len, d_model
        try:
            ends = np.array([_rows(part, n, d) for part in parts], dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            msg = (
                f"region={shown(parts)} is not a list of boxes. A box has {n} rows, one "
                f"for each token, of {d} pairs (low, high): [[(0, 1)] * {d}] * {n}."
            )
            raise TargetError(msg) from error
        if len(ends) == 0:
            msg = (
                "region=[] has no cells: an integral over nothing is 0, and every network "
                "would do. Give one box or more, or leave region out for the whole domain."
            )
            raise TargetError(msg)
        if len(ends) > MAX_PARTS:
            msg = (
                f"region has {len(ends):,} boxes, more than {MAX_PARTS}. Merge neighbours."
            )
            raise TargetError(msg)
        low, high = ends[..., 0], ends[..., 1]
        empty = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
        if empty.any():
            q, j, i = (int(k) for k in np.argwhere(empty)[0])
            msg = (
                f"region: box {q + 1} has the interval ({low[q, j, i]:g}, "
                f"{high[q, j, i]:g}) for coordinate {i + 1} of token {j + 1}, which is "
                "empty or not finite, so it has no cells. Give low < high."
            )
            raise TargetError(msg)
        _check_apart(low, high)
        return cls(_nested(low), _nested(high))

    @property
    def parts(self) -> int:
        """How many boxes."""
        return len(self.lows)

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, float64 of shape (parts, n, d)."""
        return np.array(self.lows), np.array(self.highs)

    @cached_property
    def lengths(self) -> np.ndarray:
        """high - low, Fractions of shape (parts, n, d)."""
        low, high = (_fractions(end) for end in self.ends)
        return np.asarray(high - low)

    @property
    def volume(self) -> Fraction:
        """Of all parts together, exactly."""
        return sum((_product(one) for one in self.lengths), start=Fraction(0))

    @property
    def hull(self) -> Box:
        """The least box of a token that holds every part, for every token."""
        low, high = self.ends
        return Box(
            tuple(low.min(axis=(0, 1)).tolist()), tuple(high.max(axis=(0, 1)).tolist())
        )

    def check_inside(self, box: Box) -> None:
        """See that every part lies in a box.

        Raises:
            TargetError: Naming the first interval that does not.
        """
        low, high = self.ends
        beyond = (low < np.asarray(box.lows)) | (high > np.asarray(box.highs))
        if beyond.any():
            q, j, i = (int(k) for k in np.argwhere(beyond)[0])
            msg = (
                f"region: box {q + 1} reaches from {low[q, j, i]:g} to {high[q, j, i]:g} "
                f"in coordinate {i + 1} of token {j + 1}, and the domain from "
                f"{box.lows[i]:g} to {box.highs[i]:g}. Give a region inside the domain, or "
                "leave domain out: it is then the least box around the region."
            )
            raise TargetError(msg)

    def count(self, grid: Grid) -> int:
        """How many pieces a grid cuts the region into."""
        return sum(
            math.prod(last - first for row in part for first, last in row)
            for part in self._cells(grid)
        )

    def _cells(self, grid: Grid) -> list[list[list[tuple[int, int]]]]:
        """The cells first .. last - 1 that each part meets, by token and coordinate."""
        K, box = grid.cells, grid.box
        scale = list(zip(box.lows, box.widths, strict=True))

        def met(low: float, high: float, i: int) -> tuple[int, int]:
            start, width = Fraction(scale[i][0]), scale[i][1]
            first = math.floor((Fraction(low) - start) * K / width)
            last = math.ceil((Fraction(high) - start) * K / width)
            return max(first, 0), min(last, K)

        return [
            [
                [met(low, high, i) for i, (low, high) in enumerate(zip(*ends, strict=True))]
                for ends in zip(lows, highs, strict=True)
            ]
            for lows, highs in zip(self.lows, self.highs, strict=True)
        ]

    def pieces(self, grid: Grid) -> "Pieces":
        """The pieces, part by part, the last coordinate of the last token fastest."""
        low, high = (_fractions(end) for end in self.ends)
        found: list[Pieces] = []
        n, d, K = grid.seq_len, grid.d_model, grid.cells
        starts, widths = [Fraction(a) for a in grid.box.lows], grid.box.widths
        for q, cells in enumerate(self._cells(grid)):
            sizes = [last - first for row in cells for first, last in row]
            at = np.indices(sizes, dtype=np.int64).reshape(n * d, -1)  # [N, count]
            columns = np.zeros((at.shape[1], n), dtype=np.int64)
            tables: list[np.ndarray] = []
            for k, (j, i) in enumerate(np.ndindex(n, d)):
                first, last = cells[j][i]
                columns[:, j] += (first + at[k]) * K**i
                ends = [
                    (
                        max(low[q, j, i], starts[i] + m * widths[i] / K),
                        min(high[q, j, i], starts[i] + (m + 1) * widths[i] / K),
                    )
                    for m in range(first, last)
                ]
                table = np.array(
                    [_rounded(a, b, widths[i] / K) for a, b in ends]
                )  # [cells, 8]
                tables.append(table[at[k]])
            stacked = np.stack(tables, axis=1).reshape(len(columns), n, d, -1)
            found.append(Pieces.of(columns, stacked))
        return Pieces.joined(found)

    def centres(self, grid: Grid, columns: np.ndarray) -> np.ndarray:
        """A point of the region for each cell: of the cell too, where they meet.

        The middle of the first piece that lies in the cell; for cells that do not meet the
        region the point of the first part that is nearest to the centre. What a network
        does there is free.
        """
        low, high = self.ends
        centre = grid.centres(columns)
        half = np.array([float(w) for w in grid.box.widths]) / (2 * grid.cells)
        points = np.clip(centre, low[0], high[0])
        free = np.ones(len(columns), dtype=bool)
        for part_low, part_high in zip(low, high, strict=True):
            a = np.maximum(centre - half, part_low)
            b = np.minimum(centre + half, part_high)
            meets = free & np.asarray((a < b).all(axis=(1, 2)))
            middle = np.clip(a / 2 + b / 2, part_low, part_high)
            points[meets] = middle[meets]
            free &= ~meets
        return points

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Points drawn evenly from the region, (count, n, d)."""
        low, high = self.ends
        shares = np.array([float(_product(one) / self.volume) for one in self.lengths])
        which = rng.choice(self.parts, count, p=shares / shares.sum())
        cube = rng.random((count, *low.shape[1:]))
        return low[which] + (high - low)[which] * cube

    def to_json(self) -> list[Any]:
        """Exact ends: by part, token and coordinate [low, high]."""
        return [
            [
                [[str(Fraction(a)), str(Fraction(b))] for a, b in zip(*row, strict=True)]
                for row in zip(lows, highs, strict=True)
            ]
            for lows, highs in zip(self.lows, self.highs, strict=True)
        ]

    def __str__(self) -> str:
        boxes = f"{self.parts} box{'es' * (self.parts > 1)}"
        return f"a region of {boxes}, volume {float(self.volume):.6g}"

    def describe(self, most: int = 4) -> str:
        """The boxes in words, the first ones where there are many."""
        found: list[str] = []
        for lows, highs in zip(self.lows[:most], self.highs[:most], strict=True):
            rows = [
                " x ".join(f"[{a!r}, {b!r}]" for a, b in zip(*row, strict=True))
                for row in zip(lows, highs, strict=True)
            ]
            found.append(f"({'; '.join(rows[:most])}{'; ...' * (len(rows) > most)})")
        more = f" and {self.parts - most} more" * (self.parts > most)
        return f"{self}: {', '.join(found)}{more}, token by token"


@dataclass(frozen=True)
class Pieces:
    """What cells and parts have in common: boxes, rounded outward.

    Attributes:
        columns: Column numbers of the cells, (count, n).
        ends: Lower and upper ends, and lower and upper bounds of the centre, each
            (count, n, d).
        halves: Half the widths, rounded up, (count, n, d).
        widths: The widths, rounded down.
        shares: vol(piece) / vol(cell), rounded up, (count,).
        whole: Which pieces are all of their cell.
    """

    columns: np.ndarray
    ends: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    halves: np.ndarray
    widths: np.ndarray
    shares: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray, numbers: np.ndarray) -> "Pieces":
        """From the eight numbers of `_rounded` for each interval, (count, n, d, 8)."""
        low, high, middle, above, half, width, share, whole = np.moveaxis(numbers, -1, 0)
        axes = (1, 2)
        up, tiny = 1 + 2.0**-40, 2.0**-1060  # rounding, and that below 2^-1022
        return cls(
            columns,
            (low, high, middle, above),
            half,
            width,
            np.where(whole.all(axis=axes), 1.0, share.prod(axis=axes) * up + tiny),
            np.asarray(whole.all(axis=axes), dtype=bool),
        )

    @classmethod
    def joined(cls, parts: Sequence["Pieces"]) -> "Pieces":
        """All of them, in order."""
        return cls(
            np.concatenate([one.columns for one in parts]),
            tuple(np.concatenate([one.ends[k] for one in parts]) for k in range(4)),  # pyright: ignore[reportArgumentType]
            np.concatenate([one.halves for one in parts]),
            np.concatenate([one.widths for one in parts]),
            np.concatenate([one.shares for one in parts]),
            np.concatenate([one.whole for one in parts]),
        )

    def __getitem__(self, here: slice) -> "Pieces":
        """Some of them."""
        low, high, middle, above = (end[here] for end in self.ends)
        return Pieces(
            self.columns[here],
            (low, high, middle, above),
            self.halves[here],
            self.widths[here],
            self.shares[here],
            self.whole[here],
        )


def _rounded(low: Fraction, high: Fraction, cell: Fraction) -> tuple[float, ...]:
    """An interval of a piece in float64: ends, centre, half, width, share, whole."""
    middle, width = (low + high) / 2, high - low
    return (
        -_up(-low),
        _up(high),
        -_up(-middle),
        _up(middle),
        _up(width / 2),
        -_up(-width),
        _up(width / cell),
        float(width == cell),
    )


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _rows(part: Any, n: int, d: int) -> list[list[tuple[float, float]]]:
    """A part as n rows of d pairs of numbers."""
    rows = [[(end_of_interval(a), end_of_interval(b)) for a, b in row] for row in part]
    if len(rows) != n or any(len(row) != d for row in rows):
        raise ValueError(len(rows))
    return rows


def _check_apart(low: np.ndarray, high: np.ndarray) -> None:
    """Refuse parts that have more than a border in common."""
    for q in range(1, len(low)):
        shared = np.maximum(low[:q], low[q]) < np.minimum(high[:q], high[q])
        overlap = np.flatnonzero(shared.all(axis=(1, 2)))
        if len(overlap):
            msg = (
                f"region: boxes {int(overlap[0]) + 1} and {q + 1} overlap, and what they "
                "share would count twice. Cut one of them."
            )
            raise TargetError(msg)


def _nested(ends: np.ndarray) -> Ends:
    return tuple(tuple(tuple(row) for row in part) for part in ends.tolist())


def _fractions(values: np.ndarray) -> np.ndarray:
    exact = np.empty(values.shape, dtype=object)
    exact.reshape(-1)[:] = [Fraction(v) for v in values.reshape(-1).tolist()]
    return exact


def _product(values: np.ndarray) -> Fraction:
    return math.prod(values.reshape(-1).tolist(), start=Fraction(1))
