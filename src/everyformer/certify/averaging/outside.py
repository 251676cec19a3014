"""Where a network with registers is exactly 0: beyond a strip around the box.

Outside the widened box some coordinate i of some token j is at least e, or at most e', and
all others are any real numbers. On each of these 2 n d half-spaces every register of every
token is enclosed in an interval with exact rational ends, stage by stage:

    read-in     one coordinate on a half-line, all others without bounds
    ridge       the least and the largest value of psi on the interval of w . z
    mean        M / n times the sum of the tokens' intervals

A look-up whose key is beyond its last bend has one value there; if the result is [0, 0]
for every token, on every half-space, the network is 0 outside, in real arithmetic. How e is
found proves nothing: it is the nearest for which this works among the outermost bends of
all that looks at the coordinate.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import inf

import numpy as np

from everyformer.certify.half_lines import EVERYWHERE, ZERO, End, Ends, plus, scaled
from everyformer.certify.on_cells.reading import Outside
from everyformer.certify.register_stages import Layer, Mean
from everyformer.certify.ridge import Ridge, outward
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, to_fractions
from everyformer.targets.box import Grid

State = list[list[Ends]]
"""The registers of every token."""


def outside(
    registers: RegisterWeights, stages: Sequence[Layer | Mean], grid: Grid
) -> Outside:
    """The strip around the box beyond which the network is 0, and |g| everywhere.

    Raises:
        Undecided: If it is not proved to be 0, naming the half-space.
    """
    n, d = grid.seq_len, grid.d_model
    run = _Run(registers, stages, n, d)
    free = run.output({})
    sizes = np.empty((n, d), dtype=object)
    for j, i in np.ndindex(n, d):
        low, high = free[j][i]
        if low == -inf or high == inf:
            why = f"nothing bounds coordinate {i + 1} of its output"
            raise Undecided(_last(stages), why)
        sizes[j, i] = max(abs(low), abs(high))
    strip = np.full((n, d), Fraction(0), dtype=object)
    for j, i in np.ndindex(n, d):
        for end, sign in ((grid.box.lows[i], -1), (grid.box.highs[i], 1)):
            edge = Fraction(end)
            found = next(
                (e for e in run.bends(j, i, edge, sign) if run.is_zero(j, i, e, sign)), None
            )
            if found is None:
                side = "above" if sign > 0 else "below"
                why = (
                    f"the output is not proved to be 0 far {side} the box in coordinate "
                    f"{i + 1} of token {j + 1}, and has no integral over R^(n x d)"
                )
                raise Undecided(_last(stages), why)
            strip[j, i] += abs(found - edge)
    return Outside(strip, sizes)


def _last(stages: Sequence[Layer | Mean]) -> str:
    return stages[-1].name if stages else "registers"


class _Run:
    """The network on boxes that may be without bounds."""

    def __init__(
        self, registers: RegisterWeights, stages: Sequence[Layer | Mean], n: int, d: int
    ) -> None:
        self.stages, self.n, self.d = stages, n, d
        self.W_in, self.start = to_fractions(registers.W_in), to_fractions(registers.start)
        self.W_out = to_fractions(registers.W_out)
        self.width = len(registers.W_in)

    def bends(self, j: int, i: int, edge: Fraction, sign: int) -> list[Fraction]:
        """Where to begin: the edge of the box, and outermost bends of ridges beyond it.

        As values of x_ji, the nearest first; of the ridges that look at that coordinate.
        """
        found = {edge}
        for ridge in _early(self.stages):
            row = to_fractions(ridge.row)
            slope = Fraction(sum(row * self.W_in[:, i]))
            if slope == 0 or len(ridge.bends) == 0:
                continue
            offset = Fraction(sum(row * self.start[j]))
            for bend in (ridge.bends[0], ridge.bends[-1]):
                x = (Fraction(float(bend)) - offset) / slope
                if (x - edge) * sign > 0:
                    found.add(x)
        return sorted(found, key=lambda x: abs(x - edge))

    def is_zero(self, j: int, i: int, edge: Fraction, sign: int) -> bool:
        """Whether the output is 0 wherever x_ji is at or beyond an edge."""
        line: Ends = (edge, inf) if sign > 0 else (-inf, edge)
        return all(ends == ZERO for row in self.output({(j, i): line}) for ends in row)

    def output(self, where: dict[tuple[int, int], Ends]) -> State:
        """What the result may be, with some coordinates on intervals and others free."""
        state = [
            [self._read_in(j, r, where) for r in range(self.width)] for j in range(self.n)
        ]
        for stage in self.stages:
            if isinstance(stage, Mean):
                state = self._mean(stage, state)
            else:
                state = [self._layer(stage, registers) for registers in state]
        return [[_dot(row, registers) for row in self.W_out] for registers in state]

    def _read_in(self, j: int, r: int, where: dict[tuple[int, int], Ends]) -> Ends:
        total: Ends = (self.start[j, r], self.start[j, r])
        for i in range(self.d):
            total = plus(total, scaled(self.W_in[r, i], where.get((j, i), EVERYWHERE)))
        return total

    def _layer(self, stage: Layer, registers: list[Ends]) -> list[Ends]:
        new = [
            plus(ends, (shift, shift))
            for ends, shift in zip(registers, stage.shift, strict=True)
        ]
        for ridge in stage.ridges:
            seen = _dot(to_fractions(ridge.row), registers)
            for place, ends in zip(ridge.writes, _values(ridge, seen), strict=True):
                new[place] = plus(new[place], ends)
        return new

    def _mean(self, stage: Mean, state: State) -> State:
        share = Fraction(1, self.n)
        means: list[Ends] = []
        for r in range(self.width):
            total = ZERO
            for registers in state:
                total = plus(total, registers[r])
            means.append(scaled(share, total))
        added = [_dot(row, means) for row in stage.matrix]
        return [
            [plus(a, b) for a, b in zip(registers, added, strict=True)]
            for registers in state
        ]


def _early(stages: Sequence[Layer | Mean]) -> list[Ridge]:
    """Ridges before the first mean."""
    found: list[Ridge] = []
    for stage in stages:
        if isinstance(stage, Mean):
            break
        found += stage.ridges
    return found


def _dot(row: np.ndarray, registers: list[Ends]) -> Ends:
    total = ZERO
    for factor, ends in zip(row, registers, strict=True):
        if factor:
            total = plus(total, scaled(factor, ends))
    return total


def _values(ridge: Ridge, seen: Ends) -> list[Ends]:
    """The least and the largest value of psi on an interval, for each register written.

    Psi is continuous and linear between bends: they are among its values at the ends of the
    interval and at the bends inside; without bound where it rises or falls for ever.
    """
    low, high = seen
    first, last = _bends_below(ridge, low), _bends_below(ridge, high, itself=True)
    values, unit = ridge.at_bends
    found: list[Ends] = []
    for c in range(len(ridge.writes)):
        inside = values[first:last, c]
        at: list[End] = [_at(ridge, low, first, c), _at(ridge, high, last, c)]
        if len(inside):
            at += [Fraction(int(inside.min()), unit), Fraction(int(inside.max()), unit)]
        found.append((min(at), max(at)))
    return found


def _bends_below(ridge: Ridge, tau: End, *, itself: bool = False) -> int:
    """How many bends are below tau; or not above it. Bends are float64 numbers."""
    if abs(tau) == inf:
        return len(ridge.bends) if tau > 0 else 0
    near = outward(Fraction(tau), -1)  # the largest float64 number that is not above tau
    if itself or near != tau:
        return int(np.searchsorted(ridge.bends, near, side="right"))
    return int(np.searchsorted(ridge.bends, near, side="left"))


def _at(ridge: Ridge, tau: End, piece: int, c: int) -> End:
    """Psi at tau, which lies in a piece; where it goes, for a tau without bound."""
    slope = ridge.slopes[piece, c]
    if slope == 0:
        return Fraction(int(ridge.offsets[piece, c]), ridge.offset_unit)
    if abs(tau) == inf:
        return tau if slope > 0 else -tau
    value = Fraction(tau) * Fraction(int(slope), ridge.slope_unit)
    return value + Fraction(int(ridge.offsets[piece, c]), ridge.offset_unit)
