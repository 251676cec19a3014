"""A feed-forward layer as a function of one number: breaks, and a line for each piece.

A layer whose rows are all multiples of one row w changes a token z by

    z <- z + psi(t),   t = w^T z,   psi(t) = a_k t + c_k   between break k and break k + 1,

with vectors a_k, c_k. All numbers are exact rationals.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

Vector = tuple[Fraction, ...]


@dataclass(frozen=True)
class LayerFunction:
    """psi, and the row w that it looks at.

    Attributes:
        direction: w.
        breaks: Increasing; psi may jump or bend there, and nowhere else.
        slopes: a_k, one vector more than there are breaks.
        offsets: c_k, one vector more than there are breaks.
        at_breaks: psi at each break.
        units: The ReLUs: row, bias and column of each; none for other activations.
        shift: b_2.
    """

    direction: Vector
    breaks: tuple[Fraction, ...]
    slopes: tuple[Vector, ...]
    offsets: tuple[Vector, ...]
    at_breaks: tuple[Vector, ...]
    units: tuple[tuple[Vector, Fraction, Vector], ...]
    shift: Vector

    def pieces(self, low: Fraction, high: Fraction) -> range:
        """The pieces that meet the open interval (low, high)."""
        first = bisect_right(self.breaks, low)
        return range(first, max(first, bisect_left(self.breaks, high)) + 1)

    def value(self, t: Fraction) -> Vector:
        """psi(t)."""
        index = bisect_left(self.breaks, t)
        if index < len(self.breaks) and self.breaks[index] == t:
            return self.at_breaks[index]
        return self._on_piece(index, t)

    def _on_piece(self, index: int, t: Fraction) -> Vector:
        lines = zip(self.slopes[index], self.offsets[index], strict=True)
        return tuple(a * t + c for a, c in lines)

    def is_continuous_at(self, index: int) -> bool:
        """Whether psi does not jump at a break."""
        t, at = self.breaks[index], self.at_breaks[index]
        return all(self._on_piece(side, t) == at for side in (index, index + 1))

    @property
    def coordinate(self) -> int | None:
        """i, if the layer reads and writes coordinate i alone; 0 if it does nothing."""
        used = {i for i, w in enumerate(self.direction) if w}
        for vector in (*self.slopes, *self.offsets, *self.at_breaks):
            used |= {i for i, entry in enumerate(vector) if entry}
        for row, _, column in self.units:  # what cancels here may not in float64
            for vector in (row, column) if any(column) else ():
                used |= {i for i, entry in enumerate(vector) if entry}
        if len(used) > 1:
            return None
        return used.pop() if used else 0


def layer_function(layer: dict[str, np.ndarray]) -> LayerFunction | None:
    """psi of one layer, or None if its rows are not multiples of one row."""
    W_1 = [_fractions(row) for row in layer["W_1"]]
    W_2 = [_fractions(column) for column in layer["W_2"].T]
    b_1, b_2 = _fractions(layer["b_1"]), _fractions(layer["b_2"])
    d = len(b_2)
    zero = (Fraction(0),) * d
    direction = next((row for row in W_1 if any(row)), zero)
    units: list[_Unit] = []
    for k, row in enumerate(W_1):
        factor = _factor(row, direction)
        if factor is None:
            return None
        units.append(_unit(layer, k, factor, b_1[k]))
    breaks = sorted({c for unit in units for c in unit.breaks})

    def combined(lines: list[Fraction], start: Vector) -> Vector:
        terms = zip(W_2, lines, strict=True)
        total = list(start)
        for column, factor in terms:
            if factor:
                total = [v + w * factor for v, w in zip(total, column, strict=True)]
        return tuple(total)

    slopes: list[Vector] = []
    offsets: list[Vector] = []
    for index in range(len(breaks) + 1):
        places = [bisect_right(u.breaks, breaks[index - 1]) if index else 0 for u in units]
        lines = [unit.lines[at] for unit, at in zip(units, places, strict=True)]
        slopes.append(combined([a for a, _ in lines], zero))
        offsets.append(combined([c for _, c in lines], b_2))
    at_breaks = [combined([unit.value(t) for unit in units], b_2) for t in breaks]
    relus = () if "phi.breaks" in layer else tuple(zip(W_1, b_1, W_2, strict=True))
    return _without_idle_breaks(
        LayerFunction(
            direction=direction,
            breaks=tuple(breaks),
            slopes=tuple(slopes),
            offsets=tuple(offsets),
            at_breaks=tuple(at_breaks),
            units=relus,
            shift=b_2,
        )
    )


def _without_idle_breaks(function: LayerFunction) -> LayerFunction:
    """The same function without the breaks at which it goes on as before."""
    a, c = function.slopes, function.offsets
    kept = [
        k
        for k in range(len(function.breaks))
        if (a[k], c[k]) != (a[k + 1], c[k + 1]) or not function.is_continuous_at(k)
    ]
    return replace(
        function,
        breaks=tuple(function.breaks[k] for k in kept),
        slopes=(a[0], *(a[k + 1] for k in kept)),
        offsets=(c[0], *(c[k + 1] for k in kept)),
        at_breaks=tuple(function.at_breaks[k] for k in kept),
    )


@dataclass(frozen=True)
class _Unit:
    """A hidden unit as a function of t: breaks, lines (slope, offset), closed sides."""

    breaks: list[Fraction]
    lines: list[tuple[Fraction, Fraction]]
    closed: list[bool]

    def value(self, t: Fraction) -> Fraction:
        at = bisect_left(self.breaks, t)
        if at < len(self.breaks) and self.breaks[at] == t and not self.closed[at]:
            at += 1
        a, c = self.lines[at]
        return a * t + c


def _unit(layer: dict[str, np.ndarray], k: int, factor: Fraction, bias: Fraction) -> _Unit:
    """Hidden unit k, which sees s = factor t + bias, as a function of t."""
    if "phi.breaks" in layer:
        slopes = _fractions(layer["phi.slopes"][k])
        offsets = _fractions(layer["phi.intercepts"][k])
        breaks = list(_fractions(layer["phi.breaks"][k]))
        closed = [bool(side) for side in layer["phi.closed"][k]]
    else:  # ReLU
        slopes, offsets = (Fraction(0), Fraction(1)), (Fraction(0), Fraction(0))
        breaks, closed = [Fraction(0)], [False]
    own = _Unit(breaks, list(zip(slopes, offsets, strict=True)), closed)
    if factor == 0:
        return _Unit([], [(Fraction(0), own.value(bias))], [])
    lines = [(a * factor, a * bias + c) for a, c in own.lines]
    moved = [(c - bias) / factor for c in breaks]
    if factor < 0:
        return _Unit(moved[::-1], lines[::-1], [not side for side in closed[::-1]])
    return _Unit(moved, lines, closed)


def _factor(row: Vector, direction: Vector) -> Fraction | None:
    """c with row = c direction, or None."""
    if not any(row):
        return Fraction(0)
    place = next(i for i, entry in enumerate(direction) if entry)
    factor = row[place] / direction[place]
    same = all(a == factor * b for a, b in zip(row, direction, strict=True))
    return factor if same else None


def _fractions(values: np.ndarray) -> Vector:
    return tuple(Fraction(value) for value in values.tolist())


def image(
    function: LayerFunction, i: int, low: Fraction | None, high: Fraction | None
) -> tuple[Fraction | None, Fraction | None]:
    """The range of t -> t + psi(t) on [low, high], for a layer on coordinate i alone.

    None stands for minus or plus infinity. At a jump both sides count, and the value.
    """
    w = function.direction[i]
    if w == 0:
        shift = function.offsets[0][i]
        return (
            None if low is None else low + shift,
            None if high is None else high + shift,
        )
    breaks = sorted(c / w for c in function.breaks)
    order = 1 if w > 0 else -1
    slopes = [1 + slope[i] * w for slope in function.slopes][::order]
    offsets = [offset[i] for offset in function.offsets][::order]
    at = [
        c / w + value[i]
        for c, value in zip(function.breaks, function.at_breaks, strict=True)
        if (low is None or low <= c / w) and (high is None or c / w <= high)
    ]
    lows: list[Fraction | None] = list(at)
    highs: list[Fraction | None] = list(at)
    for k, (a, c) in enumerate(zip(slopes, offsets, strict=True)):
        start = breaks[k - 1] if k else None
        end = breaks[k] if k < len(breaks) else None
        start = low if start is None or (low is not None and low > start) else start
        end = high if end is None or (high is not None and high < end) else end
        if start is not None and end is not None and start > end:
            continue
        if start is not None and start == end and start in breaks:
            continue  # a break alone, counted above
        ends = _line_range(a, c, start, end)
        lows.append(ends[0])
        highs.append(ends[1])
    return (
        None if any(v is None for v in lows) else min(v for v in lows if v is not None),
        None if any(v is None for v in highs) else max(v for v in highs if v is not None),
    )


def _line_range(
    a: Fraction, c: Fraction, start: Fraction | None, end: Fraction | None
) -> tuple[Fraction | None, Fraction | None]:
    if a == 0:
        return c, c
    first = None if start is None else a * start + c
    last = None if end is None else a * end + c
    return (first, last) if a > 0 else (last, first)


def clamp_of(function: LayerFunction, i: int) -> tuple[Fraction, Fraction] | None:
    """(low, high) if the layer is z_i += relu(low - z_i) - relu(z_i - high), else None.

    Row and column entries are 1 and -1: a float64 run subtracts twice, and nothing else.
    """
    used = [
        (row[i], bias, column[i]) for row, bias, column in function.units if any(column)
    ]
    if function.coordinate != i or any(function.shift) or len(used) != 2:
        return None
    ends = {row: -bias * row for row, bias, column in used if row * column == -1}
    if set(ends) != {Fraction(1), Fraction(-1)} or ends[Fraction(-1)] > ends[Fraction(1)]:
        return None
    return ends[Fraction(-1)], ends[Fraction(1)]


def clamped_range(
    functions: Sequence[LayerFunction], d: int
) -> list[tuple[Fraction | None, Fraction | None]] | None:
    """To which intervals layers on single coordinates map all of R^d, or None.

    None if a layer mixes coordinates.
    """
    ranges: list[tuple[Fraction | None, Fraction | None]] = [(None, None)] * d
    for function in functions:
        i = function.coordinate
        if i is None:
            return None
        ranges[i] = image(function, i, *ranges[i])
    return ranges
