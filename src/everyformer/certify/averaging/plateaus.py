"""Where hidden units that look at the input are constant, cell by cell.

A ridge psi(w . z) sees, on a plateau of cell k of coordinate i of token j,

    tau = a x_i + b,   a = sum w_r W_in[r, i] over inputs r,
                       b = sum w_r start[j, r] over inputs + sum w_r z_r over all others,

with z_r as the stages before have left it, and not as it began. Where that z_r depends on
another coordinate than i, so does b, and nothing is decided.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.on_cells.values import Mode
from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.register_stages import OUTWARD, Exact, Update
from everyformer.certify.ridge import Ridge, whole
from everyformer.certify.rounding import gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, to_fractions
from everyformer.targets.box import Grid


@dataclass(frozen=True)
class _Seen:
    """What a ridge sees of the registers on cells of one coordinate.

    Attributes:
        slope: a.
        offset: b, Fractions of shape (n, K).
        off: How far the run's tau may be from a x + b, Fractions of shape (n, K).
        size: |w| . |z| of a run, rounded up, float64 of shape (n, K).
    """

    slope: Fraction
    offset: np.ndarray
    off: np.ndarray
    size: np.ndarray


class PlateauSearch:
    """The plateaus of every coordinate, cut by every ridge that looks at it.

    Attributes:
        intervals: The plateau of cell k of coordinate i of token j, at [j][i][k].
        lost: What rounding costs it at each end, Fractions of shape (n, d), in the user's
            units.
    """

    def __init__(
        self, registers: RegisterWeights, inputs: np.ndarray, grid: Grid, mode: Mode
    ) -> None:
        self.inputs, self.grid = inputs, grid
        self.mode: Mode = mode
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
        self.lost = np.full((n, d), Fraction(0), dtype=object)
        self.digits = grid.digits(np.arange(grid.columns))  # [V, d]

    def add(self, stage: str, ridge: Ridge, state: Exact, update: Update) -> None:
        """Cut the plateaus by a ridge, and add what it writes there.

        Args:
            stage: Its name, for messages.
            ridge: It reads an input.
            state: The registers before the stage, of every token and column, (n, V, w).
            update: What the stage adds to them.

        Raises:
            Undecided: If the ridge sees more than one coordinate, or a cell has no piece on
                which it is constant.
        """
        i, slope = self._slope(stage, ridge)
        seen = self._seen(stage, ridge, state, i, slope)
        values, top, lost = self._cut(stage, ridge, i, seen)
        n, K, c = values.shape
        which = np.arange(n)[:, None] * K + self.digits[:, i]
        update.add(ridge, values.reshape(n * K, c), which, self.mode)
        if self.mode == "real":
            return
        top = top + seen.off.astype(np.float64) * OUTWARD + seen.size * 2.0**-50
        rounding = ridge.rounding(top, seen.size, len(ridge.row))
        update.error[..., ridge.writes] += rounding[:, self.digits[:, i]]
        self.lost[:, i] = [max(a, b) for a, b in zip(self.lost[:, i], lost, strict=True)]

    def _slope(self, stage: str, ridge: Ridge) -> tuple[int, Fraction]:
        """The one coordinate that a ridge looks at, and a."""
        slopes: list[Fraction] = (to_fractions(ridge.row) @ self.W_in).tolist()
        touched = [i for i, slope in enumerate(slopes) if slope]
        if len(touched) != 1:
            raise Undecided(stage, "a hidden unit mixes coordinates")
        return touched[0], slopes[touched[0]]

    def _seen(
        self, stage: str, ridge: Ridge, state: Exact, i: int, slope: Fraction
    ) -> _Seen:
        n, d, K = self.grid.seq_len, self.grid.d_model, self.grid.cells
        # [K, V/K]: the columns of each cell of coordinate i
        columns = np.argsort(self.digits[:, i], kind="stable").reshape(K, -1)
        row = to_fractions(ridge.row)
        own = row * self.inputs.astype(int)
        others = np.flatnonzero(np.where(self.inputs, 0.0, ridge.row))
        exact = whole(ridge.row)
        weights = exact.numbers[others]
        read = np.asarray(state.numbers[..., others].astype(object) @ weights)
        read = read + np.zeros((n, self.grid.columns), dtype=object)  # 0 for no others
        read = read[:, columns]
        if (read != read[..., :1]).any():
            why = f"a hidden unit looks at coordinate {i + 1}, and at what others wrote"
            raise Undecided(stage, why)
        offset = np.empty((n, K), dtype=object)
        for j in range(n):
            begins = sum(own * self.start[j], Fraction(0))
            unit = state.unit * exact.unit
            offset[j] = [begins + Fraction(int(v), unit) for v in read[j, :, 0]]
        off = np.full((n, K), Fraction(0), dtype=object)
        if self.mode == "real":
            return _Seen(slope, offset, off, np.zeros((n, K)))
        sizes = np.abs(np.where(self.inputs, 0.0, ridge.row))
        carried = (state.error @ sizes)[:, columns].max(axis=-1) * OUTWARD
        size = (state.sizes() @ sizes)[:, columns].max(axis=-1)
        far = [max(abs(a), abs(b)) for a, b in zip(*self._box, strict=True)]
        for j in range(n):
            # x is rounded to float64; W_in x + start has d products, d sums and one more.
            held = abs(self.W_in) @ np.array(far, dtype=object) + abs(self.start[j])
            read_in = gamma(d + 3) * sum(abs(own) * held) + sum(abs(own)) * Fraction(
                UNDERFLOW
            )
            size[j] += float(sum(abs(own) * held)) * OUTWARD
            if not np.isfinite(carried[j] + size[j]).all():
                raise Undecided(stage, "nothing bounds what its hidden units see")
            off[j] = [read_in + Fraction(float(v)) for v in carried[j]]
        return _Seen(slope, offset, off, size * OUTWARD * OUTWARD)

    @property
    def _box(self) -> tuple[list[Fraction], list[Fraction]]:
        box = self.grid.box
        return [Fraction(v) for v in box.lows], [Fraction(v) for v in box.highs]

    def _cut(
        self, stage: str, ridge: Ridge, i: int, seen: _Seen
    ) -> tuple[np.ndarray, np.ndarray, list[Fraction]]:
        """The values of a ridge on every plateau, (n, K, c), and the largest tau there.

        And for each token what every plateau loses at each end, if tau is off: off/a at an
        end where the ridge bends, less if the piece goes on beyond it.
        """
        n, K, c = self.grid.seq_len, self.grid.cells, len(ridge.writes)
        values = np.empty((n, K, c), dtype=object)
        level = np.asarray((ridge.slopes == 0).all(axis=-1), dtype=bool)
        top, a = np.empty((n, K)), seen.slope
        lost = [Fraction(0)] * n
        for j, k in np.ndindex(n, K):
            b = seen.offset[j, k]
            x_0, x_1 = self.intervals[j][i][k]
            low, high = sorted((a * x_0 + b, a * x_1 + b))
            found = _longest_level(ridge.bends, level, low, high)
            if found is None:
                why = f"coordinate {i + 1} is nowhere constant on cell {k} of {K}"
                raise Undecided(stage, why)
            piece, t_0, t_1 = found
            x_0, x_1 = sorted(((t_0 - b) / a, (t_1 - b) / a))
            self.intervals[j][i][k] = (x_0, x_1)
            values[j, k] = [Fraction(v, ridge.offset_unit) for v in ridge.offsets[piece]]
            top[j, k] = float(t_1)
            left, right = _beyond(ridge.bends, piece, t_0, t_1)
            missing = [seen.off[j, k] - room for room in (left, right) if room is not None]
            lost[j] = max([lost[j], *(m / abs(a) for m in missing)])
        return values, top, lost

    def lengths(self) -> list[list[list[Fraction]]]:
        """Lengths of the plateaus by token, coordinate and cell."""
        return [[[b - a for a, b in cells] for cells in row] for row in self.intervals]


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


def _beyond(
    bends: np.ndarray, piece: int, t_0: Fraction, t_1: Fraction
) -> tuple[Fraction | None, Fraction | None]:
    """How far a piece goes on left of t_0 and right of t_1; None for ever."""
    left = None if piece == 0 else t_0 - Fraction(float(bends[piece - 1]))
    right = None if piece == len(bends) else Fraction(float(bends[piece])) - t_1
    return left, right
