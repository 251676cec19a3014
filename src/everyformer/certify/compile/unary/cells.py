"""How far a softmax head is from a function, on an interval that is cut into cells.

The cells are cut where a series is likely to converge. Then the one with the largest bound
is halved until that bound is within 3 % of a value that is taken somewhere. Which cells are
taken decides how tight the bound is, not whether it holds: they always cover the interval.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from everyformer.certify.compile.unary.reference import Reference
from everyformer.certify.compile.unary.series import Tokens, bound_cell
from everyformer.certify.undecided import Undecided

REACH = 0.5
"""Radius of a cell, in units of 1 / the deviation of a under the weights at its centre."""

NEAR = 0.25
"""Radius of a cell, of the distance between its centre and a singularity of g."""

WORK = 60_000
"""Cells times (tokens + 30); then the bound is what has been proved so far."""

TIGHT = 1.03
"""The largest bound, over the largest value."""

NEGLIGIBLE = 2.0**-66
"""Of the size of values: no smaller error is worth a cell."""

_DEEPEST = 24


def cut(
    a: np.ndarray, b: np.ndarray, reference: Reference, low: float, high: float
) -> list[tuple[float, float]]:
    """Halve [low, high] until the cells suit a series of the head and of g.

    Args:
        a: (P,), factors of t in the scores.
        b: (P,), constants in the scores.
        reference: g.
        low: The interval's lower end.
        high: Its upper end.

    Returns:
        The cells' ends. They cover the interval whatever the numbers are.
    """
    lows, highs = np.array([low]), np.array([high])
    done: list[tuple[float, float]] = []
    with np.errstate(all="ignore"):
        for _ in range(_DEEPEST):
            middle = 0.5 * lows + 0.5 * highs
            radius = 0.5 * highs - 0.5 * lows
            gaps = np.array([reference.gap(c) for c in middle.tolist()])
            wide = radius * _deviation(a, b, middle) > REACH
            wide |= radius > NEAR * gaps
            wide &= (lows < middle) & (middle < highs)
            if wide.sum() + lows.size + len(done) > _most_cells(a.size) // 3:
                break
            done += zip(lows[~wide].tolist(), highs[~wide].tolist(), strict=True)
            lows, highs, middle = lows[wide], highs[wide], middle[wide]
            lows, highs = np.append(lows, middle), np.append(middle, highs)
            if not lows.size:
                break
    return [*done, *zip(lows.tolist(), highs.tolist(), strict=True)]


def _deviation(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The standard deviation of a under the weights at t."""
    scores = t[:, None] * a + b
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ a
    return np.sqrt((weights * (a - mean[:, None]) ** 2).sum(axis=1))


def _most_cells(num_tokens: int) -> int:
    """How many cells may be tried; about a millisecond for 30 tokens."""
    return 3 + WORK // (num_tokens + 30)


@dataclass(frozen=True, order=True)
class Cell:
    """A part of the interval, with the bound there. Ordered by it, largest first.

    Attributes:
        order: -upper.
        low: Its lower end.
        high: Its upper end.
        value: A value of |Phi - g| that is taken on the cell, about; or 0.
        negligible: An error that is too small to matter there.
    """

    order: float
    low: float
    high: float
    value: float
    negligible: float

    @classmethod
    def prove(
        cls, tokens: Tokens, reference: Reference | None, low: float, high: float
    ) -> "Cell":
        """The cell [low, high]."""
        upper, value, size = bound_cell(tokens, reference, low, high)
        return cls(-upper, low, high, value, size * NEGLIGIBLE)

    @property
    def upper(self) -> float:
        """Proved: |Phi - g| is at most this on the cell."""
        return -self.order

    def halves(self) -> list[tuple[float, float]]:
        """Both halves; none if there is no float between the ends."""
        middle = 0.5 * self.low + 0.5 * self.high
        if not self.low < middle < self.high:
            return []
        return [(self.low, middle), (middle, self.high)]


def bound_error(
    tokens: Tokens,
    reference: Reference | None,
    cells: list[tuple[float, float]],
    wanted: float | None = None,
) -> tuple[float, list[tuple[float, float]]]:
    """Bound |Phi - g|.

    Args:
        tokens: Those of Phi.
        reference: g; None for 0.
        cells: Ends of intervals that cover the interval.
        wanted: Stop as soon as the bound is at most this.

    Returns:
        The bound, and the cells of its proof.

    Raises:
        Undecided: If no finite bound was found.
    """
    heap = [Cell.prove(tokens, reference, *ends) for ends in cells]
    heapq.heapify(heap)
    done: list[Cell] = []
    known = max(cell.value for cell in heap)
    work = _most_cells(len(tokens.a)) - len(heap)
    while heap and work > 0:
        worst = heap[0]
        if worst.upper <= max(TIGHT * known, worst.negligible, wanted or 0.0):
            break
        heapq.heappop(heap)
        halves = [Cell.prove(tokens, reference, *ends) for ends in worst.halves()]
        work -= 2
        if not halves:
            done.append(worst)
        for cell in halves:
            known = max(known, cell.value)
            heapq.heappush(heap, cell)
    done.extend(heap)
    bound = max(cell.upper for cell in done)
    if not bound < math.inf:
        worst = min(done)
        why = f"nothing bounds the head's error on [{worst.low:.6g}, {worst.high:.6g}]"
        raise Undecided("unary", why)
    return bound, sorted((cell.low, cell.high) for cell in done)
