"""Where hidden units that look at the input are constant, cell by cell."""

from fractions import Fraction

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.register_stages import OUTWARD
from everyformer.certify.ridge import Ridge
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, to_fractions
from everyformer.targets.box import Grid


class PlateauSearch:
    """The plateaus of every coordinate, cut by every ridge that looks at it."""

    def __init__(self, registers: RegisterWeights, grid: Grid) -> None:
        """Begin with whole cells."""
        self.registers, self.grid = registers, grid
        n, d, K = grid.seq_len, grid.d_model, grid.cells
        self.W_in, self.start = to_fractions(registers.W_in), to_fractions(registers.start)
        cells = [
            [
                (Fraction(low) + k * width / K, Fraction(low) + (k + 1) * width / K)
                for k in range(K)
            ]
            for low, width in zip(grid.box.lows, grid.box.widths, strict=True)
        ]
        self.intervals = [[list(cells[i]) for i in range(d)] for _ in range(n)]

    def coordinate(self, stage: str, ridge: Ridge) -> int:
        """The one coordinate that a ridge looks at."""
        touched = [
            i for i in range(self.grid.d_model) if any(self._slopes(ridge)[i : i + 1])
        ]
        if len(touched) != 1:
            raise Undecided(stage, "a hidden unit mixes coordinates")
        return touched[0]

    def _slopes(self, ridge: Ridge) -> list[Fraction]:
        row = to_fractions(ridge.row)
        return [sum(row * self.W_in[:, i], Fraction(0)) for i in range(self.grid.d_model)]

    def plateaus(self, stage: str, ridge: Ridge) -> tuple[np.ndarray, np.ndarray]:
        """The values of a ridge on every plateau, (n, K, c), and how float64 rounds them.

        Raises:
            Undecided: If a cell has no piece on which the ridge is constant.
        """
        i = self.coordinate(stage, ridge)
        a = self._slopes(ridge)[i]
        row = to_fractions(ridge.row)
        n, K, c = self.grid.seq_len, self.grid.cells, len(ridge.writes)
        values = np.empty((n, K, c), dtype=object)
        level = np.asarray((ridge.slopes == 0).all(axis=-1), dtype=bool)
        ends = np.empty((n, K, 2))
        for j in range(n):
            b = sum(row * self.start[j], Fraction(0))
            for k in range(K):
                x_0, x_1 = self.intervals[j][i][k]
                low, high = sorted((a * x_0 + b, a * x_1 + b))
                found = _longest_level(ridge.bends, level, low, high)
                if found is None:
                    why = f"coordinate {i + 1} is nowhere constant on cell {k} of {K}"
                    raise Undecided(stage, why)
                piece, t_0, t_1 = found
                x_0, x_1 = sorted(((t_0 - b) / a, (t_1 - b) / a))
                self.intervals[j][i][k] = (x_0, x_1)
                values[j, k] = [
                    Fraction(v, ridge.offset_unit) for v in ridge.offsets[piece]
                ]
                ends[j, k] = float(t_0), float(t_1)
        rounding = np.zeros((n, K, c))
        if ridge.forward:
            size = self._size(ridge)
            top = ends.max(axis=-1) + size * 2.0**-50
            rounding = ridge.rounding(top, np.full(top.shape, size), len(ridge.row))
        return values, rounding

    def _size(self, ridge: Ridge) -> float:
        """|w| . |z| over the whole box."""
        box = self.grid.box
        far = np.array(
            [max(abs(a), abs(b)) for a, b in zip(box.lows, box.highs, strict=True)]
        )
        held = np.abs(self.registers.W_in) @ far + np.abs(self.registers.start).max(axis=0)
        return float(np.abs(ridge.row) @ held) * OUTWARD * OUTWARD

    def lengths(self) -> list[list[list[Fraction]]]:
        """Lengths of the plateaus by token, coordinate and cell."""
        return [[[b - a for a, b in cells] for cells in row] for row in self.intervals]

    def lost(self, j: int, i: int) -> Fraction:
        """What rounding the read-in costs a plateau at each end, in the user's units.

        x is rounded to float64, and W_in x + start has d products, d sums and one more.
        """
        box, d = self.grid.box, self.grid.d_model
        far = [
            max(abs(Fraction(a)), abs(Fraction(b)))
            for a, b in zip(box.lows, box.highs, strict=True)
        ]
        worst = Fraction(0)
        for k in range(len(self.W_in)):
            a = abs(self.W_in[k, i])
            if a == 0:
                continue
            size = sum((abs(self.W_in[k, e]) * far[e] for e in range(d)), Fraction(0))
            rounding = gamma(d + 3) * (size + abs(self.start[j, k])) + Fraction(UNDERFLOW)
            worst = max(worst, rounding / a)
        return worst


def _longest_level(
    bends: np.ndarray, level: np.ndarray, low: Fraction, high: Fraction
) -> tuple[int, Fraction, Fraction] | None:
    """The longest piece of [low, high] on which the ridge is constant.

    Returns:
        The number of the piece, and its ends inside [low, high].
    """
    first = int(np.searchsorted(bends, float(low) - abs(float(low)) * 2.0**-50))
    last = int(np.searchsorted(bends, float(high) + abs(float(high)) * 2.0**-50))
    best: tuple[int, Fraction, Fraction] | None = None
    for piece in range(first, last + 1):
        if not level[piece]:
            continue
        start = low if piece == 0 else max(low, Fraction(float(bends[piece - 1])))
        end = high if piece == len(bends) else min(high, Fraction(float(bends[piece])))
        if end > start and (best is None or end - start > best[2] - best[1]):
            best = piece, start, end
    return best
