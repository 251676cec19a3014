"""Bisect the cells on which the most is lost, as long as it pays.

A cell is the union of its parts, so the mean of |f - g|^p over it is at most

    sum over parts of vol(part) / vol(cell) * (mean over the part),

and on smaller parts enclosures are tighter: a jump, a kink or the end of a root is then met
by few of them. Which parts are bisected, and along which axis, is decided by what they seem
to lose; the bound holds whatever is chosen. The choice depends on the cells alone that are
examined together, so that it is the same in every run.

Parts are boxes with float64 ends that cover the cell, which reaches from one rational to
another. A part may reach beyond the cell by a rounding; its volume is that of the box,
rounded up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TypeVar

import numpy as np

from everyformer.certify.on_cells.moments import UP
from everyformer.certify.program_size import ProgramSize
from everyformer.numerics.expression import Expression

ENOUGH = 1.125
"""The bound is good enough within this factor of the guess."""

MOST_PARTS = 2**15
"""Parts made out of all cells, as far as the next number allows that."""

PARTS_OF_SHARD = 2**13
"""Parts that every shard may make, about as many as it has cells."""

MOST_WORK = 2**24
"""Slopes of all lines on the parts of a shard: long programs are bisected less."""

MOST_CALLS = 2**15
"""Slopes of all lines in all rounds: what a round costs, however few its parts are."""

SMALLEST_UNKNOWN = 2.0**-8
"""A part this small, as a share of its cell, on which f has no bound ends all efforts."""

MOST_ROUNDS = 32
SHARE = 0.5
"""Of what is lost, the share that the parts chosen in a round have together."""

_SUMMED = 1 + 2.0**-36
"""Pays for the rounding of sums over all parts."""


def most_parts(slopes: int, shards: int) -> int:
    """How many parts a shard makes, for a program with so many slopes in all its lines."""
    if not most_rounds(slopes):
        return 0
    return min(max(PARTS_OF_SHARD, MOST_PARTS // shards), MOST_WORK // max(slopes, 1))


def most_rounds(slopes: int) -> int:
    """How often parts are chosen."""
    return min(MOST_ROUNDS, MOST_CALLS // max(slopes, 1))


R = TypeVar("R", bound="Rows")


@dataclass(frozen=True)
class Rows:
    """Arrays with a row for each of some boxes."""

    @property
    def _arrays(self) -> Iterator[np.ndarray]:
        return (getattr(self, one.name) for one in fields(self))

    def take(self: R, where: np.ndarray) -> R:
        """Some of them."""
        return type(self)(*(values[where] for values in self._arrays))

    def joined(self: R, other: R) -> R:
        """These, and then others."""
        pairs = zip(self._arrays, other._arrays, strict=True)
        return type(self)(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class Boxes(Rows):
    """Parts of cells.

    Attributes:
        cell: (count,), the number of the cell.
        low: (count, n, d), float64.
        high: Upper ends.
    """

    cell: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def centres(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the centres, inside the boxes.

        The width and the sum are rounded once each, by at most 2^-53 of themselves.
        """
        width = self.high - self.low
        middle, margin = self.low + width / 2, width * 2.0**-52
        low = np.nextafter(middle - margin, -np.inf)
        high = np.nextafter(middle + margin, np.inf)
        return np.maximum(low, self.low), np.minimum(high, self.high)

    @property
    def halves(self) -> np.ndarray:
        """Half the widths, rounded up."""
        return (self.high - self.low) / 2 * UP + 2.0**-1074

    def bisected(self, axis: np.ndarray) -> "Boxes":
        """Lower halves, then upper halves, each box cut across its axis of N."""
        flat_low, flat_high = (e.reshape(len(e), -1) for e in (self.low, self.high))
        at = np.arange(len(axis))
        left, right = flat_low[at, axis], flat_high[at, axis]
        upper_ends, lower_ends = flat_high.copy(), flat_low.copy()
        upper_ends[at, axis] = lower_ends[at, axis] = left + (right - left) / 2
        shape = self.low.shape
        return Boxes(
            np.concatenate([self.cell, self.cell]),
            np.concatenate([self.low, lower_ends.reshape(shape)]),
            np.concatenate([upper_ends.reshape(shape), self.high]),
        )


@dataclass(frozen=True)
class Measured(Rows):
    """What is known of boxes.

    Attributes:
        powers: (count,), the mean of |f - g|^p summed over the entries, at most.
        guesses: (count,), about what it is.
        lost: (count, N), what the slope along each axis adds to the bound.
        low: (count, d), lower bounds of f.
        high: Upper bounds.
    """

    powers: np.ndarray
    guesses: np.ndarray
    lost: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def good_enough(self, weights: np.ndarray, p: Fraction) -> bool:
        """Whether the bounds add up to little more than the guesses, or are unknown."""
        bound, guess = (weights * self.powers).sum(), (weights * self.guesses).sum()
        return not bound > ENOUGH ** float(p) * guess


@dataclass(frozen=True)
class Refined:
    """Bounds for the cells, and the range of f on all of them.

    Attributes:
        powers: (cells,), the mean of |f - g|^p summed over the entries, at most.
        low: (d,), a lower bound of f.
        high: An upper bound.
    """

    powers: np.ndarray
    low: np.ndarray
    high: np.ndarray


def refine(
    cells: Boxes,
    whole: Measured,
    measure: Callable[[Boxes], Measured],
    weights: np.ndarray,
    widths: np.ndarray,
    p: Fraction,
    f: Expression,
    shards: int,
) -> Refined:
    """Bisect cells, and their parts again, until the bound is near the guess.

    Args:
        cells: The cells.
        whole: What is known of them.
        measure: Finds it out for parts.
        weights: How much each cell counts.
        widths: (d,) or (cells, n, d), the cells' widths, rounded down.
        p: The exponent.
        f: The program that is run; a long one is run on fewer parts.
        shards: How many times this is done, for other cells.
    """
    slopes = ProgramSize.of(f).slopes
    room = most_parts(slopes, shards)
    parts, known = cells, whole
    shares = np.ones(len(cells.cell))
    widths = np.broadcast_to(widths, cells.low.shape)
    with np.errstate(all="ignore"):
        for _ in range(most_rounds(slopes)):
            factor = shares * weights[parts.cell]
            hopeless = (shares < SMALLEST_UNKNOWN) & ~np.isfinite(known.powers)
            if known.good_enough(factor, p) or hopeless.any():
                break
            axis = _axes(parts, known.lost, widths[parts.cell])
            lost = factor * (known.powers - known.guesses)
            chosen = _chosen(parts, axis, lost, room // 2)
            if len(chosen) == 0:
                break
            room -= 2 * len(chosen)
            halves = parts.take(chosen).bisected(axis[chosen])
            rest = np.ones(len(parts.cell), dtype=bool)
            rest[chosen] = False
            known = known.take(rest).joined(measure(halves))
            shares = np.concatenate([shares[rest], _shares(halves, widths[halves.cell])])
            parts = parts.take(rest).joined(halves)
        summed = np.bincount(parts.cell, known.powers * shares, len(cells.cell))
        untouched = np.bincount(parts.cell, minlength=len(cells.cell)) == 1
        powers = np.where(untouched, whole.powers, summed * _SUMMED)
        powers = np.fmin(whole.powers, powers)
    return Refined(powers, known.low.min(axis=0), known.high.max(axis=0))


def _shares(parts: Boxes, widths: np.ndarray) -> np.ndarray:
    """The share of its cell that each part has at most."""
    return ((parts.high - parts.low) * UP / widths * UP).prod(axis=(1, 2)) * UP


def _axes(parts: Boxes, lost: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Where to cut: where the most is lost; the longest side, where slopes are unknown."""
    longest = ((parts.high - parts.low) / widths).reshape(lost.shape)
    unknown = ~np.isfinite(lost)
    some = unknown.any(axis=1, keepdims=True)
    score = np.where(some, np.where(unknown, longest, 0.0), lost)
    return np.argmax(score, axis=1)


def _chosen(parts: Boxes, axis: np.ndarray, lost: np.ndarray, most: int) -> np.ndarray:
    """The parts to bisect: those that together have the share of what is lost."""
    at = np.arange(len(axis))
    left, right = (
        np.asarray(ends).reshape(len(at), -1)[at, axis] for ends in (parts.low, parts.high)
    )
    middle = left + (right - left) / 2
    lost = np.where((left < middle) & (middle < right), lost, 0.0)
    lost = np.where(np.isnan(lost), np.inf, lost)
    endless = np.flatnonzero(np.isinf(lost))
    if len(endless):
        return endless[:most]
    order = np.argsort(-lost, kind="stable")
    total = np.cumsum(lost[order])
    enough = int(np.searchsorted(total, SHARE * total[-1])) + 1
    worth = int(np.count_nonzero(lost > 0))
    return order[: min(enough, most, worth)]
